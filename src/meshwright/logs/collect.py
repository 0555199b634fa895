"""Reports as they come, from several ranks and several starts, in bounded memory; and the reading
that they make."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from meshwright.logs.lines import rank_of
from meshwright.logs.reading import Evaluation, Framework, LogReading, Report

__all__ = ["Collected"]

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

    framework: Framework
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

    @property
    def redraws(self) -> bool:
        """Whether the software draws a step's line more than once."""
        return self.framework == "nemo-1"

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
