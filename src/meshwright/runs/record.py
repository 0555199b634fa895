"""RunRecord: one run of a study, from its prediction to its outcome, joined by its id; `run.json`
and `events.jsonl` hold the same."""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from typing_extensions import TypeVar

from meshwright.runs.loads.figures import Served, served_of
from meshwright.runs.outcome import Failure, Measured
from meshwright.trust.calibration import Z90
from meshwright.trust.intervals import Fits
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "DIGITS",
    "AnyRun",
    "Course",
    "Event",
    "EventName",
    "Outcome",
    "Parts",
    "Predicted",
    "RunRecord",
    "StudyFacts",
    "again_id",
    "event_of",
    "first_id",
    "named_by",
    "of_plain",
    "read_run",
    "record_of",
    "run_id_of",
    "told_fields",
]

RunState = Literal["planned", "submitted", "finished", "failed"]
EventName = Literal["planned", "submitting", "submitted", "lost", "finished", "failed"]
"""`lost`: the platform knows nothing of a run that was handed to it, so it is planned again."""
Outcome = Measured | Served | Failure
DIGITS = 8
"""Of the digest in a run's id: two of a hundred layouts share it once in a million studies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What was predicted of a run when it was chosen."""

    step_s: float
    step_interval_s: tuple[float, float]
    """Of 80 %."""
    peak_bytes: float
    """Of the fullest chip."""
    peak_interval_bytes: tuple[float, float]
    fits: Fits
    flops_per_s_per_gpu: float
    """Model FLOP, full attention, recompute not counted."""
    mfu: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFacts:
    """What all runs of a study share, for tables and names."""

    model: str
    params: float
    chip: str
    num_chips: int
    chips_per_node: int
    seq_len: int
    precision: str
    stack: str
    """Whose cost model predicted the runs."""
    software: str
    """What trained: the embedded trainer (`meshwright`), or a target of `meshwright export`."""
    launcher: str
    peak_flops_per_s: float
    """Of one chip, dense, in the precision of the linear layers."""
    usd_per_chip_hour: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of `events.jsonl`."""

    at_s: float
    """Unix time."""
    event: EventName
    handle: str | None = None
    """The platform's name of the job."""
    outcome: Outcome | None = None
    started_s: float | None = None
    """When the processes began, as the platform says; the wait in a queue is no cost."""
    ended_s: float | None = None
    """When they ended, which may be hours before somebody looks."""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types; what is not said is left out."""
        names = ("at_s", "event", "handle", "started_s", "ended_s", "note")
        told = {name: getattr(self, name) for name in names}
        told["outcome"] = _outcome_dict(self.outcome)
        return {key: value for key, value in told.items() if value not in (None, "")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Course(ABC):
    """What happens to a run of any study, from its choice to its end."""

    TOLD: ClassVar[tuple[str, ...]] = ("run_id", "number", "chosen_because")
    """Fields that are known when it is chosen: the content of `run.json`."""
    run_id: str
    """Follows from what is run alone, so that nothing is run twice unless it is chosen again."""
    number: int
    """In the order in which runs were chosen, from 1."""
    chosen_because: str
    state: RunState = "planned"
    handle: str | None = None
    outcome: Outcome | None = None
    """What finished runs measured, or why a failed one failed."""
    submitting: bool = False
    """Whether the tuner was about to hand it to the platform when it last wrote: ask the platform
    before doing it again."""
    attempts: int = 0
    """Times that it was handed to the platform."""
    planned_s: float | None = None
    """Unix times."""
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None

    @property
    @abstractmethod
    def cost_s(self) -> float | None:
        """Seconds that runs of a study are compared by; None where none were measured."""

    @property
    @abstractmethod
    def noise(self) -> float:
        """How far another run of the same may be off: standard deviation of ln `cost_s`."""

    @property
    def ran_out(self) -> bool:
        """Whether it ran out of accelerator memory."""
        return self.failure is not None and self.failure.failure_class == "cuda_oom"

    @property
    def num_chips(self) -> int | None:
        """Chips that it holds; None: all of the study's."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return what is known when it is chosen, in plain types."""
        return {name: _plain(getattr(self, name)) for name in self.TOLD}

    @property
    def failure(self) -> Failure | None:
        """Why it failed; None where it did not."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def ran_s(self) -> float:
        """Seconds for which it held its chips, as far as known; 0 where it has not ended."""
        start = self.started_s if self.started_s is not None else self.submitted_s
        return 0.0 if start is None or self.ended_s is None else max(0.0, self.ended_s - start)

    def after(self, event: Event) -> Self:
        """Return the record with one more event."""
        if event.event == "planned":
            return replace(self, planned_s=event.at_s)
        if event.event == "submitting":
            return replace(self, submitting=True)
        found = replace(self, submitting=False)
        if event.event == "submitted":
            tries = self.attempts + 1
            return replace(
                found,
                state="submitted",
                handle=event.handle,
                submitted_s=event.at_s,
                attempts=tries,
            )
        if event.event == "lost":
            found = replace(found, state="planned", handle=None, outcome=None)
            return replace(found, submitted_s=None, started_s=None, ended_s=None)
        ended_s = event.at_s if event.ended_s is None else event.ended_s
        found = replace(found, state="finished" if event.event == "finished" else "failed")
        return replace(found, outcome=event.outcome, started_s=event.started_s, ended_s=ended_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord(Course):
    """One run of a layout; its id is `run_id_of` the layout."""

    TOLD: ClassVar[tuple[str, ...]] = ("run_id", "number", "layout", "predicted", "chosen_because")
    layout: Layout
    predicted: Predicted

    @property
    def measured(self) -> Measured | None:
        """What it measured; None where it has not finished."""
        return self.outcome if isinstance(self.outcome, Measured) else None

    @property
    def cost_s(self) -> float | None:
        """Seconds of a step."""
        return None if self.measured is None else self.measured.step_s

    @property
    def noise(self) -> float:
        """How far the median of another run's steps may be off.

        Formula:  ln(high / low) / (2 * Z90) is that of one step; of a median of n it is sqrt(pi / 2
                  / n) times as much
        Valid:    steps that vary independently; a machine that is slow for minutes shows less than
                  the truth.
        """
        found = self.measured
        if found is None:
            return 0.0
        return (
            math.log(found.step_high_s / found.step_low_s)
            / (2.0 * Z90)
            * math.sqrt(math.pi / 2.0 / found.steps)
        )


AnyRun = TypeVar("AnyRun", bound=Course, default=RunRecord)
"""A run of training, unless a study says of what else."""


_FIRST_FIELDS = (
    *("tp", "sp", "cp", "ep", "etp", "pp", "vpp", "dp", "sharding", "shard_size", "mbs", "gbs"),
    *("recompute", "recompute_method", "recompute_layers", "recompute_modules"),
    *("schedule", "layers_per_stage", "offload", "optimizer"),
)
"""Of a layout, when the first studies were named. A field that came later is told where it is not
its default alone: so runs keep the names that older studies have for them. Nothing is added."""


def run_id_of(layout: Layout) -> str:
    """Name a run by its layout, `tp2-pp1-dp1-mbs4-full-1f3a9c07`, with a digest of every field."""
    axes = [(name, getattr(layout, name)) for name in ("tp", "cp", "ep", "pp", "vpp", "dp")]
    named = [f"{name}{size}" for name, size in axes if size > 1 or name in ("tp", "pp", "dp")]
    told = told_fields(layout, always=_FIRST_FIELDS, usual=asdict(Layout()))
    return named_by([*named, f"mbs{layout.mbs}", layout.recompute], told)


def told_fields(
    value: DataclassInstance, *, always: Collection[str], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """Return fields in plain types: `always` these, and others where they are not as usual."""
    fields_of_it = asdict(value).items()
    return {name: one for name, one in fields_of_it if name in always or one != usual.get(name)}


_AGAIN = re.compile(r"-again\d+-[0-9a-f]+$")


def again_id(run_id: str, count: int) -> str:
    """Name the run number `count` of one layout, from 2, after the first."""
    return named_by([run_id, f"again{count}"], {"run_id": run_id, "count": count})


def first_id(run_id: str) -> str:
    """Return the name of the first run of the same."""
    return _AGAIN.sub("", run_id)


def named_by(words: Iterable[str], content: Mapping[str, Any]) -> str:
    """Name a run by some words and a digest of all that it is."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return "-".join([*words, digest[:DIGITS]])


