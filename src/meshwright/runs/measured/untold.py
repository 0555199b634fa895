"""What a row does not tell of its run, and what is taken for it."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.runs.measured.blanks import axes_untold
from meshwright.runs.measured.cells import Cells
from meshwright.trust.intervals import Assumption
from meshwright.trust.untold import taken_words
from meshwright.values.layout import Layout
from meshwright.values.workload import Workload

__all__ = ["assumptions_of_row", "words_of"]


def assumptions_of_row(cells: Cells, layout: Layout) -> tuple[Assumption, ...]:
    """Return what has to be taken for granted of layout and workload, in the order of the type.

    What plays no part is left out: sharding of one replica, sequence parallelism of one rank.
    """
    blank: Mapping[Assumption, bool] = {
        "micro batch": not _told(cells, "mbs") and not _told(cells, "gbs", "ga"),
        "global batch": not _told(cells, "gbs"),
        "recompute": not _told(cells, "recompute"),
        "sharding": not _told(cells, "zero") and layout.dp * layout.cp > 1,
        "sequence parallelism": not _told(cells, "sp") and layout.tp > 1,
        "precision": not _told(cells, "precision"),
        "sequence length": not _told(cells, "seq_len"),
        "number of chips": not _told(cells, "num_gpus"),
        "parallel axes": axes_untold(cells) and layout.num_chips > 1,
    }
    return tuple(name for name, is_blank in blank.items() if is_blank)


def _told(cells: Cells, *columns: str) -> bool:
    return all(cells.text(column) is not None for column in columns)


def words_of(
    assumptions: tuple[Assumption, ...], layout: Layout, workload: Workload
) -> tuple[str, ...]:
    """Return a line for people for each assumption: what was not told, and what was taken."""
    taken = taken_words(assumptions, layout, workload)
    return tuple(f"{name} not told: {what} taken" for name, what in taken.items())
