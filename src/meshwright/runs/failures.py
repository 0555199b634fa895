"""Why a run did not finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.errors import UnknownNameError

__all__ = ["FAILURE_CLASSES", "Failure", "FailureClass"]

FailureClass = Literal[
    "cuda_oom",
    "host_oom",
    "collective_timeout",
    "hang",
    "config_error",
    "nan_loss",
    "time_limit",
    "preempted",
    "never_started",
    "node_failure",
    "launcher_error",
    "unknown",
]
FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A class, a sentence, and the line of the log or the scheduler's word that says so."""

    failure_class: FailureClass
    message: str
    evidence: str | None = None
    step: int | None = None
    """The last step that was seen; None where there was none."""

    def __post_init__(self) -> None:
        if self.failure_class not in FAILURE_CLASSES:
            raise UnknownNameError("failure class", str(self.failure_class), FAILURE_CLASSES)
