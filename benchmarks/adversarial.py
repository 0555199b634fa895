"""Whether the confidence of `tune` holds where its predictions are wrong in ways that it was not
fitted on.

    python benchmarks/adversarial.py TRUTH_DIR [--count 1000] [--seed 1]

Each study is one of the sets of benchmarks/replay.py with something done to it; beliefs are fitted
without the table of the set. A table weighs as the root of its sets. The ways, in equal numbers:

- axes: one or two choices (tp, pp, micro batch, recomputation, ...) cost more or less per
  doubling;
- noise: each run is off by 1 to 10 %, of which a study knows the scatter of seven steps;
- node: one exchange or the compute of a broken node takes 1.3 to 3 times as long in all runs;
- memory: up to half of the layouts, those that need most, run out of memory;
- stack: everything takes 0.5 to 3 times as long, and one choice that the software announces is not
  done as told, which costs its layouts 15 to 100 % more.

"Right" is a study whose best is within the tolerance of the fastest by what the layouts take
without noise.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from replay import CONFIDENCES, Study, as_far, studies_of

from meshwright.runs.choose import Tried
from meshwright.runs.replay import NEAR, Answer, Replayed, answers_of, course, judged

Floats = NDArray[np.float64]
STEPS = 7
"""Timed steps of a run: 10, of which three are warm-up."""
LEAST = 4
"""Layouts that must still finish."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adversary:
    """A study with something done to it."""

    way: str
    study: Study
    truth: tuple[float, ...]
    """Seconds without noise, infinite where memory runs out."""
    answer: Answer


Way = Callable[[Study, np.random.Generator], tuple[Floats, Answer | None]]


def scaled_axes(study: Study, chance: np.random.Generator) -> tuple[Floats, Answer | None]:
    """One or two axes cost up to a few tens of per cent per doubling."""
    truth, axes = np.array(study.found.measured), study.options.axes
    moving = [k for k in range(axes.shape[1]) if np.ptp(axes[:, k]) > 0]
    for k in chance.choice(
        moving, size=min(len(moving), int(chance.integers(1, 3))), replace=False
    ):
        truth = truth * np.exp(chance.normal(0.0, 0.1) * axes[:, k])
    return truth, None


def noisy(study: Study, chance: np.random.Generator) -> tuple[Floats, Answer | None]:
    """Runs of one layout differ, a second one of it too."""
    truth, noise = np.array(study.found.measured), float(chance.uniform(0.01, 0.1))
    runs = np.random.default_rng(chance.integers(2**32))

    def answer(index: int) -> Tried:
        if math.isinf(truth[index]):
            return Tried(ran_out=True)
        told = noise * math.sqrt(runs.chisquare(STEPS - 1) / (STEPS - 1))
        return Tried(step_s=float(truth[index] * math.exp(runs.normal(0.0, noise))), noise=told)

    return truth, answer


def broken_node(study: Study, chance: np.random.Generator) -> tuple[Floats, Answer | None]:
    """What a node is slow at weighs in each layout as its share of the step."""
    truth, slopes = np.array(study.found.measured), study.slopes
    moving = [k for k in range(slopes.shape[1]) if np.ptp(slopes[:, k]) > 0.01]
    if not moving:
        return truth * float(chance.uniform(1.3, 3.0)), None
    share = np.clip(slopes[:, chance.choice(moving)], 0.0, 1.0)
    return truth * (1.0 + share * (float(chance.uniform(1.3, 3.0)) - 1.0)), None


def less_memory(study: Study, chance: np.random.Generator) -> tuple[Floats, Answer | None]:
    """Those that need most run out, whatever was predicted to fit."""
    truth = np.array(study.found.measured)
    used = np.log([answer.used_bytes for answer in study.found.predictions])
    order = np.argsort(-(used + chance.normal(0.0, 0.1, len(used))))
    for index in order[: int(chance.uniform(0.1, 0.5) * len(truth))]:
        if np.isfinite(truth).sum() > LEAST:
            truth[index] = math.inf
    return truth, None


def lying_stack(study: Study, chance: np.random.Generator) -> tuple[Floats, Answer | None]:
    """Layouts on one side of a choice are slower than any stack would make them."""
    truth, axes = np.array(study.found.measured), study.options.axes
    column = axes[:, chance.choice([k for k in range(axes.shape[1]) if np.ptp(axes[:, k]) > 0])]
    side = column > chance.choice(np.unique(column)[:-1])
    side = side if chance.random() < 0.5 else ~side
    more = np.where(side, float(chance.uniform(1.15, 2.0)), 1.0)
    return truth * more * float(chance.uniform(0.5, 3.0)), None


WAYS: dict[str, Way] = {
    "axes": scaled_axes,
    "noise": noisy,
    "node": broken_node,
    "memory": less_memory,
    "stack": lying_stack,
}


def adversaries(studies: Sequence[Study], *, count: int, seed: int) -> list[Adversary]:
    """Return so many studies; the same seed gives the same ones."""
    chance = np.random.default_rng(seed)
    sets = Counter(study.found.table for study in studies)
    heft = np.array([1.0 / math.sqrt(sets[study.found.table]) for study in studies])
    found = []
    for place in range(count):
        way = list(WAYS)[place % len(WAYS)]
        study = studies[int(chance.choice(len(studies), p=heft / heft.sum()))]
        truth, answer = WAYS[way](study, chance)
        steps = tuple(truth.tolist())
        found.append(
            Adversary(way=way, study=study, truth=steps, answer=answer or answers_of(steps))
        )
    return found


def ends_of(one: Adversary) -> dict[float, Replayed]:
    """How it goes by the confidence that ends it."""
    moments = as_far(course(one.study.options, one.answer), one.truth)
    return {c: judged(moments, one.truth, confidence=c) for c in CONFIDENCES}


def main() -> int:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("truth", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    ways: dict[str, list[dict[float, Replayed]]] = defaultdict(list)
    for one in adversaries(studies_of(asked.truth), count=asked.count, seed=asked.seed):
        ways[one.way].append(ends_of(one))
    print(f"{date.today().isoformat()}, {platform.machine()}, Python {platform.python_version()}\n")
    show(ways)
    return 0


def show(ways: dict[str, list[dict[float, Replayed]]]) -> None:
    """Print in Markdown what was said beside what was true."""
    print("| way | studies | to 2 % |", end="")
    print("".join(f" {c:.0%}: after | said | right | lost |" for c in CONFIDENCES))
    print(f"|---|---|---|{'---|---|---|---|' * len(CONFIDENCES)}")
    every = [end for ends in ways.values() for end in ends]
    for way, ends in {**ways, "all": every}.items():
        reached = [end[CONFIDENCES[0]].runs_to_2_percent for end in ends]
        cells = [f"{statistics.fmean(r for r in reached if r is not None):.2f}"]
        for c in CONFIDENCES:
            found = [end[c] for end in ends]
            cells += [
                f"{statistics.fmean(one.stopped_after for one in found):.2f}",
                f"{statistics.fmean(one.stated_confidence for one in found):.1%}",
                f"{statistics.fmean(one.regret_frac <= NEAR for one in found):.1%}",
                f"{statistics.fmean(one.regret_frac for one in found):.1%}",
            ]
        print(f"| {way} | {len(ends)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
