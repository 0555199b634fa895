"""A plan of checkpoints as text for people: every figure with the constants behind it."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.checkpoints.plan import CheckpointPlan
from meshwright.checkpoints.size import CheckpointSize
from meshwright.units import (
    GIB,
    HOUR_S,
    MINUTE_S,
    counted,
    format_bytes,
    format_count,
    format_digits,
    format_seconds,
)

__all__ = ["checkpoint_lines"]


def checkpoint_lines(found: CheckpointPlan) -> list[str]:
    """Return the page."""
    size, machine, reliability = found.size, found.machine, found.machine.reliability
    interval = (
        f"{format_digits(found.best_interval_s / MINUTE_S)} min{_steps(found)} loses least (Daly"
        " 2006)"
    )
    return [
        (
            f"{found.model} ({format_count(size.params)} parameters) on {machine.chips} x"
            f" {machine.chip}, {_nodes(machine.nodes)}, stack {found.stack}"
        ),
        "",
        (
            f"Checkpoint  {format_bytes(size.total_bytes)}  {size.total_bytes / size.params:.4g}"
            f" bytes a parameter: {_parts(size)}"
        ),
        (
            f"Write       {format_seconds(found.write_s)}  {_nodes(machine.nodes)} at"
            f" {reliability.write_bytes_per_s_per_node / 1e9:.3g} GB/s each, while no step runs"
        ),
        (
            f"Interval    {interval}: {_share(found.best_share)}; a failure every\n           "
            f" {format_digits(found.mtbf_s / HOUR_S)} h ({reliability.chip_mtbf_s / HOUR_S:,.0f} h"
            f" a chip), {reliability.restart_s / MINUTE_S:.3g} min to restart"
        ),
        f"Saves       every {found.schedule.save_every:,} steps{_asked(found)}",
        f"Keeps       {_kept(found)}",
        f"Peak disk   {format_bytes(found.peak_bytes)}  {_peak(found)}",
        *_quota(found),
        *_simulated(found),
    ]


def _nodes(count: int) -> str:
    return counted(count, "node")


def _parts(size: CheckpointSize) -> str:
    parts = [
        ("weights", size.weight_bytes),
        ("master copy", size.master_bytes),
        ("optimizer states", size.state_bytes),
    ]
    return " + ".join(f"{count / size.params:.4g} {name}" for name, count in parts if count)


def _share(share: float | None) -> str:
    return (
        "hardly any run reaches its next checkpoint"
        if share is None
        else f"{share:.2%} of the time trains"
    )


def _steps(found: CheckpointPlan) -> str:
    steps = found.best_interval_steps
    return (
        ""
        if steps is None
        else f" ({steps:,} steps of {format_seconds(found.schedule.step_s or 0.0)})"
    )


def _asked(found: CheckpointPlan) -> str:
    step_s = found.schedule.step_s
    if step_s is None:
        return "; how long that is needs --step-s, or --seq and --gbs for the best plan's step"
    return (
        f" = {format_digits(found.schedule.save_every * step_s / MINUTE_S)} min:"
        f" {_share(found.asked_share)}"
    )


def _kept(found: CheckpointPlan) -> str:
    rule = found.rule
    parts = [f"the best {rule.best} by validation loss"] if rule.best else []
    parts.append("the newest" if rule.last == 1 else f"the newest {rule.last}")
    if rule.keep_every is not None:
        parts.append(f"each at a multiple of {rule.keep_every:,} steps")
    return ", ".join(parts) + ("; older ones without optimizer states" if rule.drop_states else "")


def _peak(found: CheckpointPlan) -> str:
    full = f"{found.peak_full} x {format_bytes(found.size.total_bytes)}"
    stripped = (
        f" + {found.peak_stripped} x {format_bytes(found.size.without_states_bytes)}"
        if found.peak_stripped
        else ""
    )
    return f"{full}{stripped}, one of them being written"


def _quota(found: CheckpointPlan) -> Iterator[str]:
    if found.quota_bytes is None:
        return
    if found.fits:
        yield (
            f"Quota       {format_bytes(found.quota_bytes)}:"
            f" {format_bytes(found.quota_bytes - found.peak_bytes)} are left"
        )
        return
    yield (
        f"Quota       {format_bytes(found.quota_bytes)}: too small by"
        f" {format_bytes(found.peak_bytes - found.quota_bytes)}"
    )
    if found.fitting_best is None:
        yield "            not even --best 0 would fit"
    else:
        yield f"            --best {found.fitting_best} would fit"
    if not found.rule.drop_states:
        yield "            --drop-states keeps optimizer states of the newest alone"


def _simulated(found: CheckpointPlan) -> Iterator[str]:
    if not found.moments:
        return
    yield ""
    yield f"{'step':>9}  {'loss':>8}  {'on disk':>7}  {'GiB':>9}  {'peak GiB':>9}  goes"
    for moment in found.moments:
        loss = "-" if moment.saved.loss is None else f"{moment.saved.loss:.4f}"
        goes = [
            *(f"{step:,}" for step in moment.choice.delete),
            *(f"states of {step:,}" for step in moment.choice.strip),
        ]
        disk = (
            f"{len(moment.kept):>7}  {moment.bytes / GIB:>9,.1f}  {moment.peak_bytes / GIB:>9,.1f}"
        )
        yield f"{moment.saved.step:>9,}  {loss:>8}  {disk}  {', '.join(goes) or '-'}"
    last = found.moments[-1]
    yield (
        "at the end "
        f" {', '.join(f'{one.step:,}' + ('' if one.has_states else ' (weights)') for one in last.kept)}"  # noqa: E501
    )
