"""What happens to a run, as JSON for a webhook."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from meshwright.runs.post import Address, Refused, post_json
from meshwright.runs.watch.alarms import Alarm
from meshwright.runs.watch.status import RunStatus

__all__ = ["Event", "Notifier", "events_between"]

EventName = Literal["started", "restarted", "alarm", "cleared", "done", "ended", "given_up"]
_MOST_WAITING = 100
"""Events kept for a server that is away; older ones are dropped."""
_LAST_TRIES, _PAUSE_S = 3, 2.0
"""Of the run's end, behind which comes no other look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that a person may want to be woken for."""

    event: EventName
    text: str
    """A sentence with the run's name."""
    kind: str | None = None
    """Of an alarm."""
    status: RunStatus

    def to_dict(self, *, now_s: float) -> dict[str, Any]:
        """Return what is posted."""
        return {
            "event": self.event,
            "kind": self.kind,
            "run": self.status.name,
            "time": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds"),
            "text": self.text,
            "status": self.status.to_dict(),
        }


def events_between(before: RunStatus | None, now: RunStatus) -> Iterator[Event]:
    """Yield what happened between two looks, in the order in which it matters.

    The first look tells of alarms that hold and of an end, not of a run that goes.
    """
    old = {} if before is None else {alarm.kind: alarm for alarm in before.alarms}
    new = {alarm.kind: alarm for alarm in now.alarms}
    if before is not None and before.step is None and now.step is not None:
        yield Event(event="started", text=f"{now.name} trains: step {now.step:,}.", status=now)
    if before is not None and now.restarts > before.restarts:
        text = f"{now.name} started again, for the {_nth(now.restarts)} time."
        yield Event(event="restarted", text=text, status=now)
    for kind, alarm in new.items():
        if kind not in old:
            yield Event(event="alarm", kind=kind, text=_alarm_text(now, alarm), status=now)
    for kind in old:
        if kind not in new:
            text = f"{now.name}: {kind} no longer holds."
            yield Event(event="cleared", kind=kind, text=text, status=now)
    yield from _end(before, now)


def _nth(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def _alarm_text(status: RunStatus, alarm: Alarm) -> str:
    at = "" if alarm.step is None else f" at step {alarm.step:,}"
    return f"{status.name}: {alarm.kind}{at}: {alarm.message}"


def _end(before: RunStatus | None, now: RunStatus) -> Iterator[Event]:
    if now.state in ("done", "ended") and (before is None or before.state != now.state):
        steps = "" if now.step is None else f" at step {now.step:,}"
        words = "has done all its steps" if now.state == "done" else "ended before its last step"
        event: EventName = "done" if now.state == "done" else "ended"
        yield Event(event=event, text=f"{now.name} {words}{steps}.", status=now)
    if now.is_given_up and not (before is not None and before.is_given_up):
        why = f": {now.notes[-1]}" if now.notes else ""
        yield Event(event="given_up", text=f"{now.name} was given up{why}.", status=now)


class Notifier:
    """Posts events; those that did not arrive are sent again at the next look."""

    def __init__(
        self,
        address: Address,
        *,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address, self._warn, self._clock, self._sleep = address, warn, clock, sleep
        self._before: RunStatus | None = None
        self._waiting: list[dict[str, Any]] = []
        self._has_warned = False

    def take(self, status: RunStatus) -> None:
        """Send what happened since the last look; a server that is away is a warning."""
        now_s = self._clock()
        new = (event.to_dict(now_s=now_s) for event in events_between(self._before, status))
        self._before = status
        self._waiting = [*self._waiting, *new][-_MOST_WAITING:]
        for attempt in range(_LAST_TRIES if status.is_over else 1):
            if attempt and self._waiting:
                self._sleep(_PAUSE_S)
            if self._sent():
                return

    def _sent(self) -> bool:
        """Send what waits, oldest first; False where the rest must wait."""
        while self._waiting:
            try:
                post_json(self._address, self._waiting[0])
            except OSError as error:
                if not self._has_warned:
                    self._warn(f"--notify {self._address.shown}: {error}; it is tried again")
                self._has_warned = True
                return False
            except Refused as error:
                name = self._waiting[0]["event"]
                self._warn(f"--notify {self._address.shown}: {error} to the event {name}")
            else:
                self._has_warned = False
            del self._waiting[0]
        return True
