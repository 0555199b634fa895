"""Memory that a layout leaves free, so that a prediction that is too low does not end the run."""

from __future__ import annotations

__all__ = ["MOST_HEADROOM", "headroom_bytes"]

MOST_HEADROOM = 0.2
"""Share of a chip's memory that is kept free at most where nobody asks for more. Where less is
known of a kind, plans that are safe by its interval would leave half of the chip unused; the
interval itself is always shown."""


def headroom_bytes(limit_bytes: float, *, high: float) -> float:
    """Return what a run must leave free of its limit, so that the upper end of its memory interval
    stays within.

    `high` is that end over the prediction: 1.15 where runs of the kind need up to 15 % more.

    Formula:  limit_bytes * min(MOST_HEADROOM, 1.0 - 1.0 / max(1.0, high)); 0 where predictions of
              the kind have been too high
    Units:    bytes.
    Source:   definition; the interval is from published runs, `trust/residuals.csv`, or the user's
              own.
    Valid:    one kind of runs.
    Checked:  tests/trust/test_intervals.py::test_headroom_is_what_the_upper_end_needs
    """
    return limit_bytes * min(MOST_HEADROOM, 1.0 - 1.0 / max(1.0, high))
