"""Parts that all blocks share: linear layers, memory-bound passes, norms, tensor-parallel
exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from tests.cost.cases import (
    CHIP,
    GPT,
    LLAMA,
    MEMORY_BYTES_PER_S,
    MLA,
    MOE,
    POOL,
    STACK,
    WORK,
    saved,
    site,
)
from tests.values.hardware.profiles import ON_H100, gemm

from meshwright.cost.attention import attention_parts
from meshwright.cost.attention_core import scores_per_query
from meshwright.cost.collectives import all_gather_s, all_reduce_s
from meshwright.cost.feedforward import mlp_parts, moe_parts
from meshwright.cost.kernels import EagerPass, gemm_s
from meshwright.cost.linear import linear
from meshwright.cost.mamba import mamba_parts
from meshwright.cost.operators import Site, eager, norm, norm_output, passes, tensor_exchange
from meshwright.cost.stages import block_tokens, distinct_shapes
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.hardware.profiled import profiled_chip
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import Block, MlaSpec, ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Precision

MLP = Block(kind="mlp")
TOKENS, H = 2048, 1024
RAMP_S = 2e-6


def column(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array([value])


def test_linear_is_three_products() -> None:
    """2048 tokens from 1024 to 4096: forward, and backward the gradients of input and of
    weights."""
    part = linear(
        site(GPT), "layer", into=column(1024.0), out=column(4096.0), tokens=column(2048.0)
    )

    def product(m: float, n: float, k: float) -> float:
        return float(gemm_s(CHIP, m=column(m), n=column(n), k=column(k), precision="bf16")[0])

    assert part.forward_s == product(2048, 4096, 1024)
    assert np.asarray(part.weight_s)[0] == product(4096, 1024, 2048)
    assert part.backward_s == pytest.approx(
        product(2048, 1024, 4096) + product(4096, 1024, 2048), rel=1e-15
    )
    assert (part.kernels_forward, part.kernels_backward) == (1, 2)


def test_fp8_casts_what_it_multiplies() -> None:
    """Input and output's gradient are read in two bytes and written in one, twice (both
    orientations): 4 bytes an element and a ramp."""
    narrow = site(GPT, replace(WORK, precision="fp8"))
    part = linear(narrow, "layer", into=column(1024.0), out=column(4096.0), tokens=column(2048.0))
    product = gemm_s(CHIP, m=column(2048), n=column(4096), k=column(1024), precision="fp8")
    assert part.forward_s - product == pytest.approx(2048 * 1024 * 4 / MEMORY_BYTES_PER_S + RAMP_S)
    assert (part.kernels_forward, part.kernels_backward) == (2, 4)
    assert narrow.saved_input_bytes == 1.0
    assert (
        replace(narrow, stack=replace(narrow.stack, narrow_linear="torchao")).saved_input_bytes
        == 2.0
    )
    assert narrow.activation_bytes == 2.0


def test_measured_gradients_of_weights_are_those_of_the_software() -> None:
    """Of a profile: beside an fp32 sum where the software keeps a second, narrower gradient; alone
    where it has none, or copies gradients into buckets as wide as they are, as torch's DDP does."""
    alone, beside = 3e14, 2e14
    series = (*ON_H100.series, gemm("gemm_wgrad/bf16", alone), gemm("gemm_main_grad/bf16", beside))
    chip = profiled_chip(replace(ON_H100, series=series), find_chip("h100"))
    pool = replace(POOL, node=replace(POOL.node, chip=chip))

    def seconds(second: float) -> float:
        stack = replace(STACK, family="fsdp", gradient_bytes=4.0, transient_gradient_bytes=second)
        part = linear(
            site(GPT, stack=stack, pool=pool),
            "layer",
            into=column(2048.0),
            out=column(2048.0),
            tokens=column(2048.0),
        )
        return float(np.asarray(part.weight_s)[0])

    assert [seconds(2.0) / seconds(0.0), seconds(4.0) / seconds(0.0)] == pytest.approx(
        [alone / beside, 1.0]
    )


