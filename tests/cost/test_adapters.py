"""Frozen linear layers, and adapters beside some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import CHIP, GPT, LLAMA, MEMORY_BYTES_PER_S, MLA, MOE, STACK, WORK, site

from meshwright.cost.kernels import gemm_s
from meshwright.cost.layer import block_parts
from meshwright.cost.linear import TARGETS, linear
from meshwright.cost.operators import Part
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import Stack
from meshwright.values.workload import LORA_TARGETS, LoraTarget, Workload

RAMP_S = 2e-6
SIZES: dict[str, Any] = {
    name: np.array([size]) for name, size in (("into", 1024.0), ("out", 4096.0))
}
TOKENS = np.array([2048.0])


def beside(target: LoraTarget, stack: Stack = STACK) -> Part:
    """Price a feed-forward's first layer where the layers of one target have adapters."""
    work = replace(WORK, lora_rank=16, lora_targets=(target,))
    return linear(site(GPT, work, stack=stack), "feed-forward first layer", **SIZES, tokens=TOKENS)


def layer_kept(*targets: LoraTarget, kind: str = "mlp", precision: str = "bf16") -> float:
    """Bytes that a block of Llama's kind keeps where the layers of some targets have adapters."""
    work = Workload(seq_len=WORK.seq_len, lora_rank=16, lora_targets=targets, precision=precision)  # type: ignore[arg-type]
    block = next(each for each, _ in LLAMA.segments[0].blocks if each.kind == kind)
    return sum(float(np.max(part.saved_bytes)) for part in block_parts(site(LLAMA, work), block))


def tokens() -> float:
    return float(np.max(site(LLAMA).tokens(LLAMA.segments[0].blocks[0][0])))


def test_frozen_weights_have_no_gradient() -> None:
    part = linear(site(GPT, replace(WORK, lora_rank=16)), "router", **SIZES, tokens=TOKENS)
    assert np.all(np.asarray(part.weight_s) == 0)
    assert part.backward_s == gemm_s(
        CHIP, m=TOKENS, n=SIZES["into"], k=SIZES["out"], precision="bf16"
    )
    assert part.kernels_backward == 1.0


def test_an_adapter_passes_over_input_and_output() -> None:
    """2048 tokens, 1024 in, 4096 out: 2 and 12 bytes an element forward in 4 kernels, 10 and 8
    backward in 6, at 1e12 bytes/s."""
    bare, adapted = beside("linear_proj"), beside("linear_fc1")
    forward, backward = 2048 * (2 * 1024 + 12 * 4096) / 1e12, 2048 * (10 * 1024 + 8 * 4096) / 1e12
    assert adapted.forward_s - bare.forward_s == pytest.approx(forward + 4 * RAMP_S)
    assert adapted.backward_s - bare.backward_s == pytest.approx(backward + 6 * RAMP_S)
    assert adapted.kernels_forward == pytest.approx(bare.kernels_forward + 4)


def test_a_product_that_scales_saves_a_pass_each_way() -> None:
    """4 bytes an element of 2048 x 4096 results, and a kernel, forward and backward."""
    fused = beside("linear_fc1", replace(STACK, adapter_scale_fused=True))
    apart, pass_s = beside("linear_fc1"), 2048 * 4096 * 4 / 1e12 + RAMP_S
    assert apart.forward_s - fused.forward_s == pytest.approx(pass_s)
    assert apart.backward_s - fused.backward_s == pytest.approx(pass_s)
    assert apart.kernels_forward - fused.kernels_forward == pytest.approx(1)


def test_weights_of_four_bits_are_cast_for_each_product() -> None:
    """1024 x 4096 weights: 0.516 bytes read and 2 written, at 1e12 bytes/s, forward and backward;
    none of a router, which stays as it is."""
    work = replace(WORK, lora_rank=16, lora_targets=("linear_proj",))
    packed = replace(work, frozen="nf4")
    for name, cast_s in (
        ("feed-forward first layer", 1024 * 4096 * 2.516 / 1e12 + RAMP_S),
        ("router", 0.0),
    ):
        half, nf4 = (
            linear(site(GPT, each), name, **SIZES, tokens=TOKENS) for each in (work, packed)
        )
        assert nf4.forward_s - half.forward_s == pytest.approx(cast_s, abs=1e-12)
        assert nf4.backward_s - half.backward_s == pytest.approx(cast_s, abs=1e-12)


def test_frozen_weights_are_cast_for_one_orientation() -> None:
    """A byte less of 2048 x 1024 inputs and of 2048 x 4096 gradients, and half the kernels of the
    backward pass."""
    narrow = replace(WORK, precision="fp8")
    trained, frozen = (
        linear(site(GPT, work), "router", **SIZES, tokens=TOKENS)
        for work in (narrow, replace(narrow, lora_rank=16))
    )
    assert trained.forward_s - frozen.forward_s == pytest.approx(2048 * 1024 / MEMORY_BYTES_PER_S)
    gradient = trained.backward_s - frozen.backward_s - trained.weight_s
    assert gradient == pytest.approx(2048 * 4096 / MEMORY_BYTES_PER_S)
    assert trained.kernels_backward == 2 * frozen.kernels_backward


def test_every_linear_layer_has_a_target_or_never_an_adapter() -> None:
    never = {"router", "expert down projection", "expert up projection"}
    models = (GPT, LLAMA, MOE, MLA, find_model("t5-11b"), find_model("nemotron-h-8b"))
    products = {
        part.name
        for model in models
        for segment in model.segments
        for block, _ in segment.blocks
        for part in block_parts(site(model), block)
        if part.term == "matmul"
    }
    assert products - never <= set(TARGETS)
    assert set(TARGETS.values()) == set(LORA_TARGETS)


def test_frozen_layers_keep_their_input_for_an_adapter_alone() -> None:
    """Beside an adapter of a feed-forward's second layer its half-precision input stays, beside one
    of the first what the norm hands it; without one, neither."""
    neither = layer_kept("linear_qkv")
    assert layer_kept("linear_fc2") - neither == pytest.approx(2 * tokens() * LLAMA.ffn)
    assert layer_kept("linear_fc1") - neither == pytest.approx(2 * tokens() * LLAMA.hidden)


def test_an_adapter_keeps_a_half_precision_input_beside_narrow_products() -> None:
    kept = [layer_kept("linear_fc2", precision=each) for each in ("bf16", "fp8")]
    assert kept[0] == kept[1]


def test_an_activations_input_may_wait_in_8_bits() -> None:
    """A gated feed-forward keeps 2 * ffn numbers a token for it, a byte less of each."""
    block = next(each for each, _ in LLAMA.segments[0].blocks if each.kind == "mlp")
    kept = [
        sum(float(np.max(part.saved_bytes)) for part in block_parts(site(LLAMA, stack=some), block))
        for some in (STACK, replace(STACK, narrow_activation_input=True))
    ]
    assert kept[0] - kept[1] == pytest.approx(2 * LLAMA.ffn * tokens())


def test_fused_attention_keeps_its_output_whatever_reads_it() -> None:
    """Its backward pass needs it, so a projection behind it without an adapter frees nothing."""
    both: tuple[LoraTarget, ...] = ("linear_proj", "linear_fc2")
    kept = {
        layer_kept(target, kind="attention", precision=precision)
        for target in both
        for precision in ("bf16", "fp8")
    }
    assert len(kept) == 1
