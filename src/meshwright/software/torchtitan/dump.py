"""What torchtitan's dump of its configuration, its device mesh and its device say of its run.

The forms are those of torchtitan's distributed/parallel_dims.py and of the `Running with configs:`
(earlier `args:`) line, JSON or a Python dictionary; lines of steps are read in log.py.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from meshwright.software.described import Described, MemoryFigure
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model
from meshwright.values.units import GIB

__all__ = ["describe_torchtitan"]

_MESH_NAMED = re.compile(
    r"Building device mesh with parallelism: (?P<sizes>\w+=\d{1,9}(?:, \w+=\d{1,9})*)"
)
_MESH_LISTED = re.compile(
    r"Building \d-D device mesh with [\[(](?P<names>[^\])]*)[\])], \[(?P<sizes>\d{1,9}(?:,"
    r" ?\d{1,9})*)\]"
)
_DEVICE = re.compile(
    r"capacity: (?P<name>[^\n]*?)(?: \(\d+\))? with (?P<gib>\d{1,6}(?:\.\d{1,6})?)GiB memory"
)
_RANK = re.compile(r"^\[rank(\d{1,9})\]", re.MULTILINE)
_CONFIG = re.compile(r"Running with (?:configs|args): (?=\{)")
_SAME_SIZE = 0.03
"""Difference of memory within which a device is the chip of that name."""


def describe_torchtitan(text: str) -> Described:
    """Return what a log without colours says of its run."""
    config, mesh = _config(text), _mesh(text)
    chip = _chip(text)
    if config is None or mesh is None:
        return Described(
            chip=chip, stack="torchtitan", memory=MemoryFigure(kind="reserved", rank="max")
        )
    parallel = _section(config, "parallelism") or _section(config, "training")
    chips = 1
    for size in mesh.values():
        chips *= size
    batch = _batch(config, mesh)
    return Described(
        model=_model(config),
        chip=chip,
        num_chips=chips,
        stack="torchtitan",
        stack_changes=_stack_changes(config, parallel),
        seq_len=batch["seq_len"],
        gbs=batch["gbs"],
        precision=_precision(config),
        layout={
            **_axes(mesh),
            "mbs": batch["mbs"],
            **_pipeline(parallel, mesh),
            **_recompute(config, mesh),
        },
        memory=MemoryFigure(kind="reserved", rank=_rank(text, chips, mesh)),
    )


def _config(text: str) -> Mapping[str, Any] | None:
    """The dump of the configuration, up to the brace that closes it."""
    start = _CONFIG.search(text)
    if start is None:
        return None
    body = text[start.end() : start.end() + 200_000]
    try:
        return dict(json.JSONDecoder().raw_decode(body)[0])
    except ValueError:
        pass
    try:
        found = ast.literal_eval(body.split("\n")[0])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _mesh(text: str) -> dict[str, int] | None:
    """Sizes of the axes that multiply to the chips; ep is no axis of its own, and is kept apart by
    its name."""
    if found := _MESH_NAMED.search(text):
        pairs = (word.split("=") for word in found["sizes"].strip(" ,").split(", "))
        sizes = {name: int(size) for name, size in pairs}
        return {name: sizes.get(name, 1) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp")}
    if found := _MESH_LISTED.search(text):
        names = re.findall(r"\w+", found["names"])
        return dict(zip(names, (int(size) for size in found["sizes"].split(",")), strict=False))
    return None


def _chip(text: str) -> str | None:
    """The catalogue's name of the device, where one of that name has its memory."""
    found = _DEVICE.search(text)
    if found is None:
        return None
    plain, gib = found["name"].replace("NVIDIA ", "").strip(), float(found["gib"])
    for name in (
        plain,
        f"{plain.split()[0]}-{round(gib)}",
        f"{plain.split()[0]}-{round(gib) + 1}",
        plain.split()[0],
    ):
        try:
            chip = find_chip(name)
        except UnknownNameError:
            continue
        if abs(chip.usable_bytes / GIB / gib - 1) < _SAME_SIZE:
            return chip.name
    return None


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _model(config: Mapping[str, Any]) -> str | None:
    spec = _section(config, "model_spec") or _section(config, "model")
    flavour = str(spec.get("flavor", ""))
    for name in (f"{spec.get('name')}-{flavour}", f"{spec.get('name')}.1-{flavour}"):
        try:
            return find_model(name.lower()).name
        except ConfigError:
            continue
    return None


