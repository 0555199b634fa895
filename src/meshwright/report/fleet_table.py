"""A fleet under a trace as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.console import Console

from meshwright.report.columns import Column, print_columns, say
from meshwright.serving.fleet_result import FleetPlan, Hour, Judged
from meshwright.values.units import counted

__all__ = ["print_fleet"]


def print_fleet(found: FleetPlan, console: Console) -> None:
    """Print the fleet, what requests see, what it costs, and the copies that each hour needs."""
    if found.deployment is None:
        console.print("no copy of the model fits:", highlight=False)
        for reason, count in sorted(found.rejected.items(), key=lambda item: -item[1])[:12]:
            say(console, f"  {count} x {reason}")
        return
    if not found.hours:
        _miss(found, console)
        return
    name = found.deployment.name
    copies = "copy" if found.copies == 1 else "copies"
    say(console, f"fleet: {found.copies} {copies} of {name}: {counted(found.chips, 'GPU')}")
    _cost(found, console)
    console.print()
    say(console, f"{_trace_words(found)} on {found.copies} {copies}:")
    assert found.seen is not None
    _figures(found.seen, console)
    _by_hour(found, console)
    _words(found, console)


def _miss(found: FleetPlan, console: Console) -> None:
    assert found.deployment is not None and found.seen is not None
    copies = "copy" if found.most_copies == 1 else "copies"
    say(
        console,
        f"no fleet keeps the limits: the chips hold {found.most_copies} {copies} of"
        f" {found.deployment.name}, and {found.seen.worst} is {found.seen.excess:.3g} times its"
        " limit in the busiest stretch:",
    )
    _figures(found.seen, console)
    _words(found, console)


def _trace_words(found: FleetPlan) -> str:
    trace = found.trace
    rate = trace.size / trace.seconds
    return (
        f"{trace.name}: {counted(trace.size, 'request')} in {_span(trace.seconds)}, {rate:.3g} a"
        f" second, {trace.prompts.mean():.0f} tokens of prompt and {trace.outputs.mean():.0f} of"
        " answer in the mean;"
    )


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"


def _cost(found: FleetPlan, console: Console) -> None:
    usd, mean = found.usd_per_day(found.copies), found.mean_copies
    if usd is None:
        say(console, "cost: this chip's price is not known; give --usd-per-hour")
        return
    each = found.usd_per_million_tokens(found.copies)
    say(console, f"cost: {usd:,.0f} USD a day, {each:.2f} USD per million new tokens")
    if found.copies - mean > _LEAST_GAIN:
        scaled, least = found.usd_per_day(mean), found.usd_per_million_tokens(mean)
        say(
            console,
            f"with copies by the hour: {mean:.2f} in the mean, {scaled:,.0f} USD a day,"
            f" {least:.2f} USD per million new tokens",
        )


_LEAST_GAIN = 0.005
"""Of copies: less is none in the table's digits."""
_TIMES = (("ttft", "TTFT ms", 1e3), ("tpot", "TPOT ms", 1e3), ("e2e", "e2e s", 1.0))
_SHARES = ("mean", "p50", "p95", "p99")


def _figures(seen: Judged, console: Console) -> None:
    columns = [Column(heading="", justify="left")]
    columns += [Column(heading=share) for share in _SHARES]
    rows = [
        (name, *(f"{scale * seen.figures[key][share]:.4g}" for share in _SHARES))
        for key, name, scale in _TIMES
        if key in seen.figures
    ]
    print_columns(console, columns, rows, more="--json has them")
    good = ""
    if seen.good_frac is not None:
        good = f"{seen.good_frac:.2%} of requests each keep --ttft, --tpot and --e2e; "
    say(console, f"{good}prefix caches held {seen.hit_frac:.0%} of the prompts' tokens")


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Hours in a row that need as many copies."""

    hours: Sequence[Hour]

    def name(self, started: str | None) -> str:
        """`0-3`, or the clock's times where the trace has them."""
        first, last = self.hours[0].window.hour, self.hours[-1].window.hour + 1
        if started is None:
            return f"{first}-{last}"
        begin = np.datetime64(started.replace(" ", "T"), "m")
        ends = (str(begin + np.timedelta64(hour, "h")) for hour in (first, last))
        return " to ".join(end.replace("T", " ") for end in ends)


def _by_hour(found: FleetPlan, console: Console) -> None:
    """Copies by hour, hours in a row that need as many together."""
    if len(found.hours) < 2:
        return
    console.print()
    say(console, "copies that each hour needs (the worst hour's figures on so many):")
    numbered = list(enumerate(found.hours))
    groups = [
        _Stretch([hour for _, hour in group])
        for _, group in groupby(
            numbered, key=lambda item: (item[1].copies, item[1].window.hour - item[0])
        )
    ]
    headings = ("hours", "copies", "req/s", "TTFT ms p99", "TPOT ms p99", "e2e s p99", "of limit")
    columns = [Column(heading=headings[0], justify="left")]
    columns += [Column(heading=heading) for heading in headings[1:]]
    rows = [_row(group, found.trace.started) for group in groups]
    print_columns(console, columns, rows, more="--json has them")
    say(
        console,
        "of limit: the figure nearest its limit, over the limit. A copy takes minutes to start:"
        " begin them before the hour.",
    )


def _row(group: _Stretch, started: str | None) -> tuple[str, ...]:
    rate = max(hour.window.requests / hour.window.seconds for hour in group.hours)
    worst = max(group.hours, key=lambda hour: hour.seen.excess)
    tails = (
        max(
            (
                scale * hour.seen.figures[key]["p99"]
                for hour in group.hours
                if key in hour.seen.figures
            ),
            default=None,
        )
        for key, _, scale in _TIMES
    )
    cells = ("" if tail is None else f"{tail:.4g}" for tail in tails)
    over = f"{worst.seen.excess:.0%} ({worst.seen.worst})"
    return (group.name(started), str(worst.copies), f"{rate:.3g}", *cells, over)


def _words(found: FleetPlan, console: Console) -> None:
    say(
        console,
        "TTFT: from sending to the first token. TPOT: (finish - first token) / (output tokens - 1)."
        " Over requests.",
    )
    for note in found.notes:
        say(console, f"note: {note}")
