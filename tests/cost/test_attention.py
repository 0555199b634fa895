"""Attention on paper."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from tests.cost.cases import (
    CHIP,
    GPT,
    LLAMA,
    MEMORY_BYTES_PER_S,
    MLA,
    NODE,
    POOL,
    STACK,
    WORK,
    named,
    saved,
    site,
)

from meshwright.cost.attention import attention_parts
from meshwright.cost.attention_core import (
    FLASH_BACKWARD_PRODUCTS,
    FLASH_LENGTH_HALF,
    core_saved,
    half_precision,
    scores_per_query,
)
from meshwright.cost.context import context_parts, ring_steps
from meshwright.cost.operators import Part, Site
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.tables import attention_forward_seconds, mla_forward_seconds
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import AttentionKernel, Precision, Workload

SELF = Block(kind="attention")
SBH = 2048 * 1024
"""Elements of one activation: seq 2048, one sequence, hidden 1024."""
SSA = 2048 * 2048 * 16
"""Scores of 16 heads."""


def core(place: Site, block: Block = SELF) -> Part:
    return named(attention_parts(place, block), "attention core")


def kept(model: ModelSpec = GPT, **layout: Any) -> dict[str, float]:
    return {part.name: saved(part) for part in attention_parts(site(model, **layout), SELF)}


def test_flash_multiplies_half_the_keys() -> None:
    """A query of a causal sequence sees half the keys, and half a tile of 128 more on the
    diagonal."""
    assert scores_per_query(site(GPT), SELF) == 1024 + 64
    assert scores_per_query(site(GPT), Block(kind="attention", causal=False)) == 2048
    assert scores_per_query(site(GPT, replace(WORK, attention="unfused")), SELF) == 2048
    assert scores_per_query(site(GPT), Block(kind="attention", window=512)) == 512 + 128
    assert scores_per_query(site(GPT), Block(kind="attention", window=4096)) == 1024 + 64


def test_flash_time_of_a_bidirectional_layer() -> None:
    """2 products of 2 FLOP, 2048 * 2048 * 1024 each, at 1e15 * 0.5 (attention) * 0.5 (sustained),
    slower where heads are narrow and sequences short; the backward has 5 products for 2, at 0.4."""
    part = core(site(GPT), Block(kind="attention", causal=False))
    speed = 2048 / (2048 + FLASH_LENGTH_HALF / 2) * (64 / 128) ** (1 - 0.86)
    flops = 2 * 2 * 2048 * 2048 * 1024
    assert part.forward_s == pytest.approx(flops / (1e15 * 0.5 * 0.5 * speed) + 2e-6)
    assert part.backward_s == pytest.approx(2.5 * flops / (1e15 * 0.4 * 0.5 * speed) + 3 * 2e-6)
    assert FLASH_BACKWARD_PRODUCTS == 5 / 2


@pytest.mark.parametrize(
    ("side", "head", "speed"), [(128, 64, 0.5), (256, 64, 0.5), (128, 192, 0.75), (256, 256, 1.0)]
)
def test_heads_fill_a_part_of_a_systolic_array(side: int, head: int, speed: float) -> None:
    """Efficiencies hold for heads of 128. Of arrays of 128 and of 256 heads of 64 fill half as much
    as those; two passes of 128 hold a head of 192, three quarters full; wider heads are taken to be
    no faster."""
    of_heads = replace(GPT, num_heads=4, num_kv_heads=4, head_dim=128)
    narrow = replace(of_heads, head_dim=head)
    chip = replace(CHIP, matrix_width=float(side))
    pool = replace(POOL, node=replace(POOL.node, chip=chip))
    usual, found = (core(site(model, pool=pool), SELF) for model in (of_heads, narrow))
    flops = head / 128
    assert (found.forward_s - 2e-6) / (usual.forward_s - 2e-6) == pytest.approx(flops / speed)


def test_causal_attention_takes_about_half() -> None:
    long = replace(WORK, seq_len=65536)
    half, whole = (
        core(site(GPT, long), Block(kind="attention", causal=causal)) for causal in (True, False)
    )
    assert half.forward_s / whole.forward_s == pytest.approx(0.5, rel=0.01)


def test_older_kernels_are_slower() -> None:
    """At a sustained share of 0.8: FlashAttention 2 at 0.8 of its benchmark, 1 at 0.56 of that
    benchmark, whatever the power limit."""
    pool = replace(POOL, node=replace(NODE, chip=replace(CHIP, sustained_share=0.8)))
    long, second_stack = replace(WORK, seq_len=65536), replace(STACK, attention_library="flash2")
    vendor = core(site(GPT, long, pool=pool)).forward_s
    second = core(site(GPT, long, stack=second_stack, pool=pool)).forward_s
    first = core(site(GPT, replace(long, attention="flash1"), pool=pool)).forward_s
    assert second / vendor == pytest.approx(1 / 0.5, rel=0.01)  # the chip's flash2_share
    assert first / second == pytest.approx(0.8 / 0.56, rel=0.01)


def test_narrow_heads_slow_flash2_as_on_an_a100() -> None:
    """16 heads of 64 are as much work as 8 of 128; FlashAttention-2 takes 189 / 171 of their time
    at 64 (arXiv:2307.08691, figure 4). An H100's table is of FlashAttention-3, which loses more."""
    pool, long = replace(POOL, node=default_node("h100")), replace(WORK, seq_len=16384)

    def core_s(heads: int, head_dim: int, library: Literal["vendor", "flash2"]) -> float:
        shape = replace(GPT, num_heads=heads, num_kv_heads=heads, head_dim=head_dim)
        stack = replace(STACK, attention_library=library)
        return float(core(site(shape, long, stack=stack, pool=pool)).forward_s[0])

    second = core_s(16, 64, "flash2") / core_s(8, 128, "flash2")
    assert second == pytest.approx(189 / 171, rel=0.03)
    assert core_s(16, 64, "vendor") / core_s(8, 128, "vendor") > 1.2


