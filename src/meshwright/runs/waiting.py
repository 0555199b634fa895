"""What a job that still runs waits for in vain: a node whose name does not resolve, a rank that is
lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.software.log import lines_of

__all__ = ["SAID_S", "NameReader", "Suspect", "no_suspicion", "said_of_silence"]

SAID_S = 45.0
"""Silence of a running job from which on it is said, before it is taken to hang."""
_USUALS = 5.0
"""Times the usual time between two reports that are no silence yet."""
_ASKED_S = 20.0
"""For how long a name is asked for in vain before it is said. torch warns in passing of an address
of the other kind (IPv6), once or twice; of a name that does not resolve it does so every few
seconds, until its patience of minutes ends."""
_PAUSE_S = 10.0
"""Between two such lines that belong together."""
_LINE = re.compile(
    r"\[[WE]\d{4} (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\.\d+ .{0,40}\[c10d\] The IPv\d network"
    r" addresses of \((?P<name>[^,()\s]{1,253}), \d{1,5}\) cannot be retrieved"
)
"""torch: csrc/distributed/c10d/socket.cpp, `SocketConnectOp::run`."""
_DAY_S = 86400


@dataclass(slots=True)
class _Asked:
    first_s: int
    last_s: int
    line: str


@dataclass(slots=True)
class NameReader:
    """Reads a log block by block, for names of nodes that are asked for again and again."""

    names: dict[str, _Asked] = field(default_factory=dict)

    def feed(self, block: str) -> None:
        """Read a block of whole lines."""
        if "cannot be retrieved" not in block:
            return
        for line in lines_of(block):
            found = _LINE.search(line[:1024])
            if found is not None:
                at = 3600 * int(found["h"]) + 60 * int(found["m"]) + int(found["s"])
                self._add(found["name"], at, line.strip())

    def _add(self, name: str, at_s: int, line: str) -> None:
        known = self.names.get(name)
        if known is None or (at_s - known.last_s) % _DAY_S > _PAUSE_S:
            self.names[name] = _Asked(first_s=at_s, last_s=at_s, line=line)
        else:
            known.last_s, known.line = at_s, line

    def in_vain(self) -> tuple[str, str] | None:
        """Return the sentence and the line of a name that does not resolve; None where all do."""
        for name, asked in self.names.items():
            seconds = (asked.last_s - asked.first_s) % _DAY_S
            if seconds >= _ASKED_S:
                return (
                    f"the node name {name} does not resolve where the processes run; they have"
                    f" asked for it for {seconds} s: mend DNS or /etc/hosts there, or let the"
                    " nodes meet by address"
                ), asked.line
        return None


Suspect = Callable[[Path, float], str]
"""What may be wrong with a running job, by its folder and for how many seconds it was silent; empty
where nothing is."""


def no_suspicion(folder: Path, silent_s: float) -> str:
    """Return nothing: of jobs whose logs tell no steps."""
    del folder, silent_s
    return ""


def said_of_silence(silent_s: float, usual_s: float | None, *, step: int | None) -> str:
    """Return what a silence may mean, before it is long enough to be a hang; empty where it means
    nothing. `usual_s` is the usual time between two reports."""
    if silent_s < max(SAID_S, _USUALS * (usual_s or 0.0)):
        return ""
    if step is None:
        return (
            "silent before its first step: it loads, compiles, or ranks do not find each other (a"
            " host name, a closed port, a process that died)"
        )
    return (
        f"silent behind step {step}: most likely ranks wait in a collective for one that is stuck"
        " or lost; look for the rank whose log or GPU stands still"
    )
