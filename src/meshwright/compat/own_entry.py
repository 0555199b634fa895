"""The embedded trainer as the training program of a Megatron-LM command line."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from meshwright.compat.strategy import Strategy
from meshwright.platforms.files import replace_file
from meshwright.runs.training.request import PLACES, trainer_words
from meshwright.runs.trial import own_trainer
from meshwright.software.defaults import complete_settings
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import ConfigError

__all__ = ["ENTRY", "Start", "first_trainable", "plan_file"]

ENTRY = "meshwright.trainer"
"""What `--entry` calls it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One strategy, as the embedded trainer is started on it."""

    strategy: Strategy
    plan: str
    """The text of its plan."""
    words: tuple[str, ...]
    notes: tuple[str, ...]


def first_trainable(strategies: Sequence[Strategy]) -> Start:
    """Return the best strategy that the trainer can run; ConfigError says why none is."""
    reasons: dict[str, None] = {}
    for strategy in strategies:
        given, problem = strategy.imported.settings, strategy.problem
        settings = complete_settings(given, model=problem.setting.model, work=problem.setting.work)
        try:
            exported = own_trainer(problem, strategy.layout, words=trainer_words(settings, best=0))
        except ConfigError as error:
            reasons[str(error)] = None
            continue
        (plan,) = exported.files
        notes = tuple(f"a faster one is left out: {reason}" for reason in reasons)
        return Start(
            strategy=strategy,
            plan=plan.text,
            words=exported.command[3:],
            notes=(*notes, *_without_place(given)),
        )
    raise ConfigError("; ".join(reasons))


def _without_place(given: TrainingSettings) -> tuple[str, ...]:
    """What the line says of a training, and the trainer has no word for."""
    usual = TrainingSettings()
    told = [field.name for field in fields(given)]
    said = [name for name in told if getattr(given, name) != getattr(usual, name)]
    lost = [name for name in said if name not in (*PLACES, "extra")]
    lost += [word for word in given.extra if word.startswith("--")]
    return (f"the embedded trainer has no place for {', '.join(lost)}",) if lost else ()


def plan_file(text: str) -> Path:
    """Write the plan where this node's processes read it; its name follows from its content."""
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"meshwright-plan-{name}.json")
    replace_file(path, text.encode())
    return path
