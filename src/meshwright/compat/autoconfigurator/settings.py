"""The tree of configurations that `key=value` words override, the `train_settings` in it as checked
values, and the request that they make.

Keys, interpolations and values of the tree are those of NVIDIA's AutoConfigurator
(NeMo-Framework-Launcher, auto_configurator/conf); the rows of `nemo1_searches.csv` become its
`search_config/<family>/<size>`. Keys of ours are `model`, `series`, `chip`, `precision` and
`global_batch_size` of `train_settings`, `engine`, `model_path` and `container` of
`inference_settings.run`, and `parallel_runs`, `tolerance`, `confidence`, `budget`, `run_all`,
`program`, `software` and `dry_run`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from meshwright.compat.checks import Sizes, budget_of, positive, sizes, text_of, whole
from meshwright.runs.limits import StudyLimits
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

__all__ = [
    "CLUSTERS",
    "Sizes",
    "TrainSettings",
    "card_of",
    "chip_of",
    "clusters",
    "imported_of",
    "model_of_settings",
    "request_fields",
    "root",
    "search_names",
    "searches",
    "wanted_batch",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A chip, and how much of its memory may be used where that is less than all."""

    chip: str
    max_memory_gib: float | None = None

    @property
    def words(self) -> str:
        if self.max_memory_gib is None:
            return self.chip
        return f"{self.chip} held to {self.max_memory_gib:g} GiB"


def _cards() -> dict[float, str]:
    """The usual chip by its memory in GB, ascending."""
    rows = package_rows("compat/autoconfigurator/nemo1_chips.csv")
    return dict(sorted((float(row["gpu_memory_gb"]), row["chip"]) for row in rows))


def card_of(gpu_memory_gb: float, *, chip: str | None = None) -> Card:
    """Return the named chip, else the usual one of this memory, else a larger one held to it."""
    if chip is not None:
        return Card(chip=find_chip(chip).name)
    rows = _cards()
    found = next((memory for memory in rows if memory >= gpu_memory_gb), None)
    if found is None:
        raise ConfigError(
            f"gpu_memory_gb={gpu_memory_gb:g}: no card is known with as much ({max(rows):g} is the"
            " most); name one by chip="
        )
    held = None if found == gpu_memory_gb else gpu_memory_gb
    return Card(chip=find_chip(rows[found]).name, max_memory_gib=held)


