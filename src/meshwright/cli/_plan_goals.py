"""A training with a deadline, as fields of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Goal", "read_goal"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Tokens to train on until a deadline, at least cost."""

    tokens: int
    words: str
    """As they were given."""
    seconds: float

    def fields(self, flags: dict[str, Any]) -> dict[str, Any]:
        """Return what a request must hold; ConfigError where it says something else too."""
        from meshwright.errors import ConfigError

        if flags.get("min_tokens_per_s") is not None:
            raise ConfigError("--min-tokens-per-s: the deadline says how many; leave out either")
        return {
            "min_tokens_per_s": self.tokens / self.seconds,
            "objective": flags.get("objective") or "tokens_per_dollar",
        }


def read_goal(tokens: str | None, deadline: str | None) -> Goal | None:
    """Read --tokens and --deadline, which go together; ConfigError for one alone and for anything
    broken."""
    from meshwright.errors import ConfigError
    from meshwright.units import parse_count, parse_duration

    if tokens is None and deadline is None:
        return None
    if tokens is None or deadline is None:
        given, missing = (
            ("--deadline", "--tokens, such as 300B")
            if tokens is None
            else ("--tokens", "--deadline, such as 30D")
        )
        raise ConfigError(f"{given}: of no effect without {missing}")
    count, seconds = (
        parse_count(tokens, name="--tokens"),
        parse_duration(deadline, name="--deadline"),
    )
    if count < 1 or seconds < 1:
        raise ConfigError(
            f"--tokens {tokens} --deadline {deadline}: expected more than none of both"
        )
    return Goal(tokens=count, words=tokens, seconds=float(seconds))
