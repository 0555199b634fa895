"""Model FLOPs against published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.flops import (
    causal_flops_per_token,
    mfu,
    model_flops_per_sequence,
    model_flops_per_token,
    tokens_per_s,
)
from meshwright.cost.stages import stream_seq_len
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import Block, MambaSpec, ModelSpec
from meshwright.values.workload import Workload

MODELS = (
    "gpt3-175b",
    "llama3-8b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gemma3-4b",
    "nemotron-h-8b",
    "t5-2.8b",
    "bert-large",
    "gpt-oss-20b",
)


def no_bias(name: str) -> ModelSpec:
    return replace(find_model(name), linear_bias=False)


def test_mfu_by_hand() -> None:
    """64 sequences of 1000 tokens in 2 s on 8 chips are 4000 tokens/s a chip; at 1e11 FLOP each
    that is 4e14 of a peak of 1e15 FLOP/s."""
    rate = tokens_per_s(gbs=64, seq_len=1000, step_s=2.0, num_chips=8)
    assert rate == 4000.0
    assert mfu(rate, 1e11, 1e15) == pytest.approx(0.4)


def test_gpt3_against_published() -> None:
    """arXiv:2104.04473, equation 3: 96 B s l h^2 (1 + s / 6h + V / 16lh), with the fourth pass of
    its recompute taken out.

    Of 96 = 4 * 24 the layers recompute one pass in four, the head none: 72 s l h^2 (1 + s / 6h) + 6
    s h V.
    """
    h, layers, vocab, seq = 12288, 96, 50257, 2048
    published = 72 * layers * h**2 * (1 + seq / (6 * h)) + 6 * h * vocab
    assert published == pytest.approx(
        1_043_677_052_928 * (1 + 1 / 36) + 3_705_348_096
    )  # 72 * 96 * 12288^2 = 6912 * 150994944
    assert model_flops_per_token(no_bias("gpt3-175b"), Workload(seq_len=seq)) == pytest.approx(
        published, rel=1e-12
    )
    assert model_flops_per_token(find_model("gpt3-175b"), Workload(seq_len=seq)) == pytest.approx(
        published, rel=1e-4
    )


def test_llama3_8b_is_6n_and_12lhs() -> None:
    """PaLM, appendix B: 6 N + 12 L H Q T, N without the embedding's look-up and the norms."""
    matrices = 8_030_261_248 - 128256 * 4096 - 65 * 4096
    assert matrices == 7_504_658_432
    scores = 12 * 32 * (32 * 128) * 8192
    work = Workload(seq_len=8192)
    assert (
        model_flops_per_token(find_model("llama3-8b"), work)
        == 6 * matrices + scores
        == 57_912_852_480
    )
    assert (
        causal_flops_per_token(find_model("llama3-8b"), work)
        == 6 * matrices + scores // 2
        == 51_470_401_536
    )


def test_mixtral_counts_two_experts_of_eight() -> None:
    h, ffn, seq = 4096, 14336, 4096
    attention = h * (32 + 2 * 8) * 128 + 32 * 128 * h
    layer = attention + h * 8 + 2 * 3 * h * ffn  # and the router, and two experts of three matrices
    by_hand = 32 * (6 * layer + 12 * h * seq) + 6 * h * 32000
    assert model_flops_per_token(find_model("mixtral-8x7b"), Workload(seq_len=seq)) == by_hand


def test_latent_attention_has_two_widths() -> None:
    """DeepSeek-V2-Lite: queries and keys are 128 + 64 wide, values 128; its two norms of latents
    are 512 weights a layer beside."""
    h, heads, seq = 2048, 16, 4096
    attention = h * heads * 192 + h * (512 + 64) + 512 * heads * (128 + 128) + heads * 128 * h
    dense, routed = 3 * h * 10944, 3 * h * (6 * 1408 + 2816) + 64 * h
    layers = 27 * (6 * attention + 6 * heads * (192 + 128) * seq) + 6 * (dense + 26 * routed)
    by_hand = layers + 6 * h * 102400
    assert model_flops_per_token(
        find_model("deepseek-v2-lite"), Workload(seq_len=seq)
    ) == pytest.approx(by_hand, rel=1e-4)


