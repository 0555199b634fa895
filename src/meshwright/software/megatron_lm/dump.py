"""What Megatron-LM's dump of all arguments says of its run.

The form is that of `_print_args` in Megatron-LM's arguments.py; lines of steps are read in
log.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.software.described import Described, MemoryFigure, MemoryKind
from meshwright.software.megatron_core.layout import STRATEGIES
from meshwright.software.megatron_lm.words import expert_layers
from meshwright.values.errors import ConfigError

__all__ = ["describe_megatron"]

_RANK = re.compile(r"\[Rank (\d{1,9})\] \(after ")
_REPORTED = re.compile(r"\(after (\d{1,15}) iterations\) memory \(")
_ARGUMENT = re.compile(r"^.{0,40}?\b(?P<name>[a-z]\w*) \.{3,} ?(?P<value>[^\n]*)$", re.MULTILINE)
_VOCAB = re.compile(r"padded vocab \(size: (\d{1,9})\)")
_FP8 = {"blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}


def describe_megatron(text: str, *, gbs: int | None) -> Described:
    """Return what the dump of arguments says; `gbs` is the batch that the lines of steps have."""
    dump = {found["name"]: found["value"].strip() for found in _ARGUMENT.finditer(text)}
    return _described(dump, text, gbs=gbs, ranks=set(_RANK.findall(text)))


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The dump, by type; `None` and an absent argument are the same."""

    by_name: Mapping[str, str]

    def text(self, name: str) -> str | None:
        value = self.by_name.get(name)
        return None if value in (None, "None", "") else value

    def flag(self, name: str) -> bool:
        return self.by_name.get(name) == "True"

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,15}", text):
            raise ConfigError(f"argument {name}={text[:40]}: expected a whole number")
        return int(text)

    def need(self, name: str) -> int:
        found = self.count(name)
        if found is None:
            raise ConfigError(f"argument {name} is not in the log's dump of arguments")
        return found


def _described(dump: dict[str, str], text: str, *, gbs: int | None, ranks: set[str]) -> Described:
    arguments = _Arguments(dump)
    if arguments.text("hidden_size") is None or arguments.text("num_layers") is None:
        return Described(gbs=gbs)
    chips = arguments.count("world_size")
    return Described(
        model=_model(arguments, text),
        num_chips=chips,
        stack="megatron",
        stack_changes=_stack_changes(arguments),
        seq_len=arguments.need("seq_length"),
        gbs=gbs or arguments.count("global_batch_size"),
        precision=_precision(arguments),
        attention=_attention(arguments),
        dropout=arguments.text("hidden_dropout") not in (None, "0", "0.0"),
        layout=_layout(arguments),
        memory=MemoryFigure(kind=_kind(text), rank=_rank(ranks, chips)),
    )


def _kind(text: str) -> MemoryKind:
    """Which peak is reported: once, behind the first line of progress, which may be the first
    step's (`report_memory` of megatron/training/training.py)."""
    return "first-step" if set(_REPORTED.findall(text)) == {"1"} else "allocated"


def _rank(ranks: set[str], chips: int | None) -> Any:
    """Which stage the reports are of: one rank's is that of its end of the pipeline."""
    if ranks == {"0"}:
        return "first"
    return "last" if chips and ranks == {str(chips - 1)} else "max"


def _model(arguments: _Arguments, text: str) -> dict[str, Any] | None:
    """Dims of the model; None where the vocabulary is not said, so that the user names the
    model."""
    found = _VOCAB.search(text)
    vocab = (
        int(found[1])
        if found
        else arguments.count("vocab_size") or arguments.count("padded_vocab_size")
    )
    if vocab is None:
        return None
    hidden, heads = arguments.need("hidden_size"), arguments.need("num_attention_heads")
    grouped = arguments.flag("group_query_attention")
    groups = arguments.count("num_query_groups") if grouped else None
    positions = arguments.text("position_embedding_type")
    dims: dict[str, Any] = {
        "name": "megatron-log",
        "num_layers": arguments.need("num_layers"),
        "hidden": hidden,
        "ffn": arguments.count("ffn_hidden_size") or 4 * hidden,
        "num_heads": heads,
        "num_kv_heads": groups or heads,
        "head_dim": arguments.count("kv_channels") or hidden // heads,
        "vocab": vocab,
        "gated": arguments.flag("swiglu"),
        "tied": not arguments.flag("untie_embeddings_and_output_weights"),
        "norm": "rmsnorm" if arguments.text("normalization") == "RMSNorm" else "layernorm",
        "positions": positions if positions in ("rope", "none") else "learned",
        "linear_bias": arguments.flag("add_bias_linear"),
        "qk_norm": arguments.flag("qk_layernorm"),
        "mtp_layers": arguments.count("mtp_num_layers") or 0,
    }
    if dims["positions"] == "learned":
        dims["max_positions"] = arguments.count("max_position_embeddings") or arguments.need(
            "seq_length"
        )
    return {**dims, **_experts(arguments, dims), **_latent(arguments)}


