"""A plan as a configuration of AMD's Primus for its Megatron-LM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshwright.software.contract import (
    Exported,
    ExportedFile,
    ExportTarget,
    TrainedLayers,
)
from meshwright.software.megatron_lm.export import split_words
from meshwright.software.megatron_lm.other_core import at_core
from meshwright.software.megatron_lm.pipeline import read_chunks
from meshwright.software.megatron_lm.words import bound_flags
from meshwright.software.plan import TrainingPlan
from meshwright.software.primus.presets import (
    RELEASE,
    flags_of,
    keys,
    preset_of,
    usual_values,
    values_of,
)
from meshwright.software.words import require_one_of
from meshwright.values.errors import CannotExpress, ConfigError, UnknownNameError
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["CORE", "NAME", "PRIMUS", "values_over"]

NAME = "primus"
CORE = "0.16"
"""Of the Megatron-LM that the release names (third_party/Megatron-LM)."""
FILE = "primus.yaml"
_ALWAYS = (
    *("train_iters", "train_samples", "lr", "min_lr", "weight_decay", "adam_", "clip_", "seed"),
    *("micro_batch_size", "global_batch_size", "seq_length", "max_position_embeddings"),
    *("tensor_model", "pipeline_model", "context_", "expert_"),
)
"""How keys begin that are always written, as Primus's own configurations have them."""
_SAID = ("finetune", "sequence_parallel", "mock_data")
"""The same by their whole name."""
_ALSO = (
    *("--swiglu", "--quick-geglu", "--squared-relu", "--group-query-attention", "--bf16", "--fp16"),
    *("--multi-latent-attention", "--moe-layer-freq", "--moe-router-enable-expert-bias"),
    *("--moe-router-pre-softmax", "--use-rope-scaling", "--use-distributed-optimizer"),
    *("--window-size", "--softmax-type", "--cross-entropy-loss-fusion", "--lr-warmup-iters"),
    *("--rampup-batch-size", "--recompute-granularity", "--no-position-embedding", "--finetune"),
    *("--dataloader-type", "--moe-shared-expert-overlap"),
    *("--mtp-num-layers", "--vocab-size", "--fp8-format", "--fp4-format", "--data-path"),
)
"""Flags beside the bound ones that a plan stands for by leaving them out; what Primus's presets
switch on of these is switched off."""
_OF_LATENTS = ("qk_layernorm", "moe_router_pre_softmax")
"""What the presets of DeepSeek's models know and no plan says."""
_OF_DISPATCHER = (
    *("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_enable_deepep"),
)
_FEW_UNITS_FROM = 16
"""Expert-parallel ranks from which Primus takes at most 32 compute units for DeepEP
(rocm_arg_validation.py); its configurations for fewer have 64."""