def test_a_window_limits_the_keys() -> None:
    """Mistral 7B: 4096 keys of 32768; linear part 6 * (7,241,732,096 - embedding - norms)."""
    matrices = 7_241_732_096 - 32000 * 4096 - 65 * 4096
    work = Workload(seq_len=32768)
    assert (
        model_flops_per_token(find_model("mistral-7b"), work)
        == 6 * matrices + 12 * 32 * 4096 * 4096
    )
    assert (
        model_flops_per_token(replace(find_model("mistral-7b"), window=None), work)
        == 6 * matrices + 12 * 32 * 4096 * 32768
    )


def test_encoder_decoder_of_equal_lengths() -> None:
    """Both streams 512 long: encoder 4 + 2 * ffn / h products, decoder 8 + 2 * ffn / h and scores
    twice, head once."""
    model = replace(find_model("t5-small"), linear_bias=False)
    h, inner, ffn, seq = 512, 8 * 64, 2048, 512
    attention, mlp, scores = 4 * h * inner, 2 * h * ffn, 12 * inner * seq
    encoder, decoder = (
        6 * (6 * (attention + mlp) + scores),
        6 * (6 * (2 * attention + mlp) + 2 * scores),
    )
    work = Workload(seq_len=seq, decoder_seq_len=seq)
    assert model_flops_per_token(model, work) == encoder + decoder + 6 * h * 32128


def test_a_decoder_is_a_quarter_of_its_encoder_unless_said() -> None:
    model = find_model("t5-small")
    assert model_flops_per_token(model, Workload(seq_len=512)) == model_flops_per_token(
        model, Workload(seq_len=512, decoder_seq_len=128)
    )
    decoder, encoder = Block(kind="mlp", stream="decoder"), Block(kind="mlp")
    assert [
        stream_seq_len(model, block, Workload(seq_len=512)) for block in (encoder, decoder)
    ] == [512, 128]
    assert [
        stream_seq_len(model, block, Workload(seq_len=512, decoder_seq_len=114))
        for block in (encoder, decoder)
    ] == [512, 114]
    assert stream_seq_len(model, decoder, Workload(seq_len=3)) == 1


def test_a_mixer_multiplies_its_state_twice() -> None:
    """One head's state of head_dim * state_dim is updated and read: 2 multiply-adds of 2 FLOP,
    times 3; unlike attention at any length."""
    model = find_model("nemotron-h-8b")
    wide = replace(model, mamba=MambaSpec(state_dim=256, num_heads=128, head_dim=64, num_groups=8))
    short, long = (model_flops_per_token(model, Workload(seq_len=s)) for s in (1024, 2048))
    assert long - short == 4 * 12 * (32 * 128) * 1024  # its four attention layers
    more_weights = (
        24 * (4096 + 5) * 2 * 8 * 128
    )  # projection in, convolution of 4 taps and its bias, for the new states
    assert (
        model_flops_per_token(wide, Workload(seq_len=1024)) - short
        == 6 * more_weights + 24 * 12 * 128 * 64 * 128
    )


def test_a_trillion_parameters_at_four_million_tokens_do_not_wrap() -> None:
    h, layers, vocab, seq = 25600, 128, 50257, 4_000_000
    exact = seq * (72 * layers * h**2 + 12 * layers * h * seq + 6 * h * vocab)
    assert exact > 70 * 2**63
    assert model_flops_per_sequence(
        no_bias("gpt3-1t"), Workload(seq_len=seq), masking="full"
    ) == pytest.approx(exact, rel=1e-12)


@given(name=st.sampled_from(MODELS), seq=st.integers(1, 2**20))
def test_masking_saves_at_most_half(name: str, seq: int) -> None:
    model, work = find_model(name), Workload(seq_len=seq)
    full, causal = model_flops_per_token(model, work), causal_flops_per_token(model, work)
    assert 0 < causal <= full <= 2 * causal
    assert model_flops_per_sequence(model, work, masking="full") == pytest.approx(
        full * seq, rel=1e-12
    )


@given(name=st.sampled_from(MODELS), seq=st.integers(1, 2**19))
def test_longer_sequences_never_cost_less_per_token(name: str, seq: int) -> None:
    model = find_model(name)
    short, long = (Workload(seq_len=s, decoder_seq_len=s) for s in (seq, 2 * seq))
    assert model_flops_per_token(model, long) >= model_flops_per_token(model, short)
