"""torchtitan's TOML read back into a model, a workload and a layout."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from meshwright.software.contract import Imported
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.software.text import Taken
from meshwright.software.torchtitan.settings import WORDS
from meshwright.software.torchtitan.words import (
    DIMS_CHANGED,
    TitanModel,
    layers_of_chunks,
    read_dims_line,
    schedule_of,
)
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import MlaSpec, ModelSpec, MoeSpec
from meshwright.values.units import counted
from meshwright.values.workload import Precision, Workload

__all__ = ["read_titan", "titan_matches"]

_TWO_CHUNKS = ("Interleaved1F1B", "ZBVZeroBubble")
_CONVERTED: dict[str, Precision] = {
    "quantize.linear.float8": "fp8",
    "float8": "fp8",
    "quantize.linear.mx": "mxfp8",
    "mx": "mxfp8",
}
_OURS = {
    "optimizer.name": "AdamW",
    "compile.components": ["model", "loss"],
    "checkpoint.last_save_model_only": False,
    "checkpoint.initial_load_model_only": False,
    "checkpoint.load_only": True,
    "experimental.custom_import": "meshwright_model",
    "training.dataset": "c4_test",
    "training.mixed_precision_param": "bfloat16",
    "quantize.linear.float8.recipe_name": "rowwise",
    "quantize.linear.float8.filter_fqns": ["output", "router.gate"],
    "quantize.linear.mx.recipe_name": "mxfp8_cublas",
    "quantize.linear.mx.filter_fqns": ["output", "router.gate"],
}
"""Words that an export writes and that say nothing beyond the plan."""


def read_titan(text: str) -> Imported:
    """Return the run that a TOML describes."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"torchtitan: no TOML: {str(error)[:120]}") from None
    words = Taken(document, what="torchtitan")
    warnings: list[str] = []
    model, details = _model(words, read_dims_line(text))
    layout = _layout(words, model, warnings)
    precision, batch = _precision(words), _batch(words, layout)
    layout |= {"mbs": batch["mbs"]}
    compiled = words.flag("compile.enable", False)
    if words.flag("parallelism.enable_async_tensor_parallel", False) and layout["tp"] > 1:
        warnings.append(
            "enable_async_tensor_parallel: prices are without it, of this layout and of the best"
        )
    work = Workload(
        seq_len=words.count("training.seq_len", 2048), gbs=batch["gbs"], precision=precision
    )
    settings = _settings(words)
    words.drop(_OURS)
    dp, rest = layout.get("dp"), layout["tp"] * layout["cp"] * layout["pp"]
    return Imported(
        source="torchtitan-toml",
        model=model,
        work=work,
        layout=layout,
        stack="torchtitan" if compiled else "fsdp",
        settings=settings,
        details=details,
        num_chips=None if dp is None else dp * rest,
        replica_batch=None if batch["gbs"] else batch["local"],
        warnings=tuple(warnings),
        passed_through=tuple(_command_words(words.left())),
    )


def _model(words: Taken, dims: TitanModel | None) -> tuple[ModelSpec, ModelDetails]:
    kind, flavor = words.text("model.name", "llama3"), words.text("model.flavor", "debugmodel")
    if dims is not None and flavor == "meshwright":
        try:
            return _spec_of(dims), _details_of(dims)
        except (KeyError, TypeError, ArithmeticError) as error:
            raise ConfigError(f"torchtitan: {DIMS_CHANGED} ({error!r})") from None
    preset = _flavors().get((kind, flavor))
    if preset is None:
        known = ", ".join(f"{name} {size}" for name, size in _flavors())
        raise ConfigError(
            f"torchtitan: model.name={kind}, model.flavor={flavor}: its dims are in code that is"
            f" not read; known: {known}"
        )
    return find_model(preset), ModelDetails()


@cache
def _flavors() -> dict[tuple[str, str], str]:
    rows = package_rows("software/torchtitan/torchtitan_flavors.csv")
    return {(row["model"], row["flavor"]): row["preset"] for row in rows}


def _spec_of(found: TitanModel) -> ModelSpec:
    dims, moe = found.dims, found.moe
    mla = None
    head_dim, ffn = dims.get("head_dim"), dims.get("hidden_dim")
    if found.kind == "deepseek_v3":
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        mla = MlaSpec(
            q_lora_rank=dims["q_lora_rank"] or None, **{name: dims[name] for name in names}
        )
        head_dim, ffn = mla.qk_nope_head_dim + mla.qk_rope_head_dim, dims["inter_dim"]
    experts = moe and MoeSpec(
        num_experts=moe["num_experts"],
        top_k=moe["top_k"],
        expert_ffn=moe["expert_ffn"],
        shared_ffn=moe["num_shared_experts"] * moe["expert_ffn"],
        first_dense_layers=dims.get("n_dense_layers", 0),
    )
    return ModelSpec(
        name="torchtitan-model",
        num_layers=dims["n_layers"],
        hidden=dims["dim"],
        ffn=ffn or 0,
        num_heads=dims["n_heads"],
        num_kv_heads=dims.get("n_kv_heads") or dims["n_heads"],
        head_dim=head_dim or dims["dim"] // dims["n_heads"],
        vocab=dims["vocab_size"],
        tied=dims.get("enable_weight_tying", False),
        qk_norm=dims.get("qk_norm", False),
        mla=mla,
        moe=experts or None,
    )


