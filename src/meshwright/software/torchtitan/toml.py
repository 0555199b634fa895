"""torchtitan 0.2: a TOML file, and a module with the model's dims, for which TOML has no place."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, TrainedLayers
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Code, python_call, toml_text
from meshwright.software.torchtitan.settings import (
    ENVIRONMENT,
    WORDS,
    checkpoint,
    dataset,
    lr_scheduler,
    notes,
    recompute_mode,
    tokenizer_folder,
    training,
)
from meshwright.software.torchtitan.words import (
    TitanModel,
    dims_line,
    layers_of_chunks,
    parallelism,
    titan_model,
)
from meshwright.software.words import chosen

__all__ = ["FLAVOR", "MODULE", "TORCHTITAN_TOML"]

_NAME = "torchtitan-toml"
MODULE = "meshwright_model"
"""Module that registers the model."""
FLAVOR = "meshwright"
"""What the model is called there."""
_SPECS = {
    "llama3": ("torchtitan.models.llama3", "llama3_args"),
    "qwen3": ("torchtitan.models.qwen3", "qwen3_args"),
    "deepseek_v3": ("torchtitan.models.deepseek_v3", "deepseekv3_args"),
}
"""Where torchtitan 0.2 keeps the dims of each model."""


_UNCONVERTED = ["output", "router.gate"]
"""Linear layers that stay in bf16: the head, and routers, whose outputs are few (torchtitan's own
configurations)."""


def _write(plan: TrainingPlan) -> Exported:
    model = titan_model(plan, name=_NAME)
    said = f"Written by meshwright for torchtitan 0.2; {MODULE}.py has the dims:"
    text = toml_text(_sections(plan, model), comment=(said, dims_line(model)))
    return Exported(
        target=_NAME,
        files=(
            ExportedFile(name="torchtitan.toml", text=text),
            ExportedFile(name=f"{MODULE}.py", text=_module(model)),
        ),
        command=(
            *("-m", "torchtitan.train", "--job.config_file", "torchtitan.toml"),
            *plan.settings.extra,
        ),
        environment=ENVIRONMENT,
        notes=(f"put the folder of {MODULE}.py on PYTHONPATH", *notes(plan), *model.notes),
    )


def _sections(plan: TrainingPlan, model: TitanModel) -> dict[str, dict[str, Any]]:
    precision = _precision(plan)
    mode = recompute_mode(plan, name=_NAME)
    return {
        "job": {"dump_folder": plan.settings.save_dir or "./outputs"},
        "metrics": WORDS.written(plan, "metrics."),
        "model": {
            "name": model.kind,
            "flavor": FLAVOR,
            "hf_assets_path": tokenizer_folder(plan, name=_NAME),
            **({"converters": precision["converters"]} if precision else {}),
        },
        "optimizer": {"name": "AdamW", **WORDS.written(plan, "optimizer.")},
        "lr_scheduler": lr_scheduler(plan, name=_NAME),
        "training": {**dataset(plan, name=_NAME), **training(plan, name=_NAME)},
        "parallelism": parallelism(plan, form="toml"),
        "checkpoint": checkpoint(plan),
        "activation_checkpoint": {
            "mode": mode,
            **({"selective_ac_option": "op"} if mode == "selective" else {}),
        },
        "compile": {"enable": plan.stack.launch_hidden > 0, "components": ["model", "loss"]},
        **({precision["section"]: precision["words"]} if precision else {}),
        "debug": WORDS.written(plan, "debug."),
        "experimental": {"custom_import": MODULE},
    }


_CONVERTERS = {
    "bf16": None,
    "fp32": None,
    "fp8": ("float8", "rowwise"),
    "mxfp8": ("mx", "mxfp8_cublas"),
}
"""What quantizes the linear layers of each precision, and its recipe."""


def _precision(plan: TrainingPlan) -> dict[str, Any] | None:
    """Return the converter of the linear layers; None for bf16 and fp32."""
    says = "linear layers run in fp32, bf16, fp8 (row-wise) or mxfp8"
    converter = chosen(_CONVERTERS, plan, "work.precision", name=_NAME, says=says)
    if converter is None:
        return None
    section = f"quantize.linear.{converter[0]}"
    words = {"recipe_name": converter[1], "filter_fqns": _UNCONVERTED}
    return {"converters": [section], "section": section, "words": words}


def _module(model: TitanModel) -> str:
    """Return a module that adds the model under FLAVOR to those of torchtitan."""
    package, table = _SPECS[model.kind]
    imports = [
        f"from {package} import {table}",
        f"from {package}.model.args import {_ARGS[model.kind]}",
    ]
    if model.kind == "llama3":
        imports.append(f"from {package}.model.args import RoPEScalingArgs")
    if model.moe is not None:
        imports.append("from torchtitan.models.moe import MoEArgs")
    call = python_call(_ARGS[model.kind], _dims(model))
    lines = [
        '"""The model of torchtitan.toml, written by meshwright for torchtitan 0.2."""',
        "",
        *imports,
        "",
        f'{table}["{FLAVOR}"] = {call}',
    ]
    return "\n".join(lines) + "\n"


_ARGS = {
    "llama3": "TransformerModelArgs",
    "qwen3": "Qwen3ModelArgs",
    "deepseek_v3": "DeepSeekV3ModelArgs",
}


def _dims(model: TitanModel) -> dict[str, Any]:
    dims = dict(model.dims)
    if model.kind == "llama3":
        return _llama_dims(dims)
    if model.moe is None:
        return dims
    moe = dict(model.moe)
    width = moe.pop("expert_ffn")
    args = Code(python_call("MoEArgs", {**moe, "score_before_experts": False}, indent=1))
    if model.kind == "qwen3":
        return {**dims, "moe_enabled": True, "moe_inter_dim": width, "moe_args": args}
    # stretched only beyond original_seq_len: never
    yarn = {"original_seq_len": 2**31, "rope_factor": 1.0}
    return {**dims, "moe_inter_dim": width, "moe_args": args, **yarn}


def _llama_dims(dims: dict[str, Any]) -> dict[str, Any]:
    """Write the width as the factor that torchtitan turns into it: int(factor * int(2 / 3 * 4 *
    dim)), rounded up to multiple_of."""
    width, scaling = dims.pop("hidden_dim"), dims.pop("rope_scaling")
    dims.pop("head_dim")
    whole = int(2 * (4 * dims["dim"]) / 3)
    factor = (width + 0.5) / whole
    rope = Code(f"RoPEScalingArgs(scaling_factor={float(scaling or 1.0)!r})")
    return {**dims, "ffn_dim_multiplier": factor, "multiple_of": 1, "rope_scaling_args": rope}


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    import tomllib

    config = tomllib.loads(exported.files[0].text)
    parts = config["parallelism"].get("module_fqns_per_model_part")
    if parts is not None:
        return TrainedLayers(chunks=layers_of_chunks(parts))
    [count] = [
        line.split("=")[1].strip(" ,")
        for line in exported.files[1].text.splitlines()
        if line.strip().startswith("n_layers=")
    ]
    return TrainedLayers(chunks=(int(count),))


TORCHTITAN_TOML = ExportTarget(
    name=_NAME,
    title="torchtitan (TOML)",
    versions="torchtitan 0.2.2, the last minor version that reads TOML",
    write=_write,
    trained_layers=_trained_layers,
    stacks=("torchtitan", "fsdp"),
    takes_extra=True,
)
