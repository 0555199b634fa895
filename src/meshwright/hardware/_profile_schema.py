"""The form of a profile's file, checked by pydantic."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.errors import ConfigError
from meshwright.hardware.profile import Effort, Machine, Outcome

__all__ = ["ProfileForm", "SeriesForm", "checked"]


class SeriesForm(BaseModel):
    """One series: its grid, and its samples as columns."""

    model_config = ConfigDict(extra="forbid")
    name: str
    dims: tuple[str, ...]
    axes: tuple[tuple[float, ...], ...]
    points: list[tuple[float, ...]]
    seconds: list[float | None]
    spread_frac: list[float | None]
    repeats: list[int]
    outcomes: list[Outcome]


class ProfileForm(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")
    form: int
    effort: Effort
    complete: bool
    machine: Machine
    series: list[SeriesForm]
    skipped: dict[str, str]


def checked(record: dict[str, Any]) -> ProfileForm:
    """Return the record with every field checked; ConfigError names the first that is wrong."""
    try:
        return ProfileForm.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"{place}: {fault['msg']} ({error.error_count()} faults in all)"
        ) from None
