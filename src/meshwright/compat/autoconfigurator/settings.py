"""The `train_settings` of a configuration as checked values, and the request that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from meshwright.search.problem import dims_of
from meshwright.sizing.shapes import shape_of
from meshwright.sizing.size import Budget, classic_params
from meshwright.software.contract import Imported, import_text
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import DAY_S, TERA

__all__ = [
    "Card",
    "Sizes",
    "TrainSettings",
    "card_of",
    "card_rows",
    "chip_of",
    "model_of_settings",
    "request_fields",
    "wanted_batch",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A chip, and how much of its memory may be used where that is less than all."""

    chip: str
    max_memory_gib: float | None = None

    @property
    def words(self) -> str:
        return (
            self.chip
            if self.max_memory_gib is None
            else f"{self.chip} held to {self.max_memory_gib:g} GiB"
        )


def card_rows() -> dict[float, str]:
    """Return the usual chip by its memory in GB, ascending (`nemo1_chips.csv`)."""
    rows = package_rows("compat/autoconfigurator/nemo1_chips.csv")
    return dict(sorted((float(row["gpu_memory_gb"]), row["chip"]) for row in rows))


def card_of(gpu_memory_gb: float, *, chip: str | None = None) -> Card:
    """Return the named chip, else the usual one of this memory, else a larger one held to it."""
    if chip is not None:
        return Card(chip=find_chip(chip).name)
    rows = card_rows()
    found = next((memory for memory in rows if memory >= gpu_memory_gb), None)
    if found is None:
        raise ConfigError(
            f"gpu_memory_gb={gpu_memory_gb:g}: no card is known with as much ({max(rows):g} is the"
            " most); name one by chip="
        )
    return Card(
        chip=find_chip(rows[found]).name,
        max_memory_gib=None if found == gpu_memory_gb else gpu_memory_gb,
    )


Sizes = tuple[int, ...] | Literal["auto"]
_WHERE = "search_config.train_settings"
_COUNTS = (
    "num_nodes",
    "gpus_per_node",
    "limit_search_runs",
    "output_top_n",
    "max_steps_per_run",
    "max_minutes_per_run",
    "vocab_size",
    "seq_length",
)
_POSITIVE = ("gpu_memory_gb", "max_training_days", "tflops_per_gpu", "num_tokens_in_b")
_LISTS = {
    "tensor_parallel_sizes": "tp",
    "pipeline_parallel_sizes": "pp",
    "context_parallel_sizes": "cp",
    "expert_parallel_sizes": "ep",
    "micro_batch_sizes": "mbs",
}
"""Lists of sizes, and the axis that each pins."""


_OF_ALIBI = "fused-softmax"
"""How NeMo 1.x computes attention with biases of distance (software/nemo1/export.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """What is searched, and how; `auto` leaves it to the search."""

    num_nodes: int
    gpus_per_node: int
    gpu_memory_gb: float
    chip: str
    model_size_in_b: float | None
    """None: what the closed form says of days, tokens and TFLOPS."""
    model: str | None
    series: str
    family: str
    vocab_size: int
    seq_length: int
    global_batch_size: int | Literal["auto"]
    precision: str
    num_tokens_in_b: float
    max_training_days: float
    tflops_per_gpu: float
    limit_search_runs: int
    output_top_n: int
    max_steps_per_run: int
    max_minutes_per_run: int
    custom_config: str | None
    logs: str
    sizes: Mapping[str, Sizes]
    """By axis: tp, pp, cp, ep, mbs."""
    act_ckpt_layers: Sizes
    min_model_parallel_size: int | Literal["auto"]
    max_model_parallel_size: int | Literal["auto"]

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def budget(self) -> Budget:
        """What the closed form of a size or a time is asked with."""
        return Budget(
            chips=self.num_gpus,
            seconds=self.max_training_days * DAY_S,
            tokens=self.num_tokens_in_b * 1e9,
            flops_per_s_per_chip=self.tflops_per_gpu * TERA,
        )

    @staticmethod
    def of(config: Mapping[str, Any]) -> TrainSettings:
        """Read a composed configuration; ConfigError names the key whose value can't be."""
        given = dict(config["search_config"]["train_settings"])
        values: dict[str, Any] = {name: _count(name, given.pop(name)) for name in _COUNTS}
        values |= {name: _positive(name, given.pop(name)) for name in _POSITIVE}
        size = given.pop("model_size_in_b")
        values["model_size_in_b"] = None if size is None else _positive("model_size_in_b", size)
        values["sizes"] = {
            axis: _sizes(name, given.pop(name, "auto"), least=1) for name, axis in _LISTS.items()
        }
        values["act_ckpt_layers"] = _sizes("act_ckpt_layers", given.pop("act_ckpt_layers"), least=0)
        for name in ("min_model_parallel_size", "max_model_parallel_size", "global_batch_size"):
            value = given.pop(name, "auto")
            values[name] = value if value == "auto" else _count(name, value)
        family = str(config["search_config_value"]).partition("/")[0]
        values |= {
            name: given.pop(name, default)
            for name, default in (
                ("model", None),
                ("series", family),
                ("chip", "auto"),
                ("precision", "auto"),
            )
        }
        values |= {
            "family": family,
            "custom_config": given.pop("custom_config", None),
            "logs": str(given.pop("logs")),
        }
        if given:
            raise UnknownNameError(
                f"key of {_WHERE}", next(iter(given)), [*_COUNTS, *_POSITIVE, *_LISTS]
            )
        return TrainSettings(**values)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**40:
        raise ConfigError(f"{_WHERE}.{name}={value}: expected a whole number of 1 or more")
    return value


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{_WHERE}.{name}={value}: expected a positive number")
    return value


