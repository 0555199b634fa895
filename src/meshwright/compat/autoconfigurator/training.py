"""How NeMo 1.x trains what its AutoConfigurator writes: data, learning rate, warm-up, dropout,
initialisation, validation and checkpoints, by the rules of `nemo1_training.csv`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.settings import TrainSettings, imported_of
from meshwright.compat.checks import text_of
from meshwright.data.pairs import blend
from meshwright.software.settings import TrainingSettings
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import read_yaml

__all__ = ["SHORT_RUN", "Corpus", "TrainedAs", "corpus_of", "dropout_of", "trained_as"]

_TABLE = "compat/autoconfigurator/nemo1_training.csv"
_RATES = "compat/autoconfigurator/nemo1_rates.csv"
_INTERVAL = 2000
"""Steps between validations, each with a checkpoint: val_check_interval of all of NVIDIA's
conf/training/{gpt3,bert,t5,mt5,llama,mixtral,qwen2}/*.yaml for a whole training."""
_LEAST_RATE = 0.1
"""min_lr over lr (autoconfig/base_config.py)."""
_LOG_STEPS = 10
"""log_every_n_steps of the same files."""
SHORT_RUN = (
    "exp_manager.create_checkpoint_callback=False",
    "trainer.limit_val_batches=0",
    "trainer.limit_test_batches=0",
)
"""What a candidate's command line switches off; create_checkpoint_callback as NVIDIA's tool
(autoconfig/train.py)."""
_MOCK = ("model.data.data_impl=mock", "model.data.data_prefix=[]")
_DATA_DIR = "${data_dir}"
_NUMBERS = (
    *("init_std", "learning_rate", "min_learning_rate", "weight_decay"),
    *("adam_beta1", "adam_beta2"),
)
_TEXTS = ("decay_style", "split", "tokenizer_kind")


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """What `data_dir` holds."""

    folder: str
    shares: Mapping[str, float]
    """Of all tokens, by the path of each pair of .bin and .idx."""
    is_there: bool
    """Else `shares` has the name that NVIDIA's own configuration has."""
    notes: tuple[str, ...]


def corpus_of(settings: TrainSettings, folder: str) -> Corpus:
    """Return every tokenized file below a folder with its share of all tokens, else NVIDIA's usual
    name and a note; ConfigError for a file that is broken or empty."""
    row = _row(settings)
    notes = []
    if settings.custom_config is None and not row["tokenizer_kind"]:
        notes.append(
            f"{settings.search}: NVIDIA's tool has no tokenizer for it, so GPT-2's is named: set"
            " model.tokenizer of the base configuration to that of your data"
        )
    prefixes = sorted(str(path.with_suffix("")) for path in Path(folder).rglob("*.idx"))
    if not prefixes:
        notes.append(
            f"data_dir={folder}: no .idx lies there; the base configuration names {row['data']},"
            " and candidates run on mock data"
        )
        shares = {f"{folder}/{row['data']}": 1.0}
        return Corpus(folder=folder, shares=shares, is_there=False, notes=tuple(notes))
    try:
        mixed = blend(prefixes)
    except ConfigError as error:
        raise ConfigError(f"data_dir={folder}: {error}") from None
    pairs = zip(mixed.prefixes, mixed.weights, strict=True)
    shares = {str(prefix): round(weight, 6) for prefix, weight in pairs}
    return Corpus(folder=folder, shares=shares, is_there=True, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedAs:
    """How a configuration trains."""

    settings: Mapping[str, Any]
    """Of TrainingSettings, but for the folder of checkpoints and the number of steps."""
    constant_steps: int
    """At the least rate, at the end."""
    test_steps: int
    has_data: bool

    @property
    def short_run(self) -> tuple[str, ...]:
        """Words of a candidate's command line."""
        return SHORT_RUN if self.has_data else (*SHORT_RUN, *_MOCK)

    def values(self, *, whole_run: bool) -> dict[str, Any]:
        """Return what NeMo 1.x's YAML says besides, by path."""
        found: dict[str, Any] = {"trainer.limit_test_batches": self.test_steps}
        if self.settings.get("decay_style") != "linear":
            found["model.optim.sched.constant_steps"] = self.constant_steps
        return found | ({"trainer.log_every_n_steps": _LOG_STEPS} if whole_run else {})


def dropout_of(settings: TrainSettings) -> float:
    """Return the dropout that NVIDIA trains a search's models with, or the custom one's."""
    if settings.custom_config is not None:
        return imported_of(settings.custom_config).details.dropout or 0.0
    return float(_row(settings)["dropout"] or 0)


def trained_as(
    settings: TrainSettings, model: ModelSpec, *, steps: int, size_in_b: float, corpus: Corpus
) -> TrainedAs:
    """Return how a model is trained for so many steps on a corpus."""
    row = _row(settings)
    constant = round(float(row["constant_share"] or 0) * steps)
    if settings.custom_config is not None:
        found = _of_custom(imported_of(settings.custom_config).settings)
        constant = _constant_of(settings.custom_config)
    else:
        found = _of_row(row, settings, model, steps=steps, size_in_b=size_in_b)
    least = {"eval_steps": int(row["eval_steps"]), "eval_interval": _INTERVAL}
    found = {**least, **found, "save_interval": found.get("eval_interval", _INTERVAL)}
    return TrainedAs(
        settings={**_at(found, corpus.folder), "data": dict(corpus.shares)},
        constant_steps=constant,
        test_steps=int(row["test_steps"]),
        has_data=corpus.is_there,
    )


def _row(settings: TrainSettings) -> Mapping[str, str]:
    rows = package_rows(_TABLE)
    return next(row for row in rows if fnmatchcase(settings.search, row["searches"]))


def _of_row(
    row: Mapping[str, str],
    settings: TrainSettings,
    model: ModelSpec,
    *,
    steps: int,
    size_in_b: float,
) -> dict[str, Any]:
    """The rules of a row as settings; what is empty keeps Meshwright's rules."""
    found: dict[str, Any] = {name: float(row[name]) for name in _NUMBERS if row[name]}
    found |= {name: row[name] for name in _TEXTS if row[name]}
    if row["init_times_root_hidden"]:
        found["init_std"] = round(float(row["init_times_root_hidden"]) / math.sqrt(model.hidden), 6)
    if row["warmup_steps"]:
        found["warmup_steps"] = int(row["warmup_steps"])
    elif row["warmup_share"]:
        found["warmup_steps"] = int(float(row["warmup_share"]) * steps)
    rate = found.get("learning_rate", _rate(settings.family, size_in_b))
    if rate is not None:
        least = round(rate * _LEAST_RATE, 8)
        found |= {"learning_rate": rate, "min_learning_rate": least} | found
    for name in ("vocab_file", "merge_file"):
        if row[name]:
            found[name] = f"{_DATA_DIR}/{row[name]}"
    if row["tokenizer"]:
        in_folder = row["tokenizer_kind"] == "sentencepiece"
        found["tokenizer"] = f"{_DATA_DIR}/{row['tokenizer']}" if in_folder else row["tokenizer"]
    return found


def _rate(family: str, size_in_b: float) -> float | None:
    """The learning rate by size; None where no table has the family."""
    rows = [row for row in package_rows(_RATES) if row["family"] == family]
    within = (row for row in rows if not row["below_b"] or size_in_b < float(row["below_b"]))
    return next((float(row["learning_rate"]) for row in within), None)


_OF_CUSTOM = (
    *("learning_rate", "min_learning_rate", "warmup_steps", "decay_style", "weight_decay"),
    *("adam_beta1", "adam_beta2", "adam_eps", "clip_gradient", "init_std", "seed", "split"),
    *("eval_steps", "eval_interval", "tokenizer", "tokenizer_kind", "vocab_file", "merge_file"),
)


def _of_custom(given: TrainingSettings) -> dict[str, Any]:
    """What the user's own configuration says of training."""
    values = {name: getattr(given, name) for name in _OF_CUSTOM}
    return {name: value for name, value in values.items() if value is not None}


def _constant_of(path: str) -> int:
    """Steps at the least rate that the user's own configuration ends with."""
    values: Any = read_yaml(text_of(path, path), what=path)
    for name in ("model", "optim", "sched", "constant_steps"):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values if isinstance(values, int) else 0


def _at(found: Mapping[str, Any], data_dir: str) -> dict[str, Any]:
    """Files below the folder of data by their own path, for no launcher resolves it."""
    return {
        name: value.replace(_DATA_DIR, data_dir) if isinstance(value, str) else value
        for name, value in found.items()
    }