def values_over(plan: TrainingPlan, there: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan says, by key, over the presets that are there: with what those switch on
    and the plan says by leaving it out."""
    _require_gpt(plan)
    _require_keys(plan.settings.extra)
    base = at_core(plan, core=CORE, name=NAME)
    values = values_of(split_words(base.command[1:])) | _own(plan)
    _write_data(values, plan)
    if values.get("use_turbo_deepep"):
        for name in _OF_DISPATCHER:
            values.pop(name, None)
    said = {bound.flag for bound in bound_flags()} | set(_ALSO)
    for name, key in keys().items():
        undone = key.flag in said and name not in values and there[name] != key.megatron
        if undone and not (name in _OF_LATENTS and plan.model.mla is not None):
            values[name] = key.megatron
    return values


def _write(plan: TrainingPlan) -> Exported:
    preset = preset_of(plan.model.name)
    there = usual_values(preset)
    written = {
        name: value
        for name, value in values_over(plan, there).items()
        if name not in there or there[name] != value or _always(name)
    }
    per_node = min(plan.pool.node.chips_per_node, plan.pool.num_chips)
    nodes = -(-plan.pool.num_chips // per_node)
    return Exported(
        target=NAME,
        files=(
            ExportedFile(name=FILE, text=_yaml(plan.model.name, preset, written)),
            ExportedFile(name="train.sh", text=_script(plan, per_node, nodes), executable=True),
        ),
        command=("bash", "train.sh"),
        runs_on="node",
        notes=_notes(plan),
    )


def _require_gpt(plan: TrainingPlan) -> None:
    model = plan.model
    if model.family != "decoder" or model.hybrid is not None:
        reason = "its configurations for Megatron are written here for decoders of attention alone"
        raise CannotExpress(NAME, reason, nearest="--to megatron-lm")
    formats = ("bf16", "fp16", "fp32", "fp8", "fp8-blockwise", "mxfp8")
    says = "AMD's chips have no such format under Primus"
    require_one_of(plan, "work.precision", formats, name=NAME, says=says)


def _require_keys(extra: Sequence[str]) -> None:
    """A word that is no flag of Megatron-LM or Primus would become a key that nothing reads, or a
    value of the flag before it."""
    if extra and not extra[0].startswith("--"):
        raise ConfigError(f"extra: {extra[0]!r} is no flag, such as --log-throughput")
    names = {one.flag for one in keys().values()}
    for flag in split_words(tuple(extra)):
        name = flag.removeprefix("--").replace("-", "_")
        if flag not in names and name not in keys():
            raise UnknownNameError("key of Primus", name, keys())


def _own(plan: TrainingPlan) -> dict[str, Any]:
    """Return the keys by which Primus switches what its stack is priced with."""
    stack, layout, moe = plan.stack, plan.layout, plan.model.moe
    values: dict[str, Any] = {"gradient_accumulation_fusion": stack.accumulate_bytes == 0}
    if plan.work.precision.startswith(("fp8", "mxfp8")) and stack.narrow_weight_copies == 1:
        values["no_fp8_weight_transpose_cache"] = True
    if moe is None:
        return values
    deepep = stack.dispatcher == "flex" and layout.ep > 1
    values |= {
        "enable_primus_turbo": deepep or stack.routing_fused,
        "use_turbo_deepep": deepep,
        "moe_use_fused_router_with_aux_score": stack.routing_fused,
        "moe_shared_expert_overlap": False,
    }
    if deepep:
        values["turbo_deepep_num_cu"] = 64 if layout.ep < _FEW_UNITS_FROM else 32
    return values


def _write_data(values: dict[str, Any], plan: TrainingPlan) -> None:
    """Name the files of training as Primus asks for them: without train_data_path it makes a corpus
    of its own."""
    data = values.pop("data_path", None)
    split = values.pop("split", None)
    if data is None:  # mock_data_patches.py of Primus takes no other tokenizer with mock data
        vocab = plan.model.vocab - 1  # it adds the end of a document
        values |= {"tokenizer_type": "NullTokenizer", "tokenizer_model": None, "vocab_size": vocab}
        return
    if plan.settings.eval_steps or str(split).partition(",")[2].strip("0,"):
        reason = "it takes the data of validation from files of their own, not from a share"
        raise CannotExpress(NAME, reason, nearest="split=100,0,0 with eval_steps=0")
    values |= {"train_data_path": data, "mock_data": False}


def _always(name: str) -> bool:
    return name in _SAID or name.startswith(_ALWAYS)


def _yaml(model: str, preset: str, values: dict[str, Any]) -> str:
    """Return the configuration, in the form of those in Primus's repository."""
    head = {
        "work_group": "${PRIMUS_TEAM:amd}",
        "user_name": "${PRIMUS_USER:root}",
        "exp_name": f"${{PRIMUS_EXP_NAME:{model}-pretrain}}",
        "workspace": "${PRIMUS_WORKSPACE:./output}",
    }
    trainer = {"framework": "megatron", "config": "pre_trainer.yaml", "model": f"{preset}.yaml"}
    tree = {**head, "modules": {"pre_trainer": {**trainer, "overrides": values}}}
    says = f"# Written by meshwright for Primus {RELEASE}.\n"
    return says + write_yaml(tree)


def _script(plan: TrainingPlan, per_node: int, nodes: int) -> str:
    """Return what starts one node's ranks; all nodes run the same text."""
    says = f"{per_node * nodes} GPUs on {nodes} node{'s' if nodes > 1 else ''}"
    rocm = ["export NVTE_ROCM_ENABLE_MXFP8=1  # Primus asks for it with the recipe mxfp8"]
    lines = [
        "#!/bin/bash",
        f"# Primus {RELEASE}: {says}.",
        "# Run it on every node in a clone of Primus, or with PRIMUS_PATH set; NODE_RANK and"
        " MASTER_ADDR tell nodes apart.",
        "set -euo pipefail",
        'config="$(cd "$(dirname "$0")" && pwd)/' + FILE + '"',
        'cd "${PRIMUS_PATH:-.}"',
        "if [[ ! -x primus-cli ]]; then",
        "    echo 'set PRIMUS_PATH to a clone of AMD-AGI/Primus' >&2",
        "    exit 2",
        "fi",
        f'export NNODES="${{NNODES:-{nodes}}}" GPUS_PER_NODE="${{GPUS_PER_NODE:-{per_node}}}"',
        'export NODE_RANK="${NODE_RANK:-0}" MASTER_ADDR="${MASTER_ADDR:-localhost}"',
        'export MASTER_PORT="${MASTER_PORT:-1234}"',
        *(rocm if plan.work.precision == "mxfp8" else []),
        'exec ./primus-cli direct -- train pretrain --config "$config"',
    ]
    return "\n".join(lines) + "\n"


def _notes(plan: TrainingPlan) -> tuple[str, ...]:
    notes = ["by hand: ./primus-cli direct -- train pretrain --config primus.yaml, in its folder"]
    if plan.settings.save_dir is not None:
        notes.append(
            "Primus saves to WORKSPACE/WORK_GROUP/USER_NAME/EXP_NAME/checkpoints, whatever `save`"
            " says"
        )
    return tuple(notes)


def _usual(plan: TrainingPlan) -> TrainingPlan:
    """Train on all of the data, and evaluate on none, where nobody says."""
    settings = plan.settings
    if not settings.data:
        return plan
    filled = replace(
        settings,
        eval_steps=0 if settings.eval_steps is None else settings.eval_steps,
        split=(100.0, 0.0, 0.0) if settings.split is None else settings.split,
    )
    return replace(plan, settings=filled)


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    trainer = read_yaml(exported.files[0].text, what=NAME)["modules"]["pre_trainer"]
    values = usual_values(trainer["model"].removesuffix(".yaml")) | trainer["overrides"]
    return read_chunks(split_words(flags_of(values)))


PRIMUS = ExportTarget(
    name=NAME,
    title="Primus",
    versions=f"AMD-AGI/Primus {RELEASE} with its Megatron-LM",
    write=_write,
    trained_layers=_trained_layers,
    stacks=("primus", "megatron", "megatron-no-overlap", "megatron-half-gradients"),
    takes_extra=True,
    usual=_usual,
)
