"""The ramp of the global batch that --rampup-batch-size asks for."""

from __future__ import annotations

from meshwright.values.layout import Layout

__all__ = ["RAMP", "fitting_ramp", "ramp_note", "ramp_unit"]

RAMP = "--rampup-batch-size"


def ramp_unit(layout: Layout) -> int:
    """Return what each batch of a ramp divides by: one micro batch of each replica, and with chunks
    as many as there are stages (Megatron-Core's pipeline_parallel/schedules.py)."""
    return layout.mbs * layout.dp * (layout.pp if layout.vpp > 1 else 1)


def fitting_ramp(ramp: tuple[str, ...], *, unit: int, to: int) -> tuple[str, ...] | None:
    """Return the words behind --rampup-batch-size with the nearest larger start and step that run;
    None where no ramp does.

    Megatron-Core's num_microbatches_calculator.py demands that each batch divides by
    `unit`, and that whole steps, at least one, lead from the start to the global batch.
    """
    if len(ramp) != 3 or not all(word.isdecimal() for word in ramp):
        return ramp
    start, step, samples = map(int, ramp)
    if min(start, step, unit) < 1 or to % unit:
        return ramp
    if start % unit == 0 and step % unit == 0 and start < to and (to - start) % step == 0:
        return ramp
    start = min(-(-start // unit) * unit, to - unit)
    if start < unit:
        return None
    step = min(-(-step // unit) * unit, to - start)
    while (to - start) % step:
        step += unit
    return str(start), str(step), str(samples)


def ramp_note(fits: tuple[str, ...] | None, *, unit: int) -> str:
    """Say why a ramp is another."""
    if fits is None:
        return f"{RAMP} is left out: the whole batch is one micro batch of each of the replicas"
    return (
        f"{RAMP} starts at {fits[0]} in steps of {fits[1]}: each batch must divide by {unit},"
        " the sequences of the replicas' micro batches"
    )
