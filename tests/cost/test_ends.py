"""Embedding, head and loss on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.cases import CHIP, GPT, MEMORY_BYTES_PER_S, STACK, WORK, site

from meshwright.cost.ends import LOSS_PASSES_FUSED, LOSS_PASSES_UNFUSED, padded_vocab, price_ends
from meshwright.cost.kernels import gemm_s
from meshwright.values.models.catalogue import find_model

TOKENS, H, VOCAB = 2048, 1024, 32000


def product(m: float, n: float, k: float) -> float:
    return float(
        gemm_s(CHIP, m=np.array([m]), n=np.array([n]), k=np.array([k]), precision="bf16")[0]
    )


def test_megatron_pads_gpt2s_vocabulary() -> None:
    """50257 to a multiple of 128 tp: 50304, 50432, 50688, 51200 (Megatron-LM,
    --make-vocab-size-divisible-by 128)."""
    assert padded_vocab(50257, np.array([1.0, 2.0, 4.0, 8.0]), 128).tolist() == [
        50304,
        50432,
        50688,
        51200,
    ]
    assert padded_vocab(32000, np.array([1.0, 8.0]), 1).tolist() == [32000, 32000]
    assert padded_vocab(50257, np.array([8.0]), 1).tolist() == [50264]


def test_head_is_a_linear_layer_and_the_passes_of_the_loss() -> None:
    """On one rank: the product to 32000 logits, and half of the loss's bytes in each direction."""
    ends = price_ends(site(GPT))
    loss = TOKENS * VOCAB * LOSS_PASSES_UNFUSED / MEMORY_BYTES_PER_S / 2
    assert ends.head_forward_s == pytest.approx(product(TOKENS, VOCAB, H) + loss)
    assert ends.head_backward_s == pytest.approx(
        product(TOKENS, H, VOCAB) + product(VOCAB, H, TOKENS) + loss
    )
    assert ends.head_weight_s == product(VOCAB, H, TOKENS)


def test_a_fused_loss_moves_fewer_bytes() -> None:
    fused, plain = (
        price_ends(site(GPT, stack=replace(STACK, cross_entropy_fused=flag)))
        for flag in (True, False)
    )
    saved_s = TOKENS * VOCAB * (LOSS_PASSES_UNFUSED - LOSS_PASSES_FUSED) / 2 / MEMORY_BYTES_PER_S
    assert plain.head_forward_s - fused.head_forward_s == pytest.approx(saved_s)


def test_embedding_gathers_and_scatters() -> None:
    """Read, write and once more for positions: 3 elements of 2 bytes; the scatter of gradients
    twice that, and of the whole table zeros written (2), read (2), and the sum read and written (4
    + 4); no exchange on one rank."""
    ends = price_ends(site(GPT))
    once = TOKENS * H * 3 * 2 / MEMORY_BYTES_PER_S + 2e-6
    assert ends.embedding_forward_s == pytest.approx(once)
    assert ends.embedding_backward_s == pytest.approx(
        2 * once + VOCAB * H * 12 / MEMORY_BYTES_PER_S
    )
    halves = price_ends(site(GPT, stack=replace(STACK, gradient_bytes=2.0)))
    assert ends.embedding_backward_s - halves.embedding_backward_s == pytest.approx(
        VOCAB * H * 4 / MEMORY_BYTES_PER_S
    )
    frozen = price_ends(site(GPT, replace(WORK, lora_rank=16)))
    assert frozen.embedding_backward_s == pytest.approx(2 * once)


def test_logits_at_the_peak_of_the_loss() -> None:
    """2 bytes for the logits and the stack's for what the loss keeps of them; a share of the
    vocabulary under tp, unless gathered."""
    assert price_ends(site(GPT)).loss_peak_bytes == TOKENS * VOCAB * (2 + 4)
    assert price_ends(site(GPT, tp=4)).loss_peak_bytes == TOKENS * VOCAB / 4 * (2 + 4)
    gathered = price_ends(
        site(GPT, tp=4, stack=replace(STACK, vocab_parallel_loss=False, logits_bytes=8.0))
    )
    assert gathered.loss_peak_bytes == TOKENS * VOCAB * (2 + 8)
    assert gathered.head_forward_s > price_ends(site(GPT, tp=4)).head_forward_s


def test_the_heads_backward_pass_hands_on_a_gradient_of_its_size() -> None:
    """A gradient of 2 bytes per weight of the rank's share of the head, unless the head is
    frozen."""
    handing = replace(STACK, head_gradient_bytes=2.0)
    more = (
        price_ends(site(GPT, tp=4, stack=handing)).loss_peak_bytes
        - price_ends(site(GPT, tp=4)).loss_peak_bytes
    )
    assert more == 2 * VOCAB / 4 * H
    frozen = price_ends(site(GPT, replace(WORK, lora_rank=16), stack=handing))
    assert (
        frozen.loss_peak_bytes == price_ends(site(GPT, replace(WORK, lora_rank=16))).loss_peak_bytes
    )


def test_a_loss_keeps_its_softmax() -> None:
    assert price_ends(site(GPT, tp=4)).loss_saved_bytes == TOKENS * VOCAB / 4 * 4


def test_head_keeps_the_last_norms_input_and_its_own() -> None:
    """arXiv:2205.05198, section 4.3: 2 sbh each, split by sequence parallelism."""
    assert price_ends(site(GPT)).head_saved_bytes == 4 * TOKENS * H
    assert price_ends(site(GPT, tp=4, sp=True)).head_saved_bytes == TOKENS * H
    assert price_ends(site(GPT, tp=4)).head_saved_bytes == 4 * TOKENS * H


def test_vocabulary_is_cut_over_tensor_parallel_ranks() -> None:
    ends = price_ends(site(GPT, tp=4, stack=replace(STACK, vocab_multiple=128)))
    padded = 32256  # 63 * 128 * 4
    assert ends.head_weight_s == product(padded / 4, H, TOKENS)


def test_the_head_of_an_encoder_decoder_sees_the_decoder() -> None:
    model = find_model("t5-small")
    long, short = (
        price_ends(site(model, replace(WORK, seq_len=512, decoder_seq_len=n))) for n in (512, 128)
    )
    assert short.loss_peak_bytes == long.loss_peak_bytes / 4
