"""Keys of a Hugging Face config that no reader looked at: nothing is dropped in silence."""

from __future__ import annotations

import re

from meshwright.values.errors import ConfigError
from meshwright.values.models.hf_parts import HfConfig

__all__ = ["check_layer_types", "unread_keys"]

_NO_SHAPE = re.compile(
    r"_.*|.*_token_ids?|.*_token_index|.*dropout.*|.*_pdrop|.*initiali[sz]er.*|init_.*"
    r"|.*_init_.*|.*(?:^|_)dtype|.*_fp32|.*_fp32_.*|use_.*kernels?|time_step_.*|rope_.*|.*_rope_.*"
    r"|summary_.*|.*_penalty|router_.*|.*scaling_factor|.*_scale|scale_.*|.*_coef|.*_alpha"
    r"|.*_factor|label2id|id2label|problem_type|output_.*|return_dict.*|max_length|min_length"
    r"|.*beam.*|num_return_sequences|temperature|top_[kp]|typical_p|architectures|auto_map"
    r"|transformers_version|torchscript|quantization_config|use_cache|use_bfloat16|is_decoder"
    r"|is_encoder_decoder|tokenizer_class|max_position_embeddings|model_max_length|max_seq_len"
    r"|n_ctx|n_positions|original_max_position_embeddings|initial_context_length|seq_length"
    r"|max_window_layers|pretraining_tp|ep_size|norm_topk_prob|norm_type|n_group|topk_group"
    r"|num_expert_group|use_grouped_topk|moe_renormalize|moe_.*_func|moe_norm_min"
    r"|use_routing_bias|topk_method|scoring_func|chunk_size.*|num_logits_to_keep|residual_in_.*"
    r"|rescale_.*|.*_hidden_act|activation.*|dense_act_fn|is_gated_act|.*_situ_.*|partial_rotary.*"
    r"|relative_attention_.*|use_conv_bias|lm_head_bias|use_bidirectional_attention|logits_.*"
    r"|layer_norm_elementwise_affine|do_layer_norm_before|embedding_fraction|attn_scale"
    r"|floor_scale|dim_model_base|use_qk_norm|qk_norm_type|use_gemma_norm|latent_moe_use_norm"
    r"|no_rope_layer_interval|time_step_rank|expand|gate_lower_bound|bos|eos|vision_.*|image_.*"
    r"|video_.*|audio_.*|.*_placeholder|tie_encoder_decoder|tie_word_embeddings|prefix|ignore_index"
    r"|swiglu_limits?.*|mamba_ssm_.*|use_flash_attn.*|flash_attn.*|seq_aux|aux_loss_.*"
    r"|layer_norm_.*|rms_norm_.*|norm_eps.*|mscale.*|max_sequence_length|finetuning_task|position_.*"
)
"""Keys that choose tokens, dropout, starts of weights, scales, types or words, but no shape."""
_SAYS_AGAIN = {
    *("attention_layers", "attn_type_list", "moe_layers", "moe_layer_end_index", "qk_head_dim"),
    *("moe_layer_interval", "no_bias", "multi_query", "parallel_attn", "num_kv_heads"),
    *("num_key_value_heads", "first_k_dense_replace", "qkv_bias", "mlp_layer_types"),
    *("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "hybrid_override_pattern"),
    *("intermediate_size", "layer_types", "vocab_size_per_layer_input", "moe_layer_freq"),
    *("sliding_window_pattern", "sliding_window", "moe_shared_expert_overlap", "rotary_dim"),
    *("use_mtp", "mtp_use_dedicated_embeddings", "num_hidden_layers"),
}
"""Keys that repeat what was read under another key, or that the architecture does not use."""
_OF_AN_INDEXER = re.compile(r"index_.*|indexer_.*")
_OTHER_SHAPES = {
    "add_cross_attention": "cross attention",
    "attn_windows": "windows of each layer",
    "block_configs": "layers that each have a shape of their own",
    "compress_ratios": "compressed sparse attention",
    "cross_attention_layers": "cross attention",
    "hc_mult": "residuals in several streams",
    "hidden_size_per_layer_input": "embeddings of each layer",
    "linear_num_value_heads": "layers of linear attention",
    "linear_attn_config": "layers of linear attention",
    "mamba_num_heads": "Mamba layers",
    "mb_per_layer": "layers that differ in kind",
    "num_attention_heads_per_layer": "layers that each have a number of heads of their own",
    "num_kv_shared_layers": "keys and values that layers share",
    "num_sliding_attention_heads": "other heads in layers with a window",
    "per_layer_config": "layers that each have a shape of their own",
    "swa_num_attention_heads": "other heads in layers with a window",
    "swa_num_key_value_heads": "other heads in layers with a window",
    "zero_expert_num": "experts that do nothing",
}
"""Keys that change the shapes of layers: without a reader for them a model would be priced as what
it is not."""
_TRIVIAL: tuple[object, ...] = (None, False, 0, "", [], {})
_SHOWN = 8


def unread_keys(config: HfConfig) -> tuple[str, ...]:
    """Return a sentence about the keys that were not looked at; ConfigError for one that is known
    to change the shapes of layers."""
    left = {
        key: value
        for key, value in config.values.items()
        if key not in config.asked and not any(value == nothing for nothing in _TRIVIAL)
    }
    for key, what in _OTHER_SHAPES.items():
        if key in left:
            raise ConfigError(f"{config.name}: {key}: {what}, which is not modelled here")
    unknown = [
        key
        for key in left
        if not (_NO_SHAPE.fullmatch(key) or _OF_AN_INDEXER.fullmatch(key) or key in _SAYS_AGAIN)
    ]
    if not unknown:
        return ()
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return (f"no reader knows {', '.join(unknown[:_SHOWN])}{more}: left out",)


_KINDS_OF_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")
_SPARSE = re.compile(r".*(sparse|indexed).*")
"""Attention to chosen keys, which is priced in full and said."""


def check_layer_types(config: HfConfig) -> None:
    """Raise where a list of layers names a kind that only other readers know."""
    for kind in config.items("layer_types") or []:
        if kind not in _KINDS_OF_LAYERS and not _SPARSE.fullmatch(str(kind)):
            raise ConfigError(
                f"{config.name}: layer_types: layers of {str(kind)[:40]!r}, which are not modelled"
                " in this architecture"
            )
