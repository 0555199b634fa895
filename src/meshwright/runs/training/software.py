"""How long a job may run, and what a training software does at its end and at its next start."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from meshwright.platforms.base_command.script import base_command_time
from meshwright.platforms.slurm.script import slurm_time
from meshwright.software.embedded import LAST
from meshwright.software.folders import TimeForm, Training, all_software
from meshwright.software.registry import TARGETS
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import DAY_S, HOUR_S, MINUTE_S

__all__ = [
    "LAST",
    "LEAST_MARGIN_S",
    "SOFTWARE",
    "Software",
    "TimeLimits",
    "default_margin_s",
    "find_software",
    "limits_of",
    "needed_margin_s",
    "written",
]

LEAST_MARGIN_S = 30 * MINUTE_S
"""NVIDIA's walk-through for Base Command leaves 30 minutes of a limit of five days (5D, and
4:23:30:00 in the software)."""
_MARGIN_SHARE = 20
"""Of a short limit no more than a twentieth is left for the end, unless the end needs more."""
_WRITES = 2
"""Checkpoints that may have to be written: the one under way, and the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeLimits:
    """Of one job."""

    platform_s: int
    """After which the platform ends it."""
    framework_s: int | None
    """After which the software ends by itself; None: it can't."""
    margin_s: int
    """What lies between, for the step at hand and the last checkpoint."""
    needed_s: int
    """What the end needs by prediction."""

    @property
    def steps_s(self) -> int:
        """Seconds of a job in which it may step."""
        return self.platform_s if self.framework_s is None else self.framework_s


def needed_margin_s(*, write_s: float, step_s: float, eval_steps: int) -> int:
    """Seconds that the end of a job needs.

    Formula:  2 * write + step + eval_steps * step / 3, rounded up
    Units:    s.
    Why:      a checkpoint may be under way when the time is over; the step at hand ends, an
              evaluation goes before the last checkpoint (a step has three passes of the model's
              FLOPs, an evaluation one), and that is written
    Checked:  tests/runs/training/test_limits.py
    """
    return math.ceil(_WRITES * write_s + step_s * (1 + eval_steps / 3))


def default_margin_s(limit_s: int, *, needed_s: int) -> int:
    """Seconds that are left free before a limit where the user says nothing.

    Formula:  max(needed, min(30 minutes, limit / 20)), rounded up to minutes where the limit is ten
              minutes or more
    Units:    s.
    Source:   30 minutes of five days, as NVIDIA's walk-through for Base Command has it
    Checked:  tests/runs/training/test_limits.py
    """
    wanted = max(needed_s, min(LEAST_MARGIN_S, limit_s // _MARGIN_SHARE))
    return wanted if limit_s < 10 * MINUTE_S else -(-wanted // MINUTE_S) * MINUTE_S


def limits_of(
    limit_s: int, *, needed_s: int, stops: bool, margin_s: int | None = None
) -> TimeLimits:
    """Return the limits of a job in their order; ConfigError where they leave no time to train.

    `stops` says whether the software can end by itself; `margin_s` is the user's.
    """
    margin = default_margin_s(limit_s, needed_s=needed_s) if margin_s is None else margin_s
    if margin >= limit_s:
        raise ConfigError(
            f"time={limit_s} s: {margin} s of it are left for the last checkpoint, and none to"
            f" train; ask for more than {2 * margin}"
            f" s{'' if margin_s is None else ', or for a smaller --save-margin'}"
        )
    return TimeLimits(
        platform_s=limit_s,
        framework_s=limit_s - margin if stops else None,
        margin_s=margin,
        needed_s=needed_s,
    )


def written(seconds: int, form: TimeForm) -> str:
    """Return a duration in the form that a platform or a software reads; ConfigError where it is
    too short for the form."""
    if form == "days-hours:minutes:seconds":
        return slurm_time(seconds)
    if form == "nDnHnMnS":
        return base_command_time(seconds)
    if form == "seconds":
        return str(seconds)
    if form == "decimal minutes":
        return f"{seconds / MINUTE_S:.6g}"
    if form == "minutes":
        if seconds < MINUTE_S:
            raise ConfigError(
                f"time: the software counts whole minutes, and {seconds} s are left for its steps;"
                " ask for more time"
            )
        return str(seconds // MINUTE_S)
    days, rest = divmod(seconds, DAY_S)
    hours, rest = divmod(rest, HOUR_S)
    return f"{days:02}:{hours:02}:{rest // MINUTE_S:02}:{rest % MINUTE_S:02}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Software(Training):
    """One software that trains, with the words that end it."""

    def stop_words(self, seconds: int) -> tuple[str, ...]:
        """Return the words that end it after a time."""
        return tuple(word.format(limit=written(seconds, self.form)) for word in self.stop)


SOFTWARE: tuple[Software, ...] = tuple(
    Software(**{one.name: getattr(row, one.name) for one in fields(row)})
    for software in all_software()
    for row in software.training
)
"""In the order of `meshwright export --to`."""


def find_software(name: str) -> Software:
    """Return a row; UnknownNameError for a software that is no export's, or that can't be started
    by a job script and gone on with."""
    for row in SOFTWARE:
        if row.name == name.lower():
            return row
    hint = ""
    if name.lower() in {target.name for target in TARGETS}:
        hint = (
            "; its export is no job that could be gone on with: `meshwright export` writes its"
            " files"
        )
    raise UnknownNameError(
        "software to train with", name, [row.name for row in SOFTWARE], hint=hint
    )