SLOW = 11 / 7
"""2.2 over 1.4 TB/s: how much longer a pass takes that writes columns."""


@pytest.mark.parametrize(
    ("precision", "forward", "backward"),
    [
        ("fp8", 5 * 2048 * 1024, 3 * SLOW * 2048 * 1024 + (2 + 4 * SLOW) * 2048 * 4096),
        (
            "fp8-blockwise",
            3 * 2048 * 1024 + 3 * 1024 * 4096,
            (4 * SLOW + 7) * 2048 * 1024
            + (5 * SLOW + 3) * 2048 * 4096
            + (4 * SLOW + 7) * 1024 * 4096,
        ),
        (
            "mxfp8",
            3 * 2048 * 1024 + 3 * 1024 * 4096,
            3 * SLOW * 2048 * 1024 + 3 * (1 + SLOW) * 2048 * 4096 + 3 * SLOW * 1024 * 4096,
        ),
    ],
)
def test_torchao_casts_in_passes(precision: Precision, forward: float, backward: float) -> None:
    """One scale a tensor: input maximum 2 and cast 3, cast 3 by columns; gradient maximum 2 and
    both casts 4. By row: cast 3; transposed 4, cast 3, product scaled 4; gradient 5 with columns
    and 3; weights 3, then 4, 3, and their gradient scaled 4. MXFP8: 3 by rows and 3 by columns,
    weights too."""
    both = [
        replace(STACK, narrow_linear="transformer-engine"),
        replace(STACK, narrow_linear="torchao"),
    ]
    fused, passed = (
        linear(
            replace(site(GPT, replace(WORK, precision=precision)), stack=stack),
            "layer",
            into=column(1024.0),
            out=column(4096.0),
            tokens=column(2048.0),
        )
        for stack in both
    )
    assert passed.forward_s - fused.forward_s == pytest.approx(
        (forward - 4 * 2048 * 1024) / MEMORY_BYTES_PER_S
    )
    assert passed.backward_s - fused.backward_s == pytest.approx(
        (backward - 4 * 2048 * 4096) / MEMORY_BYTES_PER_S
    )


@pytest.mark.parametrize(
    ("precision", "forward", "backward"),
    [("bf16", 0, 0), ("fp8", 2, 2), ("mxfp8", 3, 5), ("nvfp4", 5, 7)],
)
def test_each_expert_prepares_its_narrow_operands(
    precision: Precision, forward: int, backward: int
) -> None:
    """8 experts, kernels shorter than their launch of 5 us; mxfp8: a cast and two scale passes
    forward, a cast and four backward."""

    def both(launch_hidden: float) -> tuple[float, float]:
        at = site(
            GPT,
            replace(WORK, precision=precision),
            stack=replace(STACK, launch_hidden=launch_hidden),
        )
        part = linear(
            at, "layer", into=column(1024.0), out=column(4096.0), tokens=column(2048.0), groups=8.0
        )
        return float(part.forward_s[0]), float(part.backward_s[0])

    eager, graph = both(0.0), both(1.0)
    assert eager[0] - graph[0] == pytest.approx(
        8 * forward * (5e-6 - RAMP_S), abs=1e-12
    )  # in a graph each takes its ramp of 2 us
    assert eager[1] - graph[1] == pytest.approx(8 * backward * (5e-6 - RAMP_S), abs=1e-12)


def test_a_gradient_that_is_added_in_a_pass_moves_its_bytes() -> None:
    """1024 x 4096 weights, of each the gradient read and the sum read and written in half
    precision."""
    plain, added = (
        linear(
            site(GPT, stack=replace(STACK, accumulate_bytes=each)),
            "layer",
            into=column(1024.0),
            out=column(4096.0),
            tokens=column(2048.0),
        )
        for each in (0.0, 6.0)
    )
    pass_s = 1024 * 4096 * 6 / MEMORY_BYTES_PER_S + RAMP_S
    assert added.backward_s - plain.backward_s == pytest.approx(pass_s)
    assert np.asarray(added.weight_s - plain.weight_s) == pytest.approx(pass_s)
    assert added.forward_s == plain.forward_s


