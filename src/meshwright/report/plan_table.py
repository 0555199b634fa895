"""A PlanResult as a table for people, and as rows for a CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from meshwright.report.columns import Column, print_columns
from meshwright.report.layout_words import mixed_words
from meshwright.search.request import PlanRequest
from meshwright.search.result import NearestMiss, Plan, PlanResult, layout_dict, mixed_dict
from meshwright.values.layout import Layout
from meshwright.values.units import DAY_S, GIB, TERA, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "between",
    "cost_words",
    "number_words",
    "plan_rows",
    "print_front",
    "print_miss",
    "print_plans",
    "say",
    "tflops_words",
]

WIDE = 130
"""Columns of a terminal from which on the reasons stand in the table; below, they stand under
it."""
CAUSAL_SHARE = 0.05
"""Difference of the two MFU figures from which on both are printed."""


CLOSE_MARK = "~"
"""Behind the rank of a best plan that leans on one constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    heading: str
    cell: Callable[[Plan], str]
    always: bool = False
    """Else it is left out where every plan has the same."""
    justify: Literal["left", "right"] = "right"
    spare: int = 0
    under: bool = False

    @property
    def shown(self) -> Column:
        """What of it a table needs."""
        return Column(
            heading=self.heading, justify=self.justify, spare=self.spare, under=self.under
        )


def _recompute(layout: Layout) -> str:
    if layout.recompute == "selective":
        return "+".join(layout.recompute_modules)
    if layout.recompute == "full" and layout.recompute_layers is not None:
        return (
            f"full, {layout.recompute_layers}"
            f" {'of each chunk' if layout.recompute_method == 'block' else 'at once'}"
        )
    return layout.recompute


def _sharding(layout: Layout) -> str:
    return f"hybrid {layout.shard_size}" if layout.sharding == "hybrid" else layout.sharding


def _stages(layout: Layout) -> str:
    return f"{layout.pp}*" if layout.layers_per_stage is not None else str(layout.pp)


def _axis(name: str) -> Callable[[Plan], str]:
    return lambda plan: str(getattr(plan.layout, name))


_COLUMNS = (
    _Column(
        heading="#",
        cell=lambda p: f"{p.rank}{CLOSE_MARK if p.provenance.get('close') else ''}",
        always=True,
    ),
    _Column(heading="tp", cell=_axis("tp"), always=True),
    _Column(heading="cp", cell=_axis("cp")),
    _Column(heading="pp", cell=lambda p: _stages(p.layout), always=True),
    _Column(heading="vpp", cell=_axis("vpp")),
    _Column(heading="schedule", cell=_axis("schedule"), justify="left", spare=1, under=True),
    _Column(heading="ep", cell=_axis("ep")),
    _Column(
        heading="etp",
        cell=lambda p: str(
            p.layout.expert_tp if p.layout.ep > 1 or p.layout.etp is not None else "-"
        ),
    ),
    _Column(heading="dp", cell=_axis("dp"), always=True),
    _Column(
        heading="sharding", cell=lambda p: _sharding(p.layout), justify="left", spare=1, under=True
    ),
    _Column(heading="mbs", cell=_axis("mbs"), always=True),
    _Column(heading="gbs", cell=_axis("gbs")),
    _Column(
        heading="recompute",
        cell=lambda p: _recompute(p.layout),
        always=True,
        justify="left",
        spare=3,
        under=True,
    ),
    _Column(heading="step s", cell=lambda p: f"{p.step_s:.4g}", always=True),
    _Column(heading="tokens/s/GPU", cell=lambda p: f"{p.tokens_per_s_per_gpu:.0f}", always=True),
    _Column(heading="MFU %", cell=lambda p: f"{p.mfu * 100:.1f}", always=True),
)
_CAUSAL = _Column(
    heading="causal", cell=lambda p: f"{p.causal_mfu * 100:.1f}", always=True, spare=2
)
_TFLOPS = _Column(
    heading="TFLOPS", cell=lambda p: f"{p.flops_per_s_per_gpu / TERA:.0f}", always=True
)
_DOLLAR = _Column(
    heading="tokens/$",
    cell=lambda p: "-" if p.tokens_per_dollar is None else format_count(p.tokens_per_dollar),
    always=True,
)
_MEMORY = (
    _Column(heading="GiB", cell=lambda p: f"{p.peak_bytes / GIB:.1f}", always=True),
    _Column(heading="fits", cell=lambda p: p.fits, always=True, justify="left"),
)
_WHY = _Column(
    heading="beats the next by", cell=lambda p: p.beats_next, always=True, justify="left"
)


