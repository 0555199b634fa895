"""The table of readers: for each `model_type` of a Hugging Face config, which keys hold what, and
what the architecture fixes; before it, readers of what one family alone has.

Source of keys and of what an absent key means: the configuration classes of Hugging Face
transformers, and the published config.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshwright.values.models.hf_parts import (
    Found,
    HfConfig,
    MoeKeys,
    Part,
    WindowKeys,
    global_every,
    hybrid_layers,
    latent_attention,
)

__all__ = ["READERS", "Reader"]

_MOST_REPEATS = 10_000
"""More repeats of a pattern than any model has layers."""


def _attention_bias(config: HfConfig, found: Found) -> Found:
    """Read Llama's two flags of biases: the attention's alone count at queries, keys and values."""
    attention, everywhere = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    return {"linear_bias": attention and everywhere, "qkv_bias": attention and not everywhere}


def _gpt2_ffn(config: HfConfig, found: Found) -> Found:
    """Read the inner width, four times the hidden size where it is not said."""
    return {"ffn": config.count("n_inner|intermediate_size|ffn_hidden_size", 4 * found["hidden"])}


def _positions(key: str, *, extra: int = 0) -> Part:
    """Return a reader of a table of learned positions, with `extra` rows."""
    return lambda config, _: {"positions": "learned", "max_positions": config.count(key) + extra}


def _multi_query(config: HfConfig, found: Found) -> Found:
    """Read whether all heads share one head of keys and values."""
    return {"num_kv_heads": 1 if config.flag("multi_query", True) else found["num_heads"]}


def _falcon_heads(config: HfConfig, found: Found) -> Found:
    """Read the heads and the parallel block of both of Falcon's architectures."""
    if config.flag("new_decoder_architecture", False):
        return {
            "num_kv_heads": config.count("num_kv_heads|n_head_kv", found["num_heads"]),
            "parallel_block": True,
        }
    parallel = config.flag("parallel_attn", True)
    return _multi_query(config, found) | {
        "parallel_block": parallel,
        "norms_per_layer": 1 if parallel else 2,
    }


def _alibi(config: HfConfig, _: Found) -> Found:
    """Read whether positions are ALiBi's."""
    return {"positions": "alibi"} if config.flag("alibi", False) else {}


def _mpt_details(config: HfConfig, found: Found) -> Found:
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


def _dbrx_details(config: HfConfig, found: Found) -> Found:
    """Read experts and heads, which DBRX keeps in sections of their own."""
    experts = MoeKeys(experts="moe_num_experts", top_k="moe_top_k", expert_ffn="ffn_hidden_size")
    heads = config.section("attn_config").count("kv_n_heads", found["num_heads"])
    return experts(config.section("ffn_config"), found | {"ffn": 0}) | {"num_kv_heads": heads}


def _gpt_neo_windows(config: HfConfig, found: Found) -> Found:
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


def _chatglm_heads(config: HfConfig, found: Found) -> Found:
    """Read the groups of ChatGLM's heads."""
    if not config.flag("multi_query_attention", False):
        return {}
    return {"num_kv_heads": config.count("multi_query_group_num")}


def _baichuan_positions(config: HfConfig, _: Found) -> Found:
    """Baichuan 13B, which has ALiBi, is told by the key that Baichuan 7B lacks."""
    return {} if config.has("max_position_embeddings") else {"positions": "alibi"}


def _yarn(config: HfConfig, _: Found) -> Found:
    """Read whether rotations are YaRN's, which is what gpt-oss takes where nothing is said."""
    scaling = config.section("rope_scaling|rope_parameters")
    return {"rotation_has_factor": scaling.text("rope_type|type", "yarn") == "yarn"}


def _t5_details(assumed: str) -> Part:
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


def _llama4_experts(config: HfConfig, found: Found) -> Found:
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


def _hunyuan_experts(config: HfConfig, found: Found) -> Found:
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


