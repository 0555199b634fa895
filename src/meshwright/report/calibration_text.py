"""A calibration as text: factors, links, errors before and after, and each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwright.calibration import Calibration, Misses
from meshwright.units import GB, MICROSECOND

if TYPE_CHECKING:
    from meshwright.accuracy.fit import RunMiss

__all__ = ["calibration_lines"]


def calibration_lines(calibration: Calibration, runs: Sequence[RunMiss]) -> list[str]:
    """Return what `calibrate` prints."""
    lines = [calibration.words(), "", f"{'factor':<12} {'value':>7}  measured  usually within"]
    for factor in calibration.factors:
        lines.append(
            f"{factor.name:<12} {factor.value:>7.3f} {factor.measured_frac:>9.0%}  x1 +-"
            f" {factor.prior_width:.0%}"
        )
    if not calibration.factors:
        lines.append("none: no run tells any")
    for rates in calibration.links:
        lines.append(
            f"link {rates.name}: {rates.bytes_per_s / GB:.1f} GB/s,"
            f" {rates.latency_s / MICROSECOND:.2f} us ({rates.source})"
        )
    for name, misses in (
        ("step time", calibration.step_time),
        ("peak memory", calibration.peak_memory),
    ):
        if misses is not None:
            lines += ["", _misses(name, misses)]
            lines += [f"  {_run(run)}" for run in runs if run.quantity == name]
    return lines


def _misses(name: str, misses: Misses) -> str:
    fitted = f"{name}, mean error: {misses.before_frac:.1%} before, {misses.after_frac:.1%} after"
    if misses.left_out_frac is None:
        return f"{fitted}; one run can't be left out, so nothing says how well it holds elsewhere"
    return (
        f"{fitted} on the {misses.runs} runs themselves, {misses.left_out_frac:.1%} with each left"
        " out of its fit"
    )


def _run(run: RunMiss) -> str:
    left_out = "" if run.left_out is None else f", left out {run.left_out - 1:+.1%}"
    return f"{run.before - 1:+.1%} before, {run.after - 1:+.1%} after{left_out}: {run.words}"
