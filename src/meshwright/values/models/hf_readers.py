"""The table of readers: for each `model_type` of a Hugging Face config, which keys hold what, and
what the architecture fixes.

Source of keys and of what an absent key means: the configuration classes of Hugging Face
transformers, and the published config.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshwright.values.models.hf_own import (
    alibi,
    attention_bias,
    baichuan_positions,
    chatglm_heads,
    dbrx_details,
    even_latent_attention,
    falcon_heads,
    gpt2_ffn,
    gpt_neo_windows,
    hunyuan_experts,
    llama4_experts,
    mpt_details,
    mtp,
    multi_query,
    positions,
    t5_details,
    yarn,
)
from meshwright.values.models.hf_parts import (
    MoeKeys,
    Part,
    WindowKeys,
    hybrid_layers,
    latent_attention,
)

__all__ = [
    "READERS",
    "Reader",
]

_DIMS = {
    "num_layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "num_heads": "num_attention_heads",
    "vocab": "vocab_size",
}


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


def _but(reader: Reader, *parts: Part, **changes: object) -> Reader:
    """Return the reader with more parts, and with fixed fields changed."""
    return replace(reader, parts=(*reader.parts, *parts), fixed={**reader.fixed, **changes})


_LLAMA = Reader(parts=(attention_bias,))
_HUNYUAN = replace(_LLAMA, head_dim="head_dim|attention_head_dim", fixed={"qk_norm": True})
_MOE_LOCAL = MoeKeys(experts="num_local_experts", expert_ffn="intermediate_size")
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


_MISTRAL = _but(_LLAMA, WindowKeys(assumed=4096))
_QWEN2 = _but(_LLAMA, WindowKeys(assumed=4096, switch="use_sliding_window"), qkv_bias=True)
_QWEN3 = replace(
    _but(_LLAMA, WindowKeys(assumed=4096, switch="use_sliding_window"), qk_norm=True),
    assumed={"head_dim": 128},
)
_DEEPSEEK = _but(_LLAMA, latent_attention, _DEEPSEEK_MOE, mtp)
_GEMMA = replace(_LLAMA, tied=True, assumed={"head_dim": 256})
_GEMMA2 = _but(
    _GEMMA,
    WindowKeys(assumed=4096, every=2, pattern_key="sliding_window_pattern"),
    norms_per_layer=4,
)
_GEMMA3 = replace(
    _but(
        _GEMMA,
        WindowKeys(
            assumed=4096, every=6, pattern_key="sliding_window_pattern|_sliding_window_pattern"
        ),
        norms_per_layer=4,
        qk_norm=True,
    ),
    assumed={"head_dim": 256, "vocab": 262208, "num_heads": 8, "num_kv_heads": 4},
)
_LAYER_NORM: dict[str, object] = {"norm": "layernorm", "gated": False}
_GPT2 = Reader(
    dims={
        "num_layers": "n_layer|num_hidden_layers",
        "hidden": "n_embd|hidden_size",
        "num_heads": "n_head|num_attention_heads",
        "vocab": "vocab_size",
    },
    kv_heads=None,
    tied=True,
    fixed=_LAYER_NORM | {"linear_bias": True},
    parts=(gpt2_ffn, positions("n_positions|n_ctx|max_position_embeddings")),
)
_GPTJ = replace(
    _GPT2,
    tied=False,
    fixed=_GPT2.fixed | {"parallel_block": True, "norms_per_layer": 1},
    parts=(gpt2_ffn,),
)
_FALCON = Reader(
    dims={
        "num_layers": "num_hidden_layers|n_layer",
        "hidden": "hidden_size",
        "num_heads": "num_attention_heads|n_head",
        "vocab": "vocab_size",
    },
    kv_heads=None,
    head_dim=None,
    tied=True,
    flags={"linear_bias": ("bias", False)},
    fixed=_LAYER_NORM,
    parts=(gpt2_ffn, falcon_heads, alibi),
)
_T5 = Reader(
    dims={
        "num_layers": "num_layers",
        "hidden": "d_model",
        "ffn": "d_ff",
        "num_heads": "num_heads",
        "vocab": "vocab_size",
    },
    kv_heads=None,
    head_dim="d_kv",
    tied=True,
    fixed={"family": "encoder-decoder", "positions": "relative"},
    parts=(t5_details("relu"),),
)
_COHERE = replace(
    _LLAMA,
    tied=True,
    flags={"qk_norm": ("use_qk_norm", False)},
    fixed={"norm": "layernorm", "parallel_block": True, "norms_per_layer": 1},
)
_GLM4 = replace(_LLAMA, assumed={"head_dim": 128}, fixed={"norms_per_layer": 4})
_NEMOTRON_H = Reader(
    head_dim="attention_head_dim|head_dim",
    fixed={"gated": False, "positions": "none"},
    parts=(attention_bias, hybrid_layers, mtp),
)

_ERNIE = replace(_LLAMA, tied=True, flags={"linear_bias": ("use_bias", False)}, parts=())
_ERNIE_MOE = MoeKeys(
    experts="moe_num_experts",
    top_k="moe_k",
    shared_experts="moe_num_shared_experts",
    first_dense="moe_layer_start_index",
)
_LING = Reader(
    flags={"qkv_bias": ("use_qkv_bias", False)},
    parts=(
        MoeKeys(
            experts="num_experts",
            shared_experts="num_shared_experts",
            first_dense="first_k_dense_replace",
        ),
        mtp,
    ),
)
_OLMO2 = _but(_LLAMA, qk_norm=True, qk_norm_all_heads=True)

READERS: Mapping[str, Reader] = {
    "apertus": _but(_LLAMA, gated=False, qk_norm=True),
    "aquila": _LLAMA,
    "arcee": _but(_LLAMA, gated=False),
    "baichuan": _but(_LLAMA, baichuan_positions),
    "bailing_moe": _LING,
    "bailing_moe_v2": replace(_LING, flags={**_LING.flags, "qk_norm": ("use_qk_norm", True)}),
    "bert": Reader(
        kv_heads=None,
        tied=True,
        assumed={"token_types": 2},
        dims=_DIMS | {"token_types": "type_vocab_size"},
        fixed=_LAYER_NORM | {"family": "encoder", "linear_bias": True, "mlm_head": True},
        parts=(positions("max_position_embeddings"),),
    ),
    "bloom": Reader(
        dims={
            "num_layers": "n_layer|num_hidden_layers",
            "hidden": "hidden_size|n_embed",
            "num_heads": "n_head|num_attention_heads",
            "vocab": "vocab_size",
        },
        kv_heads=None,
        tied=True,
        fixed=_LAYER_NORM | {"linear_bias": True, "positions": "alibi"},
        parts=(gpt2_ffn,),
    ),
    "chatglm": Reader(
        dims={
            "num_layers": "num_layers",
            "hidden": "hidden_size",
            "ffn": "ffn_hidden_size",
            "num_heads": "num_attention_heads",
            "vocab": "padded_vocab_size|vocab_size",
        },
        kv_heads=None,
        head_dim="kv_channels",
        flags={"qkv_bias": ("add_qkv_bias", False), "linear_bias": ("add_bias_linear", False)},
        parts=(chatglm_heads,),
    ),
    "codegen": _GPTJ,
    "cohere": _COHERE,
    "cohere2": _but(
        _COHERE,
        WindowKeys(
            assumed=4096, every=4, pattern_key="sliding_window_pattern|_sliding_window_pattern"
        ),
    ),
    "dbrx": Reader(
        dims={
            "num_layers": "n_layers",
            "hidden": "d_model",
            "num_heads": "n_heads",
            "vocab": "vocab_size",
        },
        kv_heads=None,
        fixed={"norm": "layernorm"},
        parts=(dbrx_details,),
    ),
    "deepseek": _but(_LLAMA, _DEEPSEEK_MOE),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "dots1": _but(_LLAMA, _DEEPSEEK_MOE, qk_norm=True),
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(_ERNIE, parts=(_ERNIE_MOE,)),
    "exaone": replace(
        _LLAMA, dims=_DIMS | {"num_layers": "num_layers|num_hidden_layers"}, parts=()
    ),
    "exaone4": _but(_LLAMA, WindowKeys(assumed=4096, every=4), qk_norm=True),
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "glm": replace(_LLAMA, assumed={"head_dim": 128}),
    "glm4": _GLM4,
    "glm4_moe": _but(
        replace(_LLAMA, flags={"qk_norm": ("use_qk_norm", False)}, assumed={"head_dim": 128}),
        _DEEPSEEK_MOE,
        mtp,
    ),
    "glm_moe_dsa": _DEEPSEEK,
    "gpt2": _GPT2,
    "gpt_bigcode": _but(_GPT2, multi_query),
    "gpt_neo": Reader(
        dims={
            "num_layers": "num_layers",
            "hidden": "hidden_size",
            "num_heads": "num_heads",
            "vocab": "vocab_size",
        },
        kv_heads=None,
        tied=True,
        fixed=_LAYER_NORM | {"linear_bias": True},
        parts=(gpt2_ffn, positions("max_position_embeddings"), gpt_neo_windows),
    ),
    "gpt_neox": Reader(
        kv_heads=None,
        fixed=_LAYER_NORM | {"linear_bias": True},
        flags={"parallel_block": ("use_parallel_residual", True)},
    ),
    "gpt_oss": _but(
        _LLAMA,
        replace(
            _MOE_LOCAL,
            top_k="num_experts_per_tok|experts_per_token",
            bias=True,
            clamps_gate=True,
        ),
        WindowKeys(assumed=128, every=2),
        yarn,
        attention_sinks=True,
        linear_bias=True,
        qkv_bias=False,
    ),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granitemoe": _but(replace(_LLAMA, tied=True), _MOE_LOCAL),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _but(_HUNYUAN, hunyuan_experts),
    "internlm": replace(_LLAMA, kv_heads=None, flags={"qkv_bias": ("bias", True)}, parts=()),
    "internlm2": replace(_LLAMA, flags={"linear_bias": ("bias", False)}, parts=()),
    "internlm3": replace(
        _LLAMA, flags={"linear_bias": ("bias", False), "qkv_bias": ("qkv_bias", False)}, parts=()
    ),
    "kimi_k2": _DEEPSEEK,
    "llama": _LLAMA,
    "llama4_text": _but(
        _LLAMA, llama4_experts, WindowKeys(key="attention_chunk_size", assumed=8192, every=4)
    ),
    "mimo": _but(_QWEN2, mtp),
    "minicpm": replace(_LLAMA, tied=True),
    "minicpm3": _but(replace(_LLAMA, tied=True), even_latent_attention),
    "minimax_m2": replace(
        _but(_LLAMA, _MOE_LOCAL, qk_norm_all_heads=True), flags={"qk_norm": ("use_qk_norm", True)}
    ),
    "ministral3": _but(_LLAMA, WindowKeys()),
    "mistral": _MISTRAL,
    "mixtral": _but(_LLAMA, WindowKeys(), _MOE_LOCAL),
    "mpt": Reader(
        dims={
            "num_layers": "n_layers",
            "hidden": "d_model",
            "num_heads": "n_heads",
            "vocab": "vocab_size",
        },
        kv_heads=None,
        tied=True,
        fixed=_LAYER_NORM,
        parts=(mpt_details,),
    ),
    "mt5": replace(_T5, tied=False, parts=(t5_details("gated-gelu"),)),
    "nemotron": _but(_LLAMA, **_LAYER_NORM),
    "nemotron_h": _NEMOTRON_H,
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
        parts=(positions("max_position_embeddings", extra=2),),
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
    "smollm3": _but(
        replace(_LLAMA, tied=True), WindowKeys(assumed=4096, switch="use_sliding_window")
    ),
    "stablelm": replace(
        _LLAMA,
        fixed={"norm": "layernorm"},
        flags={
            "qkv_bias": ("use_qkv_bias", False),
            "parallel_block": ("use_parallel_residual", False),
        },
        parts=(),
    ),
    "starcoder2": Reader(
        tied=True,
        fixed=_LAYER_NORM,
        flags={"linear_bias": ("use_bias", True)},
        parts=(WindowKeys(assumed=4096),),
    ),
    "t5": _T5,
    "umt5": replace(_T5, tied=False, parts=(t5_details("gated-gelu"),)),
}
"""By `model_type`. A wrapper (`gemma3`) has its language part under `text_config`."""