def test_short_causal_sequences_are_those_of_the_table() -> None:
    """Up to a tile of 128 keys a causal kernel skips nothing, and the table holds what it takes."""
    pool = replace(POOL, node=default_node("h100"))
    short = replace(WORK, seq_len=64)
    table = attention_forward_seconds(
        "h100", batch=1, heads=16, kv_heads=16, head_dim=64, sequence=64
    )
    assert table is not None
    share = pool.node.chip.sustained_share
    found = core(site(GPT, short, pool=pool)).forward_s - pool.node.chip.ramp_s
    assert found == pytest.approx(float(table.seconds) / share)


def test_latent_attention_takes_its_own_table() -> None:
    """DeepSeek-V3's heads of 192 and 128 on an H100: the table's time over the sustained share, by
    what a rank of four holds; a ring of two works two sequences of half the keys."""
    model, pool = find_model("deepseek-v3"), replace(POOL, node=default_node("h100"))
    long, chip = replace(WORK, seq_len=8192), pool.node.chip
    cases: list[tuple[dict[str, Any], int, int, int]] = [
        ({"tp": 4}, 32, 8192, 1),
        ({"cp": 2}, 128, 4096, 2),
    ]
    for layout, heads, keys, steps in cases:
        table = mla_forward_seconds("h100", batch=1, heads=heads, sequence=keys)
        assert table is not None
        found = core(site(model, long, pool=pool, **layout)).forward_s - chip.ramp_s
        assert found == pytest.approx(steps * float(table.seconds) / chip.sustained_share)


def test_a_power_limit_below_flash1_holds_for_both() -> None:
    long, second_stack = replace(WORK, seq_len=65536), replace(STACK, attention_library="flash2")
    second = core(site(GPT, long, stack=second_stack)).forward_s  # the chip sustains 0.5
    assert core(site(GPT, replace(long, attention="flash1"))).forward_s == pytest.approx(second)


def test_fused_attention_keeps_queries_keys_values_and_row_sums() -> None:
    """arXiv:2205.05198, section 4.1: Q, K, V are 6 sbh, the output projection's input 2 sbh; a row
    sum is 4 bytes a head and token."""
    assert kept() == {
        "norm": 2 * SBH,
        "norm output": 2 * SBH,
        "attention input projection": 0,
        "attention output projection": 2 * SBH,
        "queries, keys and values": 6 * SBH,
        "attention core": 4 * 16 * 2048,
        "tensor parallel exchange": 0,
    }