def _experts(arguments: _Arguments, dims: Mapping[str, Any]) -> dict[str, Any]:
    experts = arguments.count("num_experts")
    if experts is None:
        return {}
    first, every = expert_layers(arguments.text("moe_layer_freq") or "1", dims["num_layers"])
    return {
        "moe": {
            "num_experts": experts,
            "top_k": arguments.count("moe_router_topk") or 2,
            "expert_ffn": arguments.count("moe_ffn_hidden_size") or dims["ffn"],
            "shared_ffn": arguments.count("moe_shared_expert_intermediate_size") or 0,
            "first_dense_layers": first,
            "layer_frequency": every,
        }
    }


def _latent(arguments: _Arguments) -> dict[str, Any]:
    if not arguments.flag("multi_latent_attention"):
        return {}
    return {
        "mla": {
            "kv_lora_rank": arguments.need("kv_lora_rank"),
            "q_lora_rank": arguments.count("q_lora_rank"),
            "qk_nope_head_dim": arguments.need("qk_head_dim"),
            "qk_rope_head_dim": arguments.need("qk_pos_emb_head_dim"),
            "v_head_dim": arguments.need("v_head_dim"),
        }
    }


_SWITCHES = {
    "tp_comm_overlap": "tp_overlap",
    "overlap_grad_reduce": "dp_overlap",
    "cross_entropy_loss_fusion": "cross_entropy_fused",
}


def _stack_changes(arguments: _Arguments) -> tuple[tuple[str, float], ...]:
    """What the command leaves off that the stack takes as on."""
    off = (field for name, field in _SWITCHES.items() if arguments.by_name.get(name) == "False")
    return tuple(sorted((field, 0.0) for field in off))


def _precision(arguments: _Arguments) -> str:
    if arguments.text("fp4") is not None:
        return "nvfp4"
    if arguments.text("fp8") is not None:
        return _FP8.get(arguments.text("fp8_recipe") or "", "fp8")
    return "bf16" if arguments.flag("bf16") else "fp16" if arguments.flag("fp16") else "fp32"


def _attention(arguments: _Arguments) -> str:
    backend = (arguments.text("attention_backend") or "").rpartition(".")[2]
    if backend in ("unfused", "local"):
        return "fused-softmax"
    local = arguments.text("transformer_impl") == "local" and not arguments.flag("use_flash_attn")
    return "fused-softmax" if local else "flash"


_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "mbs": "micro_batch_size",
}


def _layout(arguments: _Arguments) -> dict[str, Any]:
    experts = arguments.text("num_experts") is not None
    sizes = {**_SIZES, **({"etp": "expert_tensor_parallel_size"} if experts else {})}
    found: dict[str, Any] = {
        name: value
        for name, argument in sizes.items()
        if (value := arguments.count(argument)) is not None
    }
    return {
        **found,
        "sp": arguments.flag("sequence_parallel"),
        "sharding": _sharding(arguments),
        **_recompute(arguments),
    }


def _sharding(arguments: _Arguments) -> str:
    if arguments.flag("use_torch_fsdp2"):
        return "zero3"
    if arguments.flag("use_megatron_fsdp") or arguments.flag("use_custom_fsdp"):
        return STRATEGIES.get(arguments.text("data_parallel_sharding_strategy") or "", "zero3")
    return "zero1" if arguments.flag("use_distributed_optimizer") else "none"


def _recompute(arguments: _Arguments) -> dict[str, Any]:
    kind = arguments.text("recompute_granularity")
    if kind == "selective":
        modules = tuple(re.findall(r"\w+", arguments.text("recompute_modules") or ""))
        return {"recompute": "selective", "recompute_modules": modules or ("core_attn",)}
    if kind != "full":
        return {"recompute": "none"}
    layers = arguments.count("recompute_num_layers")
    method = arguments.text("recompute_method") or "uniform"
    return {"recompute": "full", "recompute_method": method, "recompute_layers": layers}
