#!/usr/bin/env python3
"""Fit an engine's constants on published closed loops, and say how they hold on models that were
left out.

    scripts/fit_serving.py truth/inference_serving_silicon.csv --engine vllm
    scripts/fit_serving.py truth/inference_serving_silicon.csv --engine vllm --check    #
                                                                                                  errors
                                                                                                  of
                                                                                                  the
                                                                                                  shipped
                                                                                                  constants
                                                                                                  alone

Coordinate descent on the constants of `serving/engines.csv` that no kernel table tells, on runs
whose pools are told. Models are cut into two halves; each half is predicted with constants fitted
on the other. Nothing is written: copy what it prints into the preset.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.runs.measured.serving_predict import predict_case  # noqa: E402
from meshwright.runs.measured.serving_rows import ServingCase, read_serving_row, read_serving_table  # noqa: E402
from meshwright.serving.engine import find_engine  # noqa: E402

CONSTANTS = ("request_s", "launch_s", "kernel_s", "host_s", "host_per_sequence_s")
STEPS = (0.25, 0.5, 0.75, 1.4, 2.0, 4.0)
PER_SET = 8
"""Runs of each model, chip and precision, so that no study outweighs the others."""
CLIP = 1.0
"""Errors beyond it count as this: some published runs hold a warm-up or drafted tokens that no
column tells."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run."""

    case: ServingCase
    ttft_s: float
    tpot_s: float


def main() -> int:
    """Read the flags, fit, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="fit nothing")
    flags = parser.parse_args()
    runs = runs_of(flags.table, find_engine(flags.engine).name)
    shipped = {name: getattr(find_engine(flags.engine), name) for name in CONSTANTS}
    print("shipped, all models:", summary(runs, shipped))
    if flags.check:
        return 0
    models = sorted({run.case.model.name for run in runs})
    for left_out in (models[::2], models[1::2]):
        seen = [run for run in runs if run.case.model.name not in left_out]
        fitted = fit(seen, shipped, flags.rounds)
        print(f"fitted without {', '.join(left_out)}: {show(fitted)}")
        print(
            "  on them:", summary([run for run in runs if run.case.model.name in left_out], fitted)
        )
    print("fitted on all:", show(fitted := fit(runs, shipped, flags.rounds)), summary(runs, fitted))
    return 0


def runs_of(path: Path, engine: str) -> list[Run]:
    """Every few of the closed loops on one pool or on two that are told in full, the same number of
    each study, without repeats."""
    sets: dict[tuple[str, ...], dict[ServingCase, Run]] = {}
    for row in read_serving_table(path).rows:
        case = read_serving_row(row, source="")
        if not isinstance(case, ServingCase) or case.engine.name != engine or not row["ttft_ms"]:
            continue
        if case.pools is not None and not case.pools.decode_workers:
            continue
        key = (case.model.name, row["gpu"], row["precision"], row["mode"])
        run = Run(case=case, ttft_s=float(row["ttft_ms"]) / 1e3, tpot_s=float(row["tpot_ms"]) / 1e3)
        sets.setdefault(key, {}).setdefault(replace(case, row_id=""), run)
    return [
        run
        for runs in sets.values()
        for run in list(runs.values())[:: max(1, len(runs) // PER_SET)]
    ]


def errors(runs: Sequence[Run], constants: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Of TTFT and of TPOT."""
    first, later = [], []
    for run in runs:
        found = predict_case(replace(run.case, engine=replace(run.case.engine, **constants)))
        first.append(min(abs((found.ttft_s or 0.0) / run.ttft_s - 1), CLIP))
        later.append(min(abs((found.tpot_s or 0.0) / run.tpot_s - 1), CLIP))
    return first, later


def fit(runs: Sequence[Run], start: Mapping[str, float], rounds: int) -> dict[str, float]:
    """The constants with the least TTFT error + twice the TPOT error."""
    best, least = dict(start), loss(runs, start)
    for _ in range(rounds):
        for name in CONSTANTS:
            for step in STEPS:
                trial = best | {name: best[name] * step}
                if (found := loss(runs, trial)) < least:
                    best, least = trial, found
    return best


def loss(runs: Sequence[Run], constants: Mapping[str, float]) -> float:
    """Mean error of TTFT + twice that of TPOT."""
    first, later = errors(runs, constants)
    return fmean(first) + 2 * fmean(later)


def summary(runs: Sequence[Run], constants: Mapping[str, float]) -> str:
    """Errors in words."""
    first, later = errors(runs, constants)
    parts = (
        f"{name} {100 * fmean(e):.1f} / {100 * median(e):.1f} %"
        for name, e in (("TTFT", first), ("TPOT", later))
    )
    return f"{len(runs)} runs, mean / median: " + ", ".join(parts)


def show(constants: Mapping[str, float]) -> str:
    """Constants as the preset writes them."""
    return ", ".join(f"{name}={value:.3g}" for name, value in constants.items())


if __name__ == "__main__":
    raise SystemExit(main())