def test_passes_count_bytes_and_ramps() -> None:
    part = passes(
        site(GPT), "pass", forward_bytes=column(1e9), backward_bytes=column(3e9), kernels=2
    )
    assert part.forward_s == pytest.approx(1e-3 + 2 * RAMP_S)
    assert part.backward_s == pytest.approx(3e-3 + 2 * RAMP_S)
    eager = passes(
        site(GPT, stack=replace(STACK, pointwise_fused=False)),
        "pass",
        forward_bytes=column(1e9),
        backward_bytes=column(3e9),
        kernels=2,
    )
    assert eager.forward_s == pytest.approx(2e-3 + 4 * RAMP_S)
    assert eager.kernels_forward == 4


def test_norm_reads_and_writes_five_and_six_elements() -> None:
    """2048 * 1024 elements of 2 bytes: two operands of the sum, the sum twice, the norm; 6
    backward. It keeps the sum."""
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
    """A block's activations are 2048 * 1024 * 2 bytes; two gathers copy the own share twice and are
    set up twice."""
    payload = np.array([TOKENS * H * 2.0])
    for sp in (False, True):
        place = site(LLAMA, tp=8, sp=sp)
        part = tensor_exchange(place, MLP)
        expected = (
            2 * all_gather_s(place.tp_group(), payload)
            if sp
            else all_reduce_s(place.tp_group(), payload)
        )
        assert part.forward_s == part.backward_s == pytest.approx(expected)
        copied = (2 if sp else 1) / 8 * TOKENS * H * 2 / 800e9
        assert part.forward_s == pytest.approx(
            2 * 7 / 8 * TOKENS * H * 2 / 400e9 + copied + (2 * 24e-6 if sp else 10e-6 + 2 * 14e-6)
        )
        assert part.kernels_forward == part.kernels_backward == (2 if sp else 1)


