"""Readers of what one family of Hugging Face configs alone has."""

from __future__ import annotations

from dataclasses import replace

from meshwright.values.errors import ConfigError
from meshwright.values.models.hf_parts import (
    Found,
    HfConfig,
    MoeKeys,
    Part,
    global_every,
    latent_attention,
)
from meshwright.values.models.spec import DeltaSpec, GlobalSpec

__all__ = [
    "alibi_positions",
    "attention_bias",
    "baichuan_positions",
    "chatglm_heads",
    "dbrx_details",
    "even_latent_attention",
    "falcon_heads",
    "further_tokens",
    "further_tokens_of_qwen",
    "gated_delta_nets",
    "gemma4_details",
    "gpt2_ffn",
    "gpt_neo_windows",
    "hunyuan_experts",
    "kimi_delta_attention",
    "latent_experts",
    "learned_positions",
    "llama4_experts",
    "minimax_m3_widths",
    "mpt_details",
    "multi_query",
    "t5_details",
    "yarn_factor",
]

_MOST_REPEATS = 10_000
"""More repeats of a pattern than any model has layers."""


def attention_bias(config: HfConfig, found: Found) -> Found:
    """Read Llama's two flags of biases: the attention's alone count at queries, keys and values."""
    attention, everywhere = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    return {"linear_bias": attention and everywhere, "qkv_bias": attention and not everywhere}


def gpt2_ffn(config: HfConfig, found: Found) -> Found:
    """Read the inner width, four times the hidden size where it is not said."""
    return {"ffn": config.count("n_inner|intermediate_size|ffn_hidden_size", 4 * found["hidden"])}


def learned_positions(key: str, *, extra: int = 0) -> Part:
    """Return a reader of a table of learned positions, with `extra` rows."""
    return lambda config, _: {"positions": "learned", "max_positions": config.count(key) + extra}


def multi_query(config: HfConfig, found: Found) -> Found:
    """Read whether all heads share one head of keys and values."""
    return {"num_kv_heads": 1 if config.flag("multi_query", True) else found["num_heads"]}


def falcon_heads(config: HfConfig, found: Found) -> Found:
    """Read the heads and the parallel block of both of Falcon's architectures."""
    if config.flag("new_decoder_architecture", False):
        return {
            "num_kv_heads": config.count("num_kv_heads|n_head_kv", found["num_heads"]),
            "parallel_block": True,
        }
    parallel = config.flag("parallel_attn", True)
    return multi_query(config, found) | {
        "parallel_block": parallel,
        "norms_per_layer": 1 if parallel else 2,
    }


def alibi_positions(config: HfConfig, _: Found) -> Found:
    """Read whether positions are ALiBi's."""
    return {"positions": "alibi"} if config.flag("alibi", False) else {}


def mpt_details(config: HfConfig, found: Found) -> Found:
    """Read what MPT keeps in a section for its attention, and its ratios."""
    attention = config.section("attn_config")
    alibi = attention.flag("alibi", True)
    learned = config.flag("learned_pos_emb", True) and not alibi
    kv_heads = {"multiquery_attention": 1}.get(
        attention.text("attn_type", "multihead_attention"), found["num_heads"]
    )
    return {
        "ffn": round(config.number("expansion_ratio", 4) * found["hidden"]),
        "num_kv_heads": attention.count("kv_n_heads", kv_heads),
        "positions": "alibi" if alibi else "learned" if learned else "none",
        "max_positions": config.count("max_seq_len", 2048) if learned else 0,
        "linear_bias": not config.flag("no_bias", False),
        "qk_norm": attention.flag("qk_ln", False),
    }


def dbrx_details(config: HfConfig, found: Found) -> Found:
    """Read experts and heads, which DBRX keeps in sections of their own."""
    experts = MoeKeys(experts="moe_num_experts", top_k="moe_top_k", expert_ffn="ffn_hidden_size")
    heads = config.section("attn_config").count("kv_n_heads", found["num_heads"])
    return experts(config.section("ffn_config"), found | {"ffn": 0}) | {"num_kv_heads": heads}


