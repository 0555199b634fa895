"""Any model that a ModelSpec can hold, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from meshwright.values.models.spec import Family, HybridSpec, MambaSpec, MlaSpec, ModelSpec, MoeSpec

widths = st.integers(1, 64).map(lambda n: n * 16)
flags = st.booleans()


@st.composite
def moes(draw: st.DrawFn, *, num_layers: int) -> MoeSpec:
    experts = draw(st.integers(1, 64))
    return MoeSpec(
        num_experts=experts,
        top_k=draw(st.integers(1, experts)),
        expert_ffn=draw(widths),
        shared_ffn=draw(st.just(0) | widths),
        first_dense_layers=draw(st.integers(0, num_layers - 1)),
        layer_frequency=draw(st.integers(1, 4)),
        expert_bias=draw(flags),
        latent_dim=draw(st.none() | widths),
    )


mlas = st.builds(
    MlaSpec,
    kv_lora_rank=widths,
    q_lora_rank=st.none() | widths,
    qk_nope_head_dim=widths,
    qk_rope_head_dim=st.just(0) | widths,
    v_head_dim=widths,
)
mambas = st.builds(
    MambaSpec,
    state_dim=widths,
    num_heads=st.integers(1, 32),
    head_dim=widths,
    num_groups=st.integers(1, 8),
)


def _decoder_parts(draw: st.DrawFn, num_layers: int) -> dict[str, Any]:
    parts: dict[str, Any] = {"moe": draw(st.none() | moes(num_layers=num_layers))}
    if draw(flags):
        attention = draw(st.integers(0, num_layers))
        mamba = draw(st.integers(0, num_layers - attention))
        ffn = num_layers - attention - mamba
        return parts | {
            "hybrid": HybridSpec(attention_layers=attention, mamba_layers=mamba, ffn_layers=ffn),
            "mamba": draw(mambas),
        }
    return parts | {
        "window": draw(st.none() | st.integers(1, 8192)),
        "global_every": draw(st.integers(0, 8)),
    }


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Any family, any mix of parts."""
    families: list[Family] = ["decoder", "decoder", "encoder", "encoder-decoder"]
    family = draw(st.sampled_from(families))
    num_layers, kv_heads = draw(st.integers(1, 128)), draw(st.integers(1, 8))
    parts = _decoder_parts(draw, num_layers) if family == "decoder" else {}
    return ModelSpec(
        name="any",
        family=family,
        num_layers=num_layers,
        encoder_layers=draw(st.integers(1, 64)) if family == "encoder-decoder" else 0,
        hidden=draw(widths),
        ffn=draw(widths),
        num_heads=kv_heads * draw(st.integers(1, 8)),
        num_kv_heads=kv_heads,
        head_dim=draw(widths),
        vocab=draw(st.integers(1, 300_000)),
        gated=draw(flags),
        tied=draw(flags),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        norms_per_layer=draw(st.integers(0, 4)),
        qk_norm=draw(flags),
        positions=draw(st.sampled_from(["rope", "learned", "relative", "alibi", "none"])),
        max_positions=draw(st.integers(0, 4096)),
        linear_bias=draw(flags),
        qkv_bias=draw(flags),
        attention_sinks=draw(flags),
        parallel_block=draw(flags),
        token_types=draw(st.integers(0, 2)),
        mlm_head=draw(flags),
        mtp_layers=draw(st.integers(0, 2)),
        mla=draw(st.none() | mlas),
        **parts,
    )
