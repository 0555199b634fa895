"""What a row's run must have done otherwise than assumed, where it does not fit by our count."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from meshwright.runs.measured.rows import Case
from meshwright.search.oom import Rung
from meshwright.search.quote import Setting, quotes
from meshwright.search.ran import apart_of, what_fits
from meshwright.values.units import GIB

__all__ = ["as_rows_run", "fallback_of"]


def fallback_of(case: Case, setting: Setting) -> Rung | None:
    """Return the first of what a row leaves blank that makes its run fit; None where it fits, where
    the row says what it recomputes, or where nothing makes it fit.

    A row of a table is a run that somebody describes as it ran; its measured columns are not read.
    One that says what it recomputes describes its memory, and stays as told: sweeps of layouts do,
    and many of their runs did not fit.
    """
    if "recompute" not in case.assumptions:
        return None
    quote = quotes([case.layout], setting)[0]
    return what_fits(quote, setting, told=_told(case)) if quote.verdict == "no" else None


def _told(case: Case) -> Collection[str]:
    """The kernel of attention is the row's, or that of its software in its time."""
    return ("attention",) if "sharding" in case.assumptions else ("attention", "sharding")


def as_rows_run(case: Case, rung: Rung) -> Case:
    """Return the case with what was taken, said in words, and how far that is from what it told."""
    needed, limit, now = (
        size / GIB for size in (rung.base.peak_bytes, rung.quote.limit_bytes, rung.quote.peak_bytes)
    )
    words = (
        f"as told it would need {needed:.0f} GiB of {limit:.0f}, so memory is {now:.0f} GiB with"
        f" {rung.words}"
    )
    return replace(case, apart=apart_of(rung), taken=words)
