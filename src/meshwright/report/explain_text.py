"""What `explain` prints for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from meshwright.cost.flops import causal_flops_per_token, mfu, model_flops_per_token, tokens_per_s
from meshwright.report.columns import blocks
from meshwright.search.explain import Explanation, Rival
from meshwright.search.operators import LayerTable
from meshwright.search.origins import origins_of, profile_provenance
from meshwright.search.provenance import Provenance
from meshwright.search.quote import Quote, Setting
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.trust.calibration import provenance_of
from meshwright.trust.intervals import Intervals
from meshwright.values.units import GIB, MIB, format_seconds

__all__ = [
    "change_words",
    "hanging",
    "header_lines",
    "plain_table",
    "print_explanation",
    "print_intervals",
    "print_memory",
]

CAUSAL_MATTERS = 0.05
"""Difference between the two counts of FLOPs above which both MFUs are printed."""
TERMS_SHOWN = 3
LEAST_SHOWN = 0.002
"""Share of a step below which a term's change is not worth a word."""


def print_explanation(found: Explanation, console: Console) -> None:
    """Print the sum, what binds, time, memory, operators, rivals and provenance."""
    for line in header_lines(found.quote, found.setting):
        console.print(line, soft_wrap=True)
    if found.setting.started_by:
        hanging(console, f"started by: {found.setting.started_by}", indent="")
    if way := found.context_way:
        hanging(console, way.words(), indent="")
    print_intervals(found.setting.intervals(found.quote), console)
    console.print(f"\nBinding: {found.binding}")
    console.print(_time_table(found))
    print_memory(found.quote, console)
    for layer in found.layers:
        console.print(_layer_table(layer))
    console.print(_rival_table(found))
    _print_provenance(found, console)


def header_lines(quote: Quote, setting: Setting) -> list[str]:
    """Say what was asked, and the answer in one line."""
    layout, pool, work = quote.layout, setting.pool, setting.work
    asked = (
        f"{setting.model.name} on {pool.node.chip.name}:{pool.num_chips}, seq_len {work.seq_len},"
        f" {work.precision}"
    )
    rate = tokens_per_s(
        gbs=layout.gbs, seq_len=work.seq_len, step_s=quote.step_s, num_chips=layout.num_chips
    )
    fullest = quote.fullest
    memory = (
        f"{quote.peak_bytes / GIB:.1f} of {quote.limit_bytes / GIB:.1f} GiB on stage"
        f" {fullest.stage}"
    )
    return [
        f"{asked}, stack {setting.stack.name}",
        f"layout {layout.words()}",
        "",
        (
            f"step {_seconds(quote.step_s)}, {rate:,.0f} tokens/s per GPU,"
            f" {_mfu_words(rate, setting)}"
        ),
        (
            f"fits: {quote.verdict}, {memory}; {_micro_batches(layout.num_microbatches)} of"
            f" {layout.mbs}"
        ),
        *_own_lines(quote, setting),
    ]


def _own_lines(quote: Quote, setting: Setting) -> list[str]:
    """What the estimate owes to the user's own measurements."""
    if setting.pool.node.chip.tables is None and setting.calibration is None:
        return []
    [stands_on] = origins_of([quote.layout], setting)
    found = {
        **profile_provenance(stands_on, setting),
        **provenance_of(
            setting.calibration, time_s=quote.time_s, memory_bytes=quote.fullest.memory_bytes
        ),
    }
    return [own["words"] for own in found.values()]


def print_intervals(found: Intervals, console: Console) -> None:
    """Say how sure the figures are."""
    step = " to ".join(_seconds(end) for end in found.step_s)
    memory = " to ".join(f"{end / GIB:.1f}" for end in found.peak_bytes)
    console.print(f"80 % interval: step {step}, memory {memory} GiB", soft_wrap=True)
    hanging(console, f"error against measured runs, time: {found.error}", indent="")
    hanging(console, f"error against measured runs, memory: {found.memory_error}", indent="")


def _micro_batches(count: int) -> str:
    return f"{count} micro batch{'' if count == 1 else 'es'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else format_seconds(seconds)


def _mfu_words(rate: float, setting: Setting) -> str:
    peak = setting.pool.node.chip.peak_flops_per_s(setting.work.precision)
    full = mfu(rate, model_flops_per_token(setting.model, setting.work), peak)
    causal = mfu(rate, causal_flops_per_token(setting.model, setting.work), peak)
    also = f" (causal {causal:.1%})" if abs(full / causal - 1) > CAUSAL_MATTERS else ""
    return f"MFU {full:.1%}{also}"


