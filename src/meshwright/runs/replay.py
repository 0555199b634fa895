"""A table of measured runs in place of a cluster: what a study would have run, and how it ended."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.runs.choose import CONFIDENCE, Stop, Strategy, Tried, best_of, choose, ends
from meshwright.runs.forecasts import Forecast, Options, options_of
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import fit_known, step_time_of
from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.runs.measured.rows import Case, read_row
from meshwright.trust.intervals import intervals_of
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "ALIKE",
    "NEAR",
    "SMALLEST_GROUP",
    "Answer",
    "ComparisonSet",
    "Moment",
    "Replayed",
    "answers_of",
    "comparison_of",
    "course",
    "forecasts_of",
    "judged",
    "replay",
    "replay_table",
    "sets_of",
]

ALIKE = (
    *("group", "gpu", "num_gpus", "seq_len", "gbs", "precision"),
    *("release", "task"),
)
"""Columns that runs agree in that are compared with each other."""
SMALLEST_GROUP = 8
"""Finished runs that a set needs."""
NEAR = 0.02
"""How near to the fastest of its set a layout must be, of its step time."""
Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSet:
    """Measured runs that differ in layout alone."""

    table: str
    column: str
    """The cell of `group`."""
    group: str
    """All cells of ALIKE."""
    measured: tuple[float, ...]
    """Seconds; infinite where it ran out of memory."""
    cases: tuple[Case, ...]
    """What each row says of its run; rows that can't be predicted are left out of the set."""
    unanswered: int
    predictions: tuple[Prediction, ...]

    @property
    def name(self) -> str:
        """The table and the group."""
        return f"{self.table} {self.group}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """How a study of one set went."""

    group: str
    layouts: int
    runs_to_2_percent: int | None
    """Runs until one within NEAR of the fastest was measured; None where the study would have gone
    on to the end without."""
    stopped_after: int
    stated_confidence: float
    """That no layout was faster than the best by more than the tolerance, when it stopped."""
    regret_frac: float
    """Step time lost against the fastest of the set."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return asdict(self)


def comparison_of(row: Row) -> tuple[str, ...]:
    """Return what runs agree in that are compared with each other: they differ in layout alone."""
    return tuple(row.get(column) or "" for column in ALIKE)


def sets_of(table: TruthTable) -> Iterator[ComparisonSet]:
    """Yield the sets of at least SMALLEST_GROUP finished runs of a table."""
    members: dict[tuple[str, ...], list[tuple[Row, float]]] = defaultdict(list)
    for row in table.rows:
        step_s = step_time_of(table.name, row)
        if step_s is not None:
            members[comparison_of(row)].append((row, step_s))
        elif fit_known(row) is False:
            members[comparison_of(row)].append((row, math.inf))
    for key, rows in members.items():
        if sum(math.isfinite(step_s) for _, step_s in rows) >= SMALLEST_GROUP:
            yield _set_of(table.name, key, rows)


def _set_of(table: str, key: tuple[str, ...], rows: Sequence[tuple[Row, float]]) -> ComparisonSet:
    found = [read_row(row, source=table) for row, _ in rows]
    answers = {p.row_id: p for p in predict_rows(found).predictions}
    kept = [
        (case, answers[case.row_id], step_s)
        for case, (_, step_s) in zip(found, rows, strict=True)
        if isinstance(case, Case) and case.row_id in answers
    ]
    return ComparisonSet(
        table=table,
        column=key[0],
        group=" ".join(filter(None, key)),
        measured=tuple(step_s for *_, step_s in kept),
        cases=tuple(case for case, *_ in kept),
        unanswered=len(rows) - len(kept),
        predictions=tuple(answer for _, answer, _ in kept),
    )