def print_plans(result: PlanResult, console: Console) -> None:
    """Print what was asked, the ranked plans, and what they stand on."""
    for line in _heading(result):
        say(console, line)
    say(console, "")
    wide = console.width >= WIDE
    _print_table(result, console, wide=wide)
    say(console, "")
    if not wide:
        for plan in result.plans:
            if plan.beats_next:
                say(console, f"#{plan.rank} before #{plan.rank + 1}: {plan.beats_next}")
    for line in _footing(result):
        say(console, line)


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def _heading(result: PlanResult) -> list[str]:
    facts, request = result.facts, result.request
    active = (
        f", {format_count(facts['active_params'])} active"
        if facts["active_params"] < facts["params"]
        else ""
    )
    batch = f"gbs {request.gbs}" if request.gbs is not None else "gbs searched"
    asked = f"seq {request.seq_len}, {batch}, {number_words(request)}, stack {facts['stack']}"
    return [
        f"{facts['model']} ({format_count(facts['params'])} parameters{active}), {asked}",
        (
            f"{facts['num_chips']} x {facts['chip']}, {facts['chips_per_node']} a node,"
            f" {tflops_words(facts['peak_tflops'])} TFLOPS dense peak, {facts['limit_gib']:.1f} GiB"
            f" usable, {facts['headroom_gib']:.1f} of them kept free"
        ),
    ]


def number_words(request: PlanRequest) -> str:
    """Precision, and the attention kernel where it is not flash."""
    return f"{request.precision}{'' if request.attention == 'flash' else f', {request.attention} attention'}"  # noqa: E501


def tflops_words(peak: float) -> str:
    """Without decimals, but for processors of less than ten."""
    return f"{peak:.0f}" if peak >= 10 else f"{peak:.2g}"


def _print_table(result: PlanResult, console: Console, *, wide: bool) -> None:
    from rich.table import Table

    columns = _chosen(result, wide=wide)
    if not wide:
        rows = [[column.cell(plan) for column in columns] for plan in result.plans]
        print_columns(
            console, [column.shown for column in columns], rows, more="--json and --csv have them"
        )
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column.heading, justify=column.justify, no_wrap=column is not _WHY)
    for plan in result.plans:
        table.add_row(*(column.cell(plan) for column in columns))
    console.print(table, highlight=False, markup=False)


def _chosen(result: PlanResult, *, wide: bool) -> list[_Column]:
    plans = result.plans
    usual = {**_USUAL, "gbs": str(result.request.gbs)}
    columns = [c for c in _COLUMNS if c.always or {c.cell(p) for p in plans} != {usual[c.heading]}]
    if any(abs(p.mfu - p.causal_mfu) > CAUSAL_SHARE * p.mfu for p in plans):
        columns.append(_CAUSAL)
    if wide:
        columns.append(_TFLOPS)
    if result.request.objective == "tokens_per_dollar":
        columns.append(_DOLLAR)
    return [*columns, *_MEMORY, *([_WHY] if wide else [])]


_USUAL = {"cp": "1", "vpp": "1", "schedule": "1f1b", "ep": "1", "etp": "-", "sharding": "zero1"}
"""A column that holds this in every row is left out."""


def _footing(result: PlanResult) -> list[str]:
    lines = []
    best = result.plans[0]
    if any(plan.layout.layers_per_stage is not None for plan in result.plans):
        lines.append("* uneven stages; --json has the layers of each")
    if close := best.provenance.get("close"):
        lines.append(f"{CLOSE_MARK} close: {close['words']}")
    lines.append(f"best: --layout {best.layout.words()}")
    rejected = sum(result.rejected.values())
    lines.append(
        f"{result.layouts} layouts priced in {result.seconds:.2f} s, {rejected} rejected;"
        f" {'; '.join(result.notes)}"
    )
    lines.append(f"stands on: {best.provenance['kernels']}; {best.provenance['pipeline']}")
    if profiled := best.provenance.get("profile"):
        lines.append(profiled["words"])
    if calibrated := best.provenance.get("calibration"):
        lines.append(calibrated["words"])
    lines.append(
        f"80 % interval of #1: step {between(best.intervals.step_s, 1)} s, memory"
        f" {between(best.intervals.peak_bytes, GIB)} GiB"
    )
    limit_gib, kept_gib = result.facts["limit_gib"], result.facts["headroom_gib"]
    if best.fits == "yes" and best.intervals.peak_bytes[1] > limit_gib * GIB:
        lines.append(
            f"that memory ends above {limit_gib:.1f} GiB: `yes` keeps {kept_gib:.1f} free, not all"
            " of the interval; --headroom keeps more"
        )
    lines.append(f"error against measured runs: {best.intervals.error}")
    return lines