def record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> RunRecord:
    """Read a run of training back from the content of its files; ConfigError names a wrong one."""
    if "deployment" in content:
        raise ConfigError(
            f"{source}: a run of a study of serving, which `meshwright serving tune` reads"
        )
    parts: Parts = {"layout": partial(of_plain, Layout), "predicted": partial(of_plain, Predicted)}
    return read_run(RunRecord, parts, content, events, what=f"{source}: no run of a study")


Parts = Mapping[str, Callable[[Any], Any]]
"""What reads the fields of a run that are not plain."""


def read_run(
    kind: type[AnyRun],
    parts: Parts,
    content: Mapping[str, Any],
    events: Iterable[Mapping[str, Any]],
    *,
    what: str,
) -> AnyRun:
    """Read a run of any study back; ConfigError says `what` is wrong."""
    try:
        told = {name: parts.get(name, _as_it_is)(content[name]) for name in kind.TOLD}
        record = kind(**told)
        for line in events:
            record = record.after(event_of(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{what} ({type(error).__name__}: {error})") from None
    return record


def _as_it_is(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


Kind = TypeVar("Kind")


def of_plain(kind: type[Kind], content: Mapping[str, Any]) -> Kind:
    """Read a value back from plain types, which have lists in place of tuples."""
    return kind(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in content.items()
        }
    )


def event_of(content: Mapping[str, Any]) -> Event:
    """Read one line of `events.jsonl`."""
    if content["event"] not in get_args(EventName):
        raise KeyError(content["event"])
    return Event(**{**content, "outcome": _outcome_of(content.get("outcome"))})


def _outcome_dict(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return outcome.to_dict() if isinstance(outcome, Served) else asdict(outcome)


def _outcome_of(content: Mapping[str, Any] | None) -> Outcome | None:
    if content is None:
        return None
    if "points" in content:
        return served_of(content)
    kind: type[Measured] | type[Failure] = Failure if "failure_class" in content else Measured
    known = {field.name for field in fields(kind)}
    return kind(**{key: value for key, value in content.items() if key in known})