def _sizes(name: str, value: Any, *, least: int) -> Sizes:
    if value is None or value == "auto":
        return "auto"
    found = value if isinstance(value, list) else [value]
    if not found or not all(
        isinstance(size, int) and not isinstance(size, bool) and least <= size < 2**40
        for size in found
    ):
        raise ConfigError(
            f"{_WHERE}.{name}={value}: expected auto or a list of whole numbers of {least} or more,"
            " such as [1,2,4]"
        )
    return tuple(dict.fromkeys(found))


def chip_of(settings: TrainSettings) -> str:
    """Return the chip: the one named, else the usual one with this memory (`nemo1_chips.csv`)."""
    if settings.chip != "auto":
        return find_chip(settings.chip).name
    rows = package_rows("compat/autoconfigurator/nemo1_chips.csv")
    found = next(
        (row["chip"] for row in rows if float(row["gpu_memory_gb"]) == settings.gpu_memory_gb), None
    )
    if found is None:
        sizes = ", ".join(row["gpu_memory_gb"] for row in rows)
        raise ConfigError(
            f"{_WHERE}.gpu_memory_gb={settings.gpu_memory_gb:g}: no card is known by this memory"
            f" ({sizes} are); name it: {_WHERE}.chip=h100"
        )
    return find_chip(found).name


def model_of_settings(settings: TrainSettings) -> ModelSpec:
    """Return the searched model: of the custom configuration, by name, or of this size."""
    if settings.custom_config is not None:
        return _imported(settings.custom_config).model
    if settings.model is not None:
        return replace(find_model(settings.model), vocab=settings.vocab_size)
    size = (
        classic_params(settings.budget, series=settings.series)
        if settings.model_size_in_b is None
        else settings.model_size_in_b * 1e9
    )
    return shape_of(size, series=settings.series, vocab=settings.vocab_size).model


def _imported(path: str) -> Imported:
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{_WHERE}.custom_config={path}:"
            f" {getattr(error, 'strerror', None) or 'not a text in UTF-8'}"
        ) from None
    return import_text(text, source=NEMO1_SOURCE)


def wanted_batch(settings: TrainSettings, model: ModelSpec) -> tuple[int, bool]:
    """Return the batch in sequences, and whether the user set it (`global_batch_size`, the custom
    configuration) or the tool's rule did."""
    if settings.global_batch_size != "auto":
        return settings.global_batch_size, True
    if settings.custom_config is not None:
        given = _imported(settings.custom_config).work.gbs
        assert given is not None, "the reader has a default"
        return given, True
    size = model_params(model).total / 1e9
    rows = [
        row
        for row in package_rows("compat/autoconfigurator/nemo1_batches.csv")
        if settings.family in row["families"].split()
    ]
    if not rows:
        raise ConfigError(
            f"{settings.family}: no rule for its batch; give {_WHERE}.global_batch_size"
        )
    tokens = next(
        int(row["tokens_per_step"])
        for row in rows
        if not row["up_to_b"] or size <= float(row["up_to_b"])
    )
    return max(1, tokens // settings.seq_length), False


def request_fields(
    settings: TrainSettings, model: ModelSpec, *, gbs: int, local: bool
) -> dict[str, Any]:
    """Return the request whose layouts are candidates; `local` without a chip is here."""
    pins: dict[str, list[int | str]] = {
        axis: list(sizes) for axis, sizes in settings.sizes.items() if sizes != "auto"
    }
    if model.moe is None:
        pins.pop("ep", None)
    on_this = local and settings.chip == "auto"
    fields: dict[str, Any] = {
        "model": dims_of(model),
        "cluster": (
            f"local:{settings.num_gpus}" if on_this else f"{chip_of(settings)}:{settings.num_gpus}"
        ),
        "seq_len": settings.seq_length,
        "gbs": gbs,
        "pins": pins | _recompute_pins(settings.act_ckpt_layers),
    }
    fields |= {} if on_this else {"gpus_per_node": settings.gpus_per_node}
    fields |= {"attention": _OF_ALIBI} if model.positions == "alibi" and not on_this else {}
    return fields | ({} if settings.precision == "auto" else {"precision": settings.precision})


def _recompute_pins(layers: Sizes) -> dict[str, list[int | str]]:
    """Layers of a chunk whose activations are recomputed, one by one (`block`)."""
    if layers == "auto":
        return {}
    some: list[int | str] = [count for count in layers if count]
    pins: dict[str, list[int | str]] = {
        "recompute": [*(["none"] if 0 in layers else []), *(["full"] if some else [])]
    }
    return pins | ({"recompute_method": ["block"], "recompute_layers": some} if some else {})