def test_a_fused_core_keeps_its_output_beside_a_narrow_copy() -> None:
    """In fp8 the projection keeps 1 byte an element and the core's backward pass reads its own 2;
    torchao's projection, or one in half precision, keeps the very tensor that the core does."""
    narrow, sums = replace(WORK, precision="fp8"), 4 * 16 * 2048
    torchao = replace(STACK, narrow_linear="torchao")
    for work, stack, core_bytes, projection in (
        (narrow, STACK, sums + 2 * SBH, SBH),
        (narrow, torchao, sums, 2 * SBH),
        (WORK, STACK, sums, 2 * SBH),
        (replace(narrow, attention="fused-softmax"), STACK, 2 * SSA, SBH),
    ):
        parts = attention_parts(site(GPT, work, stack=stack), SELF)
        assert saved(named(parts, "attention core")) == core_bytes
        assert saved(named(parts, "attention output projection")) == projection


def test_attentions_output_may_wait_in_a_format_of_its_own() -> None:
    """DeepSeek-V3 (arXiv:2412.19437), section 3.3.3: 12 bits where other inputs wait in 8."""
    stack, narrow = replace(STACK, attention_output_bytes=1.5), replace(WORK, precision="fp8")
    found = [
        saved(named(attention_parts(at, SELF), "attention output projection"))
        for at in (site(GPT, narrow, stack=stack), site(GPT, narrow), site(GPT, stack=stack))
    ]
    assert found == [2048 * 1024 * 1.5, 2048 * 1024, 2048 * 1024 * 2]


def test_grouped_queries_keep_fewer_keys() -> None:
    """16 query heads, 4 key and value heads of 64: 2048 * (1024 + 2 * 256) * 2 bytes."""
    assert kept(LLAMA)["queries, keys and values"] == 2048 * (1024 + 512) * 2


def test_key_value_heads_are_copied_beyond_their_number() -> None:
    """tp = 8 leaves 2 query heads and, of 4 key-value heads, one whole."""
    assert kept(LLAMA, tp=8)["queries, keys and values"] == 2048 * (2 + 2) * 64 * 2
    assert kept(LLAMA, tp=8)["attention core"] == 4 * 2 * 2048


def test_scores_in_memory_are_kept() -> None:
    """Softmax output 2 bytes a score, its dropout mask 1, the dropout's output 2 (arXiv:2205.05198:
    5 a s^2 b); eager keeps the masked scores, 2 more."""
    by_hand: dict[AttentionKernel, tuple[int, int]] = {"fused-softmax": (2, 5), "unfused": (4, 7)}
    for attention, dropout in product(by_hand, (False, True)):
        work = replace(WORK, attention=attention, dropout=dropout)
        assert saved(core(site(GPT, work))) == by_hand[attention][dropout] * SSA


def test_scores_in_memory_take_longer_than_fused() -> None:
    kernels: tuple[AttentionKernel, ...] = ("flash", "fused-softmax", "unfused")
    flash, softmax, eager = (
        core(site(GPT, replace(WORK, attention=attention))) for attention in kernels
    )
    assert flash.forward_s < softmax.forward_s < eager.forward_s


@pytest.mark.parametrize(
    ("attention", "causal", "forward", "backward"),
    [
        (
            "fused-softmax",
            False,
            2 + 4 + 2,
            2 * (2 + 2) + 6,
        ),  # written, read and written by the softmax, read
        (
            "fused-softmax",
            True,
            2 + 3 + 2,
            2 * (2 + 2) + 4,
        ),  # the softmax reads the lower triangle alone
        ("unfused", True, 2 + 28 + 2, 2 * (2 + 2) + 28),
    ],
)
def test_bytes_that_scores_in_memory_move(
    attention: AttentionKernel, causal: bool, forward: int, backward: int
) -> None:
    """Products of heads 64 wide wait for memory: 2 * 64 FLOP a score take less than its 2 bytes. 5
    and 9 kernels start for 2 us each, in eager mode scale, mask and two casts besides."""
    more = 4 * (attention == "unfused")
    part = core(
        site(GPT, replace(WORK, attention=attention)), Block(kind="attention", causal=causal)
    )
    assert part.forward_s == pytest.approx(SSA * forward / MEMORY_BYTES_PER_S + (5 + more) * 2e-6)
    assert part.backward_s == pytest.approx(SSA * backward / MEMORY_BYTES_PER_S + (9 + more) * 2e-6)


