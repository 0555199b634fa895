"""Lines of a log that say why a run failed, found in one pass over a log of any size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, cast, get_args

from meshwright.accuracy.tables import Rule, read_rules
from meshwright.logs.lines import lines_of, without_rank
from meshwright.runs.failures import FailureClass

__all__ = ["TIERS", "Evidence", "EvidenceReader", "Tier", "nearest_first"]

Tier = Literal["cause", "exception", "peer", "scheduler", "echo"]
"""How near to the cause a line is, nearest first: it names the cause; it is an exception that ended
a process; a rank waited in vain for another; the scheduler ended the run; something says that
something failed."""
TIERS: tuple[Tier, ...] = get_args(Tier)
_LONGEST = 4096
"""Characters of a line that are looked at; what says why stands at its front."""
_SHOWN = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One line that says something."""

    failure_class: FailureClass
    tier: Tier
    message: str
    line: str
    """As it was written, without colours, cut after 300 characters."""
    at: int
    """Its number among the lines of its log, from 0: of two of a tier the earlier is nearer to the
    cause."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    words: tuple[str, ...]
    rule: Rule


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """`presets/failure_patterns.csv`: of patterns that match one line, the first holds."""
    return tuple(
        _Pattern(tuple(rule["words"].split("|")), rule)
        for rule in read_rules("failure_patterns").rules
    )


@dataclass(slots=True)
class EvidenceReader:
    """Reads a log block by block, and keeps the first line of each class and tier."""

    lines: int = 0
    found: dict[tuple[FailureClass, Tier], Evidence] = field(default_factory=dict)

    def feed(self, block: str) -> None:
        """Read a block of whole lines."""
        small = block.lower()
        patterns = [
            pattern for pattern in _patterns() if any(word in small for word in pattern.words)
        ]
        if not patterns:
            self.lines += block.count("\n")
            return
        for line in lines_of(block):
            self._line(line, patterns)
            self.lines += 1

    def _line(self, line: str, patterns: Iterable[_Pattern]) -> None:
        small = without_rank(line[:_LONGEST]).lower()
        for pattern in patterns:
            if any(word in small for word in pattern.words) and pattern.rule.pattern.search(small):
                failure_class, tier = (
                    cast("FailureClass", pattern.rule["failure_class"]),
                    cast("Tier", pattern.rule["tier"]),
                )
                if (failure_class, tier) not in self.found:
                    self.found[failure_class, tier] = Evidence(
                        failure_class=failure_class,
                        tier=tier,
                        message=pattern.rule["message"],
                        line=line.strip()[:_SHOWN],
                        at=self.lines,
                    )
                return

    def evidence(self) -> tuple[Evidence, ...]:
        """Return what was found, nearest to the cause first."""
        return nearest_first(self.found.values())


def nearest_first(found: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Sort by tier; in a tier, what has a class comes before what has none, then the earlier
    line."""
    return tuple(
        sorted(
            found, key=lambda one: (TIERS.index(one.tier), one.failure_class == "unknown", one.at)
        )
    )
