"""How layers are split over the chunks of a pipeline when they do not divide."""

from __future__ import annotations

from itertools import groupby

__all__ = ["even_split", "split_words"]


def even_split(layers: int, *, pp: int, vpp: int) -> tuple[int, ...]:
    """Return the layers of each chunk in model order, as even as can be.

    Formula:  layers // (pp * vpp) each; one more in the first chunks of whole rounds over the stages; what is then left goes, in the round
              behind them, to the last stages but one, because the last holds the head and early stages hold more micro batches
    Units:    layers, one entry per stage (vpp = 1) or chunk; chunk v of stage s is entry v * pp + s.
    Source:   `cost/stages.py` gives the same sums per stage on columns.
    Valid:    pp * vpp <= layers.
    Checked:  tests/rules/test_split.py::test_split_agrees_with_the_columns
    """
    base, rest = divmod(layers, pp * vpp)
    rounds, heavy = divmod(rest, pp)
    last_round = [int(pp - 1 - heavy <= stage <= pp - 2) for stage in range(pp)]
    extras = [1] * pp * rounds + (last_round if rounds < vpp else [])
    extras += [0] * (pp * vpp - len(extras))
    return tuple(base + extra for extra in extras)


def split_words(split: tuple[int, ...]) -> str:
    """Write a split for people, `16 chunks of 3, 16 of 2`."""
    counts = [(size, len(list(run))) for size, run in groupby(sorted(split, reverse=True))]
    return ", ".join(f"{count}{' chunks' if i == 0 else ''} of {size}" for i, (size, count) in enumerate(counts))