def test_tensor_exchange_hides_as_the_stack_can() -> None:
    """Megatron-Core asserts sequence parallelism, wants NVLink, and makes no buffers for the
    products of latent attention."""
    hiding = replace(STACK, tp_overlap=0.75)
    shown = tensor_exchange(site(LLAMA, tp=8, sp=True, stack=hiding), MLP)
    whole = tensor_exchange(site(LLAMA, tp=8, sp=True), MLP)
    assert shown.forward_s == pytest.approx(whole.forward_s / 4)
    assert tensor_exchange(site(LLAMA, tp=1), MLP).forward_s == 0
    pcie = replace(
        POOL, node=replace(POOL.node, domain_link=replace(POOL.node.domain_link, maps_peers=False))
    )
    latent = replace(
        LLAMA,
        mla=MlaSpec(
            q_lora_rank=None,
            kv_lora_rank=64,
            qk_nope_head_dim=64,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
    )
    for place in (
        site(LLAMA, pool=pcie, tp=8, sp=True, stack=hiding),
        site(latent, tp=8, sp=True, stack=hiding),
    ):
        assert tensor_exchange(place, MLP).forward_s == whole.forward_s
    reduced = tensor_exchange(site(LLAMA, tp=8), MLP).forward_s
    assert tensor_exchange(site(LLAMA, tp=8, stack=hiding), MLP).forward_s == reduced
    assert tensor_exchange(
        site(LLAMA, tp=8, stack=replace(hiding, family="fsdp")), MLP
    ).forward_s == pytest.approx(reduced / 4)


def test_strides_are_copied_where_the_batch_comes_first() -> None:
    """Two sequences: the whole input of 2 x 2048 x 1024 x 2 bytes is read and written once after
    the gather, once before the scatter."""
    work, first = replace(WORK, gbs=16), replace(STACK, sequence_parallel="dtensor")
    alone, pair = (
        tensor_exchange(site(LLAMA, work, tp=8, sp=True, mbs=mbs, stack=first), MLP)
        for mbs in (1, 2)
    )
    plain = [tensor_exchange(site(LLAMA, work, tp=8, sp=True, mbs=mbs), MLP) for mbs in (1, 2)]
    copies_s = 2 * (2 * 2 * TOKENS * H * 2 / MEMORY_BYTES_PER_S + RAMP_S)
    assert (
        pair.forward_s - plain[1].forward_s
        == pair.backward_s - plain[1].backward_s
        == pytest.approx(copies_s)
    )
    assert alone.forward_s == plain[0].forward_s
    whole = [
        tensor_exchange(site(LLAMA, work, tp=8, mbs=2, stack=stack), MLP).forward_s
        for stack in (first, STACK)
    ]
    assert whole[0] == whole[1]


def test_transformer_engine_gathers_what_it_has_cast() -> None:
    """Bytes of an element gathered forward and backward: half precision; 1 with one scale a tensor,
    whose gradients are turned behind the gather; gradients of blocks by rows and by columns."""
    cases: dict[Precision, tuple[float, float]] = {
        "bf16": (2.0, 2.0),
        "fp8": (1.0, 1.0),
        "mxfp8": (1.0, 2.0),
        "nvfp4": (0.5625, 1.125),
    }
    for precision, each in cases.items():
        place = site(LLAMA, replace(WORK, precision=precision), tp=8, sp=True)
        part = tensor_exchange(place, MLP)
        for seconds, size in zip((part.forward_s, part.backward_s), each, strict=True):
            sent = (
                all_gather_s(place.tp_group(), np.array([TOKENS * H * one])) for one in (size, 2.0)
            )
            assert seconds == pytest.approx(sum(sent))


def test_gathers_in_8_bits_send_half() -> None:
    """One scale a tensor: 2048 * 1024 bytes are gathered, twice as many scattered; other precisions
    gather as they did."""
    narrow, payload = replace(STACK, narrow_linear="torchao-gathers"), TOKENS * H * 2.0
    cases: dict[Precision, float] = {"fp8": payload / 2, "bf16": payload, "mxfp8": payload}
    for precision, gathered in cases.items():
        place = site(LLAMA, replace(WORK, precision=precision), tp=8, sp=True, stack=narrow)
        part = tensor_exchange(place, MLP)
        gather, scatter = (
            all_gather_s(place.tp_group(), np.array([size])) for size in (gathered, payload)
        )
        assert part.forward_s == part.backward_s == pytest.approx(gather + scatter)
        assert part.gather_s == pytest.approx(gather)
    assert np.all(np.asarray(tensor_exchange(site(LLAMA, tp=8, stack=narrow), MLP).gather_s) == 0)


def test_gradients_apart_are_scattered_for_each_product() -> None:
    """Of queries, keys and values three, of a gated feed-forward two, of another one; forward they
    share a gather."""
    place = site(LLAMA, tp=8, sp=True)
    one = np.asarray(tensor_exchange(place, MLP).gather_s)  # a scatter takes as long
    for model, block, products in (
        (LLAMA, Block(kind="attention"), 3),
        (LLAMA, MLP, 2),
        (GPT, MLP, 1),
    ):
        part = tensor_exchange(
            site(
                model, tp=8, sp=True, stack=replace(STACK, sequence_parallel="dtensor-per-product")
            ),
            block,
        )
        assert part.forward_s == pytest.approx(2 * one)
        assert part.backward_s == pytest.approx((1 + products) * one)
        assert part.kernels_backward == 1 + products


def test_no_product_hides_a_gather_where_scales_are_by_row() -> None:
    """Of torchao's: of gather and scatter the second alone is half hidden; Transformer Engine's
    blocks hide both, and gather a byte an element."""
    kinds: dict[Literal["transformer-engine", "torchao"], tuple[float, float]] = {
        "torchao": (2.0, 1.0),
        "transformer-engine": (1.0, 0.5),
    }
    work = replace(WORK, precision="fp8-blockwise")
    for kind, (size, shown) in kinds.items():
        place = site(
            LLAMA, work, tp=8, sp=True, stack=replace(STACK, tp_overlap=0.5, narrow_linear=kind)
        )
        gather, scatter = (
            all_gather_s(place.tp_group(), np.array([TOKENS * H * each])) for each in (size, 2.0)
        )
        found = tensor_exchange(place, MLP).forward_s
        assert found == pytest.approx(shown * gather + 0.5 * scatter)


def test_tokens_of_a_rank() -> None:
    """3 sequences of 2048, split over 4 context-parallel ranks; tensor parallelism leaves them
    whole."""
    place = site(GPT, cp=4, tp=2, sp=True, mbs=3)
    assert block_tokens(GPT, MLP, WORK, place.shapes).tolist() == [3 * 2048 / 4]
    assert place.split_tokens(MLP).tolist() == [3 * 2048 / 4 / 2]


KINDS = {
    "attention": (attention_parts, LLAMA, Block(kind="attention")),
    "latent attention": (attention_parts, MLA, Block(kind="attention")),
    "window": (attention_parts, LLAMA, Block(kind="attention", window=512)),
    "cross attention": (
        attention_parts,
        find_model("t5-small"),
        Block(kind="cross_attention", stream="decoder", causal=False),
    ),
    "mixer": (mamba_parts, find_model("nemotron-h-8b"), Block(kind="mamba")),
    "feed-forward": (mlp_parts, LLAMA, MLP),
    "experts": (moe_parts, MOE, Block(kind="moe")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp8"])
def test_parts_of_any_block_are_finite_and_alike_alone_and_in_a_column(
    kind: str, precision: Precision
) -> None:
    """Kernels left out: they are the host's, see test_layer.py."""
    price, model, block = KINDS[kind]
    rows = [
        Layout(),
        Layout(tp=2, sp=True),
        Layout(cp=2, mbs=2),
        Layout(tp=4, dp=4, ep=2 if model.moe else 1, etp=1),
    ]
    work = replace(WORK, precision=precision)

    def priced(some: list[Layout]) -> dict[str, np.ndarray[Any, Any]]:
        shapes, at = distinct_shapes(Layouts.of(some))
        parts = price(Site(model=model, work=work, stack=STACK, pool=POOL, shapes=shapes), block)
        fields = ("forward_s", "backward_s", "saved_bytes", "weight_s")
        return {
            f"{n} {part.name} {field}": np.broadcast_to(getattr(part, field), shapes.tp.shape)[at]
            for n, part in enumerate(parts)
            for field in fields
        }

    together = priced(rows)
    assert all(np.all(np.isfinite(values) & (values >= 0)) for values in together.values())
    for i, row in enumerate(rows):
        alone = priced([row])
        assert {name: values[0] for name, values in alone.items()} == {
            name: together[name][i] for name in alone
        }


def test_a_window_shortens_the_scores() -> None:
    assert scores_per_query(site(LLAMA), Block(kind="attention", window=512)) == 512 + 128
    assert scores_per_query(site(LLAMA), Block(kind="attention")) == 2048 / 2 + 64


def test_what_is_left_to_plain_kernels_is_launched_without_modules() -> None:
    """Two kernels of 4 bytes an element, of which a scale of 10 makes two tenths of an operator."""
    passes_of = (EagerPass(read=2.0, written=2.0, count=2.0),)
    part = eager(
        site(GPT, stack=replace(STACK, kernels_per_layer_scale=10.0)),
        "two",
        elements=np.array([1e9]),
        forward=passes_of,
        backward=(),
        kernels=(2.0, 0.0),
        saved=7.0,
    )
    assert part.forward_s == pytest.approx(8e-3 + 2 * RAMP_S)
    assert part.backward_s == 0.0
    assert part.kernels_forward == 0.2
    assert part.saved_bytes == 7.0


def test_megablox_computes_whole_tiles_and_reads_them_again() -> None:
    """8 experts with 1024 rows each see 1536, as each shares a tile of 512 with its neighbour; 1536
    inputs are two tiles of 1024, 2048 outputs are. On a chip whose memory is slow every step, of 8
    * 3 * 2 * 2, reads 512 * 1024 and 1024 * 1024 values; 2 * 512 * 1024 for the gradient. A single
    product is as any library's, and so is one of tokens padded to a capacity.
    """
    stack = replace(STACK, grouped_products="megablox")
    capped = replace(MOE, moe=replace(MOE.moe, capacity_factor=1.0)) if MOE.moe else MOE

    def times(
        of: Stack, groups: float, pool: Pool = POOL, model: ModelSpec = MOE
    ) -> tuple[float, float]:
        place = site(model, stack=of, pool=pool)
        part = linear(
            place,
            "experts",
            into=column(1536.0),
            out=column(2048.0),
            tokens=column(1024.0),
            groups=groups,
        )
        return float(np.asarray(part.forward_s)[0]), float(np.asarray(part.weight_s)[0])

    whole = linear(
        site(MOE),
        "whole",
        into=column(2048.0),
        out=column(2048.0),
        tokens=column(1536.0),
        groups=8.0,
    )
    assert times(stack, 8.0) == pytest.approx(
        (float(whole.forward_s[0]), float(np.asarray(whole.weight_s)[0]))
    )
    assert times(stack, 1.0) == times(STACK, 1.0)
    assert times(stack, 8.0, model=capped) == times(STACK, 8.0) != times(stack, 8.0)
    slow = replace(POOL, node=replace(POOL.node, chip=replace(CHIP, memory_bytes_per_s=2e9)))
    read = 8 * 3 * 2 * 2 * 2 / 1e9
    assert times(stack, 8.0, slow) == pytest.approx(
        (read * (512 + 1024) * 1024, read * 2 * 512 * 1024), rel=0.01
    )


def test_the_data_gradient_of_megablox_reads_tiles_of_the_outputs_side() -> None:
    """Inputs of 768 are one tile of 768, outputs of 2048 two of 1024: where memory is slow, a step
    of the forward product reads 512 * 768 + 768 * 1024 values, one of the data gradient 512 * 1024
    + 768 * 1024; 8 experts, 3 tiles of rows, 2 of width."""
    slow = replace(POOL, node=replace(POOL.node, chip=replace(CHIP, memory_bytes_per_s=2e9)))
    part = linear(
        site(MOE, stack=replace(STACK, grouped_products="megablox"), pool=slow),
        "experts",
        into=column(768.0),
        out=column(2048.0),
        tokens=column(1024.0),
        groups=8.0,
    )
    read = 8 * 3 * 2 * 2 / 1e9
    assert part.forward_s == pytest.approx(read * (512 * 768 + 768 * 1024), rel=0.01)
    assert part.backward_s - part.weight_s == pytest.approx(
        read * (512 * 1024 + 768 * 1024), rel=0.01
    )


def test_latent_attention_gathers_its_latents() -> None:
    """Megatron-Core runs the down projections on split tokens, and gathers what comes out of them;
    DTensor plans gather the whole input, as every software does for the output projection."""
    assert MLA.mla is not None
    width = (MLA.mla.q_lora_rank or MLA.hidden) + MLA.mla.kv_lora_rank + MLA.mla.qk_rope_head_dim
    place, block = site(MLA, tp=8, sp=True), Block(kind="attention")
    part = tensor_exchange(place, block)
    gather, scatter = (
        all_gather_s(place.tp_group(), np.array([TOKENS * elements * 2.0]))
        for elements in (float(width), float(MLA.hidden))
    )
    assert part.gather_s == pytest.approx(gather)
    assert part.forward_s == part.backward_s == pytest.approx(gather + scatter)
    plain = site(MLA, tp=8, sp=True, stack=replace(STACK, family="fsdp"))
    assert tensor_exchange(plain, block).gather_s == pytest.approx(scatter)