def _details_of(found: TitanModel) -> ModelDetails:
    dims, moe = found.dims, found.moe
    given = {"norm_eps": dims["norm_eps"], "rope_base": dims["rope_theta"]}
    if moe is None:
        return ModelDetails(**given, rope_scaling=dims.get("rope_scaling"))
    return ModelDetails(
        **given,
        router_score=moe["score_func"],
        router_balance="none" if moe["load_balance_coeff"] is None else "bias",
        routed_scale=None if moe["route_scale"] == 1 else moe["route_scale"],
        router_groups=moe["num_expert_groups"],
        router_top_groups=moe["num_limited_groups"],
    )


def _layout(words: Taken, model: ModelSpec, warnings: list[str]) -> dict[str, Any]:
    section = "parallelism."
    tp = words.count(section + "tensor_parallel_degree", 1)
    cp = words.count(section + "context_parallel_degree", 1)
    layout: dict[str, Any] = {
        "tp": tp,
        "cp": cp,
        "sp": tp > 1,
        "ep": words.count(section + "expert_parallel_degree", 1),
    }
    etp = words.count(section + "expert_tensor_parallel_degree", 1)
    if layout["ep"] > 1:
        layout["etp"] = etp
    pipeline = _pipeline(words, model)
    return {
        **layout,
        **pipeline,
        **_sharding(words, cp=cp, pp=pipeline["pp"]),
        **_recompute(words, model, pipeline, warnings),
    }


def _sharding(words: Taken, *, cp: int, pp: int) -> dict[str, Any]:
    replicas = words.count("parallelism.data_parallel_replicate_degree", 1)
    shards = words.whole("parallelism.data_parallel_shard_degree", -1)
    reshard = words.text("parallelism.fsdp_reshard_after_forward", "default")
    kept = reshard == "never" or (reshard == "default" and pp > 1)
    if shards < 1:
        if replicas > 1:
            raise ConfigError(
                "torchtitan: data_parallel_shard_degree=-1 beside replicas depends on the number of"
                " chips; write it out"
            )
        return {"sharding": "zero2" if kept else "zero3"}
    found: dict[str, Any] = {"dp": replicas * shards}
    group = shards * cp
    if replicas > 1 and group > 1:
        return {**found, "sharding": "hybrid", "shard_size": group}
    if replicas > 1 or (group == 1 and reshard == "default"):
        return {**found, "sharding": "none"}
    return {**found, "sharding": "zero2" if kept else "zero3"}


