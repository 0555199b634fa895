"""Readers of what one family's config.json alone has; the table of readers puts them together."""

from __future__ import annotations

from dataclasses import replace

from meshwright.values.models.hf_config import HfConfig
from meshwright.values.models.hf_parts import (
    Found,
    MoeKeys,
    Part,
    global_every,
    latent_attention,
)

__all__ = [
    "alibi",
    "attention_bias",
    "baichuan_positions",
    "chatglm_heads",
    "dbrx_details",
    "even_latent_attention",
    "falcon_heads",
    "gpt2_ffn",
    "gpt_neo_windows",
    "hunyuan_experts",
    "llama4_experts",
    "mpt_details",
    "mtp",
    "multi_query",
    "positions",
    "t5_details",
    "yarn",
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


def positions(key: str, *, extra: int = 0) -> Part:
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


def alibi(config: HfConfig, _: Found) -> Found:
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


def yarn(config: HfConfig, _: Found) -> Found:
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
    values = {"v_head_dim": found["hidden"] // found["num_heads"], **config.values}
    return latent_attention(HfConfig(name=config.name, values=values), found)


def mtp(config: HfConfig, _: Found) -> Found:
    """Read the layers that predict further tokens."""
    return {"mtp_layers": config.count("num_nextn_predict_layers", 0, least=0)}
