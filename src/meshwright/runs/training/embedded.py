"""The embedded trainer's words for the settings of a training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from meshwright.software.settings import TrainingSettings
from meshwright.trainer.job import job_keys
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "held_out",
    "split_settings",
    "trainer_words",
]

_WORDS: Mapping[str, str] = {
    "train_steps": "steps",
    "seed": "seed",
    "init_std": "init_std",
    "learning_rate": "optimizer.learning_rate",
    "min_learning_rate": "optimizer.least_learning_rate",
    "warmup_steps": "optimizer.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_eps": "optimizer.epsilon",
    "clip_gradient": "optimizer.clip_norm",
    "save_dir": "save.folder",
    "save_interval": "save.every",
}
"""Settings by their words in the trainer."""
_ELSEWHERE = ("train_tokens", "train_samples", "data", "split", "eval_interval", "eval_steps")
"""Settings that become words by a rule."""
_TAKEN = (
    "steps",
    "minutes",
    "metrics",
    "data.blend",
    "save.folder",
    "save.every",
    "save.best",
    "save.resume",
)
"""Words of the trainer that a training says itself."""


def split_settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return settings of any software, and the trainer's own `key=value` words; ConfigError for
    what it has no place for."""
    shared = [field.name for field in fields(TrainingSettings)]
    own = [key for key in job_keys() if key not in _TAKEN]
    for key in given:
        if key not in (*_WORDS, *_ELSEWHERE, *own):
            if key in shared:
                raise ConfigError(
                    f"{key}={given[key]}: the embedded trainer has no place for it; leave it out,"
                    " or name a software (--to)"
                )
            raise UnknownNameError("setting", str(key), [*_WORDS, *_ELSEWHERE, *own])
    words = tuple(
        f"{key}={_json(value)}" for key, value in given.items() if key not in (*_WORDS, *_ELSEWHERE)
    )
    return {key: value for key, value in given.items() if key in (*_WORDS, *_ELSEWHERE)}, words


def trainer_words(settings: TrainingSettings, *, best: int) -> tuple[str, ...]:
    """Return the words of completed settings; of checkpoints the best stay beside the newest, where
    a validation loss tells them."""
    words = [
        f"{word}={_json(getattr(settings, name))}"
        for name, word in _WORDS.items()
        if getattr(settings, name) is not None
    ]
    if settings.data:
        pairs = [text for dataset in settings.data for text in (repr(dataset.weight), dataset.path)]
        words.append(f"data.blend={json.dumps(pairs)}")
    if (share := held_out(settings)) is not None:
        words += [
            f"valid.share={share:.6g}",
            f"valid.every={settings.eval_interval}",
            f"valid.batches={settings.eval_steps}",
        ]
        words.append(f"save.best={best}")
    return tuple(words)


def held_out(settings: TrainingSettings) -> float | None:
    """Return the share of the documents that no step trains on, the second of `split`; None where
    nothing is evaluated."""
    if (
        not settings.data
        or not settings.eval_steps
        or settings.split is None
        or len(settings.split) < 2
    ):
        return None
    return settings.split[1] / sum(settings.split) or None


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
