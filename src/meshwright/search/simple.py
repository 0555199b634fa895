"""The simplest of plans that the model cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from meshwright.search.exhaustive import Found
from meshwright.search.published import axes_of_run
from meshwright.search.refine import tidy
from meshwright.trust.ties import tie_frac
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec

__all__ = ["Tie", "mechanisms", "simpler_layouts", "tie_of"]

TRIED = 16
"""Of the simpler layouts, how many are simulated: about what ranking itself simulates."""
_USUAL_SHARDINGS = ("none", "zero1")
"""What a data-parallel run has anyhow, or gets by one word without another exchange."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tie:
    """The first plan is not the fastest: it is simpler, and the model cannot tell them apart."""

    width_frac: float
    """Share of the fastest one's step within which layouts are a tie."""
    gain_frac: float
    """Share of the first one's step by which the fastest might be faster."""
    fastest: Layout
    fastest_rank: int | None
    """None where it is beyond the plans that were asked for."""
    without: tuple[str, ...]
    """What the fastest needs and the first does not."""
    instead: tuple[str, ...] = ()
    """What the first needs and the fastest does not; less than that."""

    @property
    def by(self) -> str:
        """What the fastest would gain by, in words."""
        instead = f" in place of {', '.join(self.instead)}" if self.instead else ""
        return f"{', '.join(self.without)}{instead}"

    def words(self) -> str:
        """Say it in a line."""
        other = self.fastest.words() if self.fastest_rank is None else f"#{self.fastest_rank}"
        return (
            f"tie: #1 is the simplest within {self.width_frac:.1%}, the error between two layouts;"
            f" {other} might be {self.gain_frac:.1%} faster: {self.by} (--fastest)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "width_frac": self.width_frac,
            "gain_frac": self.gain_frac,
            "fastest_layout": self.fastest.words(),
            "fastest_rank": self.fastest_rank,
            "without": list(self.without),
            "instead": list(self.instead),
        }


def mechanisms(layout: Layout, model: ModelSpec) -> tuple[str, ...]:
    """Return what a layout switches on, a word each: the axes that cut the model, and what makes a
    pipeline, its recomputation or its sharding special. Fewer are simpler."""
    axes = {
        "tensor parallelism": layout.tp,
        "context parallelism": layout.cp,
        "expert parallelism": layout.ep,
        "a pipeline": layout.pp,
        "interleaving": layout.vpp,
    }
    found = [name for name, size in axes.items() if size > 1]
    if layout.vpp > 1 and layout.pp * layout.vpp >= model.total_layers:
        found.append("chunks of one layer")
    if layout.layers_per_stage is not None:
        found.append("uneven stages")
    if layout.schedule != "1f1b":
        found.append(f"schedule {layout.schedule}")
    if layout.sharding not in _USUAL_SHARDINGS:
        found.append(f"sharding {layout.sharding}")
    if layout.offload != "none":
        found.append(f"offload of {layout.offload}")
    if layout.optimizer != "adam":
        found.append(f"optimizer {layout.optimizer}")
    if layout.recompute == "selective":
        found += [f"recompute of {module}" for module in layout.recompute_modules]
    elif layout.recompute == "full":
        found.append("full recompute")
        if layout.recompute_layers is not None:
            found.append("a count of recomputed layers")
    return tuple(found)


def _count(layout: Layout, model: ModelSpec, ran: frozenset[tuple[int, ...]]) -> int:
    """How many mechanisms a layout has; one fewer where a published run was cut so."""
    return len(mechanisms(layout, model)) - (axes_of_run(layout) in ran)


def simpler_layouts(
    found: Found,
    fastest: Layout,
    score: float,
    model: ModelSpec,
    ran: frozenset[tuple[int, ...]] = frozenset(),
) -> list[Layout]:
    """Return the simplest few that tie by the closed form with the fastest and its simulated score,
    at its batch; the fastest of equally simple ones first."""
    most = _count(fastest, model, ran)
    near = found.key <= score * (1.0 + tie_frac())
    rows = (tidy(found.layouts.row(int(index))) for index in near.nonzero()[0])
    counted = [
        (count, layout)
        for layout in rows
        if layout.gbs == fastest.gbs and (count := _count(layout, model, ran)) < most
    ]
    counted.sort(key=lambda pair: pair[0])  # the rows are in order of their key, and stay so
    return [layout for _, layout in counted[:TRIED]]


def tie_of(
    scores: Iterable[tuple[Layout, float]],
    model: ModelSpec,
    ran: frozenset[tuple[int, ...]] = frozenset(),
) -> tuple[Layout, Tie] | None:
    """Return the simplest of layouts that tie with the fastest; None where that is the fastest.

    Formula:  of those at the fastest one's batch with score <= (1 + tie_frac) * the least score,
              the fewest mechanisms, one fewer for a layout that a published run was cut by (`ran`,
              as `ran_layouts` has them); of equals the least score
    Units:    scores are any in which smaller is better, such as seconds per sequence.
    Source:   `trust/ties.py`.
    Valid:    scores above 0, the layouts all fit alike.
    Checked:  tests/search/test_simple.py
    """
    known = list(scores)
    fastest, least = min(known, key=lambda pair: pair[1])
    tied = [
        (_count(layout, model, ran), score, layout)
        for layout, score in known
        if score <= least * (1.0 + tie_frac()) and layout.gbs == fastest.gbs
    ]
    count, score, simplest = min(tied, key=lambda each: each[:2])
    if count >= _count(fastest, model, ran):
        return None
    has, needs = mechanisms(simplest, model), mechanisms(fastest, model)
    tie = Tie(
        width_frac=tie_frac(),
        gain_frac=1.0 - least / score,
        fastest=fastest,
        fastest_rank=None,
        without=tuple(word for word in needs if word not in has),
        instead=tuple(word for word in has if word not in needs),
    )
    return simplest, tie
