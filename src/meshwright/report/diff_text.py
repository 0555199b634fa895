"""What `diff` prints for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from meshwright.report.explain_text import hanging, plain_table, print_header, print_memory
from meshwright.search.diff import Comparison, Label
from meshwright.search.oom import Ladder, Rung
from meshwright.search.quote import Quote, Setting, host_words
from meshwright.search.ran import Ran
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.values.units import GIB

__all__ = ["print_comparison", "print_ladder", "print_prices", "print_ran"]

VERDICTS: dict[Label, str] = {
    "execution only": (
        "A run of A continues as B from the same checkpoint: same training, other execution."
    ),
    "reshard the checkpoint": (
        "A run of A continues as B once its checkpoint is resharded; the training is the same."
    ),
    "changes data order": (
        "A run of A can continue as B; it reads the same batches, dealt to ranks and micro batches"
        " in another way."
    ),
    "changes training": "B is another training run than A.",
}

SAME = 5e-4
"""Step times closer than this share print as equal."""


def print_comparison(found: Comparison, console: Console) -> None:
    """Print each difference with its labels and reasons, then the verdict."""
    if not found.differences:
        console.print("no difference")
    else:
        table = plain_table("Differences", "field", last="what it means")
        table.columns[0].min_width = 10
        for difference in found.differences:
            change = f"{_text(difference.a)} -> {_text(difference.b)}"
            lines = [change, *(f"{m.label}: {m.reason}" for m in difference.meanings)]
            table.add_row(difference.field, "\n".join(lines))
        console.print(table)
        console.print(f"\n{_verdict(found)}")
    for note in found.notes:
        console.print(f"note: {note}")


def _verdict(found: Comparison) -> str:
    text = VERDICTS[found.labels[-1]]
    if found.labels[-1] == "changes data order" and "reshard the checkpoint" in found.labels:
        return f"{text} Its checkpoint has to be resharded."
    return text


def _text(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return (
        "+".join(str(v) for v in value) or "none"
        if isinstance(value, (list, tuple))
        else str(value)
    )


def print_prices(a: Quote, b: Quote, console: Console) -> None:
    """Print time and memory of both sides by term."""
    table = plain_table("Time of one step, s", "term", "A", "B", "B - A")
    terms = sorted(a.time_s, key=lambda term: -abs(b.time_s[term] - a.time_s[term]))
    for term in terms:
        if max(a.time_s[term], b.time_s[term]) > 1e-6:
            _compare_row(table, TIME_READINGS[term].title, a.time_s[term], b.time_s[term])
    _compare_row(table, "step", a.step_s, b.step_s)
    console.print(table)
    table = plain_table("Memory of the fullest stage, GiB", "term", "A", "B", "B - A")
    left, right = a.fullest.memory_bytes, b.fullest.memory_bytes
    for term in left:
        if max(left[term], right[term]) > 0:
            _compare_row(table, MEMORY_READINGS[term].title, left[term] / GIB, right[term] / GIB)
    _compare_row(table, "used", a.peak_bytes / GIB, b.peak_bytes / GIB)
    console.print(table)
    ratio = b.step_s / a.step_s - 1
    speed = (
        "as fast as A"
        if abs(ratio) < SAME
        else f"{abs(ratio):.1%} {'faster' if ratio < 0 else 'slower'} than A"
    )
    console.print(f"\nB is {speed}. Fits: A {a.verdict}, B {b.verdict}.")


def _compare_row(table: Any, title: str, left: float, right: float) -> None:
    table.add_row(title, f"{left:.3f}", f"{right:.3f}", f"{right - left:+.3f}")


LABEL_WORDS = {
    "execution only": "",
    "reshard the checkpoint": "checkpoint",
    "changes data order": "data order",
    "changes training": "training",
}


def print_ran(run: Ran | None, console: Console) -> None:
    """Print what a layout that ran must have done otherwise; nothing where it fits as told."""
    if run is not None and run.words:
        hanging(console, run.words, indent="")
        console.print()


def print_ladder(found: Ladder, setting: Setting, console: Console) -> None:
    """Print where the memory goes and every rung."""
    print_header(found.quote, setting, console)
    console.print(f"\n{_cause(found.quote)}")
    print_memory(found.quote, console)
    _print_rungs(found, console)
    if found.together is not None:
        rung = found.together
        console.print(f"\nNo single fix on these GPUs does. Together: {rung.words}:")
        console.print(f"{_numbers(rung)}; layout {rung.layout.words()}")
    elif not any(rung.quote.fits for rung in found.rungs) and not found.quote.fits:
        console.print(
            "\nNo fix and no three of them together make it fit; ask `meshwright plan` for layouts"
            " of another kind."
        )


def _cause(quote: Quote) -> str:
    stage = quote.fullest
    term = stage.largest_term
    largest = (
        f"its largest term is {MEMORY_READINGS[term].title},"
        f" {stage.memory_bytes[term] / GIB:.1f} GiB"
    )
    amounts = f"{quote.peak_bytes / GIB:.1f} of {quote.limit_bytes / GIB:.1f} GiB"
    if quote.fits:
        return (
            f"It fits: stage {stage.stage}, the fullest, uses {amounts}, which leaves"
            f" {-quote.over_bytes / GIB:.1f} GiB; {largest}. Should it run out all the same, these"
            " help:"
        )
    if quote.over_bytes <= 0:
        return f"It fits the chips, but not their host: {host_words(quote)}."
    return (
        f"Stage {stage.stage} needs {amounts}, {quote.over_bytes / GIB:.1f} GiB too much;"
        f" {largest}."
    )


def _print_rungs(found: Ladder, console: Console) -> None:
    table = plain_table(
        "Fixes, each by itself", "fix", "step", "saves GiB", "peak GiB", "fits", last="changes"
    )
    for rung in found.rungs:
        numbers = (
            f"{rung.step_change_frac:+.1%}",
            f"{rung.saved_bytes / GIB:.1f}",
            f"{rung.quote.peak_bytes / GIB:.1f}",
            rung.quote.verdict,
        )
        words = rung.words.replace("=expandable_segments", "=\nexpandable_segments")
        table.add_row(
            words, *numbers, ", ".join(filter(None, (LABEL_WORDS[label] for label in rung.labels)))
        )
    console.print(table)


def _numbers(rung: Rung) -> str:
    return (
        f"step {rung.step_change_frac:+.1%}, peak {rung.quote.peak_bytes / GIB:.1f} GiB, saves"
        f" {rung.saved_bytes / GIB:.1f} GiB"
    )