def forecasts_of(found: ComparisonSet) -> list[Forecast]:
    """Return what is believed of each layout before any run."""
    return [
        Forecast(
            case=case,
            step_s=answer.step_s,
            used_bytes=answer.used_bytes,
            limit_bytes=min(node.chip.usable_bytes for node in case.machines.nodes),
            intervals=intervals_of(
                answer.case.kind,
                step_s=answer.step_s,
                peak_bytes=answer.used_bytes,
                assumptions=answer.case.assumptions,
            ),
        )
        for case, answer in zip(found.cases, found.predictions, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A study after one of its runs."""

    index: int
    """Of the layout that ran."""
    best: int | None
    """The layout that the study would name; None while none has finished."""
    confidence: float
    """That no layout is faster than the best by more than the tolerance."""
    expected_loss: float = 0.0
    """Of step time, as of a choice."""

    def ends(self, confidence: float, *, tolerance: float) -> bool:
        """Whether a study would end here, as `choose` ends one."""
        told = ends(self.confidence, self.expected_loss, confidence=confidence, tolerance=tolerance)
        return self.best is not None and told


Answer = Callable[[int], Tried]
"""What a run of a layout shows."""


def course(
    options: Options,
    answer: Answer,
    *,
    strategy: Strategy = "predicted",
    tolerance: float = NEAR,
    seed: int = 0,
) -> Iterator[Moment]:
    """Yield a study after each of its runs, to the last layout: nothing ends it. `answer` is asked
    again of a layout whose noise hides whether it is the best."""
    tried: dict[int, Tried] = {}
    last: int | None = None
    while True:
        found = choose(
            options, tried, strategy=strategy, tolerance=tolerance, confidence=math.inf, seed=seed
        )
        if last is not None:
            yield Moment(
                index=last,
                best=best_of(tried),
                confidence=found.confidence,
                expected_loss=found.expected_loss,
            )
        if isinstance(found, Stop):
            return
        last = found.index
        shown = answer(last)
        tried[last] = tried[last].with_another(shown) if last in tried else shown


def answers_of(measured: Sequence[float]) -> Answer:
    """Return runs that take what was measured, infinite where memory ran out."""

    def answer(index: int) -> Tried:
        step_s = measured[index]
        return Tried(ran_out=True) if math.isinf(step_s) else Tried(step_s=step_s)

    return answer


def replay(
    measured: Sequence[float],
    options: Options,
    *,
    group: str = "",
    strategy: Strategy = "predicted",
    tolerance: float = NEAR,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Replayed:
    """Return how a study goes whose runs take what was measured, infinite where memory ran out."""
    moments = course(
        options, answers_of(measured), strategy=strategy, tolerance=tolerance, seed=seed
    )
    return judged(moments, measured, group=group, tolerance=tolerance, confidence=confidence)


def judged(
    moments: Iterable[Moment],
    truth: Sequence[float],
    *,
    group: str = "",
    tolerance: float = NEAR,
    confidence: float = CONFIDENCE,
) -> Replayed:
    """Return how a study went that ends once it is as sure as `confidence`, by what the layouts
    take in truth; moments are asked for no longer than is needed."""
    fastest = min(truth)
    reached: int | None = None
    stopped: tuple[int, Moment] | None = None
    ran: set[int] = set()
    for runs, moment in enumerate(moments, start=1):
        ran.add(moment.index)
        if reached is None and truth[moment.index] <= fastest * (1.0 + NEAR):
            reached = runs
        if stopped is None and (
            len(ran) == len(truth) or moment.ends(confidence, tolerance=tolerance)
        ):
            stopped = runs, moment
        if stopped is not None and reached is not None:
            break
    assert stopped is not None
    runs, at = stopped
    return Replayed(
        group=group,
        layouts=len(truth),
        runs_to_2_percent=reached,
        stopped_after=runs,
        stated_confidence=round(at.confidence, 4),
        regret_frac=math.inf if at.best is None else round(truth[at.best] / fastest - 1.0, 6),
    )


def replay_table(
    table: TruthTable,
    *,
    group: str | None = None,
    tolerance: float = NEAR,
    confidence: float = CONFIDENCE,
) -> list[Replayed]:
    """Return how a study of each set of a table goes; ConfigError where it has none,
    UnknownNameError where it has not that one."""
    found = list(sets_of(table))
    if not found:
        columns = ", ".join(ALIKE)
        raise ConfigError(
            f"{table.name}: no set of {SMALLEST_GROUP} finished runs that agree in {columns}"
        )
    chosen = [one for one in found if group in (None, one.group, one.column)]
    if group is not None and not chosen:
        raise UnknownNameError("group", group, sorted({one.column for one in found}))
    return [
        replay(
            one.measured,
            options_of(forecasts_of(one)),
            group=one.group,
            tolerance=tolerance,
            confidence=confidence,
        )
        for one in chosen
        if one.cases
    ]
