"""A run's logs as they grow: read once, then only what is new, whatever their size; a training's
directory is read, never written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from meshwright.runs.outcome import EvidenceReader, Failure, Tier
from meshwright.runs.store import read_lines
from meshwright.runs.watch.alarms import NO_FACTS, RunFacts, facts_of_plan
from meshwright.runs.watch.status import (
    LOCAL_ADDRESS,
    RunStatus,
    serve_metrics,
    status_of,
    write_metrics,
)
from meshwright.software.log import LONGEST_LINE, lines_of, whole_lines
from meshwright.software.log_reader import LogReader
from meshwright.values.errors import ConfigError

__all__ = ["Follower", "Output", "follow", "watch_run", "watched"]

_BLOCK_BYTES = 2**20
_LOGS = ("stdout.log", "stderr.log")
_TRAIN, _PLAN, _JOBS, _EVENTS, _JOB = "train.yaml", "plan.json", "jobs", "events.jsonl", "job.json"
_TELLING: tuple[Tier, ...] = ("cause", "exception", "peer")
"""Lines that say why a run ended; the other tiers are left to who started it."""
_QUIET_S = 30.0
"""A log that is silent for so long behind an error has failed; before, its software may still
recover."""
_END = '"event": "summary"'
"""In the embedded trainer's last line."""


_START_BYTES = 4096
"""Of a file that tell a text from other data."""
_MOST_BROKEN = 0.05
"""Share of its letters that may be no UTF-8: names and bars of other tools."""


def _is_binary(path: Path) -> bool:
    """Whether a file is no text; zero bytes count for nothing, as logs that were cut under their
    writer begin with them."""
    with path.open("rb") as file:
        text = file.read(_START_BYTES).replace(b"\0", b"").decode("utf-8", errors="replace")
    return text.count("\ufffd") > _MOST_BROKEN * len(text)


@dataclass(slots=True)
class _Tail:
    """One file, and how far it was read."""

    path: Path
    at: int = 0
    rest: bytes = b""
    evidence: EvidenceReader = field(default_factory=EvidenceReader)
    """Behind the last report."""
    has_ended: bool = False
    grew_s: float | None = None
    """When it last grew, as the file system says."""

    def new_blocks(self) -> Iterator[str]:
        """Yield whole lines that were written since; a file that shrank is read again."""
        try:
            stat = self.path.stat()
            if stat.st_size < self.at:
                self.at, self.rest, self.evidence = 0, b"", EvidenceReader()
            if stat.st_size:
                self.grew_s = stat.st_mtime
            with self.path.open("rb") as handle:
                handle.seek(self.at)
                while chunk := handle.read(_BLOCK_BYTES):
                    self.at += len(chunk)
                    yield from whole_lines([self._whole(chunk)])
        except OSError:  # not there yet, or gone
            return

    def _whole(self, chunk: bytes) -> str:
        """What ends with a line; the rest waits, up to the longest line that is read."""
        text = self.rest + chunk
        cut = max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1)) + 1
        self.rest = text[cut:][: 4 * LONGEST_LINE]
        return text[:cut].decode("utf-8", errors="replace")


