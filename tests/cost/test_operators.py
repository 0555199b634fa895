"""Parts that all blocks share: linear layers, memory-bound passes, norms, tensor-parallel exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.cases import CHIP, GPT, LLAMA, MEMORY_BYTES_PER_S, STACK, WORK, saved, site

from meshwright.cost.collectives import all_gather_s, all_reduce_s
from meshwright.cost.kernels import gemm_s
from meshwright.cost.operators import linear, norm, norm_output, passes, tensor_exchange
from meshwright.models.spec import Block

MLP = Block(kind="mlp")
TOKENS, H = 2048, 1024
RAMP_S = 2e-6


def column(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([value])


def test_linear_is_three_products() -> None:
    """2048 tokens from 1024 to 4096: forward, and backward the gradients of input and of weights."""
    part = linear(site(GPT), "layer", into=column(1024.0), out=column(4096.0), tokens=column(2048.0))

    def product(m: float, n: float, k: float) -> float:
        return float(gemm_s(CHIP, m=column(m), n=column(n), k=column(k), precision="bf16")[0])

    assert part.forward_s == product(2048, 4096, 1024)
    assert np.asarray(part.weight_s)[0] == product(4096, 1024, 2048)
    assert part.backward_s == pytest.approx(product(2048, 1024, 4096) + product(4096, 1024, 2048), rel=1e-15)
    assert (part.kernels_forward, part.kernels_backward) == (1, 2)


def test_fp8_casts_what_it_multiplies() -> None:
    """Input and output's gradient are read in two bytes and written in one, twice (both orientations): 4 bytes an element and a ramp."""
    narrow = site(GPT, replace(WORK, precision="fp8"))
    part = linear(narrow, "layer", into=column(1024.0), out=column(4096.0), tokens=column(2048.0))
    product = gemm_s(CHIP, m=column(2048), n=column(4096), k=column(1024), precision="fp8")
    assert part.forward_s - product == pytest.approx(2048 * 1024 * 4 / MEMORY_BYTES_PER_S + RAMP_S)
    assert (part.kernels_forward, part.kernels_backward) == (2, 4)
    assert narrow.saved_input_bytes == 1.0
    assert narrow.activation_bytes == 2.0


def test_frozen_weights_have_no_gradient() -> None:
    part = linear(site(GPT, replace(WORK, lora_rank=16)), "layer", into=column(1024.0), out=column(4096.0), tokens=column(2048.0))
    assert np.all(np.asarray(part.weight_s) == 0)
    assert part.backward_s == gemm_s(CHIP, m=column(2048), n=column(1024), k=column(4096), precision="bf16")


def test_passes_count_bytes_and_ramps() -> None:
    part = passes(site(GPT), "pass", forward_bytes=column(1e9), backward_bytes=column(3e9), kernels=2)
    assert part.forward_s == pytest.approx(1e-3 + 2 * RAMP_S)
    assert part.backward_s == pytest.approx(3e-3 + 2 * RAMP_S)
    eager = passes(
        site(GPT, stack=replace(STACK, pointwise_fused=False)), "pass", forward_bytes=column(1e9), backward_bytes=column(3e9), kernels=2
    )
    assert eager.forward_s == pytest.approx(2e-3 + 4 * RAMP_S)
    assert eager.kernels_forward == 4


def test_norm_reads_and_writes_five_and_six_elements() -> None:
    """2048 * 1024 elements of 2 bytes: two operands of the sum, the sum twice, the norm; 6 backward. It keeps the sum."""
    part = norm(site(GPT), MLP, 1.0)
    assert part.forward_s == pytest.approx(TOKENS * H * 5 * 2 / MEMORY_BYTES_PER_S + 2 * RAMP_S)
    assert part.backward_s == pytest.approx(TOKENS * H * 6 * 2 / MEMORY_BYTES_PER_S + 2 * RAMP_S)
    assert saved(part) == TOKENS * H * 2
    assert saved(norm(site(GPT), MLP, 2.0)) == 2 * TOKENS * H * 2


def test_norm_keeps_a_dropout_mask_of_one_byte() -> None:
    assert saved(norm(site(GPT, replace(WORK, dropout=True)), MLP, 1.0)) == TOKENS * H * 3


def test_an_eager_norm_keeps_and_moves_more() -> None:
    eager = norm(site(GPT, replace(WORK, fused_norm=False)), MLP, 1.0)
    fused = norm(site(GPT), MLP, 1.0)
    assert saved(eager) > saved(fused)
    assert eager.forward_s > fused.forward_s
    assert eager.kernels_forward > fused.kernels_forward


def test_sequence_parallelism_splits_norms() -> None:
    split, whole = (norm(site(GPT, tp=4, sp=sp), MLP, 1.0) for sp in (True, False))
    assert saved(split) == TOKENS * H * 2 / 4
    assert saved(whole) == TOKENS * H * 2


def test_context_parallelism_splits_everything() -> None:
    assert saved(norm(site(GPT, cp=4), MLP, 1.0)) == TOKENS * H * 2 / 4
    assert site(GPT, cp=4, mbs=3).tokens(MLP) == 3 * TOKENS / 4


def test_norm_output_is_what_a_redone_norm_frees() -> None:
    part = norm_output(site(GPT), MLP)
    assert saved(part) == TOKENS * H * 2
    assert part.freed_by == {"layernorm"}
    assert "layernorm" in norm(site(GPT), MLP, 1.0).redone_by
    assert np.all(part.forward_s == 0) and np.all(part.backward_s == 0)
    assert saved(norm_output(site(GPT, replace(WORK, precision="fp8")), MLP)) == TOKENS * H


def test_tensor_exchange_is_an_all_reduce_or_two_gathers() -> None:
    """A block's activations are 2048 * 1024 * 2 bytes; both ways take as long, but for latency."""
    payload = np.array([TOKENS * H * 2.0])
    for sp in (False, True):
        place = site(LLAMA, tp=8, sp=sp)
        part = tensor_exchange(place, MLP)
        expected = 2 * all_gather_s(place.tp_group(), payload) if sp else all_reduce_s(place.tp_group(), payload)
        assert part.forward_s == part.backward_s == pytest.approx(expected)
        assert part.forward_s == pytest.approx(2 * 7 / 8 * TOKENS * H * 2 / 400e9 + 2 * 24e-6)


def test_tensor_exchange_hides_as_the_stack_can() -> None:
    shown = tensor_exchange(site(LLAMA, tp=8, stack=replace(STACK, tp_overlap=0.75)), MLP)
    assert shown.forward_s == pytest.approx(tensor_exchange(site(LLAMA, tp=8), MLP).forward_s / 4)
    assert tensor_exchange(site(LLAMA, tp=1), MLP).forward_s == 0
