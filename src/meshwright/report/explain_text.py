"""What `explain` prints for people."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable
from typing import Literal

from rich.console import Console
from rich.table import Table

from meshwright.cost.flops import causal_flops_per_token, mfu, model_flops_per_token, tokens_per_s
from meshwright.report.columns import blocks, fold
from meshwright.report.likely import likely_memory, likely_step
from meshwright.search.explain import Explanation, Rival
from meshwright.search.operators import LayerTable
from meshwright.search.origins import origins_of, profile_provenance
from meshwright.search.provenance import Provenance
from meshwright.search.quote import Quote, Setting
from meshwright.search.ran import ran_words
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.trust.calibration import provenance_of
from meshwright.trust.intervals import Intervals
from meshwright.values.units import GIB, MIB

__all__ = [
    "Part",
    "change_words",
    "hanging",
    "plain_table",
    "print_explanation",
    "print_header",
    "print_memory",
]

CAUSAL_MATTERS = 0.05
"""Difference between the two counts of FLOPs above which both MFUs are printed."""
TERMS_SHOWN = 3
SHORT = 3
"""Terms and rivals that the short answer names."""
LEAST_SHOWN = 0.002
"""Share of a step below which a term's change is not worth a word."""


Part = Literal["tables", "rivals", "sources"]
"""What can follow the short answer."""
_MORE = "more: --tables, --rivals, --sources, and --term NAME such as bubble"


def print_explanation(
    found: Explanation, console: Console, *, parts: Collection[Part] = ()
) -> None:
    """Print the sum and what binds, in short where the time and the memory go and which rival is
    nearest, and the parts that were asked for."""
    print_header(found.quote, found.setting, console)
    if found.setting.started_by:
        hanging(console, f"started by: {found.setting.started_by}", indent="")
    if words := ran_words(found.quote, found.setting, hint=" With --ran it is answered so."):
        hanging(console, words, indent="")
    if way := found.context_way:
        hanging(console, way.words(), indent="")
    console.print(f"\nBinding: {found.binding}")
    for line in _short_lines(found):
        hanging(console, line, indent="")
    if "tables" in parts:
        console.print(_time_table(found))
        print_memory(found.quote, console)
        for layer in found.layers:
            console.print(_layer_table(layer))
    if "rivals" in parts:
        console.print(_rival_table(found))
    if "sources" in parts:
        _print_errors(found.setting.intervals(found.quote), console)
        _print_provenance(found, console)


def _short_lines(found: Explanation) -> list[str]:
    """Say in a line each where time and memory go, and what the nearest rivals win or lose."""
    stage = found.quote.fullest
    terms = sorted(stage.memory_bytes.items(), key=lambda item: -item[1])
    rivals = [
        f"{rival.words} ({rival.quote.step_s / found.quote.step_s - 1:+.1%})"
        for rival in found.rivals
        if rival.quote is not None and rival.quote.fits
    ]
    return [
        f"time: {_shown([f'{term.title} {term.share:.0%}' for term in found.time])}",
        "memory, GiB: "
        + _shown(
            [f"{MEMORY_READINGS[term].title} {size / GIB:.1f}" for term, size in terms if size]
        ),
        f"rivals: {_shown(rivals) if rivals else 'none that fits differs in one axis'}",
        _MORE,
    ]


def _shown(words: list[str]) -> str:
    """Name the first few, and how many more there are."""
    rest = len(words) - SHORT
    return ", ".join(words[:SHORT]) + (f", {rest} more" if rest > 0 else "")


def print_header(quote: Quote, setting: Setting, console: Console) -> None:
    """Print what was asked and the answer; the layout stays whole, to be copied."""
    for line in _header_lines(quote, setting):
        folded = line if line.startswith("layout ") else fold(line, width=console.width, indent=2)
        console.print(folded, soft_wrap=True)


def _header_lines(quote: Quote, setting: Setting) -> list[str]:
    """Say what was asked, and the answer in one line."""
    layout, pool, work = quote.layout, setting.pool, setting.work
    asked = (
        f"{setting.model.name} on {pool.node.chip.name}:{pool.num_chips}, seq_len {work.seq_len},"
        f" {work.precision}"
    )
    rate = tokens_per_s(
        gbs=layout.gbs, seq_len=work.seq_len, step_s=quote.step_s, num_chips=layout.num_chips
    )
    fullest, sure = quote.fullest, setting.intervals(quote)
    memory = (
        f"{quote.peak_bytes / GIB:.1f} of {quote.limit_bytes / GIB:.1f} GiB on stage"
        f" {fullest.stage}"
    )
    return [
        f"{asked}, stack {setting.stack.name}",
        f"layout {layout.words()}",
        f"step {likely_step(quote.step_s, sure)}",
        (
            f"{rate:,.0f} tokens/s per GPU, {_mfu_words(rate, setting)};"
            f" {_micro_batches(layout.num_microbatches)} of {layout.mbs}"
        ),
        f"fits: {quote.verdict}, {memory}, {likely_memory(sure)}",
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


def _print_errors(found: Intervals, console: Console) -> None:
    """Say how far published runs were from their predictions."""
    console.print("\nHow sure", style="bold")
    hanging(console, f"time, 80 % interval: {found.error}")
    hanging(console, f"memory, 80 % interval: {found.memory_error}")


def _micro_batches(count: int) -> str:
    return f"{count} micro batch{'' if count == 1 else 'es'}"


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
