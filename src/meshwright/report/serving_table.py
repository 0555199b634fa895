"""A serving plan and a simulated load as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from meshwright.report.columns import Column, lines_of, print_columns, print_items, say
from meshwright.runs.loads.figures import Figures
from meshwright.serving.load import Seen
from meshwright.serving.result import ServingOption, ServingPlan
from meshwright.values.units import GIB, counted

__all__ = [
    "DEFINITIONS",
    "HEADINGS",
    "figure_cells",
    "load_lines",
    "print_load",
    "print_miss",
    "print_serving_plan",
]

HEADINGS = (
    *("requests", "failed", "req/s", "tok/s"),
    *("TTFT ms", "p99", "TPOT ms", "p99", "e2e ms", "p99", "good/s"),
)
DEFINITIONS = (
    "TTFT: from sending a request to its first token; TPOT: (last token - first) / (output tokens -"
    " 1); e2e: to the last token; means,\nand the 99th percentile. tok/s: new tokens, prompts not"
    " counted, over the time from the first request to the last token."
)


def figure_cells(figures: Figures) -> tuple[str, ...]:
    """Return the cells of one load, as HEADINGS has them; a dash for what was not measured."""
    times = [
        value
        for spread in (figures.ttft_s, figures.tpot_s, figures.e2e_s)
        for value in (spread.mean, spread.p99)
    ]
    good = math.nan if figures.good_per_s is None else figures.good_per_s
    rates = (figures.requests_per_s, figures.tokens_per_s)
    numbers = (*rates, *(1e3 * value for value in times), good)
    return (str(figures.requests), str(figures.failed), *map(_number, numbers))


def load_lines(rows: Sequence[tuple[Sequence[str], Figures]], *, names: Sequence[str]) -> list[str]:
    """Return a table as lines: the columns of `names`, then the figures."""
    columns = [Column(heading=name, justify="left") for name in names]
    columns += [Column(heading=heading) for heading in HEADINGS]
    return lines_of(columns, [(*row, *figure_cells(figures)) for row, figures in rows], gap=2)


_DIGITS = 3


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, _DIGITS - whole)}f}"


_DEFINITIONS = (
    (
        "TTFT: mean time from sending a request to its first token. TPOT: mean of (finish - first"
        " token) / (output tokens - 1)."
    ),
    (
        "tok/s: new tokens only, per GPU in use; per user 1 / TPOT. USD/M: per million new tokens"
        " at this load."
    ),
)
_STATIC = (
    "static: the batch starts and ends together; end to end is the whole batch, TPOT (latency -"
    " first token) / (output tokens - 1)."
)
_MOST_FRONT = 8


def print_serving_plan(found: ServingPlan, console: Console, *, top: int) -> None:
    """Print the best deployments, the front of speed and throughput, and what figures mean."""
    several = len(set(found.chips)) > 1
    _options(found.options[:top], console, ranked=True, several=several)
    _first(found, console)
    console.print()
    _arrivals(found.options[:top], console)
    step = max(1, -(-len(found.pareto) // _MOST_FRONT))
    console.print(
        "Pareto front of tokens/s per user against tokens/s per GPU, of all that fit the memory:",
        highlight=False,
    )
    _options(found.pareto[::step], console, ranked=False, several=several)
    _words(found, console)


def _first(found: ServingPlan, console: Console) -> None:
    """The intervals of the first deployment, and what it ties with."""
    ends = found.options[0].intervals
    shown = (
        f"{name} {_digits(scale * ends[key][0])} to {_digits(scale * ends[key][1])}"
        for key, name, scale in _INTERVALS
        if key in ends
    )
    say(console, f"80 % intervals of #1: {', '.join(shown)} (--json: of all)")
    if found.tie is not None:
        say(console, found.tie.words())


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_INTERVALS = (
    ("ttft_s", "TTFT ms", 1e3),
    ("tpot_s", "TPOT ms", 1e3),
    ("e2e_s", "e2e s", 1.0),
    ("requests_per_s", "req/s", 1.0),
    ("tokens_per_s_per_gpu", "tok/s/GPU", 1.0),
    ("tokens_per_s_per_user", "tok/s/user", 1.0),
    ("usd_per_million_tokens", "USD/M", 1.0),
    ("peak_memory_gib", "GiB", 1.0),
)


def print_miss(found: ServingPlan, console: Console) -> None:
    """Say that nothing keeps the limits, with the nearest on each axis."""
    if not found.nearest:
        console.print("no deployment fits:", highlight=False)
        for reason, count in sorted(found.rejected.items(), key=lambda item: -item[1])[:12]:
            say(console, f"  {count} x {reason}")
        return
    console.print("no deployment keeps the limits; the nearest:", highlight=False)
    for name, option in found.nearest.items():
        console.print(f"{_AXES.get(name, name)}:", highlight=False)
        _options([option], console, ranked=False, several=len(set(found.chips)) > 1)
    _words(found, console)


_AXES = {
    "ttft_s": "least TTFT",
    "tpot_s": "least TPOT",
    "e2e_s": "least end to end",
    "least excess": "least excess over all limits",
    "requests_per_s": "most requests per second, fewer than the rate that was asked",
}


def _deployment(option: ServingOption, *, several: bool = False) -> str:
    return " + ".join(
        f"{part.count} x ({part.worker.name}){f' {part.chip}' if several else ''}"
        f"{f' {part.role}' if len(option.parts) > 1 else ''}"
        for part in option.parts
    )


def _dollars(option: ServingOption) -> str:
    cost = option.usd_per_million_tokens
    return "" if cost is None else f"{cost:.2f}"


def _memory(option: ServingOption) -> str:
    return f"{max(part.memory_bytes for part in option.parts) / GIB:.1f}"


_WORDS: Any = {"justify": "left", "under": True}
_COLUMNS = (
    Column(heading="mode", cell=lambda o: o.mode, justify="left"),
    Column(heading="weights", cell=lambda o: o.weights, spare=3, **_WORDS),
    Column(heading="cache", cell=lambda o: o.cache, spare=3, **_WORDS),
    Column(heading="GPUs", cell=lambda o: str(o.chips), justify="left"),
    Column(heading="deployment", cell=_deployment, spare=4, **_WORDS),
    Column(heading="requests", cell=lambda o: str(o.concurrency)),
    Column(heading="TTFT ms", cell=lambda o: f"{1e3 * o.ttft_s:.0f}"),
    Column(heading="TPOT ms", cell=lambda o: f"{1e3 * o.tpot_s:.2f}"),
    Column(heading="e2e s", cell=lambda o: f"{o.e2e_s:.2f}", spare=1),
    Column(heading="req/s", cell=lambda o: f"{o.requests_per_s:.2f}", spare=4),
    Column(heading="tok/s/GPU", cell=lambda o: f"{o.tokens_per_s_per_chip:.0f}"),
    Column(heading="tok/s/user", cell=lambda o: f"{o.tokens_per_s_per_user:.0f}", spare=2),
    Column(heading="USD/M", cell=_dollars, spare=1),
    Column(heading="GiB", cell=_memory),
)


def _options(
    options: Sequence[ServingOption], console: Console, *, ranked: bool, several: bool
) -> None:
    """`several`: there are several kinds of chips, and each deployment names its own."""
    deployment = partial(_deployment, several=several)
    columns = [replace(c, cell=deployment) if c.cell is _deployment else c for c in _COLUMNS]
    if ranked:
        ranks = {id(option): str(rank) for rank, option in enumerate(options, 1)}
        columns.insert(0, Column(heading="#", justify="left", cell=lambda o: ranks[id(o)]))
    print_items(console, columns, options, more="--json has them")


_TIMES = (("ttft", "TTFT ms", 1e3), ("tpot", "TPOT ms", 1e3), ("e2e", "e2e s", 1.0))
_SHARES = ("p50", "p90", "p99")


def _arrivals(options: Iterable[ServingOption], console: Console) -> None:
    """Percentiles of deployments that were simulated, if any were."""
    seen = [
        (rank, option.arrivals)
        for rank, option in enumerate(options, 1)
        if option.arrivals is not None
    ]
    if not seen:
        return
    headings = [f"{name} {share}" for _, name, _ in _TIMES for share in _SHARES]
    rows = [
        (
            str(rank),
            *(
                f"{scale * arrivals[key][share]:.4g}" if key in arrivals else ""
                for key, _, scale in _TIMES
                for share in _SHARES
            ),
        )
        for rank, arrivals in seen
    ]
    console.print(
        "under Poisson arrivals, over requests (the table above has their means):", highlight=False
    )
    print_columns(
        console,
        [Column(heading="#", justify="left"), *(Column(heading=heading) for heading in headings)],
        rows,
        more="--json has them",
    )
    console.print()


def _words(found: ServingPlan, console: Console) -> None:
    modes = {option.mode for option in (*found.options, *found.nearest.values())}
    static = (_STATIC,) if "static" in modes else ()
    for line in (*_DEFINITIONS, *static, *(f"note: {note}" for note in found.notes)):
        say(console, line)


def print_load(seen: Seen, console: Console) -> None:
    """Print mean and percentiles of what requests saw."""
    columns = [Column(heading="ms", justify="left")]
    columns += [Column(heading=heading) for heading in ("mean", "p50", "p90", "p99")]
    rows = [
        (_NAMES[name], *(f"{1e3 * value:.2f}" for value in figures.values()))
        for name, figures in seen.figures.items()
    ]
    print_columns(console, columns, rows, more="--json has them")
    found = seen.to_dict()
    rate = f"{found['tokens_per_s']:.0f} new tokens/s, {found['tokens_per_s_per_gpu']:.1f} per GPU"
    chips = (
        f"{counted(seen.chips, 'GPU')} in {seen.copies} {'copy' if seen.copies == 1 else 'copies'}"
    )
    requests = counted(found["requests"], "request")
    say(console, f"{requests} in {found['makespan_s']:.1f} s: {rate} on {chips}")
    say(console, _OVER_REQUESTS)


_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}
_OVER_REQUESTS = (
    "TTFT: from sending to the first token. TPOT: (finish - first token) / (output tokens - 1)."
    " Each over requests."
)