def _batch(config: Mapping[str, Any], mesh: Mapping[str, int]) -> dict[str, int]:
    """Sequence, micro and global batch, as either generation of the configuration has them."""
    training, replicas = (
        _section(config, "training"),
        mesh.get("dp_replicate", 1) * mesh.get("dp_shard", mesh.get("dp", 1)),
    )
    if "max_context_length" in training:
        seq_len = _count(training, "max_context_length")
        local = max(1, _count(training, "num_tokens_per_microbatch_per_dp_rank") // seq_len)
        total = int(training.get("num_tokens_per_train_step") or -1) // seq_len
    else:
        seq_len = _count(training, "seq_len")
        local = _count(
            training, "local_batch_size" if "local_batch_size" in training else "batch_size"
        )
        total = int(training.get("global_batch_size") or -1)
    parallel = _section(config, "parallelism")
    micro = (
        int(parallel.get("pipeline_parallel_microbatch_size") or local)
        if mesh.get("pp", 1) > 1
        else local
    )
    return {"seq_len": seq_len, "mbs": micro, "gbs": total if total > 0 else local * replicas}


def _count(section: Mapping[str, Any], name: str) -> int:
    value = section.get(name)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"training.{name}={value}: expected a whole number of 1 or more in the dump of the"
            " configuration"
        )
    return value


def _axes(mesh: Mapping[str, int]) -> dict[str, Any]:
    """Axes of a layout; weights are sharded over dp_shard, in copies where dp_replicate is more
    than 1."""
    copies, shard, cp, tp = (mesh.get(name, 1) for name in ("dp_replicate", "dp_shard", "cp", "tp"))
    shard = shard if "dp_shard" in mesh else mesh.get("dp", 1)
    sharding: dict[str, Any] = {"sharding": "zero3" if shard * cp > 1 else "none"}
    if copies > 1 and shard * cp > 1:
        sharding = {"sharding": "hybrid", "shard_size": shard * cp}
    return {
        "tp": tp,
        "sp": tp > 1,
        "cp": cp,
        "pp": mesh.get("pp", 1),
        "dp": copies * shard,
        **sharding,
    }


def _pipeline(parallel: Mapping[str, Any], mesh: Mapping[str, int]) -> dict[str, Any]:
    experts = int(parallel.get("expert_parallel_degree") or 1)
    found: dict[str, Any] = {"ep": experts, **({"etp": 1} if experts > 1 else {})}
    schedule = str(parallel.get("pipeline_parallel_schedule") or "").lower()
    if mesh.get("pp", 1) == 1 or schedule in ("", "1f1b"):
        return found
    if schedule == "gpipe":
        return {**found, "schedule": "gpipe"}
    return {**found, **({"vpp": 2} if "interleaved" in schedule else {"schedule": "zero-bubble"})}


def _stack_changes(
    config: Mapping[str, Any], parallel: Mapping[str, Any]
) -> tuple[tuple[str, float], ...]:
    """Kernels as compiled or not, and tensor-parallel exchange as asynchronous or not."""
    settings = _section(config, "compile")
    compiled = bool(settings.get("enable") or _section(config, "training").get("compile"))
    hidden = bool(
        settings.get("enable_async_tensor_parallel") or parallel.get("enable_async_tensor_parallel")
    )
    eager = dict.fromkeys(("launch_hidden", "pointwise_fused", "query_norms_joined"), 0.0)
    changes = {} if compiled else eager
    return tuple(sorted({**changes, **({} if hidden else {"tp_overlap": 0.0})}.items()))


def _precision(config: Mapping[str, Any]) -> str:
    converters = " ".join(map(str, _section(config, "model").get("converters") or ())).lower()
    return "mxfp8" if "mx" in converters else "fp8" if "float8" in converters else "bf16"


def _recompute(config: Mapping[str, Any], mesh: Mapping[str, int]) -> dict[str, Any]:
    """Full, by operator, or every n-th layer."""
    settings = _section(config, "activation_checkpoint")
    mode = str(settings.get("mode", "none")).lower()
    option, model = str(settings.get("selective_ac_option", "op")), _model(config)
    if mode == "selective" and option.isdecimal() and int(option) > 0 and model is not None:
        every = find_model(model).num_layers // mesh.get("pp", 1) // int(option)
        return {"recompute": "full", "recompute_method": "block", "recompute_layers": every}
    if mode == "selective":
        return {"recompute": "selective", "recompute_modules": ("ops",)}
    return {"recompute": "full" if mode == "full" else "none"}


def _rank(text: str, chips: int, mesh: Mapping[str, int]) -> Any:
    """The stage whose rank printed the log."""
    ranks = {int(rank) for rank in _RANK.findall(text)}
    stages = {rank * mesh.get("pp", 1) // max(chips, 1) for rank in ranks}
    if len(stages) != 1:
        return "max"
    [stage] = stages
    return "first" if stage == 0 else "last" if stage == mesh.get("pp", 1) - 1 else "max"
