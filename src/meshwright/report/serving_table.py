"""A serving plan and a simulated load as tables for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from meshwright.report.columns import Column, print_columns
from meshwright.runs.loads.figures import Figures
from meshwright.serving.result import ServingOption, ServingPlan
from meshwright.values.units import GIB, counted

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.serving.load import Seen

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
    "requests",
    "failed",
    "req/s",
    "tok/s",
    "TTFT ms",
    "p99",
    "TPOT ms",
    "p99",
    "e2e ms",
    "p99",
    "good/s",
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
    return (
        *(
            str(figures.requests),
            str(figures.failed),
            _number(figures.requests_per_s),
            _number(figures.tokens_per_s),
        ),
        *(_number(1e3 * value) for value in times),
        _number(good),
    )


def load_lines(rows: Sequence[tuple[Sequence[str], Figures]], *, names: Sequence[str]) -> list[str]:
    """Return a table as lines: the columns of `names`, then the figures."""
    cells = [(*names, *HEADINGS), *((*row, *figure_cells(figures)) for row, figures in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    left = len(names)
    return [
        "  ".join(
            _placed(cell, widths[at], left=at < left) for at, cell in enumerate(line)
        ).rstrip()
        for line in cells
    ]


def _placed(cell: str, width: int, *, left: bool) -> str:
    return cell.ljust(width) if left else cell.rjust(width)


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
    """Print the best deployments, the front of speed against throughput, and what the figures
    mean."""
    several = len(set(found.chips)) > 1
    _options(found.options[:top], console, ranked=True, several=several)
    console.print()
    _arrivals(found.options[:top], console)
    step = max(1, -(-len(found.pareto) // _MOST_FRONT))
    console.print(
        "Pareto front of tokens/s per user against tokens/s per GPU, of all that fit the memory:",
        highlight=False,
    )
    _options(found.pareto[::step], console, ranked=False, several=several)
    _words(found, console)


def print_miss(found: ServingPlan, console: Console) -> None:
    """Say that nothing keeps the limits, with the nearest on each axis."""
    if not found.nearest:
        console.print("no deployment fits:", highlight=False)
        for reason, count in sorted(found.rejected.items(), key=lambda item: -item[1])[:12]:
            console.print(
                f"  {count} x {reason}", highlight=False, soft_wrap=not console.is_terminal
            )
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


_COLUMNS = (
    Column(heading="mode", justify="left"),
    Column(heading="weights", justify="left", spare=3, under=True),
    Column(heading="cache", justify="left", spare=3, under=True),
    Column(heading="GPUs", justify="left"),
    Column(heading="deployment", justify="left", spare=4, under=True),
    Column(heading="requests"),
    Column(heading="TTFT ms"),
    Column(heading="TPOT ms"),
    Column(heading="e2e s", spare=1),
    Column(heading="req/s", spare=4),
    Column(heading="tok/s/GPU"),
    Column(heading="tok/s/user", spare=2),
    Column(heading="USD/M", spare=1),
    Column(heading="GiB"),
)


def _options(
    options: Iterable[ServingOption], console: Console, *, ranked: bool, several: bool
) -> None:
    """`several`: the cluster has several kinds of chips, and each deployment says which it is
    on."""
    rows = [
        (*((str(rank),) if ranked else ()), *_cells(option, several))
        for rank, option in enumerate(options, 1)
    ]
    print_columns(
        console,
        [Column(heading="#", justify="left"), *_COLUMNS] if ranked else _COLUMNS,
        rows,
        more="--json has them",
    )


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


def _cells(option: ServingOption, several: bool) -> tuple[str, ...]:
    cost = option.usd_per_million_tokens
    memory = max(part.memory_bytes for part in option.parts) / GIB
    return (
        option.mode,
        option.weights,
        option.cache,
        str(option.chips),
        " + ".join(_part(option, i, several) for i in range(len(option.parts))),
        str(option.concurrency),
        f"{1e3 * option.ttft_s:.0f}",
        f"{1e3 * option.tpot_s:.2f}",
        f"{option.e2e_s:.2f}",
        f"{option.requests_per_s:.2f}",
        f"{option.tokens_per_s_per_chip:.0f}",
        f"{option.tokens_per_s_per_user:.0f}",
        "" if cost is None else f"{cost:.2f}",
        f"{memory:.1f}",
    )


def _part(option: ServingOption, i: int, several: bool) -> str:
    part = option.parts[i]
    role = f" {part.role}" if len(option.parts) > 1 else ""
    chip = f" {part.chip}" if several else ""
    return f"{part.count} x ({part.worker.name}){chip}{role}"


def _words(found: ServingPlan, console: Console) -> None:
    modes = {option.mode for option in (*found.options, *found.nearest.values())}
    lines = (
        *_DEFINITIONS,
        *((_STATIC,) if "static" in modes else ()),
        *(f"note: {note}" for note in found.notes),
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=not console.is_terminal, markup=False)


def print_load(seen: Seen, console: Console) -> None:
    """Print mean and percentiles of what requests saw."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("ms")
    for heading in ("mean", "p50", "p90", "p99"):
        table.add_column(heading, justify="right")
    for name, figures in seen.figures.items():
        table.add_row(_NAMES[name], *(f"{1e3 * value:.2f}" for value in figures.values()))
    console.print(table, highlight=False)
    found = seen.to_dict()
    rate = f"{found['tokens_per_s']:.0f} new tokens/s, {found['tokens_per_s_per_gpu']:.1f} per GPU"
    chips = (
        f"{counted(seen.chips, 'GPU')} in {seen.copies} {'copy' if seen.copies == 1 else 'copies'}"
    )
    console.print(
        f"{counted(found['requests'], 'request')} in {found['makespan_s']:.1f} s: {rate} on"
        f" {chips}",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )
    console.print(_OVER_REQUESTS, highlight=False, soft_wrap=not console.is_terminal)


_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}
_OVER_REQUESTS = (
    "TTFT: from sending to the first token. TPOT: (finish - first token) / (output tokens - 1)."
    " Each over requests."
)