def gpt_neo_windows(config: HfConfig, found: Found) -> Found:
    """Read `[[["global", "local"], 12]]`: a pattern and how often it comes."""
    kinds: list[str] = []
    for entry in config.items("attention_types") or []:
        pattern, times = entry if isinstance(entry, list) and len(entry) == 2 else ([], 0)
        repeated = HfConfig(
            name=f"{config.name}: attention_types", values={"pattern": pattern, "times": times}
        )
        kinds += (repeated.items("pattern") or []) * min(repeated.count("times"), _MOST_REPEATS)
    if "local" not in kinds:
        return {}
    return {"window": config.count("window_size", 256)} | global_every(
        config, [kind == "global" for kind in kinds], found
    )


def chatglm_heads(config: HfConfig, found: Found) -> Found:
    """Read the groups of ChatGLM's heads."""
    if not config.flag("multi_query_attention", False):
        return {}
    return {"num_kv_heads": config.count("multi_query_group_num")}


def baichuan_positions(config: HfConfig, _: Found) -> Found:
    """Baichuan 13B, which has ALiBi, is told by the key that Baichuan 7B lacks."""
    return {} if config.has("max_position_embeddings") else {"positions": "alibi"}


def yarn_factor(config: HfConfig, _: Found) -> Found:
    """Read whether rotations are YaRN's, which is what gpt-oss takes where nothing is said."""
    scaling = config.section("rope_scaling|rope_parameters")
    return {"rotation_has_factor": scaling.text("rope_type|type", "yarn") == "yarn"}


def t5_details(assumed: str) -> Part:
    """Return a reader of T5's two stacks; `assumed` is the feed-forward where none is named."""

    def read(config: HfConfig, found: Found) -> Found:
        layers = found["num_layers"]
        gated = config.text("feed_forward_proj", assumed).startswith("gated")
        return {
            "gated": gated,
            "encoder_layers": layers,
            "num_layers": config.count("num_decoder_layers", layers),
        }

    return read


def llama4_experts(config: HfConfig, found: Found) -> Found:
    """Experts and the shared one have `intermediate_size`; dense layers `intermediate_size_mlp`."""
    keys = MoeKeys(
        experts="num_local_experts",
        expert_ffn="intermediate_size",
        frequency="interleave_moe_layer_step",
    )
    moe = keys(config, found)["moe"]
    return {
        "moe": replace(moe, shared_ffn=moe.expert_ffn),
        "ffn": config.count("intermediate_size_mlp", found["ffn"]),
    }


def hunyuan_experts(config: HfConfig, found: Found) -> Found:
    """Read Hunyuan's experts, whose numbers may be a list with one for each layer; shared experts
    are as wide as `intermediate_size`."""
    alike = config.alike(
        "moe_topk", "moe_intermediate_size", "num_shared_expert", length=found["num_layers"]
    )
    mixed = config.flag("use_mixed_mlp_moe", False)
    keys = MoeKeys(
        experts="num_experts",
        top_k="moe_topk",
        expert_ffn="moe_intermediate_size|intermediate_size",
        shared_experts="num_shared_expert" if mixed else None,
    )
    return keys(alike, found)


def even_latent_attention(config: HfConfig, found: Found) -> Found:
    """Read latent attention whose values have an even share of the hidden size (MiniCPM 3)."""
    even = found["hidden"] // found["num_heads"]
    return latent_attention(config.with_values(v_head_dim=config.count("v_head_dim", even)), found)


def further_tokens(config: HfConfig, _: Found) -> Found:
    """Read the layers that predict further tokens."""
    return {"mtp_layers": config.count("num_nextn_predict_layers", 0, least=0)}


def further_tokens_of_qwen(config: HfConfig, _: Found) -> Found:
    """Read the layers that predict further tokens, as Qwen3.5 calls them."""
    return {"mtp_layers": config.count("mtp_num_hidden_layers", 0, least=0)}


def gated_delta_nets(config: HfConfig, found: Found) -> Found:
    """Read layers of gated delta nets (Qwen3-Next, Qwen3.5): all but one in four where no list of
    layers says it; the others' attention has a gate."""
    every = config.count("full_attention_interval", 4)
    layers: int = found["num_layers"]
    linear = layers - layers // every
    if config.has("layer_types"):
        linear = _count_of_layers(config, found, "linear_attention", beside="full_attention")
    key_heads = config.count("linear_num_key_heads", 16)
    delta = DeltaSpec(
        num_layers=max(1, linear),
        num_key_heads=key_heads,
        num_value_heads=config.count("linear_num_value_heads", 2 * key_heads),
        key_dim=config.count("linear_key_head_dim", 128),
        value_dim=config.count("linear_value_head_dim", 128),
        conv_kernel=config.count("linear_conv_kernel_dim", 4),
    )
    gated = config.flag("attn_output_gate", True)
    return {"delta": delta if linear else None, "attention_gate": gated}


