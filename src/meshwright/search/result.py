"""PlanResult: ranked layouts with their figures, and what was searched; `to_dict` is the contract
of `plan --json`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from meshwright.search.proof import Bound
from meshwright.search.published import NearestRun
from meshwright.search.request import PlanRequest
from meshwright.search.simple import Tie
from meshwright.search.titles import TIME_READINGS
from meshwright.trust.intervals import Fits, Intervals
from meshwright.values.errors import MeshwrightError, load_extra
from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout, StageLayout, mixed_words
from meshwright.values.text import html_table
from meshwright.values.units import GIB, TERA

__all__ = ["NearestMiss", "Plan", "PlanResult", "Proof", "Remedy", "layout_dict", "mixed_dict"]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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

    @property
    def words(self) -> str:
        """The layout as `--layout` takes it; over several kinds of chips, the pipeline in a
        line."""
        return self.layout.words() if self.mixed is None else mixed_words(self.mixed)

    def __repr__(self) -> str:
        return f"Plan(#{self.rank}: {self.step_s:.4g} s a step, {self.words})"

    def _repr_html_(self) -> str:
        """Show the figures in a notebook, then where the step goes."""
        low_s, high_s = self.intervals.step_s
        figures = (
            ("step, s", self.step_s, f"80 %: {low_s:.3g} to {high_s:.3g}"),
            ("tokens/s/GPU", self.tokens_per_s_per_gpu, ""),
            ("MFU, %", 100 * self.mfu, ""),
            ("peak, GiB", self.peak_bytes / GIB, f"fits: {self.fits}"),
        )
        terms = (
            (TIME_READINGS[term].title, seconds, f"{seconds / self.step_s:.1%} of the step")
            for term, seconds in sorted(self.time_s.items(), key=lambda item: -item[1])
            if seconds > 0
        )
        return html_table(
            f"#{self.rank}: {self.words.replace(',', ', ')}",
            ("figure", "value", ""),
            (*figures, *terms),
        )

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
    bounds_s: tuple[float, ...] = ()
    """For each plan of the answer, seconds per step that no plan of the space undercuts but so many
    as stand before it. Plans that differ in the order of stages, layers and recomputation alone
    count once."""
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
            "bounds_step_s": list(self.bounds_s),
            "boxes": self.boxes,
            "solved": self.solved,
        }


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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
    bound: Bound | None = None
    """Where it was priced whole, what no plan of it undercuts; None where nothing fits, or where
    plans are ranked by memory."""
    over: dict[str, Any] = field(default_factory=dict)
    """The values of every axis that was searched."""
    tie: Tie | None = None
    """Where the first plan is not the fastest but the simplest within the model's error."""
    nearest: NearestRun | None = None
    """The published run that is nearest to the question; None where none is near."""
    fewer: Remedy | None = None
    """The plan on fewer of the chips, where that is faster than on all; None: none is."""
    front: tuple[Plan, ...] | None = None
    """Plans of which no other is both faster and cheaper, the cheapest first; None: not asked."""

    @property
    def best(self) -> Plan:
        """The first plan; MeshwrightError where nothing fits."""
        if not self.plans:
            raise MeshwrightError(f"{self._asked}: nothing fits; nearest_miss says what is missing")
        return self.plans[0]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one row per plan, as `plan --csv` has them: layout, figures, terms."""
        return [_row(plan) for plan in self.plans]

    def to_pandas(self) -> Any:
        """Return `to_rows` as a DataFrame; MissingExtraError without pandas."""
        return load_extra("pandas", "notebook").DataFrame(self.to_rows())

    def plot(self, ax: Any = None) -> Any:
        """Draw where the step of each plan goes, the best on top; return matplotlib's axes.

        `ax` are axes to draw on; without them a new figure has them. MissingExtraError without
        matplotlib.
        """
        pyplot = load_extra("matplotlib.pyplot", "notebook")
        if ax is None:
            _, ax = pyplot.subplots(figsize=(9, 1.2 + 0.4 * len(self.plans)), layout="constrained")
        left = [0.0] * len(self.plans)
        names = [f"#{plan.rank} {_short(plan)}" for plan in self.plans]
        colours = pyplot.get_cmap("tab20").colors
        terms = dict.fromkeys(term for plan in self.plans for term in plan.time_s)
        for place, term in enumerate(terms):
            seconds, colour = [plan.time_s.get(term, 0.0) for plan in self.plans], colours[place]
            if any(seconds):
                title = TIME_READINGS[term].title
                ax.barh(names, seconds, left=left, label=title, color=colour)
                left = [start + more for start, more in zip(left, seconds, strict=True)]
        ax.invert_yaxis()
        ax.set_xlabel("seconds of a step")
        ax.set_title(self._asked)
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
        return ax

    @property
    def _asked(self) -> str:
        return f"{self.facts.get('model', self.request.model)} on {self.request.cluster}"

    def __repr__(self) -> str:
        found = f"{len(self.plans)} plans, the best {self.plans[0]}" if self.plans else "no plans"
        return f"PlanResult({self._asked}: {found})"

    def _repr_html_(self) -> str:
        """Show the ranked plans in a notebook, figures before layouts; where nothing fits, why."""
        asked = self._asked
        if not self.plans:
            miss = (
                ""
                if self.nearest_miss is None
                else f"the nearest is {self.nearest_miss.over_bytes / GIB:.1f} GiB too large"
            )
            return html_table(
                f"{asked}: nothing fits", ("reason", "layouts"), self.rejected.items(), note=miss
            )
        headings = ("#", "step, s", "80 %", "tokens/s/GPU", "MFU, %", "peak, GiB", "fits", "layout")
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
            "exhaustive": False,
            "bound_gap": None,
        }
        for proved in (self.bound, self.proof):
            search |= {} if proved is None else proved.to_dict()
        if self.over:
            search["exhaustive_over"] = self.over
        if self.nearest_miss is not None:
            search["nearest_miss"] = self.nearest_miss.to_dict()
        if self.tie is not None:
            search["tie"] = self.tie.to_dict()
        if self.fewer is not None:
            search["fewer_chips"] = self.fewer.to_dict()
        if self.nearest is not None:
            search["nearest_published_run"] = self.nearest.to_dict()
        front = {} if self.front is None else {"pareto": [plan.to_dict() for plan in self.front]}
        return {
            "request": self.request.to_dict(),
            "plans": [plan.to_dict() for plan in self.plans],
            **front,
            "rejected": dict(self.rejected),
            "search": search,
        }


def _cells(plan: Plan) -> tuple[object, ...]:
    """One row of the table in a notebook; the layout, which may be long, is last and may wrap."""
    between = "{:.3g} to {:.3g}".format(*plan.intervals.step_s)
    speed = (plan.step_s, between, plan.tokens_per_s_per_gpu, 100 * plan.mfu)
    words = plan.words.replace(",", ", ")
    return (plan.rank, *speed, plan.peak_bytes / GIB, plan.fits, words)


_DRAWN_AXES = ("tp", "cp", "pp", "vpp", "ep", "dp", "mbs")


def _short(plan: Plan) -> str:
    """The axes that cut the model, for a label."""
    if plan.mixed is not None:
        return mixed_words(plan.mixed)
    sizes = ((name, getattr(plan.layout, name)) for name in _DRAWN_AXES)
    return " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "one chip a replica"


def _row(plan: Plan) -> dict[str, Any]:
    """One row of `to_rows`."""
    fields = layout_dict(plan.layout) if plan.mixed is None else mixed_dict(plan.mixed)["layout"]
    layout = {
        name: "+".join(map(str, value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    if plan.mixed is not None:
        layout["stages"] = mixed_words(plan.mixed)
    (low_s, high_s), (low_bytes, high_bytes) = plan.intervals.step_s, plan.intervals.peak_bytes
    return {
        "rank": plan.rank,
        **layout,
        "step_s": plan.step_s,
        "tokens_per_s_per_gpu": plan.tokens_per_s_per_gpu,
        "mfu": plan.mfu,
        "causal_mfu": plan.causal_mfu,
        "tflops_per_gpu": plan.flops_per_s_per_gpu / TERA,
        "tokens_per_dollar": plan.tokens_per_dollar,
        "fits": plan.fits,
        "step_s_low": low_s,
        "step_s_high": high_s,
        "peak_memory_gib_low": low_bytes / GIB,
        "peak_memory_gib_high": high_bytes / GIB,
        "peak_memory_gib": plan.peak_bytes / GIB,
        **{f"{term}_s": seconds for term, seconds in plan.time_s.items()},
        **{f"{term}_gib": size / GIB for term, size in plan.memory_bytes.items()},
        "beats_next": plan.beats_next,
    }


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
