"""Whether a training run that ended is started again, after how long, and why not: a pure function
of how its jobs ended.

The rules, in the order in which they are asked:

1. A job that ended well is the end of the run; one that its user cancelled stays cancelled.
2. A run that fails the same way twice stops. The same way is: the same class, the same line of the
   log but for its numbers, and no newer checkpoint between the two, so that a third start would do
   the same again. Classes of chance (a node was lost, the scheduler took the nodes or never gave
   them) are no way of the run's own and are let pass here.
3. A run stops after `most_in_a_row` restarts without a newer checkpoint, and after `most` restarts
   in all. Jobs that end at their time limit with a newer checkpoint are links of a chain, and count
   for neither.
4. Otherwise it starts again, from its newest checkpoint: at once behind a time limit, else after a
   wait that doubles with every failure since the last newer checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.runs.outcome import Failure, FailureClass
from meshwright.values.errors import ConfigError

__all__ = ["Attempt", "RestartPolicy", "next_start"]

_BY_CHANCE: tuple[FailureClass, ...] = ("node_failure", "preempted", "never_started")
_ADVICE: Mapping[FailureClass, str] = {
    "time_limit": (
        "; the limit is too short for a start and one checkpoint: save more often, or ask for more"
        " time"
    ),
    "cuda_oom": "; `meshwright why-oom` names what fills the memory and what would mend it",
    "host_oom": "; ask for more host memory, or start fewer data workers",
    "nan_loss": (
        "; look at the data behind that step, or go on from an older checkpoint with a smaller"
        " learning rate"
    ),
    "config_error": "; another start would read the same settings",
}
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """Limits and waits."""

    most: int = 100
    """Restarts behind failures in all: Llama 3's 419 unexpected interruptions in 54 days
    (arXiv:2407.21783, section 3.3.4) are 8 a day on 16,384 chips, so a month on 4,096 needs
    fewer."""
    most_in_a_row: int = 3
    """Restarts without a newer checkpoint between them."""
    first_wait_s: float = 30.0
    """Before the first restart behind a newer checkpoint: shared file systems and drained nodes
    need a moment."""
    longest_wait_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("most", "most_in_a_row"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name}={getattr(self, name)}: expected 0 (never start again) or more"
                )
        if not 0 <= self.first_wait_s <= self.longest_wait_s < float("inf"):
            raise ConfigError(
                f"first_wait_s={self.first_wait_s:g}, longest_wait_s={self.longest_wait_s:g}:"
                " expected 0 <= first <= longest"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One job of a run, which has ended."""

    failure: Failure | None
    """None where it ended well: the run has all its tokens."""
    saved_step: int | None
    """Steps at the newest whole checkpoint when it ended, whoever wrote that; None without one."""
    cancelled: bool = False
    """Whether its user ended it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """What happens next."""

    action: Literal["done", "start", "stop"]
    wait_s: float = 0.0
    """Before the start."""
    why: str
    """A sentence for people."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {"action": self.action, "wait_s": self.wait_s, "why": self.why}


def next_start(attempts: Sequence[Attempt], *, policy: RestartPolicy | None = None) -> Restart:
    """Return whether a run starts again; `attempts` are all its jobs so far, oldest first, at least
    one.

    Formula:  wait_s = min(first_wait_s * 2**(failures without a newer checkpoint - 1),
              longest_wait_s); 0 behind a time limit
    Units:    s.
    Source:   the rules at the top of this file
    Checked:  tests/runs/watch/test_restart.py
    """
    policy = policy or RestartPolicy()
    last = attempts[-1]
    if last.cancelled:
        return Restart(action="stop", why="it was cancelled")
    if last.failure is None:
        return Restart(action="done", why="it ended well")
    failures, stuck = _failures(attempts)
    said, evidence = last.failure.message, last.failure.evidence
    said += "" if evidence is None else f" ({evidence})"
    if any(_same_way(earlier, last.failure) for earlier in stuck[:-1]):
        advice = _ADVICE.get(last.failure.failure_class, "")
        why = f"it failed the same way twice {_since(last)}: {said}{advice}"
        return Restart(action="stop", why=why)
    if len(stuck) > policy.most_in_a_row:
        limit = f"limit: {policy.most_in_a_row} restarts in a row"
        why = f"{_times(len(stuck))} {_since(last)} it ended ({limit}); last: {said}"
        return Restart(action="stop", why=why)
    if len(failures) > policy.most:
        limit = f"limit: {policy.most} restarts"
        why = f"it failed {_times(len(failures))} in all ({limit}); last: {said}"
        return Restart(action="stop", why=why)
    if last.failure.failure_class == "time_limit":
        return Restart(action="start", why=f"its time was over; it goes on from {_place(last)}")
    wait_s = min(policy.first_wait_s * 2.0 ** (len(stuck) - 1), policy.longest_wait_s)
    words = (
        f"{said}; it starts again from {_place(last)}, restart {len(failures)} of {policy.most} at"
        " most"
    )
    return Restart(action="start", wait_s=wait_s, why=words)


def _failures(attempts: Sequence[Attempt]) -> tuple[list[Failure], list[Failure]]:
    """All failures but links of a chain; and those since the newest checkpoint came, with that of
    the job that wrote it."""
    newest = 0
    every: list[Failure] = []
    stuck: list[Failure] = []
    for attempt in attempts:
        newer = (attempt.saved_step or 0) > newest
        if newer:
            newest, stuck = attempt.saved_step or 0, []
        found = attempt.failure
        if found is not None and not (newer and found.failure_class == "time_limit"):
            every.append(found)
            stuck.append(found)
    return every, stuck


def _same_way(one: Failure, other: Failure) -> bool:
    """Whether two failures, not of chance, are of one class and one line but for its numbers."""
    if one.failure_class != other.failure_class or one.failure_class in _BY_CHANCE:
        return False
    lines = {_NUMBERS.sub("#", each.evidence or each.message) for each in (one, other)}
    return len(lines) == 1


def _since(last: Attempt) -> str:
    if last.saved_step is None:
        return "without a checkpoint"
    return f"without a checkpoint behind step {last.saved_step:,}"


def _place(last: Attempt) -> str:
    if last.saved_step is None:
        return "the start, for there is no checkpoint"
    return f"step {last.saved_step:,}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