@dataclass(slots=True)
class Follower:
    """One run: `poll` reads what is new and says how it does."""

    path: Path
    facts: RunFacts = NO_FACTS
    reader: LogReader = field(default_factory=LogReader)
    tails: dict[Path, _Tail] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = self.path
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder")
        if path.is_dir() and not any((path / name).exists() for name in (_TRAIN, *_LOGS)):
            raise ConfigError(
                f"{path}: neither a training (train.yaml) nor a run (stdout.log); give one, or"
                " a log file"
            )
        if path.is_file() and _is_binary(path):
            raise ConfigError(f"{path}: not a text; give a training's log, or its folder")
        # A log, however long, is not read whole.
        if path.is_file() and path.suffix == ".json" and "plans" in _json(path):
            raise ConfigError(
                f"{path}: what `plan --json` wrote, no log; give the run's directory or log,"
                f" with --plan {path}"
            )
        if self._is_training() and (plan := path / _PLAN).exists():
            self.facts = _with_given(facts_of_plan(_json(plan), source=str(plan)), self.facts)

    def _is_training(self) -> bool:
        return self.path.is_dir() and (self.path / _TRAIN).exists()

    def _folders(self) -> list[Path]:
        """Folders of logs, oldest first."""
        if not self._is_training():
            return [self.path]
        jobs = [job for job in (self.path / _JOBS).glob("*") if job.name.isdecimal()]
        return sorted(jobs, key=lambda job: int(job.name))

    def _paths(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        return [folder / name for folder in self._folders() for name in _LOGS]

    def poll(self, *, now_s: float) -> RunStatus:
        """Return how the run does at a time (of the clock that files are stamped with)."""
        for path in self._paths():
            tail = self.tails.setdefault(path, _Tail(path))
            for block in tail.new_blocks():
                self._feed(tail, block)
        grown = [tail.grew_s for tail in self.tails.values() if tail.grew_s is not None]
        silent_s = max(0.0, now_s - max(grown)) if grown else None
        events = list(read_lines(self.path / _EVENTS)) if self._is_training() else []
        facts = self.facts
        if self._is_training():
            facts = replace(facts, total_steps=self._total_steps())
        return status_of(
            self.path.name or str(self.path),
            self.reader.reading(),
            facts=facts,
            silent_s=silent_s,
            failure=self._failure(events, silent_s),
            end=self._end(events),
            notes=_notes(events),
            is_given_up=bool(events) and events[-1].get("event") == "stopped",
        )

    def _feed(self, tail: _Tail, block: str) -> None:
        """Take lines singly where one tells of an error or the end; a report takes it back."""
        probe = EvidenceReader()
        probe.feed(block)
        for text in lines_of(block) if probe.found or _END in block else (block,):
            before = self.reader.num_reports
            self.reader.feed(text)
            if probe.found:
                tail.evidence.feed(text)
            if self.reader.num_reports > before:
                tail.evidence, tail.has_ended = EvidenceReader(), False
            tail.has_ended = tail.has_ended or _END in text

    def _newest(self) -> list[_Tail]:
        """Logs of the job that wrote last."""
        written = [path for path in self._paths() if self.tails[path].grew_s is not None]
        last = written[-1].parent if written else None
        return [tail for path, tail in self.tails.items() if path.parent == last]

    def _end(self, events: list[dict[str, Any]]) -> Literal["done", "ended"] | None:
        """A training is done when its starter says so; a run has ended when the trainer does."""
        if self._is_training():
            return "done" if events and events[-1].get("event") == "finished" else None
        return "ended" if any(tail.has_ended for tail in self._newest()) else None

    def _failure(self, events: list[dict[str, Any]], silent_s: float | None) -> Failure | None:
        """What its starter gave up for, else what its log ends with."""
        if events and events[-1].get("event") == "stopped":
            return Failure(
                failure_class="unknown", message=str(events[-1].get("why", "it was stopped"))
            )
        if silent_s is None or silent_s < _QUIET_S:
            return None
        found = (one for tail in self._newest() for one in tail.evidence.evidence())
        telling = (one for one in found if one.tier in _TELLING)
        first = min(telling, key=lambda one: one.nearness, default=None)
        return None if first is None else first.failure()

    def _total_steps(self) -> int | None:
        """As the newest job of a training was sent to do."""
        if self.facts.total_steps is not None:
            return self.facts.total_steps
        for folder in reversed(self._folders()):
            total = _json(folder / _JOB).get("total_steps")
            if isinstance(total, int):
                return total
        return None


def follow(
    path: Path,
    *,
    plan: Path | None = None,
    steps: int | None = None,
    chips: int | None = None,
    usd_per_hour: float | None = None,
) -> Follower:
    """Return what follows a run, with its plan or what the user says; ConfigError if it is none."""
    for name, value in (("steps", steps), ("gpus", chips), ("usd_per_hour", usd_per_hour)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name}={value}: expected a positive number")
    facts = NO_FACTS if plan is None else read_plan(plan)
    given = RunFacts(total_steps=steps, chips=chips, usd_per_chip_hour=usd_per_hour)
    return Follower(path=path, facts=_with_given(facts, given))


def read_plan(path: Path) -> RunFacts:
    """Read what `meshwright plan --json` wrote, the first plan; FILE#2 takes the second."""
    name, _, rank = str(path).partition("#")
    if rank and not rank.isdecimal():
        raise ConfigError(f"plan {path}: expected FILE#2 for its second plan")
    if not Path(name).is_file():
        raise ConfigError(f"plan {name}: no such file")
    return facts_of_plan(_json(Path(name)), rank=int(rank or 1), source=f"plan {name}")


def _with_given(found: RunFacts, given: RunFacts) -> RunFacts:
    """Facts of the directory, with what the user said instead."""
    said = {name: value for name, value in asdict(given).items() if value is not None}
    return replace(found, **said)


def _json(path: Path) -> dict[str, Any]:
    """An object of a file; an empty one where it can't be read, or is being written."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _notes(events: list[dict[str, Any]]) -> list[str]:
    """The last thing that happened, in words."""
    if not events:
        return []
    last = events[-1]
    job = f" job {last['job']}" if isinstance(last.get("job"), int) else ""
    why = f": {last['why']}" if last.get("why") else ""
    return [f"{last.get('event', 'event')}{job}{why}"]


class Taker(Protocol):
    """Is told of every look, and stops none."""

    def take(self, status: RunStatus) -> None:
        """Take a status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Where metrics and events go; None of them is asked for unless given."""

    port: int | None = None
    host: str | None = None
    textfile: Path | None = None
    takers: tuple[Taker, ...] = ()
    """Servers that are told of every look."""

    def write(self, status: RunStatus) -> RunStatus:
        """Write the text file, tell the takers, and return the status."""
        if self.textfile is not None:
            write_metrics(status, self.textfile)
        for taker in self.takers:
            taker.take(status)
        return status


def watched(
    follower: Follower,
    *,
    every_s: float,
    output: Output,
    show: Callable[[RunStatus], None],
    sleep: Callable[[float], None] = time.sleep,
) -> RunStatus:
    """Show a run's status at every look, until nothing more will come; return the last one."""
    newest = [output.write(follower.poll(now_s=time.time()))]
    stop = None
    if output.port is not None:
        host = output.host or LOCAL_ADDRESS
        stop = serve_metrics(lambda: newest[0], port=output.port, host=host)
    try:
        while True:
            show(newest[0])
            if newest[0].is_over:
                return newest[0]
            sleep(every_s)
            newest[0] = output.write(follower.poll(now_s=time.time()))
    finally:
        if stop is not None:
            stop()


def watch_run(
    path: str | Path,
    *,
    plan: str | Path | None = None,
    steps: int | None = None,
    gpus: int | None = None,
    usd_per_hour: float | None = None,
) -> RunStatus:
    """Return how a training does at this moment, by its directory or its log; `plan` is what `plan
    --json` wrote.

    `meshwright.runs.watch.follow.follow` returns what can be asked again and again, and then reads
    only what is new.
    """
    given = None if plan is None else Path(plan)
    found = follow(Path(path), plan=given, steps=steps, chips=gpus, usd_per_hour=usd_per_hour)
    return found.poll(now_s=time.time())