def _pipeline(words: Taken, model: ModelSpec) -> dict[str, Any]:
    section = "parallelism."
    pp = words.count(section + "pipeline_parallel_degree", 1)
    name = words.text(section + "pipeline_parallel_schedule", "1F1B")
    parts = words.take(section + "module_fqns_per_model_part", None)
    first = words.whole(section + "pipeline_parallel_first_stage_less_layers", 1)
    last = words.whole(section + "pipeline_parallel_last_stage_less_layers", 1)
    each = words.take(section + "pipeline_parallel_layers_per_stage", None)
    if pp == 1:
        return {"pp": 1}
    try:
        schedule = schedule_of(name)
    except KeyError:
        raise ConfigError(
            f"torchtitan: pipeline_parallel_schedule={name}: no layout has it; known: 1F1B,"
            " Interleaved1F1B, GPipe, ZBVZeroBubble"
        ) from None
    if parts is not None:
        chunks = layers_of_chunks(parts)
    else:
        count = pp * (2 if name in _TWO_CHUNKS else 1)
        if each is not None:
            count = math.ceil((model.num_layers + first + last) / each)
        chunks = _weighted_split(model.num_layers, count, first=first, last=last)
    if len(chunks) % pp:
        raise ConfigError(
            f"torchtitan: {counted(len(chunks), 'chunk')} of the model for"
            f" pipeline_parallel_degree={pp}; expected a multiple of it"
        )
    if len(chunks) > pp and name not in _TWO_CHUNKS:
        raise ConfigError(
            f"torchtitan: {counted(len(chunks), 'chunk')} of the model for"
            f" pipeline_parallel_degree={pp}: schedule {name} has one a stage; several go with"
            " Interleaved1F1B"
        )
    return {"pp": pp, "vpp": len(chunks) // pp, "schedule": schedule, "layers_per_stage": chunks}


def _weighted_split(layers: int, chunks: int, *, first: int, last: int) -> tuple[int, ...]:
    """Return layers per chunk as torchtitan cuts a model by itself: embedding and head count as so
    many layers each.

    Source: generate_llm_fqn_per_model_part in torchtitan/distributed/pipeline_parallel.py (v0.2.2).
    """
    base, extra = divmod(layers + first + last, chunks)
    sizes = [base + int(number < extra) for number in range(chunks)]
    sizes[0] -= first
    sizes[-1] -= last
    if min(sizes) < 0:
        raise ConfigError(f"torchtitan: {layers} layers do not fill {chunks} chunks")
    return tuple(sizes)


def _recompute(
    words: Taken, model: ModelSpec, pipeline: Mapping[str, Any], warnings: list[str]
) -> dict[str, Any]:
    """Return what is recomputed: all, by operation, or each n-th layer of a rank, which is as much
    as the first 1/n of its layers.

    Source: apply_ac in torchtitan/distributed/activation_checkpoint.py (v0.2.2), whose default is
            each second layer.
    """
    mode = words.text("activation_checkpoint.mode", "selective")
    option = words.take("activation_checkpoint.selective_ac_option", "2")
    if mode == "full":
        return {"recompute": "full"}
    if mode == "none":
        return {"recompute": "none"}
    if mode == "selective" and str(option) == "op":
        return {"recompute": "selective", "recompute_modules": ("ops",)}
    if mode == "selective" and str(option) == "1":
        return {"recompute": "full"}
    if mode == "selective" and str(option).isdecimal() and int(option) > 1:
        chunks = pipeline.get("layers_per_stage", (model.num_layers,))
        return _each_nth(int(option), chunks, pp=pipeline["pp"], warnings=warnings)
    words_ = f"activation_checkpoint.mode={mode}, selective_ac_option={option}"
    raise ConfigError(
        f"torchtitan: {words_}: no layout recomputes so; known: none, full, selective with option"
        " op or a whole number from 1"
    )


def _each_nth(n: int, chunks: Sequence[int], *, pp: int, warnings: list[str]) -> dict[str, Any]:
    """Return how many layers of each chunk make up each n-th of a rank's: it counts on from chunk
    to chunk, a layout starts anew."""
    redone = max(sum(chunks[rank::pp]) // n for rank in range(pp))
    vpp = len(chunks) // pp
    layers = (2 * redone + vpp) // (2 * vpp)
    if layers * vpp != redone:
        priced = f"priced as {layers} of each of {vpp} chunks"
        warnings.append(
            f"selective_ac_option={n} recomputes {counted(redone, 'layer')} of a rank, which no"
            f" layout says; {priced}"
        )
    if layers == 0:
        return {"recompute": "none"}
    return {"recompute": "full", "recompute_method": "block", "recompute_layers": layers}


def _precision(words: Taken) -> Precision:
    converters = words.take("model.converters", [])
    known = [_CONVERTED[name] for name in converters if name in _CONVERTED]
    others = [name for name in converters if name not in _CONVERTED]
    if others:
        raise ConfigError(
            f"torchtitan: model.converters={','.join(others)}: no known precision; known:"
            f" {', '.join(_CONVERTED)}"
        )
    if known:
        return known[0]
    dtype = words.text("training.mixed_precision_param", "bfloat16")
    return "fp32" if dtype == "float32" else "bf16"


def _batch(words: Taken, layout: dict[str, Any]) -> dict[str, int | None]:
    local = words.count("training.local_batch_size", 8)
    total = words.whole("training.global_batch_size", -1)
    micro = words.count("parallelism.pipeline_parallel_microbatch_size", 1)
    dp = layout.get("dp")
    return {
        "gbs": total if total > 0 else None if dp is None else local * dp,
        "local": local,
        "mbs": local if layout["pp"] == 1 else micro,
    }


def _settings(words: Taken) -> TrainingSettings:
    given = WORDS.read(words, "settings")
    rate = given["learning_rate"]
    share = words.number("lr_scheduler.min_lr_factor", 0.0)
    decay = words.text("lr_scheduler.decay_type", "linear")
    saves = words.flag("checkpoint.enable", False)
    folder = words.text("job.dump_folder", "./outputs")
    only_load = words.flag("checkpoint.load_only", False)
    path = words.take("training.dataset_path", None)
    assets = words.text("model.hf_assets_path", "./tests/assets/tokenizer")
    return TrainingSettings(
        **given,
        min_learning_rate=None if share == 1 else float(f"{rate * share:.6g}"),
        decay_style="constant" if share == 1 else "cosine" if decay == "cosine" else "linear",
        data=() if path is None else (Dataset(path=path),),
        tokenizer=None if assets == "./tests/assets/tokenizer" else assets,
        save_dir=folder if saves and not only_load else None,
    )


def _command_words(left: dict[str, Any]) -> list[str]:
    """Return what has no place in a plan as words for torchtitan's command line."""
    words = []
    for path, value in left.items():
        section, _, key = path.rpartition(".")
        if isinstance(value, bool):
            words.append(f"--{section}.{key if value else f'no_{key}'}")
        else:
            said = ",".join(map(str, value)) if isinstance(value, list) else value
            words.append(f"--{path}={said}")
    return words


def titan_matches(name: str, text: str) -> bool:
    """Whether a file is a TOML of torchtitan."""
    return (
        name.endswith(".toml")
        and "[training]" in text
        and ("[parallelism]" in text or "[model]" in text)
    )