PRECISIONS: tuple[Precision, ...] = ("bf16", "fp32")


def first(part: Part) -> float:
    """Kernels of a part's forward pass."""
    return float(np.sum(part.kernels_forward))


@pytest.mark.parametrize(
    ("tp", "mbs", "eager"), [(4, 1, False), (8, 1, True), (8, 2, False), (8, 3, True)]
)
def test_a_fused_softmax_wants_heads_in_fours(tp: int, mbs: int, eager: bool) -> None:
    """16 heads: 2 of 8 ranks' and one sequence run the passes one by one, 4 and more do not."""
    gpu = replace(POOL.node.chip, vendor="NVIDIA")
    pool = replace(POOL, node=replace(POOL.node, chip=gpu))
    fused, unfused = (
        core(site(GPT, replace(WORK, attention=attention), pool=pool, tp=tp, mbs=mbs))
        for attention in ("fused-softmax", "unfused")
    )
    assert np.array_equal(fused.forward_s, unfused.forward_s) is eager
    assert np.array_equal(fused.saved_bytes, unfused.saved_bytes) is eager
    assert first(fused) == (9 if eager else 5)


def test_eager_scores_in_fp32_are_not_cast() -> None:
    assert [
        first(core(site(GPT, replace(WORK, attention="unfused", precision=precision))))
        for precision in PRECISIONS
    ] == [9, 7]


def test_products_of_wide_heads_wait_for_arithmetic() -> None:
    """Heads of 1024: 2 * 1024 FLOP a score at a quarter of the peak at most take longer than its 2
    bytes."""
    wide = replace(GPT, num_heads=1, num_kv_heads=1, head_dim=1024)
    scores = 2048 * 2048
    memory_s = scores * 7 / MEMORY_BYTES_PER_S + 5 * 2e-6
    assert core(
        site(wide, replace(WORK, attention="fused-softmax"))
    ).forward_s > memory_s + 2 * scores * (2 * 1024 / 0.25e15 - 2e-12)


def test_heads_split_over_tensor_parallel_ranks() -> None:
    split, whole = kept(tp=4), kept()
    for name in ("attention core", "queries, keys and values", "attention output projection"):
        assert split[name] == whole[name] / 4
    assert split["norm output"] == whole["norm output"]


def test_latent_attention_keeps_whole_heads_and_latents() -> None:
    """Queries and keys 96 wide, values 64, 16 heads of each; of the latents (256 and 128 wide) a
    norm's input and a product's, 2 bytes."""
    parts = attention_parts(site(MLA), SELF)
    made = named(parts, "queries, keys and values")
    assert saved(made) == 2048 * 16 * (96 + 96 + 64) * 2
    assert made.freed_by == {"mla_up_proj"}
    latents = [saved(part) for part in parts if part.name == "latent up projection"]
    assert sorted(latents) == [2048 * 128 * 4, 2048 * 256 * 4]
    assert all(
        part.redone_by == {"mla_up_proj"} for part in parts if part.name == "latent up projection"
    )


def test_ring_of_keys_and_values() -> None:
    """cp = 4 in a node: 3 messages of 512 tokens' keys and values (4 heads of 64 each, 2 bytes),
    and twice that backward."""
    parts = attention_parts(site(LLAMA, cp=4), SELF)
    hop = 1e-6 + 512 * 4 * 128 * 2 / 400e9
    ring = named(parts, "context parallel exchange")
    assert ring.forward_s == pytest.approx(3 * hop)
    assert ring.backward_s == pytest.approx(6 * hop)
    assert "context parallel exchange" not in [
        part.name for part in attention_parts(site(LLAMA), SELF)
    ]