def plain_table(title: str, left: str, *right: str, last: str | None = None) -> Table:
    """Return a table without lines: words left, numbers right, perhaps more words behind."""
    table = Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=f"\n{title}",
        title_style="bold",
        title_justify="left",
    )
    table.add_column(left, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    if last is not None:
        table.add_column(last)
    return table


def _time_table(found: Explanation) -> Table:
    """Seconds, or milliseconds of a short step."""
    unit, scale = ("s", 1.0) if found.quote.step_s >= 1 else ("ms", 1e3)
    table = plain_table(
        "Time of one step", "term", unit, "share", last="what it is; what it waits for"
    )
    for term in found.time:
        table.add_row(
            term.title,
            f"{term.seconds * scale:.3f}",
            f"{term.share:.1%}",
            f"{term.what}; {term.bound}",
        )
    table.add_row("step", f"{found.quote.step_s * scale:.3f}", "100.0%", "")
    return table


def print_memory(quote: Quote, console: Console) -> None:
    """Print memory by stage and term, in several tables where one is too wide; terms that are
    nothing everywhere are left out."""
    terms = [
        term
        for term in quote.stages[0].memory_bytes
        if any(stage.memory_bytes[term] > 0.005 * GIB for stage in quote.stages)
    ]
    headings = ["layers", *(MEMORY_READINGS[term].short for term in terms), "used"]
    rows = [
        (
            str(stage.num_layers),
            *(f"{stage.memory_bytes[term] / GIB:.2f}" for term in terms),
            f"{stage.used_bytes / GIB:.2f}",
        )
        for stage in quote.stages
    ]
    names = [
        f"{stage.stage} <" if stage is quote.fullest else str(stage.stage) for stage in quote.stages
    ]
    widths = [
        max(len(heading), *(len(row[k]) for row in rows)) for k, heading in enumerate(headings)
    ]
    first = max(len("stage"), *(len(name) for name in names)) + 1
    for number, part in enumerate(
        blocks(range(len(headings)), widths, limit=console.width - first, gap=1)
    ):
        table = plain_table(
            "Memory, GiB" if not number else "Memory, GiB, further terms",
            "stage",
            *(headings[k] for k in part),
        )
        for name, row, stage in zip(names, rows, quote.stages, strict=True):
            table.add_row(
                name, *(row[k] for k in part), style="bold" if stage is quote.fullest else None
            )
        console.print(table)
    words = [f"{MEMORY_READINGS[term].short}: {MEMORY_READINGS[term].what}" for term in terms]
    console.print(f"< fullest. {'; '.join(words)}.", style="dim")


def _layer_table(layer: LayerTable) -> Table:
    total = layer.forward_s + layer.backward_s
    title = f"Operators of one layer ({layer.title}), {layer.num_layers} of them, one micro batch"
    table = plain_table(title, "operator", "forward ms", "backward ms", "share", "saved MiB")
    previous = None
    for row in layer.rows:
        if row.block != previous:
            table.add_row(row.block, style="italic")
        previous = row.block
        times = (
            f"{row.forward_s * 1e3:.3f}",
            f"{row.backward_s * 1e3:.3f}",
            f"{(row.forward_s + row.backward_s) / total:.1%}",
        )
        table.add_row(f"  {row.name}", *times, f"{row.saved_bytes / MIB:.1f}")
    sums = (
        f"{layer.forward_s * 1e3:.3f}",
        f"{layer.backward_s * 1e3:.3f}",
        "100.0%",
        f"{layer.saved_bytes / MIB:.1f}",
    )
    table.add_row("layer, nothing recomputed", *sums)
    return table


def _rival_table(found: Explanation) -> Table:
    table = plain_table(
        "Nearest rivals: one axis changed, dp follows",
        "change",
        "step s",
        "by",
        "peak GiB",
        last="why",
    )
    for rival in found.rivals:
        if rival.quote is None:
            table.add_row(rival.words, "", "", "", f"not valid: {rival.reason}")
            continue
        ratio = rival.quote.step_s / found.quote.step_s - 1
        table.add_row(
            rival.words,
            f"{rival.quote.step_s:.3f}",
            f"{ratio:+.1%}",
            f"{rival.quote.peak_bytes / GIB:.1f}",
            _why(rival, found.quote),
        )
    return table


def _why(rival: Rival, base: Quote) -> str:
    assert rival.quote is not None
    words = change_words(rival.differences_s, base.step_s)
    if not rival.quote.fits:
        over = (
            f"does not fit, {rival.quote.over_bytes / GIB:.1f} GiB over on stage"
            f" {rival.quote.fullest.stage}"
        )
        return f"{over}; {words}" if words else over
    return words or "no difference worth a word"


def change_words(differences_s: Iterable[tuple[str, float]], step_s: float) -> str:
    """Write the largest changes of terms, in seconds, or in milliseconds of a short step."""
    shown = [
        (TIME_READINGS[term].title, change)
        for term, change in differences_s
        if abs(change) > LEAST_SHOWN * step_s
    ][:TERMS_SHOWN]
    return ", ".join(
        f"{title} {change:+.2f}s" if step_s > 1 else f"{title} {change * 1e3:+.1f}ms"
        for title, change in shown
    )


def _print_provenance(found: Explanation, console: Console) -> None:
    """Print functions with their terms, and where constants were moved, sources with theirs."""
    console.print("\nWhat this stands on", style="bold")
    pairs = [(term.title, term.provenance) for term in found.time]
    pairs += [
        (MEMORY_READINGS[term].title, basis)
        for term, basis in found.memory_provenance.items()
        if found.quote.fullest.memory_bytes[term]
    ]
    for formula, titles in _by_formula(pairs).items():
        hanging(console, f"meshwright.{formula}: {', '.join(titles)}")
    values: dict[str, list[str]] = {}
    for constant in {
        constant.name: constant for _, basis in pairs for constant in basis.constants
    }.values():
        told = f"{constant.name}={_number(constant.value)}"
        values.setdefault(f"{constant.kind}: {constant.source}", []).append(told)
    for source, words in values.items():
        hanging(console, f"{', '.join(words)}: {source}")
    if not values:
        hanging(
            console,
            "`--term NAME` puts the numbers into a term's formula and names every constant that"
            " moves it; `--sources` lists the constants of all terms.",
        )


def hanging(console: Console, text: str, *, indent: str = "  ") -> None:
    """Print a paragraph whose further lines are set in."""
    console.print(
        textwrap.fill(
            text,
            width=console.width,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_on_hyphens=False,
        ),
        style="dim",
    )


def _by_formula(pairs: Iterable[tuple[str, Provenance]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for title, basis in pairs:
        found.setdefault(basis.formula, []).append(title)
    return found


def _number(value: float | str | bool | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
