"""Reports as they come, from several ranks and several starts, in bounded memory; and the reading
that they make."""

from __future__ import annotations

import io
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

__all__ = [
    "LONGEST_LINE",
    "NUMBER",
    "WARM_UP",
    "Collected",
    "Evaluation",
    "LogReading",
    "Report",
    "after_warm_up",
    "count",
    "fields_by_bar",
    "lines_of",
    "number",
    "plain",
    "rank_of",
    "scaled",
    "steady_reports",
    "whole_lines",
    "without_rank",
]

NUMBER = r"[-+]?(?:\d{1,18}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|nan|inf)"
"""A float as Python writes it; bounded, so that no text makes it slow."""
_NUMBER = re.compile(NUMBER, re.IGNORECASE)
_SCALED = re.compile(rf"({NUMBER})([KMBTPE]?)", re.IGNORECASE)
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def number(text: str | None) -> float | None:
    """Read a whole text as a number; None where it is none."""
    words = (text or "").strip()
    return float(words) if len(words) < 48 and _NUMBER.fullmatch(words) else None


def count(text: str | None) -> int:
    """Read a whole number; 0 where it is none."""
    words = (text or "").strip()
    return int(words) if len(words) < 16 and words.isascii() and words.isdecimal() else 0


def scaled(text: str | None) -> float | None:
    """Read a number with a suffix of thousands, `1.23K`; None where it is none."""
    words = (text or "").strip()
    found = _SCALED.fullmatch(words) if len(words) < 48 else None
    return float(found[1]) * _SIZES[found[2].upper()] if found else None


def fields_by_bar(text: str) -> Mapping[str, str]:
    """Read `name: value | name: value |` into a mapping, the last name and value only where a bar
    or a line's end stands behind them.

    A line that was cut short, or that another process wrote into, ends in the middle of a number:
    what has no end is left out.
    """
    parts = text.split("|")
    if not parts[-1].endswith("\n"):
        parts.pop()
    pairs = (part.rpartition(":") for part in parts)
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


LONGEST_LINE = 2**17
"""Characters; what a longer line has beyond is dropped. A dump of a large configuration in one line
is shorter."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""ECMA-48: colours and cursors (CSI), titles and links (OSC), single ones."""
_PREFIX = re.compile(
    r"""\s{0,8}(?:
      (?P<plain>\d{1,7}):\ ?                            # srun --label
      | \[[A-Za-z_]{1,30}(?P<elastic>\d{1,7})\]:\ ?     # torchrun --tee, `[default0]:`; torch's own errors, `[rank0]:`
      | \[\d{1,5},(?P<mpi>\d{1,7})\]<std\w{3}>:\ ?      # mpirun --tag-output
      | \[pod/(?P<pod>[\w./-]{1,200})\]\ ?              # kubectl logs --prefix
      | (?P<torchx>[A-Za-z][\w.-]{0,100}/\d{1,7})\ (?=\[)  # torchx and NeMo-Run, in front of torchrun's
      | (?P<worker>worker-\d{1,5}):\ ?                  # deepspeed over pdsh
    )""",  # noqa: E501
    re.VERBOSE,
)
_DEEPEST = 4
"""Prefixes that may stand one behind the other: a launcher's inside a launcher's."""


def plain(text: str) -> str:
    r"""Return a text without colours, with `\n` alone at the ends of lines: a progress bar is a
    line for each time it was drawn."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def whole_lines(chunks: Iterable[str]) -> Iterator[str]:
    r"""Yield a text again in blocks that end with a line, the last one perhaps without its `\n`;
    colours and carriage returns gone."""
    rest = ""
    for chunk in chunks:
        text = rest + chunk
        end = len(text) - text.endswith("\r")  # `\r\n` may be cut in two
        cut = max(text.rfind("\n"), text.rfind("\r", 0, end)) + 1
        if cut:
            yield _bounded(plain(text[:cut]))
        rest = (
            text[cut:]
            if len(text) - cut <= LONGEST_LINE
            else text[cut : cut + LONGEST_LINE] + text[-1]
        )
    if rest:
        yield _bounded(plain(rest))


def lines_of(block: str) -> Iterator[str]:
    r"""Yield the lines of a block, each with its `\n`; other separators of Unicode do not end a
    line."""
    return iter(io.StringIO(block))


def _bounded(text: str) -> str:
    """Cut the lines that are too long."""
    if len(text) <= LONGEST_LINE:
        return text
    return "".join(
        line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "\n" for line in lines_of(text)
    )


def rank_of(line: str) -> str:
    """Name who wrote a line, by the launcher's prefix; empty where there is none."""
    return "/".join(
        next(group for group in match.groups() if group is not None) for match in _prefixes(line)
    )


