"""A PlanResult as a table for people, and as rows for a CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console

from meshwright.report.columns import Column, print_items, say, shown_columns, table_width
from meshwright.report.layout_words import inline_words
from meshwright.report.likely import likely_memory, likely_step
from meshwright.search.result import NearestMiss, Plan, PlanResult
from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import mixed_words
from meshwright.values.units import DAY_S, GIB, TERA, format_count, format_seconds

__all__ = [
    "PLAN_FIGURES",
    "asked_line",
    "chips_line",
    "cost_words",
    "print_front",
    "print_miss",
    "print_plans",
    "print_rejected",
    "sure_line",
    "tokens_per_dollar_words",
]

CAUSAL_SHARE = 0.05
"""Difference of the two MFU figures from which on both are printed."""


CLOSE_MARK = "~"
"""Behind the rank of a best plan that leans on one constant."""


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
    return f"{layout.sharding} {layout.shard_size}" if layout.shard_size else layout.sharding


def _stages(layout: Layout) -> str:
    return f"{layout.pp}*" if layout.layers_per_stage is not None else str(layout.pp)


def _axis(name: str) -> Callable[[Plan], str]:
    return lambda plan: str(getattr(plan.layout, name))


def _expert_tp(layout: Layout) -> str:
    return str(layout.expert_tp if layout.ep > 1 or layout.etp is not None else "-")


def tokens_per_dollar_words(plan: Plan) -> str:
    """Write the tokens that a dollar trains on, a dash where no price is known."""
    return "-" if plan.tokens_per_dollar is None else format_count(plan.tokens_per_dollar)


PLAN_FIGURES = (
    Column(heading="step s", cell=lambda p: f"{p.step_s:.4g}"),
    Column(heading="tokens/s/GPU", cell=lambda p: f"{p.tokens_per_s_per_gpu:.0f}"),
    Column(heading="MFU %", cell=lambda p: f"{p.mfu * 100:.1f}"),
)
_FIRST_TO_GO: Any = {"justify": "left", "spare": 1, "under": True}
_COLUMNS = (
    Column(
        heading="#", cell=lambda p: f"{p.rank}{CLOSE_MARK if p.provenance.get('close') else ''}"
    ),
    Column(heading="tp", cell=_axis("tp")),
    Column(heading="cp", cell=_axis("cp"), usual="1"),
    Column(heading="pp", cell=lambda p: _stages(p.layout)),
    Column(heading="vpp", cell=_axis("vpp"), usual="1"),
    Column(heading="schedule", cell=_axis("schedule"), usual="1f1b", **_FIRST_TO_GO),
    Column(heading="ep", cell=_axis("ep"), usual="1"),
    Column(heading="etp", cell=lambda p: _expert_tp(p.layout), usual="-"),
    Column(heading="dp", cell=_axis("dp")),
    Column(heading="sharding", cell=lambda p: _sharding(p.layout), usual="zero1", **_FIRST_TO_GO),
    Column(heading="mbs", cell=_axis("mbs")),
    Column(heading="gbs", cell=_axis("gbs")),
    Column(
        heading="recompute",
        cell=lambda p: _recompute(p.layout),
        justify="left",
        spare=3,
        under=True,
    ),
    Column(heading="offload", cell=_axis("offload"), usual="none", justify="left"),
    Column(heading="optimizer", cell=_axis("optimizer"), usual="adam", justify="left"),
    *PLAN_FIGURES,
)
_CAUSAL = Column(heading="causal", cell=lambda p: f"{p.causal_mfu * 100:.1f}", spare=2)
_TFLOPS = Column(heading="TFLOPS", spare=4, cell=lambda p: f"{p.flops_per_s_per_gpu / TERA:.0f}")
_MEMORY = (
    Column(heading="GiB", cell=lambda p: f"{p.peak_bytes / GIB:.1f}"),
    Column(heading="fits", cell=lambda p: p.fits, justify="left"),
)
_WHY = Column(heading="beats the next by", cell=lambda p: p.beats_next, justify="left")


MOST_LINES = 25
"""Of an answer on a terminal, so that it is seen whole."""
_MANY_ROWS, _FEW_ROWS = 5, 3
"""Plans that are shown at least, with all lines below the table and with the most telling ones."""


def _nodes(facts: Mapping[str, Any]) -> str:
    """`8 a node`, or for few chips `in one node`."""
    per_node = facts["chips_per_node"]
    return "in one node" if facts["num_chips"] <= per_node else f"{per_node} a node"


def print_plans(result: PlanResult, console: Console) -> None:
    """Print what was asked, the ranked plans, and what they stand on; on a terminal as many plans
    as MOST_LINES hold, or as were asked for."""
    rows, brief = len(result.plans), False
    if console.is_terminal and "top" not in result.request.model_fields_set:
        sizes = [
            *((count, False) for count in range(rows, _MANY_ROWS - 1, -1)),
            *((count, True) for count in range(_MANY_ROWS, _FEW_ROWS - 1, -1)),
        ]
        fitting = (size for size in sizes if _height(result, console.width, size) <= MOST_LINES)
        rows, brief = next(fitting, (min(rows, _FEW_ROWS), True))
    _print_rows(result, console, rows=rows, brief=brief)


def _height(result: PlanResult, width: int, size: tuple[int, bool]) -> int:
    """Lines of the answer on a terminal of some width."""
    text = StringIO()
    rows, brief = size
    screen = Console(file=text, width=width, force_terminal=True)
    _print_rows(result, screen, rows=rows, brief=brief)
    return text.getvalue().count("\n")


def _print_rows(result: PlanResult, console: Console, *, rows: int, brief: bool) -> None:
    """Print the first plans; `brief` leaves out what the answer does not hang on."""
    for line in _heading(result):
        say(console, line)
    say(console, "")
    plans = result.plans[:rows]
    columns = _chosen(result)
    room = console.width if console.is_terminal else None
    beside = room is None or table_width([*columns, _WHY], plans) <= room
    print_items(
        console,
        [*columns, _WHY] if beside else columns,
        plans,
        more="--json and --csv have them",
    )
    if rows < len(result.plans):
        say(console, f"and {len(result.plans) - rows} more: --top N or --json shows them")
    say(console, "")
    for line in _brief(result) if brief else _footing(result, reason=not beside):
        say(console, line)


def _brief(result: PlanResult) -> list[str]:
    """The lines that a reader needs first."""
    best = result.plans[0]
    lines = [f"best: --layout {inline_words(best.layout)}", f"#1 {sure_line(best)}"]
    if result.tie is not None:
        lines.append(result.tie.words())
    if result.nearest is not None:
        lines.append(result.nearest.figures())
    return [
        *lines,
        *_legend(result),
        f"{result.layouts} layouts priced in {result.seconds:.2f} s; --json has sources, how it is"
        " started and what was searched",
    ]


def _heading(result: PlanResult) -> list[str]:
    return [asked_line(result), chips_line(result.facts)]


def asked_line(result: PlanResult) -> str:
    """Return the model, the batch and what else was asked, in a line."""
    facts, request = result.facts, result.request
    active = ""
    if facts["active_params"] < facts["params"]:
        active = f", {format_count(facts['active_params'])} active"
    batch = f"gbs {request.gbs}" if request.gbs is not None else "gbs searched"
    kernel = "" if request.attention == "flash" else f", {request.attention} attention"
    return (
        f"{facts['model']} ({format_count(facts['params'])} parameters{active}), seq"
        f" {request.seq_len}, {batch}, {request.precision}{kernel}, stack {facts['stack']}"
    )


def chips_line(facts: Mapping[str, Any]) -> str:
    """Return the chips of one kind and what each of them has, in a line."""
    return (
        f"{facts['num_chips']} x {facts['chip']}, {_nodes(facts)},"
        f" {_tflops_words(facts['peak_tflops'])} TFLOPS dense peak, {facts['limit_gib']:.1f} GiB"
        f" usable, {facts['headroom_gib']:.1f} of them kept free"
    )


def _tflops_words(peak: float) -> str:
    """Without decimals, but for processors of less than ten."""
    return f"{peak:.0f}" if peak >= 10 else f"{peak:.2g}"


def _chosen(result: PlanResult) -> list[Column]:
    plans, gbs = result.plans, str(result.request.gbs)
    columns = [replace(c, usual=gbs) if c.heading == "gbs" else c for c in _COLUMNS]
    columns = shown_columns(columns, plans)
    if _is_causal_shown(plans):
        columns.append(_CAUSAL)
    columns.append(_TFLOPS)
    if result.request.objective == "tokens_per_dollar":
        columns.append(Column(heading="tokens/$", cell=tokens_per_dollar_words))
    return [*columns, *_MEMORY]


def _is_causal_shown(plans: Sequence[Plan]) -> bool:
    return any(abs(p.mfu - p.causal_mfu) > CAUSAL_SHARE * p.mfu for p in plans)


def _footing(result: PlanResult, *, reason: bool) -> list[str]:
    best = result.plans[0]
    lines = [f"best: --layout {inline_words(best.layout)}", f"#1 {sure_line(best)}"]
    if result.tie is not None:
        lines.append(result.tie.words())
    if result.nearest is not None:
        lines.append(result.nearest.words())
    if reason and best.beats_next and result.tie is None:
        lines.append(f"#1 before #2: {best.beats_next}")
    lines += _legend(result)
    limit_gib, kept_gib = result.facts["limit_gib"], result.facts["headroom_gib"]
    if best.fits == "yes" and best.intervals.peak_bytes[1] > limit_gib * GIB:
        lines.append(
            f"that memory ends above {limit_gib:.1f} GiB: `yes` keeps {kept_gib:.1f} free, not all"
            " of the interval; --headroom keeps more"
        )
    rejected = sum(result.rejected.values())
    lines.append(
        f"{result.layouts} layouts priced in {result.seconds:.2f} s, {rejected} rejected;"
        f" {'; '.join([*_proof_words(result), *result.notes])}"
    )
    if start := best.provenance.get("started_by"):
        lines.append(f"started by: {start}")
    if profiled := best.provenance.get("profile"):
        lines.append(profiled["words"])
    if calibrated := best.provenance.get("calibration"):
        lines.append(calibrated["words"])
    return lines


def _proof_words(result: PlanResult) -> list[str]:
    return [] if result.bound is None else [result.bound.words()]


def _legend(result: PlanResult) -> list[str]:
    """Explain the marks that the table has."""
    lines, best = [], result.plans[0]
    if _is_causal_shown(result.plans):
        lines.append(
            "causal: MFU without the half of the attention scores that a causal mask leaves out"
        )
    if any(plan.layout.layers_per_stage is not None for plan in result.plans):
        lines.append("* uneven stages; --json has the layers of each")
    if close := best.provenance.get("close"):
        lines.append(f"{CLOSE_MARK} close: {close['words']}")
    return lines


def sure_line(plan: Plan) -> str:
    """Write a plan's step time and memory, each with its interval."""
    return (
        f"takes {likely_step(plan.step_s, plan.intervals)}, and {plan.peak_bytes / GIB:.1f} GiB,"
        f" {likely_memory(plan.intervals)}"
    )


