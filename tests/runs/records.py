"""Runs for the tests of studies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.runs.outcome import Measured
from meshwright.runs.record import Predicted, RunRecord, run_id_of
from meshwright.values.layout import Layout

GIB = float(2**30)


def predicted(**changes: Any) -> Predicted:
    plain = Predicted(
        step_s=2.0,
        step_interval_s=(1.6, 2.5),
        peak_bytes=40 * GIB,
        peak_interval_bytes=(36 * GIB, 44 * GIB),
        fits="yes",
        flops_per_s_per_gpu=4e14,
        mfu=0.4,
    )
    return replace(plain, **changes)


def record(layout: Layout | None = None, **changes: Any) -> RunRecord:
    layout = layout or Layout(tp=2, pp=2, dp=4, mbs=1, gbs=64)
    plain = RunRecord(
        run_id=run_id_of(layout),
        number=1,
        layout=layout,
        predicted=predicted(),
        chosen_because="predicted fastest",
    )
    return replace(plain, **changes)


def measured(step_s: float, **changes: Any) -> Measured:
    plain = Measured(
        step_s=step_s,
        step_low_s=step_s * 0.99,
        step_high_s=step_s * 1.02,
        tokens_per_s=64 * 1024 / step_s,
        samples_per_s=64 / step_s,
        steps=8,
        peak_allocated_bytes=30 * GIB,
        peak_reserved_bytes=33 * GIB,
        final_loss=9.5,
    )
    return replace(plain, **changes)
