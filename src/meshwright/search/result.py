"""PlanResult: ranked layouts with their figures, and what was searched; `to_dict` is the contract
of `plan --json`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from meshwright.search.request import PlanRequest
from meshwright.trust.intervals import Fits, Intervals
from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout, StageLayout
from meshwright.values.text import html_table
from meshwright.values.units import GIB, TERA

__all__ = ["NearestMiss", "Plan", "PlanResult", "Proof", "Remedy", "layout_dict", "mixed_dict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One layout with what it is predicted to do."""

    rank: int
    layout: Layout
    time_s: dict[str, float]
    """Seconds of one step by term."""
    memory_bytes: dict[str, float]
    """Of the fullest stage, by term."""
    peak_memory_bytes: tuple[float, ...]
    """Of each stage."""
    fits: Fits
    tokens_per_s_per_gpu: float
    mfu: float
    """Full attention, recompute not counted."""
    causal_mfu: float
    """With the masked half of attention left out."""
    flops_per_s_per_gpu: float
    tokens_per_dollar: float | None
    beats_next: str
    """Why it stands before the next rank."""
    provenance: dict[str, Any]
    intervals: Intervals
    mixed: MixedLayout | None = None
    """Over several kinds of chips, what each stage runs as; `layout` is then the first stage's."""
    chips: tuple[tuple[str, int, int], ...] = ()
    """Where there are several kinds or idle chips: each kind, its chips in use, those idle."""

    @property
    def step_s(self) -> float:
        """Seconds per optimizer step: the sum of the terms."""
        return sum(self.time_s.values())

    @property
    def tokens_per_s(self) -> float:
        """Of all chips in use."""
        used = sum(used for _, used, _ in self.chips)
        return self.tokens_per_s_per_gpu * (used or self.layout.num_chips)

    @property
    def peak_bytes(self) -> float:
        """What the fullest chip shows."""
        return max(self.peak_memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as the contract has it."""
        mixed = {} if self.mixed is None else mixed_dict(self.mixed)
        chips = [{"chip": name, "used": used, "idle": idle} for name, used, idle in self.chips]
        return {
            "rank": self.rank,
            "layout": layout_dict(self.layout),
            **mixed,
            **({"chips": chips} if chips else {}),
            "step_s": self.step_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "mfu": self.mfu,
            "tflops_per_gpu": self.flops_per_s_per_gpu / TERA,
            "fits": self.fits,
            "interval": self.intervals.to_dict(),
            "peak_memory_gib": [peak / GIB for peak in self.peak_memory_bytes],
            "time": dict(self.time_s),
            "memory": {term: size / GIB for term, size in self.memory_bytes.items()},
            "provenance": {
                **self.provenance,
                "causal_mfu": self.causal_mfu,
                "tokens_per_dollar": self.tokens_per_dollar,
                "beats_next": self.beats_next,
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """A change under which something fits."""

    change: str
    """What to change, as words for the command line."""
    num_chips: int
    layout: Layout
    step_s: float
    peak_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "change": self.change,
            "num_chips": self.num_chips,
            "layout": layout_dict(self.layout),
            "step_s": self.step_s,
            "peak_memory_gib": self.peak_bytes / GIB,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestMiss:
    """The layout that comes nearest to fitting."""

    layout: Layout
    over_bytes: float
    memory_bytes: dict[str, float]
    """Of its fullest stage, by term."""
    remedies: tuple[Remedy, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        memory = {term: size / GIB for term, size in self.memory_bytes.items()}
        return {
            "layout": layout_dict(self.layout),
            "over_gib": self.over_bytes / GIB,
            "memory": memory,
            "remedies": [remedy.to_dict() for remedy in self.remedies],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """How near to the best of its space a searched plan is, by the closed form that ranks."""

    bound_s: float
    """Seconds per step that no plan of the space undercuts, at the best plan's batch and chips."""
    gap_frac: float
    """How much better than the best found a plan might be; 0: none can."""
    boxes: int
    """Sets of plans that were split."""
    solved: int
    """Inner problems that were solved."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `search` of the contract has it."""
        return {
            "exhaustive": self.gap_frac == 0.0,
            "bound_gap": self.gap_frac,
            "bound_step_s": self.bound_s,
            "boxes": self.boxes,
            "solved": self.solved,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanResult:
    """The answer to a PlanRequest."""

    request: PlanRequest
    plans: tuple[Plan, ...]
    """Best first; empty where nothing fits."""
    rejected: dict[str, int]
    """Layouts by the reason for which they were dropped."""
    layouts: int
    """Layouts priced."""
    seconds: float = 0.0
    """Wall time; the search itself does not look at the clock."""
    notes: tuple[str, ...] = ()
    """What a reader must know: the rule for the batch, the bounds of the search."""
    nearest_miss: NearestMiss | None = None
    """Where nothing fits."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of model and cluster, for the heading of a table."""
    proof: Proof | None = None
    """Where the space was not priced whole but searched by branch and bound."""
    front: tuple[Plan, ...] | None = None
    """Plans of which no other is both faster and cheaper, the cheapest first; None: not asked."""

    def _repr_html_(self) -> str:
        """Show the ranked plans in a notebook; where nothing fits, why."""
        asked = f"{self.facts.get('model', self.request.model)} on {self.request.cluster}"
        if not self.plans:
            miss = (
                ""
                if self.nearest_miss is None
                else f"the nearest is {self.nearest_miss.over_bytes / GIB:.1f} GiB too large"
            )
            return html_table(
                f"{asked}: nothing fits", ("reason", "layouts"), self.rejected.items(), note=miss
            )
        headings = ("#", "layout", "step, s", "80 %", "tokens/s/GPU", "MFU, %", "peak, GiB", "fits")
        best = self.plans[0]
        note = (
            f"{self.layouts:,} layouts priced; stands on: {best.provenance['kernels']};"
            f" {best.intervals.error}"
        )
        return html_table(
            f"{asked}: {best.step_s:.4g} s a step",
            headings,
            (_cells(plan) for plan in self.plans),
            note=note,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `plan --json` prints."""
        search: dict[str, Any] = {
            "layouts": self.layouts,
            "seconds": self.seconds,
            "exhaustive": True,
            "bound_gap": 0.0,
        }
        if self.proof is not None:
            search |= self.proof.to_dict()
        if self.nearest_miss is not None:
            search["nearest_miss"] = self.nearest_miss.to_dict()
        front = {} if self.front is None else {"pareto": [plan.to_dict() for plan in self.front]}
        return {
            "request": self.request.to_dict(),
            "plans": [plan.to_dict() for plan in self.plans],
            **front,
            "rejected": dict(self.rejected),
            "search": search,
        }


def _cells(plan: Plan) -> tuple[object, ...]:
    """One row of the table in a notebook."""
    words = (
        plan.layout.words()
        if plan.mixed is None
        else ", ".join(f"{s.chip} tp={s.tp} {s.layers} layers" for s in plan.mixed.stages)
    )
    between = "{:.3g} to {:.3g}".format(*plan.intervals.step_s)
    speed = (plan.step_s, between, plan.tokens_per_s_per_gpu, 100 * plan.mfu)
    return (plan.rank, words, *speed, plan.peak_bytes / GIB, plan.fits)


def layout_dict(layout: Layout) -> dict[str, Any]:
    """Return every field of a layout in plain types; tuples are lists."""
    return _plain(layout)


def mixed_dict(mixed: MixedLayout) -> dict[str, Any]:
    """Return `layout`, null in the fields in which stages differ, and `stages`, by the contract."""
    shared = layout_dict(mixed.row(0))
    stages = [_plain(stage) for stage in mixed.stages]
    differs = {
        name: None
        for name in stages[0]
        if name in shared and any(stage[name] != stages[0][name] for stage in stages)
    }
    return {"layout": shared | differs, "stages": stages}


def _plain(value: Layout | StageLayout) -> dict[str, Any]:
    values = ((f.name, getattr(value, f.name)) for f in fields(value))
    return {name: list(each) if isinstance(each, tuple) else each for name, each in values}