def test_a_ring_that_leaves_the_node_uses_the_network() -> None:
    ring = named(attention_parts(site(LLAMA, tp=4, cp=4), SELF), "context parallel exchange")
    assert ring.forward_s == pytest.approx(3 * (4e-6 + 512 * 1 * 128 * 2 / 40e9))


def test_keys_gathered_at_once_are_there_before_the_second_step() -> None:
    """cp = 4: 3 messages of 512 tokens, 16 heads and not 4 of keys and values, behind one step of
    four; fp32 gradients, twice as large, pass round behind three others."""
    gather = replace(STACK, context_exchange="gather")
    hop, wide = (1e-6 + 512 * 16 * 128 * size / 400e9 for size in (2, 4))
    shown = named(
        attention_parts(site(LLAMA, cp=4, stack=gather), SELF), "context parallel exchange"
    )
    assert shown.forward_s == pytest.approx(3 * hop)
    assert shown.backward_s == pytest.approx(3 * hop + 3 * wide)
    long = replace(WORK, seq_len=16384)
    parts = attention_parts(site(LLAMA, long, cp=4, stack=replace(gather, cp_overlap=1.0)), SELF)
    core, hidden = (named(parts, name) for name in ("attention core", "context parallel exchange"))
    hop, wide = (1e-6 + 4096 * 16 * 128 * size / 400e9 for size in (2, 4))
    assert hidden.forward_s == pytest.approx(np.maximum(0.0, 3 * hop - core.forward_s / 4))
    again = np.maximum(0.0, 3 * hop - core.backward_s / 4)
    assert hidden.backward_s == pytest.approx(
        again + 3 * np.maximum(0.0, wide - core.backward_s / 4)
    )


def test_a_ring_hides_behind_the_core() -> None:
    hidden = site(LLAMA, replace(WORK, seq_len=262144), cp=4, stack=replace(STACK, cp_overlap=1.0))
    assert named(attention_parts(hidden, SELF), "context parallel exchange").forward_s == 0


def test_cross_attention_keeps_the_encoders_keys() -> None:
    """T5 small, 512 tokens in and 128 out: queries of 128 tokens, keys and values of 512, each 512
    wide in 2 bytes."""
    work = Workload(seq_len=512, decoder_seq_len=128)
    cross = Block(kind="cross_attention", stream="decoder", causal=False)
    parts = attention_parts(site(find_model("t5-small"), work), cross)
    assert saved(named(parts, "queries, keys and values")) == (128 * 512 + 512 * 2 * 512) * 2


def test_ring_is_worked_in_pieces() -> None:
    """cp = 4: the same products as on one rank of four, but each kernel sees a quarter of the keys,
    and three merges follow."""
    whole, ring = (attention_parts(site(LLAMA, cp=cp), SELF) for cp in (1, 4))
    core_whole, core_ring = (named(parts, "attention core") for parts in (whole, ring))
    assert float(core_ring.forward_s[0]) > float(core_whole.forward_s[0]) / 4
    merge = named(ring, "context parallel merge")
    assert float(np.asarray(merge.kernels_forward)[0]) == 6
    assert merge.backward_s - merge.forward_s == pytest.approx(3 * (3 - 2) * 2e-6)
    assert all(part.name != "context parallel merge" for part in whole)


@pytest.mark.parametrize(
    ("attention", "kept_per_score"), [("fused-softmax", 4.0), ("unfused", 4.0)]
)
def test_scores_in_fp32_are_kept_in_fp32(attention: AttentionKernel, kept_per_score: float) -> None:
    """The softmax's output alone, 4 bytes; dropout adds a mask of 1 and a copy of 4."""
    plain = replace(WORK, attention=attention, precision="fp32")
    assert saved(core(site(GPT, plain))) == SSA * kept_per_score
    assert saved(core(site(GPT, replace(plain, dropout=True)))) == SSA * (kept_per_score + 5)


def test_a_fused_softmax_moves_twice_as_much_in_fp32() -> None:
    """Of each score 2 * (4 - 1) bytes forward for 4 - 1; the products, at another speed, are not
    compared."""
    half, full = (
        core(site(GPT, replace(WORK, attention="fused-softmax", precision=p)))
        for p in ("bf16", "fp32")
    )
    products = (
        (2 + 2) * SSA * 2
    )  # each product's own pass over the scores counts in moved_bytes too
    operands = half.moved_bytes - 3 * SSA - products / 2
    assert full.moved_bytes - 6 * SSA - products == pytest.approx(2 * operands)


