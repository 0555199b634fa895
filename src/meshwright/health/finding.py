"""One thing that was looked at, and all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Finding", "Health", "Room", "State"]

State = Literal["ok", "absent", "broken"]
"""`absent` is a part that the user may not need; `broken` is one that is here and does not work."""
Room = Literal["software", "extras", "machine", "launchers", "own figures"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing, how it is, and what to do where it is not well."""

    room: Room
    name: str
    state: State
    words: str
    """What is there, in a phrase or a sentence."""
    remedy: str | None = None
    """A command or a sentence that mends it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Everything that was looked at."""

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """What is here and does not work."""
        return tuple(finding for finding in self.findings if finding.state == "broken")

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "healthy": not self.broken,
            "findings": [asdict(finding) for finding in self.findings],
        }