def print_rejected(heading: Iterable[str], result: PlanResult, console: Console) -> None:
    """Print what was asked, and how many layouts each reason rejected."""
    rejected = (f"  {count:>9} {reason}" for reason, count in result.rejected.items())
    for line in (*heading, "", "nothing fits:", *rejected):
        say(console, line)


def print_miss(result: PlanResult, console: Console) -> None:
    """Print why nothing fits, the nearest miss and what would make it fit."""
    print_rejected(_heading(result), result, console)
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


def _chips_in_use(plan: Plan) -> str:
    return ", ".join(f"{used} {name}" for name, used, _ in plan.chips if used)


_FRONT_COLUMNS = (
    Column(heading="#", cell=lambda p: str(p.rank)),
    Column(heading="tokens/s", cell=lambda p: f"{p.tokens_per_s:.0f}"),
    Column(heading="$ per 1M tokens", cell=lambda p: f"{1e6 / (p.tokens_per_dollar or 1.0):.4g}"),
    Column(heading="chips", cell=_chips_in_use, justify="left"),
    Column(heading="step s", cell=lambda p: f"{p.step_s:.4g}"),
    Column(
        heading="stages: chip, tp, layers",
        cell=lambda p: p.layout.words() if p.mixed is None else mixed_words(p.mixed),
        **_FIRST_TO_GO,
    ),
)


def print_front(front: Sequence[Plan], console: Console) -> None:
    """Print the plans of which no other is both faster and cheaper."""
    words = "no plan found is both faster and cheaper than one of these"
    say(console, f"\n{words}; chips in use are paid, idle ones are not:")
    print_items(console, _FRONT_COLUMNS, front, more="--json has them")


def cost_words(plan: Plan, tokens: int, words: str) -> str:
    """Say how long and for what cost a plan trains on some tokens, without stops and restarts."""
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