def _count_of_layers(config: HfConfig, found: Found, kind: str, *, beside: str) -> int:
    """Count the layers of one of two kinds."""
    kinds = config.items("layer_types") or []
    others = [word for word in kinds if word not in (kind, beside)]
    if others or len(kinds) != found["num_layers"]:
        raise ConfigError(
            f"{config.name}: layer_types has {len(kinds)} entries{_quoted(others)}, expected one of"
            f" {kind}, {beside} for each of {found['num_layers']} layers"
        )
    return kinds.count(kind)


def _quoted(words: list[object]) -> str:
    return f", among them {str(words[0])[:40]!r}" if words else ""


def kimi_delta_attention(config: HfConfig, found: Found) -> Found:
    """Read layers of Kimi delta attention, whose heads stand in a section of their own, and latent
    attention, rotated by nothing, in the others."""
    section = config.section("linear_attn_config")
    listed = section.items("kda_layers")
    if listed is None:
        if not config.has("layer_types"):
            config.require(["linear_attn_config"])
        linear = _count_of_layers(config, found, "linear_attention", beside="full_attention")
    else:
        linear = len(listed)
    kernel = config.count("linear_conv_kernel_dim", 4)
    heads = section.count("num_heads", config.count("linear_num_heads", found["num_heads"]))
    dim = section.count("head_dim", config.count("linear_head_dim", 128))
    delta = DeltaSpec(
        num_layers=linear,
        num_key_heads=heads,
        num_value_heads=heads,
        key_dim=dim,
        value_dim=dim,
        conv_kernel=section.count("short_conv_kernel_size", kernel),
        decay="channel",
        gate_rank=None if section.flag("use_full_rank_gate", False) else dim,
    )
    return {
        "delta": delta,
        "positions": "none" if config.flag("mla_use_nope", True) else "rope",
        "attention_gate": config.flag("mla_use_output_gate", False),
    }


def latent_experts(config: HfConfig, found: Found) -> Found:
    """Read the width that routed experts work in, where it is not the hidden size (Kimi K3)."""
    if not config.has("routed_expert_hidden_size") or found.get("moe") is None:
        return {}
    return {"moe": replace(found["moe"], latent_dim=config.count("routed_expert_hidden_size"))}


_OF_EACH_LAYER = "hidden_size_per_layer_input"


def gemma4_details(config: HfConfig, found: Found) -> Found:
    """Read the heads that layers with full attention have, and experts beside a dense feed-forward;
    what the smallest models have on top is not modelled."""
    shared = config.count("num_kv_shared_layers", 0, least=0)
    if config.count(_OF_EACH_LAYER, 256, least=0) or shared:
        raise ConfigError(
            f"{config.name}: embeddings of each layer ({_OF_EACH_LAYER}) and keys that"
            " layers share (num_kv_shared_layers) are not modelled"
        )
    same = config.flag("attention_k_eq_v", False)
    heads = found["num_kv_heads"]
    own = GlobalSpec(
        num_kv_heads=config.count("num_global_key_value_heads", heads) if same else heads,
        head_dim=config.count("global_head_dim", 512),
        values_are_keys=same,
    )
    details: Found = {
        "global_attention": own if found.get("window") else None,
        "norms_per_layer": 4,
    }
    if not config.flag("enable_moe_block", False):
        return details
    keys = MoeKeys(experts="num_experts", top_k="top_k_experts")
    moe = keys(config, found)["moe"]
    beside = replace(moe, shared_ffn=found["ffn"])
    return details | {"moe": beside, "ffn": moe.expert_ffn, "norms_per_layer": 7}


def minimax_m3_widths(config: HfConfig, found: Found) -> Found:
    """Read the widths of the shared expert and of the dense layers."""
    moe = found["moe"]
    shared = config.count("shared_intermediate_size", moe.expert_ffn)
    return {
        "moe": replace(moe, shared_ffn=shared * config.count("n_shared_experts", 1, least=0)),
        "ffn": config.count("dense_intermediate_size", found["ffn"]),
    }
