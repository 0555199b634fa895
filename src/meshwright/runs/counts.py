"""What counts as measured: the one rule for every place that reads a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.cost.flops import causal_flops_per_token, mfu
from meshwright.software.log import Report
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import HOUR_S, counted, format_seconds
from meshwright.values.workload import Workload

__all__ = [
    "LEAST_TIMED_STEPS",
    "RunWork",
    "configs_of",
    "cut_short",
    "least_step_s",
    "older_than",
    "refused_record",
    "timed_steps",
    "too_fast",
    "too_few",
]

LEAST_TIMED_STEPS = 5
"""Behind the warm-up. The median of fewer is moved by one slow step."""
OLDER_S = 60.0
"""By which a configuration may be newer than its log: a copied folder's files are dated anew, in
any order."""
CONFIGS = (".yaml", ".yml", ".toml", ".json", ".sh")
"""Suffixes of files that runs are made from."""
_FROZEN_SHARE = 2.0 / 3.0
"""Of all FLOPs where weights are frozen: forward and gradients of inputs, none of weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunWork:
    """What one step of a run is: it turns rates into times, and shows where a log is of other work
    than was asked for."""

    seq_len: int
    gbs: int
    num_chips: int
    steps: int | None = None
    """That the run was to make; None where nobody says."""
    least_step_s: float = 0.0
    """Below which its MFU would be above 100 %; 0 where the chips' peak is not known."""


def least_step_s(
    model: ModelSpec, work: Workload, *, gbs: int, num_chips: int, peak_flops_per_s: float
) -> float:
    """Return the seconds of a step at an MFU of 100 %, masked scores and gradients of frozen
    weights not counted; `peak_flops_per_s` is one chip's."""
    flops = float(causal_flops_per_token(model, work))
    share = mfu(float(gbs * work.seq_len) / num_chips, flops, peak_flops_per_s)
    return share * (_FROZEN_SHARE if work.lora_rank else 1.0)


def timed_steps(reports: Iterable[Report], kept: Iterable[Report]) -> int:
    """Count the steps that some reports of a run stand for: each for those since the one before."""
    covered: dict[Report, int] = {}
    before: Report | None = None
    for report in reports:
        gap = 1
        if before is not None and report.start == before.start:
            gap = (report.step or 0) - (before.step or 0)
        covered[report] = max(1, gap)
        before = report
    return sum(covered.get(report, 1) for report in kept)


def too_few(steps: int) -> str | None:
    """Say that a time stands on too few steps; None where it does not."""
    if steps >= LEAST_TIMED_STEPS:
        return None
    return (
        f"its time stands on {counted(steps, 'step')} behind the warm-up, and"
        f" {LEAST_TIMED_STEPS} are the least; let it run longer"
    )


def cut_short(reports: Sequence[Report], wanted: int | None) -> str | None:
    """Say that a run ended before its last step; None where it did not, or nobody knows."""
    steps = [report.step for report in reports if report.step is not None]
    if wanted is None or not steps:
        return None
    done = max(steps)
    earlier = max((step for step in steps if step < done), default=0)
    # The last report of a run that tells every 10 steps may come 9 before its end.
    if done + max(1, done - earlier) > wanted:
        return None
    return f"it was cut short: its log ends at step {done} of {wanted}"


def too_fast(step_s: float, least_s: float) -> str | None:
    """Say that a step is faster than the chips' peak allows; None where it is not."""
    if step_s >= least_s:
        return None
    return (
        f"a step of {format_seconds(step_s)} is an MFU of {100 * least_s / step_s:.0f} %, above"
        " 100 %: another model, batch, precision or chip than was asked for"
    )


def configs_of(files: Iterable[Path]) -> list[Path]:
    """Return the configurations among a run's files; checkpoints hold copies, written later."""
    return [file for file in files if file.suffix in CONFIGS and "checkpoints" not in file.parts]


def older_than(logs: Iterable[Path], configs: Iterable[Path]) -> str | None:
    """Say that the newest of a run's logs is older than its configuration; None where it is not,
    or either is absent."""
    written = [path.stat().st_mtime for path in logs if path.is_file()]
    made = [(path.stat().st_mtime, path.name) for path in configs if path.is_file()]
    if not written or not made:
        return None
    newest, name = max(made)
    late_s = newest - max(written)
    if late_s <= OLDER_S:
        return None
    late = f"{late_s / HOUR_S:.1f} hours" if late_s >= HOUR_S else f"{late_s / 60:.0f} minutes"
    return f"its log is older than its configuration ({name}) by {late}: it is of another run"


def refused_record(measured: Mapping[str, Any], least_s: float) -> str | None:
    """Say why what a study once wrote of a run does not count; None where it does."""
    steps = measured.get("timed_steps") or measured["steps"]
    return too_few(int(steps)) or too_fast(float(measured["step_s"]), least_s)
