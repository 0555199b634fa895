"""The embedded trainer on two processes of this machine: step times predicted after `meshwright
profile`, against those that it takes.

    python -m benchmarks.trainer_predicted [--rounds 3] [--effort quick]

Needs torch; ten minutes on two idle cores. Each round measures a profile anew and then runs every
layout, so that what else the machine does falls on both; the medians over the rounds are compared.
Of a layout's steps in a round the first quartile counts. Beside it stands the processor time that
the first process took for a step: on a machine that others use, the clock counts their time too,
and that column alone says something; it leaves out waiting for the other process. Prints every
layout's error, the rank correlation, the date and the load, and exits with 1 where an error is
above 25 % or the correlation below 0.8, and with 3 where others used the machine: no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import numpy as np

from meshwright.cost.step import price
from meshwright.platforms.given import load_profile
from meshwright.search.link_rates import local_pool
from meshwright.values.layout import Layout, Layouts, parse_layout
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack
from meshwright.values.workload import Workload

WITHIN, CORRELATION = 0.25, 0.8
CORES_BUSY, NO_VERDICT = 1.5, 3
"""Load for each core, of which the benchmark itself makes one; and the exit code beyond."""
SEQ_LEN, GBS, STEPS, WARM = 128, 16, 8, 2
CASES = (
    *(("tiny-llama", f"dp=2,sharding={sharding},mbs=4") for sharding in ("none", "zero1", "zero3")),
    *(("tiny-llama", f"dp=2,sharding=none,mbs={mbs}") for mbs in (1, 8)),
    ("tiny-llama", "dp=2,sharding=none,mbs=4,recompute=full"),
    *(("tiny-llama", f"{axis},mbs=4") for axis in ("tp=2", "tp=2,sp=1", "cp=2")),
    *(("tiny-llama", f"pp=2,{more}mbs=2") for more in ("", "vpp=2,")),
    *(("tiny-moe", f"dp=2,{more}sharding=none,mbs=4") for more in ("", "ep=2,")),
    ("tiny-moe", "dp=2,sharding=zero3,mbs=8"),
    ("tiny-moe", "pp=2,mbs=2"),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One layout, medians over the rounds."""

    model: str
    words: str
    predicted_s: float
    measured_s: float
    processor_s: float
    terms_s: Mapping[str, float]

    @property
    def error(self) -> float:
        """Of the prediction, against the measurement."""
        return self.predicted_s / self.measured_s - 1.0


def layout_of(words: str) -> Layout:
    """Return the layout of a case."""
    return Layout(**{"gbs": GBS, **parse_layout(words)})


def profiled(path: Path, effort: str) -> None:
    """Measure this machine with both processes at work."""
    words = [
        "-m",
        "meshwright",
        "profile",
        "-o",
        str(path),
        "--overwrite",
        f"--{effort}",
        "--device",
        "cpu",
        "--model",
        "tiny-llama",
    ]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words]
    subprocess.run(
        command,
        check=True,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )


def predicted(path: Path) -> list[dict[str, float]]:
    """Return the terms of each case's step."""
    pool, stack = (
        local_pool(load_profile(path), num_chips=2),
        find_stack("embedded").on_processors(),
    )
    work = Workload(seq_len=SEQ_LEN, gbs=GBS, precision="fp32")
    found = []
    for name, words in CASES:
        priced = price(
            Layouts.of([layout_of(words)]),
            model=find_model(name),
            pool=pool,
            work=work,
            stack=stack,
        )
        found.append({term: float(seconds[0]) for term, seconds in priced.time.items()})
    return found