@pytest.mark.parametrize(
    ("linear", "attention"),
    [("fp8", "bf16"), ("nvfp4", "bf16"), ("bf16", "bf16"), ("fp16", "fp16"), ("tf32", "tf32")],
)
def test_attention_stays_in_half_precision(linear: Precision, attention: Precision) -> None:
    assert half_precision(site(GPT, replace(WORK, precision=linear))) == attention


def test_a_window_is_not_passed_on_a_ring() -> None:
    """Over cp = 4 a model with a window pays what software that swaps tokens for heads pays;
    without one, a ring's exchange."""
    swapping = replace(STACK, context_exchange="all-to-all")

    def exchange(model: ModelSpec, stack: Stack) -> Part:
        parts = attention_parts(
            site(model, stack=stack, cp=4, dp=1), Block(kind="attention", window=model.window)
        )
        return named(parts, "context parallel exchange")

    for model in (replace(LLAMA, window=512), replace(LLAMA, attention_sinks=True)):
        assert exchange(model, STACK).forward_s == exchange(model, swapping).forward_s
    assert exchange(LLAMA, STACK).forward_s != exchange(LLAMA, swapping).forward_s


def test_rotations_with_a_factor_run_kernel_by_kernel() -> None:
    """2048 tokens with 16 + 4 heads of 64: 24 bytes an element forward, 28 backward, in 26 and 16
    kernels, where the software has no fused kernel for them; elsewhere, and without the factor, 4
    bytes in two kernels."""
    yarn = replace(LLAMA, rotation_has_factor=True)
    plain = replace(STACK, rotation_factor_fused=False)
    elements = 2048 * 20 * 64
    rotary = named(attention_parts(site(yarn, stack=plain), SELF), "rotary")
    assert rotary.forward_s == pytest.approx(elements * 24 / MEMORY_BYTES_PER_S + 26 * 2e-6)
    assert rotary.backward_s == pytest.approx(elements * 28 / MEMORY_BYTES_PER_S + 16 * 2e-6)
    for model, stack in ((yarn, STACK), (LLAMA, plain)):
        fused = named(attention_parts(site(model, stack=stack), SELF), "rotary")
        assert fused.forward_s == pytest.approx(elements * 4 / MEMORY_BYTES_PER_S + 2 * 2e-6)


def test_norms_of_queries_and_keys_are_kernels_of_their_own() -> None:
    """2048 tokens of 16 + 4 heads of 64, 2 bytes: a read and a write forward, two reads and a write
    backward, and the input is kept; a compiler joins them to rotary's two passes."""
    normed = replace(LLAMA, qk_norm=True)
    parts = {part.name: part for part in attention_parts(site(normed), SELF)}
    size = 2048 * 20 * 64 * 2
    norms = parts["query and key norms"]
    assert norms.forward_s == pytest.approx(2 * size / MEMORY_BYTES_PER_S + 2 * 2e-6)
    assert norms.backward_s == pytest.approx(3 * size / MEMORY_BYTES_PER_S + 2 * 2e-6)
    assert saved(norms) == size
    plain = {part.name for part in attention_parts(site(LLAMA), SELF)}
    assert set(parts) - plain == {"query and key norms"}
    compiled = replace(STACK, query_norms_joined=True)
    assert {part.name for part in attention_parts(site(normed, stack=compiled), SELF)} == plain


def test_a_short_window_is_as_slow_as_the_short_sequences_that_it_cuts() -> None:
    """On an H100's measured table, per product: a window of 128 makes every 128 queries see 256
    keys, as 16 sequences of 256 do that see each other whole; a window of a quarter of the sequence
    hardly loses anything; one as long as the sequence is none.
    """
    pool = replace(POOL, node=default_node("h100"))

    def seconds(seq_len: int, window: int | None = None, **changes: Any) -> float:
        place = site(
            replace(LLAMA, head_dim=128), replace(WORK, seq_len=seq_len), pool=pool, **changes
        )
        return float(core(place, Block(kind="attention", window=window)).forward_s[0])

    whole = seconds(4096)
    share = 256 / (2048 + 64)
    assert seconds(4096, 128) > 1.3 * share * whole
    assert seconds(4096, 4096) == whole
    long, share = seconds(65536), (16384 + 128) / (32768 + 64)
    assert seconds(65536, 16384) == pytest.approx(share * long, rel=0.1)
    windows = [seconds(4096, window) for window in (64, 256, 1024, 2048)]
    assert windows == sorted(windows)


