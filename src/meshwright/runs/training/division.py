"""How a layout's replicas and batch divide on some GPUs, and what would divide nearby."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.values.layout import Layout
from meshwright.values.units import counted

__all__ = [
    "Division",
    "divide",
    "divides",
]


_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """A layout on some GPUs."""

    gpus: int
    per_replica: int
    """tp * cp * pp."""
    dp: int | None
    """None where the GPUs are no whole number of replicas."""
    micro_batches: int | None
    """Of one replica in a step; None where the batch does not divide."""
    nearest_gpus: tuple[int, ...] = ()
    """Counts around this one on which plan and batch divide."""
    nearest_gbs: tuple[int, ...] = ()
    """Batches around the plan's that divide on these GPUs."""

    @property
    def divides(self) -> bool:
        """Whether the plan runs."""
        return self.micro_batches is not None

    def words(self, layout: Layout) -> str:
        """Return the sentence of it."""
        per = f"tp {layout.tp} * cp {layout.cp} * pp {layout.pp}"
        if self.dp is None:
            return (
                f"{counted(self.gpus, 'GPU')} are no multiple of {per} ="
                f" {self.per_replica}{self._remedies()}"
            )
        whole = f"{counted(self.gpus, 'GPU')} / ({per}) = dp {self.dp}"
        if self.micro_batches is None:
            return (
                f"{whole}, but gbs {layout.gbs} is no multiple of mbs {layout.mbs} * dp"
                f" {self.dp}{self._remedies()}"
            )
        return (
            f"{whole}; gbs {layout.gbs} / (mbs {layout.mbs} * dp {self.dp}) = {self.micro_batches}"
            " micro batches"
        )

    def _remedies(self) -> str:
        found = [f"{', '.join(map(str, self.nearest_gpus))} GPUs"] if self.nearest_gpus else []
        found += [f"gbs {', '.join(map(str, self.nearest_gbs))}"] if self.nearest_gbs else []
        return f"; {' or '.join(found)} would do" if found else ""


def divide(layout: Layout, *, gpus: int, gpus_per_node: int) -> Division:
    """Return how a layout's replicas and batch divide on some GPUs; dp is the layout's to change,
    its batch is not.

    Formula:  dp = gpus / (tp * cp * pp), micro batches = gbs / (mbs * dp), both whole
    Units:    counts.
    Source:   megatron/core/parallel_state.py. Older documents divide the GPUs by tp * pp alone, and
              the batch by mbs * GPUs
    Checked:  tests/runs/training/test_replicas.py
    """
    per_replica = layout.tp * layout.cp * layout.pp
    dp = gpus // per_replica if gpus % per_replica == 0 and gpus > 0 else None
    batches = (
        layout.gbs // (layout.mbs * dp) if dp is not None and divides(layout, gpus=gpus) else None
    )
    near_gpus: tuple[int, ...] = ()
    near_gbs: tuple[int, ...] = ()
    if batches is None:
        near_gpus = _near_gpus(
            layout, gpus=gpus, per_replica=per_replica, gpus_per_node=gpus_per_node
        )
        near_gbs = () if dp is None else _near_gbs(layout.gbs, layout.mbs * dp)
    return Division(
        gpus=gpus,
        per_replica=per_replica,
        dp=dp,
        micro_batches=batches,
        nearest_gpus=near_gpus,
        nearest_gbs=near_gbs,
    )


def divides(layout: Layout, *, gpus: int) -> bool:
    """Whether GPUs make whole replicas of a layout, and its batch whole micro batches of each, as
    in `divide`."""
    replicas, rest = divmod(gpus, layout.tp * layout.cp * layout.pp)
    return replicas > 0 and not rest and layout.gbs % (layout.mbs * replicas) == 0


def _near_gpus(
    layout: Layout, *, gpus: int, per_replica: int, gpus_per_node: int
) -> tuple[int, ...]:
    """Counts of whole nodes, or within one, nearest first."""
    most = layout.gbs // layout.mbs
    counts = [dp * per_replica for dp in range(1, most + 1) if layout.gbs % (layout.mbs * dp) == 0]
    usable = [count for count in counts if count % gpus_per_node == 0 or count < gpus_per_node]
    return tuple(sorted(sorted(usable, key=lambda count: (abs(count - gpus), count))[:_SHOWN]))


def _near_gbs(gbs: int, unit: int) -> tuple[int, ...]:
    below = gbs // unit * unit
    return tuple(size for size in (below, below + unit) if size > 0)
