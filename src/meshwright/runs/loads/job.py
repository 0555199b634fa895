"""What is started and measured on a node: an engine's command, the loads that it gets one after the
other, and the lines that say so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from meshwright.runs.loads.figures import Limits
from meshwright.runs.loads.load import Load, load_of
from meshwright.values.errors import ConfigError

__all__ = [
    "MARK",
    "PORT",
    "Line",
    "ServeJob",
    "line_of",
    "read_serve_job",
]

PORT = "{port}"
"""In the engine's words: the port that is chosen when it is started."""
MARK = '{"meshwright_serving": '
"""Before the content of a line that is meant for programs."""
LineKind = Literal["starting", "ready", "point", "failed", "end"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeJob:
    """One engine and its loads."""

    command: tuple[str, ...]
    """The engine's, with `{port}` where it is told its port."""
    loads: tuple[Load, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    """None: one that is free."""
    health: str = "/health"
    """What answers with 200 once requests are taken."""
    model: str | None = None
    """The name that requests carry; None: the first that the engine lists."""
    vocab: int = 32000
    ready_s: float = 900.0
    """How long the engine may take until it is ready."""
    patience_s: float = 600.0
    """How long a request may say nothing."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Check what would fail late."""
        if not self.command or not self.loads:
            raise ConfigError("a serving job needs a command and a load")
        if self.port is not None and not 1 <= self.port <= _LAST_PORT:
            raise ConfigError(f"port={self.port}: expected 1 to {_LAST_PORT}")
        for name in ("ready_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name}={getattr(self, name):g}: expected a positive number of seconds"
                )

    def to_json(self) -> str:
        """Return the text of `serve.json`."""
        content = asdict(self)
        return json.dumps({**content, "environment": dict(self.environment)}, indent=1) + "\n"


_LAST_PORT = 65535


def read_serve_job(text: str) -> ServeJob:
    """Read `serve.json` back."""
    content = json.loads(text)
    known = {field.name: content[field.name] for field in fields(ServeJob) if field.name in content}
    loads = tuple(load_of(load) for load in content["loads"])
    return ServeJob(
        **{
            **known,
            "command": tuple(content["command"]),
            "loads": loads,
            "limits": Limits(**content["limits"]),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the job's output that is meant for programs."""

    kind: LineKind
    content: Mapping[str, Any]

    def text(self) -> str:
        """Return the line."""
        return f"{MARK}{json.dumps({'kind': self.kind, **self.content})}}}"


def line_of(text: str) -> Line | None:
    """Read a line of the output; None of one that is somebody else's, or cut short."""
    at = text.find(MARK)
    if at < 0:
        return None
    try:
        content = json.loads(text[at:])["meshwright_serving"]
        return Line(
            kind=content["kind"],
            content={key: value for key, value in content.items() if key != "kind"},
        )
    except (ValueError, KeyError, TypeError):
        return None