def _even_latent_attention(config: HfConfig, found: Found) -> Found:
    """Read latent attention whose values have an even share of the hidden size (MiniCPM 3)."""
    values = {"v_head_dim": found["hidden"] // found["num_heads"], **config.values}
    return latent_attention(HfConfig(name=config.name, values=values), found)


def _mtp(config: HfConfig, _: Found) -> Found:
    """Read the layers that predict further tokens."""
    return {"mtp_layers": config.count("num_nextn_predict_layers", 0, least=0)}


def _dims(
    layers: str, hidden: str, heads: str, *, vocab: str = "vocab_size", ffn: str | None = None
) -> dict[str, str]:
    """Return the keys of the dims by the fields of ModelSpec."""
    width = {} if ffn is None else {"ffn": ffn}
    return {"num_layers": layers, "hidden": hidden, **width, "num_heads": heads, "vocab": vocab}


_DIMS = _dims("num_hidden_layers", "hidden_size", "num_attention_heads", ffn="intermediate_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """How to read one kind of config."""

    dims: Mapping[str, str] = field(default_factory=lambda: _DIMS)
    """Field of ModelSpec -> key with a whole number."""
    kv_heads: str | None = "num_key_value_heads"
    head_dim: str | None = "head_dim"
    assumed: Mapping[str, int] = field(default_factory=dict)
    """Dims that may be absent, with what the architecture takes then."""
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    """Field of ModelSpec -> key with true or false, and what an absent one means."""
    tied: bool = False
    """What an absent `tie_word_embeddings` means."""
    fixed: dict[str, object] = field(default_factory=dict)
    """Fields that the architecture fixes."""
    parts: tuple[Part, ...] = ()
    """What else is read, in this order."""


def _flags(**keys: str) -> dict[str, tuple[str, bool]]:
    """Return flags that are false where they are absent."""
    return {field: (key, False) for field, key in keys.items()}


def _but(reader: Reader, *parts: Part, **changes: object) -> Reader:
    """Return the reader with more parts, and with fixed fields changed."""
    return replace(reader, parts=(*reader.parts, *parts), fixed={**reader.fixed, **changes})


_LLAMA = Reader(parts=(_attention_bias,))
_TIED = replace(_LLAMA, tied=True)
_HUNYUAN = replace(_LLAMA, head_dim="head_dim|attention_head_dim", fixed={"qk_norm": True})
_MOE_LOCAL = MoeKeys(experts="num_local_experts", expert_ffn="intermediate_size")
_GPT_OSS_MOE = replace(
    _MOE_LOCAL, top_k="num_experts_per_tok|experts_per_token", bias=True, clamps_gate=True
)
_DEEPSEEK_MOE = MoeKeys(
    experts="n_routed_experts",
    shared_experts="n_shared_experts",
    first_dense="first_k_dense_replace",
    frequency="moe_layer_freq",
    optional=True,
)
_QWEN_MOE = MoeKeys(
    experts="num_experts",
    shared_ffn="shared_expert_intermediate_size",
    frequency="decoder_sparse_step",
    dense_layers="mlp_only_layers",
)


_SWITCHED = WindowKeys(assumed=4096, switch="use_sliding_window")
_QWEN2 = _but(_LLAMA, _SWITCHED, qkv_bias=True)
_HEADS_OF_128 = replace(_LLAMA, assumed={"head_dim": 128})
_QWEN3 = _but(_HEADS_OF_128, _SWITCHED, qk_norm=True)
_DEEPSEEK = _but(_LLAMA, latent_attention, _DEEPSEEK_MOE, _mtp)
_GEMMA = replace(_LLAMA, tied=True, assumed={"head_dim": 256})
_EVERY_KEY = "sliding_window_pattern|_sliding_window_pattern"
_GEMMA2 = _but(
    _GEMMA,
    WindowKeys(assumed=4096, every=2, pattern_key="sliding_window_pattern"),
    norms_per_layer=4,
)
_GEMMA3 = replace(
    _but(
        _GEMMA,
        WindowKeys(assumed=4096, every=6, pattern_key=_EVERY_KEY),
        norms_per_layer=4,
        qk_norm=True,
    ),
    assumed={"head_dim": 256, "vocab": 262208, "num_heads": 8, "num_kv_heads": 4},
)
_LAYER_NORM: dict[str, object] = {"norm": "layernorm", "gated": False}
_BIASED = _LAYER_NORM | {"linear_bias": True}
_GPT2 = Reader(
    dims=_dims("n_layer|num_hidden_layers", "n_embd|hidden_size", "n_head|num_attention_heads"),
    kv_heads=None,
    tied=True,
    fixed=_BIASED,
    parts=(_gpt2_ffn, _positions("n_positions|n_ctx|max_position_embeddings")),
)
_GPTJ = replace(
    _GPT2,
    tied=False,
    fixed=_GPT2.fixed | {"parallel_block": True, "norms_per_layer": 1},
    parts=(_gpt2_ffn,),
)
_FALCON = Reader(
    dims=_dims("num_hidden_layers|n_layer", "hidden_size", "num_attention_heads|n_head"),
    kv_heads=None,
    head_dim=None,
    tied=True,
    flags=_flags(linear_bias="bias"),
    fixed=_LAYER_NORM,
    parts=(_gpt2_ffn, _falcon_heads, _alibi),
)
_T5 = Reader(
    dims=_dims("num_layers", "d_model", "num_heads", ffn="d_ff"),
    kv_heads=None,
    head_dim="d_kv",
    tied=True,
    fixed={"family": "encoder-decoder", "positions": "relative"},
    parts=(_t5_details("relu"),),
)
_COHERE = replace(
    _LLAMA,
    tied=True,
    flags=_flags(qk_norm="use_qk_norm"),
    fixed={"norm": "layernorm", "parallel_block": True, "norms_per_layer": 1},
)
_ERNIE = Reader(tied=True, flags=_flags(linear_bias="use_bias"))
_ERNIE_MOE = MoeKeys(
    experts="moe_num_experts",
    top_k="moe_k",
    shared_experts="moe_num_shared_experts",
    first_dense="moe_layer_start_index",
)
_LING_MOE = MoeKeys(
    experts="num_experts", shared_experts="num_shared_experts", first_dense="first_k_dense_replace"
)
_LING = Reader(flags=_flags(qkv_bias="use_qkv_bias"), parts=(_LING_MOE, _mtp))
_OLMO2 = _but(_LLAMA, qk_norm=True, qk_norm_all_heads=True)

READERS: Mapping[str, Reader] = {
    "apertus": _but(_LLAMA, gated=False, qk_norm=True),
    "aquila": _LLAMA,
    "arcee": _but(_LLAMA, gated=False),
    "baichuan": _but(_LLAMA, _baichuan_positions),
    "bailing_moe": _LING,
    "bailing_moe_v2": replace(_LING, flags={**_LING.flags, "qk_norm": ("use_qk_norm", True)}),
    "bert": Reader(
        kv_heads=None,
        tied=True,
        assumed={"token_types": 2},
        dims=_DIMS | {"token_types": "type_vocab_size"},
        fixed=_BIASED | {"family": "encoder", "mlm_head": True},
        parts=(_positions("max_position_embeddings"),),
    ),
    "bloom": Reader(
        dims=_dims(
            "n_layer|num_hidden_layers", "hidden_size|n_embed", "n_head|num_attention_heads"
        ),
        kv_heads=None,
        tied=True,
        fixed=_BIASED | {"positions": "alibi"},
        parts=(_gpt2_ffn,),
    ),
    "chatglm": Reader(
        dims=_dims(
            "num_layers",
            "hidden_size",
            "num_attention_heads",
            vocab="padded_vocab_size|vocab_size",
            ffn="ffn_hidden_size",
        ),
        kv_heads=None,
        head_dim="kv_channels",
        flags=_flags(qkv_bias="add_qkv_bias", linear_bias="add_bias_linear"),
        parts=(_chatglm_heads,),
    ),
    "codegen": _GPTJ,
    "cohere": _COHERE,
    "cohere2": _but(_COHERE, WindowKeys(assumed=4096, every=4, pattern_key=_EVERY_KEY)),
    "dbrx": Reader(
        dims=_dims("n_layers", "d_model", "n_heads"),
        kv_heads=None,
        fixed={"norm": "layernorm"},
        parts=(_dbrx_details,),
    ),
    "deepseek": _but(_LLAMA, _DEEPSEEK_MOE),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "dots1": _but(_LLAMA, _DEEPSEEK_MOE, qk_norm=True),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(_ERNIE, parts=(_ERNIE_MOE,)),
    "exaone": Reader(dims=_DIMS | {"num_layers": "num_layers|num_hidden_layers"}),
    "exaone4": _but(_LLAMA, WindowKeys(assumed=4096, every=4), qk_norm=True),
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "glm": _HEADS_OF_128,
    "glm4": replace(_HEADS_OF_128, fixed={"norms_per_layer": 4}),
    "glm4_moe": _but(
        replace(_HEADS_OF_128, flags=_flags(qk_norm="use_qk_norm")), _DEEPSEEK_MOE, _mtp
    ),
    "glm_moe_dsa": _DEEPSEEK,
    "gpt2": _GPT2,
    "gpt_bigcode": _but(_GPT2, _multi_query),
    "gpt_neo": Reader(
        dims=_dims("num_layers", "hidden_size", "num_heads"),
        kv_heads=None,
        tied=True,
        fixed=_BIASED,
        parts=(_gpt2_ffn, _positions("max_position_embeddings"), _gpt_neo_windows),
    ),
    "gpt_neox": Reader(
        kv_heads=None, fixed=_BIASED, flags={"parallel_block": ("use_parallel_residual", True)}
    ),
    "gpt_oss": _but(
        _LLAMA,
        _GPT_OSS_MOE,
        WindowKeys(assumed=128, every=2),
        _yarn,
        attention_sinks=True,
        linear_bias=True,
        qkv_bias=False,
    ),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granitemoe": _but(_TIED, _MOE_LOCAL),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _but(_HUNYUAN, _hunyuan_experts),
    "internlm": Reader(kv_heads=None, flags={"qkv_bias": ("bias", True)}),
    "internlm2": Reader(flags=_flags(linear_bias="bias")),
    "internlm3": Reader(flags=_flags(linear_bias="bias", qkv_bias="qkv_bias")),
    "kimi_k2": _DEEPSEEK,
    "llama": _LLAMA,
    "llama4_text": _but(
        _LLAMA, _llama4_experts, WindowKeys(key="attention_chunk_size", assumed=8192, every=4)
    ),
    "mimo": _but(_QWEN2, _mtp),
    "minicpm": _TIED,
    "minicpm3": _but(_TIED, _even_latent_attention),
    "minimax_m2": replace(
        _but(_LLAMA, _MOE_LOCAL, qk_norm_all_heads=True), flags={"qk_norm": ("use_qk_norm", True)}
    ),
    "ministral3": _but(_LLAMA, WindowKeys()),
    "mistral": _but(_LLAMA, WindowKeys(assumed=4096)),
    "mixtral": _but(_LLAMA, WindowKeys(), _MOE_LOCAL),
    "mpt": Reader(
        dims=_dims("n_layers", "d_model", "n_heads"),
        kv_heads=None,
        tied=True,
        fixed=_LAYER_NORM,
        parts=(_mpt_details,),
    ),
    "mt5": replace(_T5, tied=False, parts=(_t5_details("gated-gelu"),)),
    "nemotron": _but(_LLAMA, **_LAYER_NORM),
    "nemotron_h": Reader(
        head_dim="attention_head_dim|head_dim",
        fixed={"gated": False, "positions": "none"},
        parts=(_attention_bias, hybrid_layers, _mtp),
    ),
    "olmo": _but(_LLAMA, norm="layernorm"),
    "olmo2": _OLMO2,
    "olmo3": _but(_OLMO2, WindowKeys(assumed=4096, every=4)),
    "olmoe": _but(
        _LLAMA,
        MoeKeys(experts="num_experts", expert_ffn="intermediate_size"),
        qk_norm=True,
        qk_norm_all_heads=True,
    ),
    "opt": Reader(
        dims=_DIMS | {"ffn": "ffn_dim"},
        kv_heads=None,
        tied=True,
        fixed=_LAYER_NORM,
        flags={"linear_bias": ("enable_bias", True)},
        parts=(_positions("max_position_embeddings", extra=2),),
    ),
    "phi": _but(_LLAMA, **_LAYER_NORM, linear_bias=True, parallel_block=True, norms_per_layer=1),
    "phi3": _but(_LLAMA, WindowKeys()),
    "phimoe": _but(_LLAMA, WindowKeys(), _MOE_LOCAL, norm="layernorm"),
    "qwen": replace(
        _LLAMA,
        kv_heads=None,
        head_dim="kv_channels",
        fixed={"qkv_bias": True},
        parts=(lambda _, found: {"ffn": found["ffn"] // 2},),
    ),
    "qwen2": _QWEN2,
    "qwen2_moe": _but(_QWEN2, _QWEN_MOE),
    "qwen3": _QWEN3,
    "qwen3_moe": _but(_QWEN3, replace(_QWEN_MOE, shared_ffn=None)),
    "seed_oss": _LLAMA,
    "smollm3": _but(_TIED, _SWITCHED),
    "stablelm": Reader(
        fixed={"norm": "layernorm"},
        flags=_flags(qkv_bias="use_qkv_bias", parallel_block="use_parallel_residual"),
    ),
    "starcoder2": Reader(
        tied=True,
        fixed=_LAYER_NORM,
        flags={"linear_bias": ("use_bias", True)},
        parts=(WindowKeys(assumed=4096),),
    ),
    "t5": _T5,
    "umt5": replace(_T5, tied=False, parts=(_t5_details("gated-gelu"),)),
}
"""By `model_type`. A wrapper (`gemma3`) has its language part under `text_config`."""