_WHERE = "search_config.train_settings"
_COUNTS = (
    *("num_nodes", "gpus_per_node", "limit_search_runs", "output_top_n", "max_steps_per_run"),
    *("max_minutes_per_run", "vocab_size", "seq_length"),
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
    search: str
    """Of the tree, `gpt3/5b`."""
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
    override_search_num_nodes: int | None
    """Of earlier releases; candidates run on all nodes here."""
    logs: str
    sizes: Mapping[str, Sizes]
    """By axis: tp, pp, cp, ep, mbs."""
    act_ckpt_layers: Sizes
    min_model_parallel_size: int | Literal["auto"]
    max_model_parallel_size: int | Literal["auto"]

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    def steps(self, gbs: int) -> int:
        """Return the optimizer steps of the whole training at a batch in sequences."""
        return max(1, round(self.num_tokens_in_b * 1e9 / (self.seq_length * gbs)))

    @property
    def budget(self) -> Budget:
        """What the closed form of a size or a time is asked with."""
        days, tokens = self.max_training_days, self.num_tokens_in_b
        tflops = self.tflops_per_gpu
        return budget_of(self.num_gpus, days=days, tokens_in_b=tokens, tflops=tflops)

    @staticmethod
    def of(config: Mapping[str, Any]) -> TrainSettings:
        """Read a composed configuration; ConfigError names the key whose value can't be."""
        given = dict(config["search_config"]["train_settings"])
        values: dict[str, Any] = {n: _checked(whole, n, given.pop(n)) for n in _COUNTS}
        values |= {n: _checked(positive, n, given.pop(n)) for n in _POSITIVE}
        size = given.pop("model_size_in_b")
        values["model_size_in_b"] = (
            None if size is None else _checked(positive, "model_size_in_b", size)
        )
        values["sizes"] = {
            axis: _sizes(name, given.pop(name, "auto"), least=1) for name, axis in _LISTS.items()
        }
        values["act_ckpt_layers"] = _sizes("act_ckpt_layers", given.pop("act_ckpt_layers"), least=0)
        for name in ("min_model_parallel_size", "max_model_parallel_size", "global_batch_size"):
            value = given.pop(name, "auto")
            values[name] = value if value == "auto" else _checked(whole, name, value)
        name = str(config["search_config_value"])
        family = name.partition("/")[0]
        usual = {"model": None, "series": family, "chip": "auto", "precision": "auto"}
        usual |= {"custom_config": None, "override_search_num_nodes": None}
        values |= {name: given.pop(name, default) for name, default in usual.items()}
        values |= {"family": family, "search": name, "logs": str(given.pop("logs"))}
        if given:
            known = [*_COUNTS, *_POSITIVE, *_LISTS]
            raise UnknownNameError(f"key of {_WHERE}", next(iter(given)), known)
        return TrainSettings(**values)


def _checked(check: Callable[[Any, str], Any], name: str, value: Any) -> Any:
    return check(value, f"{_WHERE}.{name}={value}")


def _sizes(name: str, value: Any, *, least: int) -> Sizes:
    found = sizes(value, least=least)
    if found is None:
        raise ConfigError(
            f"{_WHERE}.{name}={value}: expected auto or a list of whole numbers of {least} or more,"
            " such as [1,2,4]"
        )
    return found


def chip_of(settings: TrainSettings) -> str:
    """Return the chip: the one named, else the usual one with this memory (`nemo1_chips.csv`)."""
    if settings.chip != "auto":
        return find_chip(settings.chip).name
    rows = _cards()
    if settings.gpu_memory_gb not in rows:
        known = ", ".join(f"{memory:g}" for memory in rows)
        raise ConfigError(
            f"{_WHERE}.gpu_memory_gb={settings.gpu_memory_gb:g}: no card is known by this memory"
            f" ({known} are); name it: {_WHERE}.chip=h100"
        )
    return find_chip(rows[settings.gpu_memory_gb]).name


def model_of_settings(settings: TrainSettings) -> ModelSpec:
    """Return the searched model: of the custom configuration, by name, or of this size."""
    if settings.custom_config is not None:
        return imported_of(settings.custom_config).model
    if settings.model is not None:
        return replace(find_model(settings.model), vocab=settings.vocab_size)
    size = (
        classic_params(settings.budget, series=settings.series)
        if settings.model_size_in_b is None
        else settings.model_size_in_b * 1e9
    )
    return shape_of(size, series=settings.series, vocab=settings.vocab_size).model


def imported_of(path: str) -> Imported:
    """Read a custom configuration; ConfigError where it is none of NeMo 1.x."""
    text = text_of(path, f"{_WHERE}.custom_config={path}")
    return import_text(text, source=NEMO1_SOURCE)


def wanted_batch(settings: TrainSettings, model: ModelSpec) -> tuple[int, bool]:
    """Return the batch in sequences, and whether the user set it (`global_batch_size`, the custom
    configuration) or the tool's rule did."""
    if settings.global_batch_size != "auto":
        return settings.global_batch_size, True
    if settings.custom_config is not None:
        given = imported_of(settings.custom_config).work.gbs
        assert given is not None, "the reader has a default"
        return given, True
    size = model_params(model).total / 1e9
    known = package_rows("compat/autoconfigurator/nemo1_batches.csv")
    rows = [row for row in known if settings.family in row["families"].split()]
    if not rows:
        raise ConfigError(
            f"{settings.family}: no rule for its batch; give {_WHERE}.global_batch_size"
        )
    fitting = (row for row in rows if not row["up_to_b"] or size <= float(row["up_to_b"]))
    tokens = int(next(fitting)["tokens_per_step"])
    return max(1, tokens // settings.seq_length), False


def request_fields(
    settings: TrainSettings, model: ModelSpec, *, gbs: int, local: bool, dropout: float = 0.0
) -> dict[str, Any]:
    """Return the request whose layouts are candidates; `local` without a chip is here, `dropout`
    what is trained with."""
    pins: dict[str, list[int | str]] = {
        axis: list(sizes) for axis, sizes in settings.sizes.items() if sizes != "auto"
    }
    if model.moe is None:
        pins.pop("ep", None)
    on_this = local and settings.chip == "auto"
    chip = "local" if on_this else chip_of(settings)
    fields: dict[str, Any] = {
        "model": dims_of(model, details={"dropout": dropout} if dropout else None),
        "cluster": f"{chip}:{settings.num_gpus}",
        "stack": "megatron",
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
    kinds: list[int | str] = [*(["none"] if 0 in layers else []), *(["full"] if some else [])]
    pins = {"recompute": kinds}
    if some:
        pins |= {"recompute_method": ["block"], "recompute_layers": some}
    return pins


JOB_NAME_PREFIX = "nemo_megatron_autoconfig:"
"""The old tool's."""
CLUSTERS = ("bcm", "bcp", "k8s", "interactive")
"""Kinds of clusters: Slurm, Base Command Platform, Kubernetes, and this machine."""
_AUTO = "auto"
_LAPTOP = "tiny"
"""The family whose searches are for one machine with two processes."""
_NUMBERS = ("model_size_in_b", "max_training_days", "tflops_per_gpu", "num_tokens_in_b")


def root() -> dict[str, Any]:
    """Return `config.yaml`."""
    return {
        "defaults": ["_self_", {"cluster": "bcm"}, {"search_config": "gpt3/5b"}],
        "run_training_hp_search": True,
        "run_inference_hp_search": True,
        "cluster_type": "bcm",
        "auto_configurator_path": ".",
        "fastertransformer_path": None,
        "launcher_scripts_path": "${auto_configurator_path}/../launcher_scripts",
        "base_results_dir": "${auto_configurator_path}/results",
        "data_dir": "${launcher_scripts_path}/data",
        "training_container": "nvcr.io/nvidia/nemo:24.09",
        "container_mounts": [None],
        "wandb": {"enable": False, "api_key_file": None, "project": "nemo-megatron-autoconfig"},
        "search_config_value": "${hydra:runtime.choices.search_config}",
        "parallel_runs": 8,
        "tolerance": StudyLimits().tolerance,
        "confidence": StudyLimits().confidence,
        "budget": None,
        "run_all": False,
        "program": None,
        "software": _AUTO,
        "dry_run": False,
    }


def clusters() -> dict[str, dict[str, Any]]:
    """Return `cluster/*.yaml` by name."""
    common: dict[str, Any] = {"gpus_per_node": 8, "job_name_prefix": JOB_NAME_PREFIX}
    slurm: dict[str, Any] = {
        "partition": None,
        "account": None,
        "exclusive": True,
        "nodelist": None,
    }
    more = {"mem": 0, "srun_args": ["--no-container-mount-home"]}
    ngc: dict[str, Any] = {"ace": None, "org": None, "team": None}
    ngc |= {"instance": "dgxa100.80g.8.norm", "workspace": None}
    ngc |= dict.fromkeys(("priority", "order", "preempt", "min_timeslice"))
    k8s = {"namespace": "default", "volume": None, "nfs_server": None, "nfs_path": None}
    return {
        "bcm": {**slurm, "gpus_per_task": None, **common, **more},
        "bcp": {**ngc, **common},
        "k8s": {**k8s, **common},
        "interactive": common,
    }


@cache
def searches() -> dict[str, dict[str, Any]]:
    """Return every `search_config` by its name, `gpt3/5b`."""
    return {
        f"{row['family']}/{row['size']}": _search(row)
        for row in package_rows("compat/autoconfigurator/nemo1_searches.csv")
    }


def search_names() -> tuple[str, ...]:
    """Return the names of all search configurations."""
    return tuple(searches())


def _search(row: dict[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {name: int(row[name]) for name in _COUNTS if name in row}
    given |= {name: json.loads(row[name]) if row[name] else None for name in _NUMBERS}
    train = {
        **given,
        "gpus_per_node": 2 if row["family"] == _LAPTOP else 8,
        "gpu_memory_gb": 80,
        "chip": _AUTO,
        "model": row["model"] or None,
        "series": row["series"],
        "global_batch_size": _AUTO,
        "precision": _AUTO,
        "custom_config": None,
        "override_search_num_nodes": None,
        "logs": "${base_results_dir}/${search_config_value}_${.gpu_memory_gb}gb",
        "tensor_parallel_sizes": _AUTO,
        "pipeline_parallel_sizes": _AUTO,
        "context_parallel_sizes": _cell_sizes(row["context_parallel_sizes"], [1]),
        "expert_parallel_sizes": _cell_sizes(row["expert_parallel_sizes"], [1]),
        "min_model_parallel_size": _AUTO,
        "max_model_parallel_size": _AUTO,
        "micro_batch_sizes": _AUTO,
        "act_ckpt_layers": _AUTO,
    }
    return {"train_settings": train, "inference_settings": _inference(row)}


def _cell_sizes(cell: str, default: list[int]) -> Any:
    return _AUTO if cell == _AUTO else [int(size) for size in cell.split()] or default


def _inference(row: dict[str, str]) -> dict[str, Any]:
    family, size = row["family"], row["size"]
    known = size if row["model_size_in_b"] else "20b"
    return {
        "run": {
            "model_type": family,
            "model_train_name": f"{family}_{known}",
            "gpus_per_node": 8,
            "data_type": "fp32" if family == _LAPTOP else "fp16",
            "engine": _AUTO,
            "model_path": None,
            "container": None,
            "time_limit": "0:30:00",
            "results_dir": (
                "${base_results_dir}/${search_config_value}_${search_config.train_settings.gpu_memory_gb}gb"
            ),
            "tensor_parallel_sizes": _cell_sizes(
                row["inference_tensor_parallel_sizes"], [1, 2, 4, 8]
            ),
            "pipeline_parallel_sizes": _cell_sizes(row["inference_pipeline_parallel_sizes"], [1]),
        },
        "benchmark": {
            "input_len": 60,
            "output_len": 20,
            "batch_sizes": _cell_sizes(row["inference_batch_sizes"], [4, 8, 16, 32, 64, 128]),
            "beam_width": 1,
            "topk": 4,
            "topp": 0.0,
        },
    }
