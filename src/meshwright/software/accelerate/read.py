"""Accelerate's YAML read back into a layout, and edited to say another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.software.accelerate.export import accelerate_config
from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.deepspeed.read import json_values
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Taken
from meshwright.software.trainer_files import Cut, fsdp_cut, mended_values, zero_cut
from meshwright.values.edited import Values
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml
from meshwright.values.workload import Precision, Workload

__all__ = ["ACCELERATE_SOURCE", "accelerate_cut", "accelerate_matches", "files_named"]

_NAME = "accelerate"
_PRECISIONS: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "fp8": "fp8"}
_ZERO_FILE = "deepspeed_config_file"


def accelerate_cut(text: str, files: Mapping[str, str]) -> Cut:
    """Return what ranks share, by Accelerate's YAML and the DeepSpeed JSON that it names."""
    words = Taken(read_yaml(text, what=_NAME), what=_NAME)
    kind = words.text("distributed_type", "NO")
    for section in ("fsdp_config", "deepspeed_config"):
        if words.peek(section):  # a section of keys and values is there by its keys alone
            raise ConfigError(f"{_NAME}: {section}: expected keys and values")
    if kind == "FSDP":
        found = dict(fsdp_cut(words, at="fsdp_config.", prefix="fsdp_", what=_NAME).layout)
        return Cut(layout={**found, **_mesh(words, found)})
    if kind == "DEEPSPEED":
        return _by_deepspeed(words, files)
    if kind not in ("NO", "MULTI_GPU"):
        raise ConfigError(
            f"{_NAME}: distributed_type={kind}: expected NO, MULTI_GPU, FSDP or DEEPSPEED"
        )
    return Cut(layout={"sharding": "none", "offload": "none"})


def _by_deepspeed(words: Taken, files: Mapping[str, str]) -> Cut:
    at = "deepspeed_config."
    name = words.take(f"{at}{_ZERO_FILE}", None)
    if name is not None:
        if (text := files.get(str(name))) is None:
            raise ConfigError(f"{_NAME}: {_ZERO_FILE}: {name}: no such file beside it")
        return zero_cut(json_values(text, what=str(name)), what=str(name))
    devices = {
        part: {"device": words.take(f"{at}offload_{part}_device", "none")}
        for part in ("optimizer", "param")
    }
    zero = {
        "stage": words.take(f"{at}zero_stage", 2),
        **{f"offload_{part}": device for part, device in devices.items()},
    }
    return zero_cut({"zero_optimization": zero}, what=_NAME)


def _mesh(words: Taken, found: Mapping[str, Any]) -> dict[str, Any]:
    at = "parallelism_config.parallelism_config_"
    cp, copies = words.count(f"{at}cp_size", 1), words.count(f"{at}dp_replicate_size", 1)
    if words.count(f"{at}tp_size", 1) > 1:
        raise ConfigError(f"{_NAME}: {at}tp_size: Trainer loads no tensor-parallel model")
    layout: dict[str, Any] = {"cp": cp} if cp > 1 else {}
    if copies > 1:
        if found["sharding"] != "zero3":
            raise ConfigError(f"{_NAME}: dp_replicate_size goes with reshard_after_forward")
        size = words.count(f"{at}dp_shard_size", 1) * cp
        layout |= {"sharding": "hybrid", "shard_size": size}
    return layout


def read_accelerate(text: str, beside: Beside) -> Imported:
    """Return the run that a YAML describes, with model, sequence and batch from beside."""
    cut, values = accelerate_cut(text, beside.files), read_yaml(text, what=_NAME)
    warnings = list(cut.warnings)
    if beside.mbs is None:
        warnings.append("the micro batch is the trainer's: 1 is taken; --set mbs=N says another")
    precision = str(values.get("mixed_precision", "no"))
    if precision not in _PRECISIONS:
        raise ConfigError(
            f"{_NAME}: mixed_precision={precision}: expected {', '.join(_PRECISIONS)}"
        )
    is_zero = values.get("distributed_type") == "DEEPSPEED"
    processes = values.get("num_processes")
    return Imported(
        source=_NAME,
        model=beside.model_of(None, what=_NAME),
        work=Workload(seq_len=beside.length(None, what=_NAME), precision=_PRECISIONS[precision]),
        layout={"mbs": beside.mbs or 1, **cut.layout},
        stack="deepspeed" if is_zero else _NAME,
        details=beside.details,
        num_chips=processes if isinstance(processes, int) else None,
        warnings=tuple(warnings),
    )


def _values(plan: TrainingPlan) -> Values:
    """Return what a layout sets in the YAML of an FSDP run, by dotted path."""
    words = accelerate_config(plan, "", offload=plan.layout.offload == "weights")
    section = words.get("fsdp_config")
    if section is None:
        raise ConfigError(f"{_NAME}: sharding=none: the file's FSDP section would have to go")
    names = ("reshard_after_forward", "activation_checkpointing", "offload_params")
    return {f"fsdp_config.fsdp_{name}": section[f"fsdp_{name}"] for name in names}


def _zero_values(plan: TrainingPlan) -> Values:
    at, layout = "deepspeed_config.", plan.layout
    what, _, place = layout.offload.partition("-")
    device = place or "cpu"
    return {
        f"{at}zero_stage": {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}.get(layout.sharding),
        f"{at}offload_optimizer_device": "none" if what == "none" else device,
        f"{at}offload_param_device": device if what == "weights" else "none",
    }


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    layout, values = plan.layout, read_yaml(text, what=_NAME)
    if layout.mbs != found.layout["mbs"]:
        raise ConfigError(f"{_NAME}: mbs={layout.mbs}: the trainer's word, not this file's")
    if layout.cp != found.layout.get("cp", 1):
        raise ConfigError(f"{_NAME}: cp={layout.cp}: its mesh names ranks, which are not edited")
    version = values.get("fsdp_config", {}).get("fsdp_version", 1)
    if values.get("distributed_type") == "FSDP" and version != 2:
        raise ConfigError(
            f"{_NAME}: fsdp_version {version} is not edited: `accelerate to-fsdp2` writes version 2"
        )
    if values.get("deepspeed_config", {}).get(_ZERO_FILE):
        raise ConfigError(f"{_NAME}: its {_ZERO_FILE} says the stage: edit that one")
    kind = values.get("distributed_type")
    if kind not in ("FSDP", "DEEPSPEED") and layout.sharding != "none":
        raise ConfigError(f"{_NAME}: distributed_type={kind} shards nothing")
    own = _zero_values if kind == "DEEPSPEED" else _values
    return mended_values(
        text, plan, own, form="yaml", read=lambda tried: read_accelerate(tried, found.beside)
    )


def files_named(text: str) -> tuple[str, ...]:
    """Return the DeepSpeed JSON that a YAML names."""
    section = read_yaml(text, what=_NAME).get("deepspeed_config")
    name = section.get(_ZERO_FILE) if isinstance(section, Mapping) else None
    return (str(name),) if name else ()


def accelerate_matches(name: str, text: str) -> bool:
    """Whether a file is a YAML of `accelerate config`."""
    return name.endswith((".yaml", ".yml")) and "distributed_type:" in text


ACCELERATE_SOURCE = ImportSource(
    name=_NAME,
    title="Accelerate's YAML",
    matches=accelerate_matches,
    read=lambda text: read_accelerate(text, Beside()),
    read_beside=read_accelerate,
    files=files_named,
    mend=_mended,
    shardings=("none", "zero1", "zero2", "zero3"),
)