def measured(folder: Path) -> list[tuple[float, float]]:
    """Run every case on two processes of one group; return the first quartile of each one's steps,
    by the clock and by processor time."""
    out, store = folder / "steps.json", folder / f"store-{perf_counter():.6f}"
    command = [sys.executable, "-m", "benchmarks.trainer_predicted", "--work"]
    with (folder / "work.log").open("w", encoding="utf-8") as log:
        words = {"env": _environment(), "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        ranks = [
            subprocess.Popen([*command, str(rank), str(store), str(out)], **words)
            for rank in range(2)
        ]  # type: ignore[call-overload]
        codes = [rank.wait() for rank in ranks]
    if any(codes):
        raise SystemExit((folder / "work.log").read_text(encoding="utf-8")[-3000:])
    found: list[tuple[float, float]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _work(rank: int, store: str, out: str) -> None:
    import torch
    import torch.distributed as dist

    from meshwright.trainer.job import TrainJob
    from meshwright.trainer.run import train

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(minutes=5)
    )
    found = []
    for name, words in CASES:
        given: dict[str, Any] = {
            "precision": "fp32",
            "steps": STEPS,
            "device": "cpu",
            "seq_len": SEQ_LEN,
            "profile_step": 0,
        }
        lines: list[str] = []
        spent: list[float] = []

        def tell(line: str, lines: list[str] = lines, spent: list[float] = spent) -> None:
            lines.append(line)
            spent.append(process_time())

        train(
            TrainJob(model=find_model(name), layout=layout_of(words), **given),
            torch.device("cpu"),
            tell=tell,
            started=perf_counter(),
        )
        if rank == 0:  # the others tell nothing
            steps = [line["step_s"] for line in map(json.loads, lines) if line["event"] == "step"][
                WARM:
            ]
            own = [after - before for before, after in pairwise(spent[: len(steps) + WARM])][
                WARM - 1 :
            ]
            found.append([quantiles(times, n=4, method="inclusive")[0] for times in (steps, own)])
    if rank == 0:
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # as the trainer ends: gloo's threads may still hold tensors


def outcomes(
    terms: Sequence[Sequence[Mapping[str, float]]], seconds: Sequence[Sequence[tuple[float, float]]]
) -> list[Outcome]:
    """Compare the medians over the rounds."""
    found = []
    for at, (model, words) in enumerate(CASES):
        own = {term: median(each[at][term] for each in terms) for term in terms[0][at]}
        total = median(sum(each[at].values()) for each in terms)
        clock, own_time = (median(each[at][kind] for each in seconds) for kind in (0, 1))
        found.append(
            Outcome(
                model=model,
                words=words,
                predicted_s=total,
                measured_s=clock,
                processor_s=own_time,
                terms_s=own,
            )
        )
    return found


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, without ties."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def _line(found: Outcome) -> str:
    largest = sorted(found.terms_s.items(), key=lambda pair: -pair[1])[:5]
    parts = ", ".join(f"{term} {1e3 * seconds:.0f}" for term, seconds in largest)
    told, took, own = (
        f"{1e3 * seconds:8.0f}"
        for seconds in (found.predicted_s, found.measured_s, found.processor_s)
    )
    return f"{found.model:11}{found.words:42}{told}{took}{found.error:+8.0%}{own}   {parts}"


def main() -> int:
    """Run the rounds, print, and say whether predictions hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--effort", choices=("quick", "standard", "full"), default="quick")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        _work(int(given.work[0]), *given.work[1:])
    terms, seconds, loads = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            profiled(Path(folder, "here.npz"), given.effort)
            terms.append(predicted(Path(folder, "here.npz")))
            seconds.append(measured(Path(folder)))
            loads.append(os.getloadavg()[1])
            print(
                f"round {number + 1} of {given.rounds}, load {loads[-1]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    found = outcomes(terms, seconds)
    print(
        f"{datetime.now(UTC):%Y-%m-%d}, load {min(loads):.1f} to {max(loads):.1f} on"
        f" {os.cpu_count()} cores, seq {SEQ_LEN}, gbs {GBS}, fp32"
    )
    print(
        f"{'model':11}{'layout':42}{'told ms':>8}{'took ms':>8}{'error':>8}{'cpu ms':>8}   largest"
        " parts, ms"
    )
    print("\n".join(map(_line, found)))
    errors = [abs(each.error) for each in found]
    correlation = rank_correlation(
        [each.predicted_s for each in found], [each.measured_s for each in found]
    )
    within = sum(error <= WITHIN for error in errors)
    print(
        f"{within} of {len(found)} within {WITHIN:.0%}, median {median(errors):.0%}, largest"
        f" {max(errors):.0%}; Spearman {correlation:.2f}"
    )
    if max(loads) > CORES_BUSY * (os.cpu_count() or 1):
        print(
            "no verdict: others used this machine meanwhile, so that the clock holds their time too"
        )
        return NO_VERDICT
    return int(max(errors) > WITHIN or correlation < CORRELATION)


if __name__ == "__main__":
    sys.exit(main())