def without_rank(line: str) -> str:
    """Return a line without the launcher's prefixes, and without spaces in front."""
    end = 0
    for match in _prefixes(line):
        end = match.end()
    return line[end:].lstrip(" \t")


def _prefixes(line: str) -> Iterator[re.Match[str]]:
    at = 0
    for _ in range(_DEEPEST):
        match = _PREFIX.match(line, at)
        if match is None:
            return
        yield match
        at = match.end()


T = TypeVar("T")
WARM_UP = 3
"""Reports at the start of a process that are left out: compilation, allocator, first
collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one line of a log says of a step, or of the mean of the steps since the line before;
    None is not said."""

    step: int | None = None
    """Steps that are done, from 1, whatever the software counts from."""
    step_s: float | None = None
    tokens_per_s: float | None = None
    """Of all chips."""
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    """Of all chips."""
    tflops_per_gpu: float | None = None
    """As the software counts its FLOPs."""
    loss: float | None = None
    grad_norm: float | None = None
    batch: float | None = None
    """Of one step, in what the software counts: samples, or tokens (nanotron from 0.4). It tells a
    batch that grows, no more."""
    skipped: int = 0
    """Iterations without an update (a loss scale that was too high)."""
    nan: int = 0
    """Iterations whose loss was no number."""
    start: int = 0
    """Which start of the software it is of, from 0: a run that was resumed counts some steps
    twice."""

    @property
    def has_rate(self) -> bool:
        """Whether the step's time is said, or follows from a rate."""
        rates = (self.step_s, self.tokens_per_s, self.tokens_per_s_per_gpu, self.samples_per_s)
        return any(rate is not None and 0 < rate < math.inf for rate in rates)

    def seconds(self, *, seq_len: int, gbs: int, num_chips: int) -> float | None:
        """Return the step's time, from a rate where the time itself is not said; None where neither
        is."""
        tokens = float(seq_len * gbs)
        for quantity, work in (
            (self.step_s, None),
            (self.tokens_per_s, tokens),
            (self.tokens_per_s_per_gpu, tokens / num_chips),
            (self.samples_per_s, float(gbs)),
        ):
            if quantity is not None and 0 < quantity < math.inf:
                return quantity if work is None else work / quantity
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A loss of held-out data."""

    step: int
    """Steps that were done then."""
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReading:
    """What a log says."""

    framework: str
    reports: tuple[Report, ...] = ()
    """In the order in which the steps were done; of long logs the last ones."""
    num_reports: int = 0
    """Of those, and those before."""
    peak_allocated_bytes: float | None = None
    """Largest of all that ranks reported."""
    peak_reserved_bytes: float | None = None
    total_steps: int | None = None
    """Of the whole run, as the newest line says; None where the software does not tell."""
    evaluations: tuple[Evaluation, ...] = ()
    """In the order in which they were made; of long logs the last ones."""
    saved_step: int | None = None
    """Of the newest checkpoint that the log calls written."""
    is_saving: bool = False
    """Whether the log says that one is being written, and not yet that it is."""

    def _said(self, name: str) -> tuple[Any, ...]:
        """Return what the reports that say it have."""
        found = (getattr(report, name) for report in self.reports)
        return tuple(value for value in found if value is not None)

    @property
    def step_s(self) -> tuple[float, ...]:
        """Times of steps, where reports say them."""
        return self._said("step_s")

    @property
    def steps(self) -> tuple[int, ...]:
        """Counts of steps, where reports say them."""
        return self._said("step")

    @property
    def loss(self) -> tuple[float, ...]:
        """Losses, where reports say them."""
        return self._said("loss")

    @property
    def grad_norm(self) -> tuple[float, ...]:
        """Gradient norms, where reports say them."""
        return self._said("grad_norm")

    @property
    def tokens_per_s(self) -> tuple[float, ...]:
        """Rates of all chips, where reports say them."""
        return self._said("tokens_per_s")

    @property
    def tflops_per_gpu(self) -> tuple[float, ...]:
        """Rates of one chip, where reports say them."""
        return self._said("tflops_per_gpu")

    @property
    def last_step(self) -> int | None:
        """The furthest step that was done; None before the first."""
        return max(self.steps, default=None)


def steady_reports(reports: Iterable[Report]) -> tuple[Report, ...]:
    """Return the reports that a step's time may stand on.

    Those with a rate, of the last size of the batch where it grew, without iterations that skipped
    their update, and without the warm-up of each start: the first WARM_UP of it, at most a third,
    at least one.
    """
    rated = [report for report in reports if report.has_rate]
    last = rated[-1].batch if rated else None
    by_start: dict[int, list[Report]] = {}
    for report in rated:
        if report.batch == last:
            by_start.setdefault(report.start, []).append(report)
    kept = [report for found in by_start.values() for report in after_warm_up(found)]
    updated = [report for report in kept if not report.skipped and not report.nan]
    return tuple(updated or kept)


def after_warm_up(found: list[T]) -> list[T]:
    """Return what is left of the reports of one start: the first WARM_UP are left out, at most a
    third of all, at least one."""
    return found[max(1, min(WARM_UP, len(found) // 3)) :]


MOST_REPORTS = 2**16
"""Kept of one rank; those before are counted alone."""
MOST_EVALUATIONS = 2**12
"""The same of evaluations."""
MOST_RANKS = 64
"""Ranks whose reports are kept; of others the peaks of memory are."""


@dataclass(slots=True)
class _Rank:
    """Reports of one rank."""

    reports: deque[Report] = field(default_factory=lambda: deque(maxlen=MOST_REPORTS))
    num_reports: int = 0
    start: int = 0


@dataclass(slots=True)
class Collected:
    """What one software's reader has found so far."""

    framework: str
    redraws: bool = False
    """Whether the software draws a step's line more than once."""
    known: bool = False
    """Whether the log is this software's, with reports or without."""
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    total_steps: int | None = None
    saved_step: int | None = None
    saving_step: int | None = None
    evaluations: deque[Evaluation] = field(default_factory=lambda: deque(maxlen=MOST_EVALUATIONS))
    ranks: dict[str, _Rank] = field(default_factory=dict)

    def add(self, line: str, report: Report) -> None:
        """Keep a report.

        A count of steps that goes back is another start of the software; the same count again is
        the same report once more (a progress bar that was drawn again), and the newer one holds.
        """
        self.known = True
        name = rank_of(line)
        rank = self.ranks.get(name)
        if rank is None:
            if len(self.ranks) >= MOST_RANKS:
                return
            rank = self.ranks[name] = _Rank()
        before = rank.reports[-1] if rank.reports else None
        if (
            before is not None
            and before.step is not None
            and report.step is not None
            and report.step <= before.step
        ):
            if report.step == before.step and self.redraws:
                rank.reports[-1] = replace(report, start=rank.start)
                return
            rank.start += 1
        rank.reports.append(report if rank.start == 0 else replace(report, start=rank.start))
        rank.num_reports += 1

    def evaluated(self, step: int, loss: float | None) -> None:
        """Keep a loss of held-out data; several ranks may tell of one."""
        self.known = True
        if loss is not None and (not self.evaluations or self.evaluations[-1].step != step):
            self.evaluations.append(Evaluation(step=step, loss=loss))

    def memory(self, *, allocated: float | None = None, reserved: float | None = None) -> None:
        """Keep a report of peaks, in bytes, if it is the largest; none is smaller than a byte."""
        if allocated is not None and 1 <= allocated < 2**60:
            self.allocated_bytes = max(allocated, self.allocated_bytes or 0.0)
        if reserved is not None and 1 <= reserved < 2**60:
            self.reserved_bytes = max(reserved, self.reserved_bytes or 0.0)

    def reading(self) -> LogReading:
        """Return what was found: the reports of the rank that made most, what it does not say
        filled in from others."""
        lead = _one_voice(
            max(self.ranks.values(), key=lambda rank: rank.num_reports, default=_Rank())
        )
        others = [rank for rank in self.ranks.values() if rank.reports is not lead.reports]
        return LogReading(
            framework=self.framework,
            reports=_filled(lead, others),
            num_reports=lead.num_reports,
            peak_allocated_bytes=self.allocated_bytes,
            peak_reserved_bytes=self.reserved_bytes,
            total_steps=self.total_steps,
            evaluations=tuple(self.evaluations),
            saved_step=self.saved_step,
            is_saving=self.saving_step is not None and self.saving_step != self.saved_step,
        )


def _one_voice(rank: _Rank) -> _Rank:
    """Where every other report or more goes back, several ranks wrote without a name: keep the
    first report of each step."""
    if 2 * rank.start < rank.num_reports - 1 or rank.num_reports < 2:
        return rank
    by_step: dict[int | None, Report] = {}
    for report in rank.reports:
        by_step.setdefault(report.step, replace(report, start=0))
    reports = deque(
        sorted(by_step.values(), key=lambda report: report.step or 0), maxlen=MOST_REPORTS
    )
    return _Rank(reports=reports, num_reports=len(reports))


def _filled(lead: _Rank, others: list[_Rank]) -> tuple[Report, ...]:
    """A pipeline's last stage knows the loss, its first one may write the log."""
    if not others:
        return tuple(lead.reports)
    told = {
        (found.start, found.step): found
        for rank in others
        for found in rank.reports
        if found.loss is not None and found.step is not None
    }
    return tuple(
        (
            replace(report, loss=found.loss)
            if report.loss is None
            and (found := told.get((report.start, report.step or -1))) is not None
            else report
        )
        for report in lead.reports
    )