@pytest.mark.parametrize(
    ("exchange", "changes", "steps"),
    [
        ("ring", {}, 4),
        ("gather", {}, 4),
        ("all-to-all", {}, 1),
        ("ring", {"window": 256}, 1),
        ("ring", {"attention_sinks": True}, 1),
    ],
)
def test_tokens_are_swapped_for_heads_by_the_software_or_where_no_ring_goes(
    exchange: Any, changes: dict[str, Any], steps: int
) -> None:
    """A ring of 4 takes its keys in 4 pieces, and merges 4 outputs; after a swap every rank has all
    keys of its heads."""
    place = site(replace(LLAMA, **changes), stack=replace(STACK, context_exchange=exchange), cp=4)
    assert ring_steps(place).tolist() == [steps]
    found = context_parts(place, SELF, core(place))
    names = [part.name for part in found]
    assert names == ["context parallel merge"] * (steps > 1) + ["context parallel exchange"]


def test_packed_samples_see_their_own_keys() -> None:
    """8 samples of 256 in 2048 tokens: fused, the keys and the time of 8 sequences of 256;
    scores in memory are masked, not skipped."""
    packed = replace(WORK, sample_len=256)
    assert scores_per_query(site(LLAMA, packed), SELF) == 256 / 2 + 64
    assert scores_per_query(site(LLAMA), SELF) == 2048 / 2 + 64
    many = core(site(LLAMA, replace(WORK, seq_len=256), mbs=8))
    one = core(site(LLAMA, packed))
    assert one.forward_s == pytest.approx(many.forward_s)
    assert one.saved_bytes == pytest.approx(many.saved_bytes)
    unfused = replace(WORK, attention="fused-softmax")
    assert (
        core(site(LLAMA, replace(unfused, sample_len=256))).forward_s
        == core(site(LLAMA, unfused)).forward_s
    )


def test_packed_samples_are_so_many_sequences_in_a_table() -> None:
    """On an H100's measured table 16 samples of 512 take what 16 sequences of 512 take."""
    pool = replace(POOL, node=default_node("h100"))
    model = replace(LLAMA, head_dim=128)
    long = replace(WORK, seq_len=8192, sample_len=512)
    short = site(model, replace(WORK, seq_len=512), pool=pool, mbs=16)
    packed = core(site(model, long, pool=pool)).forward_s
    assert packed == pytest.approx(core(short).forward_s)


def test_attention_in_8_bits_is_cast_and_keeps_a_byte() -> None:
    """2048 tokens with 16 + 2 * 4 heads of 64: 3 bytes each are moved forward, 3 of the output's
    gradient backward; the kernels gain 1.22 and 1.16; half precision stays as it is."""
    eight, work = replace(STACK, attention_in_8_bits=True), replace(WORK, precision="fp8")
    plain, narrow = (core(site(LLAMA, work, stack=stack)) for stack in (STACK, eight))
    cast = 3 * 2048 * (16 + 2 * 4) * 64 / MEMORY_BYTES_PER_S + 2e-6
    back = 3 * 2048 * 16 * 64 / MEMORY_BYTES_PER_S + 2e-6
    assert narrow.forward_s == pytest.approx((plain.forward_s - 2e-6) / 1.22 + cast + 2e-6)
    assert narrow.backward_s == pytest.approx((plain.backward_s - 6e-6) / 1.16 + back + 6e-6)
    assert core_saved(site(LLAMA, work, stack=eight), SELF) == 2048 * (16 + 2 * 4) * 64
    half = replace(work, precision="bf16")
    assert core(site(LLAMA, half, stack=eight)).forward_s == plain.forward_s
