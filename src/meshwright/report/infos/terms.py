"""Time and memory by term, as stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshwright.report.charts.forms import Bar, Series, Stack
from meshwright.report.charts.style import MEMORY_COLOURS, TIME_COLOURS
from meshwright.report.charts.words import number
from meshwright.report.infos.part import Record
from meshwright.search.terms import MEMORY_READINGS, TIME_READINGS

__all__ = ["memory_stack", "time_stack"]

Terms = Mapping[str, float]


def time_stack(bars: Sequence[tuple[str, Record]], *, key: str, title: str, sentence: str) -> Stack:
    """Return steps by term, each with the 80 % interval of its sum; (name, what has `time` and
    `interval`) each."""
    series = _series(
        (record["time"] for _, record in bars),
        TIME_COLOURS,
        {term: r.title for term, r in TIME_READINGS.items()},
    )
    drawn = tuple(
        Bar(
            label=label,
            values=_values(series, record["time"]),
            **_ends(record["interval"], "step_s"),
        )
        for label, record in bars
    )
    return Stack(
        key=key, title=title, sentence=sentence, unit="s", series=series, bars=drawn, over="layout"
    )


def memory_stack(
    bars: Sequence[tuple[str, Terms]],
    *,
    key: str,
    title: str,
    sentence: str,
    limit_gib: float | None,
    over: str = "stage",
) -> Stack:
    """Return GiB by term against the card's line."""
    series = _series(
        (terms for _, terms in bars),
        MEMORY_COLOURS,
        {term: r.title for term, r in MEMORY_READINGS.items()},
    )
    drawn = tuple(Bar(label=label, values=_values(series, terms)) for label, terms in bars)
    words = "" if limit_gib is None else f"{number(limit_gib)} GiB that a process may use"
    return Stack(
        key=key,
        title=title,
        sentence=sentence,
        unit="GiB",
        series=series,
        bars=drawn,
        over=over,
        limit=limit_gib,
        limit_words=words,
    )


def _series(
    every: Iterable[Terms], colours: Mapping[str, str], titles: Mapping[str, str]
) -> tuple[Series, ...]:
    """Terms that are more than rounding in some bar, in the order of the cost model."""
    listed = list(every)
    largest = {
        term: max(terms.get(term, 0.0) for terms in listed)
        for term in dict.fromkeys(t for terms in listed for t in terms)
    }
    whole = max((sum(terms.values()) for terms in listed), default=0.0)
    return tuple(
        Series(key=t, title=titles[t], colour=colours[t])
        for t, most in largest.items()
        if most > 1e-9 * whole
    )


def _values(series: Sequence[Series], terms: Terms) -> tuple[float, ...]:
    return tuple(terms.get(part.key, 0.0) for part in series)


def _ends(interval: Mapping[str, Sequence[float]] | None, name: str) -> dict[str, float]:
    return {} if interval is None else dict(zip(("low", "high"), interval[name], strict=True))
