"""The table of readers: for each `model_type` of a Hugging Face config, which keys hold what, and
what the architecture fixes.

Source of keys and of what an absent key means: the configuration classes of Hugging Face
transformers, and the published config.json files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshwright.values.models.hf_families import (
    alibi_positions,
    attention_bias,
    baichuan_positions,
    chatglm_heads,
    dbrx_details,
    even_latent_attention,
    falcon_heads,
    further_tokens,
    further_tokens_of_qwen,
    gated_delta_nets,
    gemma4_details,
    gpt2_ffn,
    gpt_neo_windows,
    hunyuan_experts,
    kimi_delta_attention,
    latent_experts,
    learned_positions,
    llama4_experts,
    minimax_m3_widths,
    mpt_details,
    multi_query,
    t5_details,
    yarn_factor,
)
from meshwright.values.models.hf_parts import (
    MoeKeys,
    Part,
    WindowKeys,
    hybrid_layers,
    latent_attention,
)

__all__ = ["READERS", "Reader"]


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
    layer_list: str | None = None
    """Key of a list with an entry for each layer, which says how many there are where the count is
    absent."""
    parts: tuple[Part, ...] = ()
    """What else is read, in this order."""


def _flags(**keys: str) -> dict[str, tuple[str, bool]]:
    """Return flags that are false where they are absent."""
    return {field: (key, False) for field, key in keys.items()}


def _but(reader: Reader, *parts: Part, **changes: object) -> Reader:
    """Return the reader with more parts, and with fixed fields changed."""
    return replace(reader, parts=(*reader.parts, *parts), fixed={**reader.fixed, **changes})


_LLAMA = Reader(parts=(attention_bias,))
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
_DEEPSEEK_HEADS = _but(_HEADS_OF_128, latent_attention)
_DEEPSEEK = _but(_DEEPSEEK_HEADS, _DEEPSEEK_MOE, further_tokens)
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
    parts=(gpt2_ffn, learned_positions("n_positions|n_ctx|max_position_embeddings")),
)
_GPTJ = replace(
    _GPT2,
    tied=False,
    fixed=_GPT2.fixed | {"parallel_block": True, "norms_per_layer": 1},
    parts=(gpt2_ffn,),
)
_FALCON = Reader(
    dims=_dims("num_hidden_layers|n_layer", "hidden_size", "num_attention_heads|n_head"),
    kv_heads=None,
    head_dim=None,
    tied=True,
    flags=_flags(linear_bias="bias"),
    fixed=_LAYER_NORM,
    parts=(gpt2_ffn, falcon_heads, alibi_positions),
)
_T5 = Reader(
    dims=_dims("num_layers", "d_model", "num_heads", ffn="d_ff"),
    kv_heads=None,
    head_dim="d_kv",
    tied=True,
    fixed={"family": "encoder-decoder", "positions": "relative"},
    parts=(t5_details("relu"),),
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
_LING = Reader(flags=_flags(qkv_bias="use_qkv_bias"), parts=(_LING_MOE, further_tokens))
_QWEN_DELTA = replace(
    _HEADS_OF_128,
    assumed={"head_dim": 256},
    fixed={"qk_norm": True},
    parts=(attention_bias, gated_delta_nets, further_tokens_of_qwen),
)
_EXPERTS_ALONE = _DIMS | {"ffn": "intermediate_size|moe_intermediate_size"}
"""Dims of models whose layers all have experts, so that no dense width may be given."""
_KIMI_MOE = MoeKeys(
    experts="num_experts|num_local_experts",
    top_k="num_experts_per_token|num_experts_per_tok",
    shared_experts="num_shared_experts|n_shared_experts",
    first_dense="first_k_dense_replace",
    frequency="moe_layer_freq",
)
_KIMI_PARTS = (_KIMI_MOE, latent_experts, further_tokens)
_GEMMA4 = replace(
    _but(
        _GEMMA,
        WindowKeys(assumed=512, every=6),
        gemma4_details,
        qk_norm=True,
    ),
    fixed={"qk_norm": True},
)
_MINIMAX_M3_MOE = MoeKeys(
    experts="num_local_experts",
    expert_ffn="moe_intermediate_size|intermediate_size",
    first_dense="first_k_dense_replace",
    frequency="moe_layer_freq",
)
_MINIMAX_M3 = replace(
    _but(_LLAMA, _MINIMAX_M3_MOE, minimax_m3_widths, further_tokens),
    flags={"qk_norm": ("use_qk_norm", True), "attention_gate": ("attention_output_gate", False)},
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
        fixed=_BIASED | {"family": "encoder", "mlm_head": True},
        parts=(learned_positions("max_position_embeddings"),),
    ),
    "bloom": Reader(
        dims=_dims(
            "n_layer|num_hidden_layers", "hidden_size|n_embed", "n_head|num_attention_heads"
        ),
        kv_heads=None,
        tied=True,
        fixed=_BIASED | {"positions": "alibi"},
        parts=(gpt2_ffn,),
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
        parts=(chatglm_heads,),
    ),
    "codegen": _GPTJ,
    "cohere": _COHERE,
    "cohere2": _but(_COHERE, WindowKeys(assumed=4096, every=4, pattern_key=_EVERY_KEY)),
    "dbrx": Reader(
        dims=_dims("n_layers", "d_model", "n_heads"),
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
    "exaone": Reader(dims=_DIMS | {"num_layers": "num_layers|num_hidden_layers"}),
    "exaone4": _but(_LLAMA, WindowKeys(assumed=4096, every=4), qk_norm=True),
    "exaone_moe": _but(
        _LLAMA,
        WindowKeys(assumed=4096, every=4),
        replace(_LING_MOE, frequency="moe_layer_freq"),
        further_tokens,
        qk_norm=True,
    ),
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gemma4_text": _GEMMA4,
    "glm": _HEADS_OF_128,
    "glm4": replace(_HEADS_OF_128, fixed={"norms_per_layer": 4}),
    "glm4_moe": _but(
        replace(_LLAMA, flags=_flags(qk_norm="use_qk_norm")), _DEEPSEEK_MOE, further_tokens
    ),
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "gpt2": _GPT2,
    "gpt_bigcode": _but(_GPT2, multi_query),
    "gpt_neo": Reader(
        dims=_dims("num_layers", "hidden_size", "num_heads"),
        kv_heads=None,
        tied=True,
        fixed=_BIASED,
        parts=(gpt2_ffn, learned_positions("max_position_embeddings"), gpt_neo_windows),
    ),
    "gpt_neox": Reader(
        kv_heads=None, fixed=_BIASED, flags={"parallel_block": ("use_parallel_residual", True)}
    ),
    "gpt_oss": _but(
        _LLAMA,
        _GPT_OSS_MOE,
        WindowKeys(assumed=128, every=2),
        yarn_factor,
        attention_sinks=True,
        linear_bias=True,
        qkv_bias=False,
    ),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granitemoe": _but(_TIED, _MOE_LOCAL),
    "hy_v3": _but(
        _LLAMA,
        MoeKeys(
            experts="num_experts",
            expert_ffn="moe_intermediate_size|expert_hidden_dim",
            shared_experts="num_shared_experts",
            first_dense="first_k_dense_replace",
        ),
        further_tokens,
        qk_norm=True,
    ),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": _but(_HUNYUAN, hunyuan_experts),
    "internlm": Reader(kv_heads=None, flags={"qkv_bias": ("bias", True)}),
    "internlm2": Reader(flags=_flags(linear_bias="bias")),
    "internlm3": Reader(flags=_flags(linear_bias="bias", qkv_bias="qkv_bias")),
    "kimi_k2": _DEEPSEEK,
    "kimi_linear": _but(_DEEPSEEK_HEADS, kimi_delta_attention, *_KIMI_PARTS),
    "llama": _LLAMA,
    "llama4_text": _but(
        _LLAMA, llama4_experts, WindowKeys(key="attention_chunk_size", assumed=8192, every=4)
    ),
    "mimo": _but(_QWEN2, further_tokens),
    "minicpm": _TIED,
    "minicpm3": _but(_TIED, even_latent_attention),
    "minimax_m2": replace(
        _but(_LLAMA, _MOE_LOCAL, qk_norm_all_heads=True), flags={"qk_norm": ("use_qk_norm", True)}
    ),
    "minimax_m3": _MINIMAX_M3,
    "ministral3": _but(_LLAMA, WindowKeys()),
    "mistral": _but(_LLAMA, WindowKeys(assumed=4096)),
    "mistral4": _DEEPSEEK,
    "mixtral": _but(_LLAMA, WindowKeys(), _MOE_LOCAL),
    "mpt": Reader(
        dims=_dims("n_layers", "d_model", "n_heads"),
        kv_heads=None,
        tied=True,
        fixed=_LAYER_NORM,
        parts=(mpt_details,),
    ),
    "mt5": replace(_T5, tied=False, parts=(t5_details("gated-gelu"),)),
    "nemotron": _but(_LLAMA, **_LAYER_NORM),
    "nemotron_h": Reader(
        layer_list="layers_block_type|layer_types",
        head_dim="attention_head_dim|head_dim",
        fixed={"gated": False, "positions": "none"},
        parts=(attention_bias, hybrid_layers, further_tokens),
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
        parts=(learned_positions("max_position_embeddings", extra=2),),
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
    "qwen3_5_moe_text": replace(
        _but(_QWEN_DELTA, _QWEN_MOE),
        dims=_EXPERTS_ALONE,
    ),
    "qwen3_5_text": _QWEN_DELTA,
    "qwen3_next": _but(_QWEN_DELTA, _QWEN_MOE),
    "seed_oss": _LLAMA,
    "smollm3": _but(_TIED, _SWITCHED),
    "solar_open": _but(
        replace(_HEADS_OF_128, dims=_EXPERTS_ALONE), replace(_DEEPSEEK_MOE, first_dense=None)
    ),
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
    "umt5": replace(_T5, tied=False, parts=(t5_details("gated-gelu"),)),
}
"""By `model_type`. A wrapper (`gemma3`) has its language part under `text_config`."""
