"""What `explain --term` prints: formula, numbers, and every constant that moves the term."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from rich.console import Console

from meshwright.cost.flops import mfu, model_flops_per_token, tokens_per_s
from meshwright.cost.headroom import MOST_HEADROOM, headroom_bytes
from meshwright.report.explain_text import hanging, plain_table
from meshwright.search.explain import Explanation
from meshwright.search.provenance import (
    Constant,
    Provenance,
    Worked,
    value_words,
    worked,
)
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.search.twin import Call
from meshwright.values.errors import UnknownNameError
from meshwright.values.units import GIB, MIB

__all__ = ["print_term", "term_name"]

SIMULATED = ("bubble", "pp_comm")
"""Terms that an event simulation finds, where the pipeline was simulated."""


def term_name(words: str) -> str:
    """Return the term of a name or a title: `bubble`, `memory.weights`, `tensor-parallel`, `mfu`;
    UnknownNameError with the nearest names.

    A name that is both a time and memory is the time; `memory.` before it asks for the memory.
    """
    names = {"mfu": "mfu", "MFU": "mfu", "headroom": "headroom"}
    for name, memory in MEMORY_READINGS.items():
        names |= {f"memory.{name}": f"memory.{name}", name: f"memory.{name}"}
        names |= {memory.title: f"memory.{name}"}
    for name, time in TIME_READINGS.items():
        names |= {f"time.{name}": f"time.{name}", time.title: f"time.{name}", name: f"time.{name}"}
    if words not in names:
        raise UnknownNameError("term", words, list(names))
    return names[words]


def _mfu_call(found: Explanation) -> Call:
    """The call of `cost.flops.mfu` whose result is the printed MFU."""
    setting, layout = found.setting, found.quote.layout
    rate = tokens_per_s(
        gbs=layout.gbs,
        seq_len=setting.work.seq_len,
        step_s=found.quote.step_s,
        num_chips=layout.num_chips,
    )
    return _called(
        mfu,
        tokens_per_s=rate,
        flops_per_token=model_flops_per_token(setting.model, setting.work),
        peak_flops_per_s=setting.pool.node.chip.peak_flops_per_s(setting.work.precision),
    )


def _headroom_call(found: Explanation) -> Call:
    """The call of `cost.headroom.headroom_bytes` behind the verdict where none was asked for."""
    high = found.setting.intervals_at(step_s=1.0, peak_bytes=1.0).peak_bytes[1]
    return _called(headroom_bytes, limit_bytes=found.quote.limit_bytes, high=high)


def _called(function: Callable[..., float], **values: float) -> Call:
    constants = {"MOST_HEADROOM": MOST_HEADROOM} if function is headroom_bytes else {}
    return Call(
        module=function.__module__,
        function=function.__name__,
        doc=function.__doc__ or "",
        terms=(),
        values=values | constants,
        result=function(**values),
    )


_FIGURES: dict[str, Callable[[Explanation], Call]] = {"mfu": _mfu_call, "headroom": _headroom_call}
"""Figures that are no terms of a sum, and the calls that make them."""


def print_term(found: Explanation, name: str, console: Console) -> None:
    """Print one term: what it is, its value, how it was made, and what it stands on."""
    if name in _FIGURES:
        _print_worked(worked(_FIGURES[name](found)), console, first=True)
        return
    part, _, term = name.partition(".")
    if part == "time":
        value, title = found.quote.time_s[term], TIME_READINGS[term].title
        what, share = TIME_READINGS[term].what, f", {value / found.quote.step_s:.1%} of the step"
        words = value_words("term_s", value)
    else:
        fullest = found.quote.fullest
        value, title = fullest.memory_bytes[term], MEMORY_READINGS[term].title
        what, share = MEMORY_READINGS[term].what, f" on stage {fullest.stage}"
        words = value_words("term_bytes", value)
    console.print(f"{title} ({name}): {words}{share}; {what}", soft_wrap=True)
    if term in SIMULATED and part == "time":
        console.print(f"found by: {found.quote.pipeline}, cost/simulate.py", soft_wrap=True)
    basis = _basis(found, part, term)
    for place, call in enumerate(basis.calls):
        _print_worked(worked(call), console, first=not place)
    _print_constants(basis, part, console)


def _basis(found: Explanation, part: str, term: str) -> Provenance:
    return found.basis.time[term] if part == "time" else found.basis.memory[term]


def _print_worked(found: Worked, console: Console, *, first: bool) -> None:
    """Print a function, its formula, the formula with numbers, its inputs and its result."""
    console.print(f"\nmeshwright.{found.function}", style="bold" if first else None)
    lines = [f"  formula  {found.formula}"]
    if found.numbers is not None:
        lines.append(f"  numbers  {found.numbers}")
    if found.inputs:
        inputs = ", ".join(f"{name} = {words}" for name, words in found.inputs.items())
        lines.append(f"  with     {inputs}")
    if found.result:
        lines.append(f"  result   {found.result}")
    if found.source:
        lines.append(f"  source   {found.source}")
    for line in lines:
        filled = textwrap.fill(
            line, width=console.width, subsequent_indent=" " * 11, break_on_hyphens=False
        )
        console.print(filled, soft_wrap=True)


def _print_constants(basis: Provenance, part: str, console: Console) -> None:
    """Print every constant that moves the term, with its source."""
    if not basis.constants:
        console.print("\nNo constant moves it: it follows from the layout and the model.")
        return
    table = plain_table("What moves it", "constant", "value", "by", "term", "all", last="kind")
    for constant in basis.constants:
        changes = (_change(constant.term_change, part), _change(constant.sum_change, part))
        table.add_row(constant.name, _value_words(constant), constant.unit, *changes, constant.kind)
    console.print(table)
    whole = "step" if part == "time" else "stage"
    words = (
        f"by: how far the constant was moved; term, all: what that adds to the term, the {whole}."
    )
    console.print(words, style="dim", soft_wrap=True)
    sources: dict[str, list[str]] = {}
    for constant in basis.constants:
        sources.setdefault(constant.source, []).append(constant.name)
    console.print("\nSources", style="bold")
    for source, names in sources.items():
        hanging(console, f"{', '.join(names)}: {source}")


def _value_words(constant: Constant) -> str:
    value = constant.value
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _change(change: float | None, part: str) -> str:
    if change is None:
        return "shape"
    if part == "time":
        return f"{change:+.3g} s" if abs(change) >= 1 else f"{change * 1e3:+.3g} ms"
    return f"{change / GIB:+.3g} GiB" if abs(change) >= GIB else f"{change / MIB:+.3g} MiB"