def between(interval: tuple[float, float], unit: float) -> str:
    """Write an interval in a unit, `1 to 2`."""
    return " to ".join(f"{end / unit:.3g}" for end in interval)


def print_miss(result: PlanResult, console: Console) -> None:
    """Print why nothing fits, the nearest miss and what would make it fit."""
    for line in (
        *_heading(result),
        "",
        "nothing fits:",
        *(f"  {count:>9} {reason}" for reason, count in result.rejected.items()),
    ):
        say(console, line)
    if result.nearest_miss is not None:
        for line in _miss_lines(result.nearest_miss):
            say(console, line)


def _miss_lines(miss: NearestMiss) -> list[str]:
    terms = sorted(miss.memory_bytes.items(), key=lambda item: -item[1])
    shown = ", ".join(
        f"{term.replace('_', ' ')} {size / GIB:.1f}" for term, size in terms if size >= 0.05 * GIB
    )
    lines = [
        f"nearest miss: {miss.layout.words()}",
        f"  {miss.over_bytes / GIB:.1f} GiB too much on its fullest stage: {shown} GiB",
    ]
    for remedy in miss.remedies:
        words = (
            f"{remedy.layout.words()}: {format_seconds(remedy.step_s)} a step,"
            f" {remedy.peak_bytes / GIB:.1f} GiB"
        )
        lines.append(f"would fit: {remedy.change} ({words})")
    return (
        lines
        if miss.remedies
        else [*lines, "no larger cluster of this chip that was tried fits either"]
    )


def plan_rows(result: PlanResult) -> list[dict[str, Any]]:
    """Return one row per plan for a CSV: layout, figures, terms."""
    return [_row(plan) for plan in result.plans]


def _row(plan: Plan) -> dict[str, Any]:
    fields = layout_dict(plan.layout) if plan.mixed is None else mixed_dict(plan.mixed)["layout"]
    layout = {
        name: "+".join(map(str, value)) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    if plan.mixed is not None:
        layout["stages"] = mixed_words(plan.mixed)
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
        **{
            f"step_s_{end}": value
            for end, value in zip(("low", "high"), plan.intervals.step_s, strict=True)
        },
        **{
            f"peak_memory_gib_{end}": value / GIB
            for end, value in zip(("low", "high"), plan.intervals.peak_bytes, strict=True)
        },
        "peak_memory_gib": plan.peak_bytes / GIB,
        **{f"{term}_s": seconds for term, seconds in plan.time_s.items()},
        **{f"{term}_gib": size / GIB for term, size in plan.memory_bytes.items()},
        "beats_next": plan.beats_next,
    }


_FRONT_TEXT_COLUMNS = (
    Column(heading="#"),
    Column(heading="tokens/s"),
    Column(heading="$ per 1M tokens"),
    Column(heading="chips", justify="left"),
    Column(heading="step s"),
    Column(heading="stages: chip, tp, layers", justify="left", spare=1, under=True),
)


def print_front(front: Sequence[Plan], console: Console) -> None:
    """Print the plans of which no other is both faster and cheaper."""
    say(console, "")
    say(
        console,
        "no plan found is both faster and cheaper than one of these; chips in use are paid, idle"
        " ones are not:",
    )
    print_columns(
        console, _FRONT_TEXT_COLUMNS, [_cells(plan) for plan in front], more="--json has them"
    )


def _cells(plan: Plan) -> list[str]:
    chips = ", ".join(f"{used} {name}" for name, used, _ in plan.chips if used)
    words = plan.layout.words() if plan.mixed is None else mixed_words(plan.mixed)
    return [
        str(plan.rank),
        f"{plan.tokens_per_s:.0f}",
        f"{1e6 / (plan.tokens_per_dollar or 1.0):.4g}",
        chips,
        f"{plan.step_s:.4g}",
        words,
    ]


def cost_words(plan: Plan, tokens: int, words: str) -> str:
    """Say how long a plan trains on some tokens, and for how much; stops and restarts are
    `estimate`'s."""
    days = tokens / plan.tokens_per_s / DAY_S
    price = (
        ""
        if plan.tokens_per_dollar is None
        else f" for {tokens / plan.tokens_per_dollar:,.0f} dollars"
    )
    return (
        f"#1 trains {words} tokens in {days:.2f} days{price}, without stops (`meshwright estimate`"
        " counts them)"
    )
