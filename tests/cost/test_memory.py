"""Memory of each stage on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import CHIP, LLAMA, MOE, POOL, STACK, WORK

from meshwright.cost.memory import (
    MEMORY_TERMS,
    Activations,
    Memory,
    activation_bytes,
    price_memory,
    redone_share,
)
from meshwright.cost.stages import Floats, place_stages
from meshwright.cost.states import data_shards
from meshwright.cost.step import price
from meshwright.cost.weights import stage_params
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.adapters import adapter_params
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack, find_stack
from meshwright.values.workload import Precision, Workload

PARAMS = model_params(LLAMA).total
HALF_GRADIENTS = replace(STACK, gradient_bytes=2.0, reduce_bytes=2.0)
"""The gradients of arXiv:1910.02054; Megatron keeps fp32 ones."""


def acts(**given: float) -> Activations:
    """Round numbers for one layer of a model of one segment."""
    sizes = {
        "kept": 100.0,
        "after_selective": 60.0,
        "inputs": 10.0,
        "widest": 7.0,
        "head_saved": 5.0,
        "loss_peak": 50.0,
        "loss_saved": 20.0,
        "boundary": 3.0,
        "gathered": 6.0,
    }
    sizes |= given
    layer: dict[str, tuple[Floats, ...]] = {
        n: (np.array([sizes[n]]),) for n in ("kept", "after_selective", "inputs", "widest")
    }
    head: dict[str, Floats] = {
        n: np.array([sizes[n]])
        for n in ("head_saved", "loss_peak", "loss_saved", "boundary", "gathered")
    }
    return Activations(**layer, **head)  # type: ignore[arg-type]


def _pool(chip: Chip) -> Pool:
    return replace(POOL, node=replace(POOL.node, chip=chip))


def memory(
    model: ModelSpec = LLAMA,
    *,
    stack: Stack = STACK,
    work: Workload = WORK,
    chip: Chip = CHIP,
    widest: float = 7.0,
    **layout: Any,
) -> Memory:
    layouts = Layouts.of([Layout(gbs=1024, **layout)])
    stages = place_stages(layouts, model, which="all")
    params = stage_params(model, stack, layouts, stages)
    return price_memory(
        layouts,
        stages,
        params,
        acts(widest=widest),
        model=model,
        work=work,
        stack=stack,
        pool=_pool(chip),
    )


def states(**given: Any) -> tuple[float, float, float]:
    """Bytes per parameter: weights, gradients, optimizer."""
    terms = memory(**given).terms
    weights, gradients, optimizer = (
        float(terms[name].sum()) / PARAMS for name in ("weights", "gradients", "optimizer")
    )
    return weights, gradients, optimizer


def held(recompute: str = "none", *, pp: int = 4, **layout: Any) -> tuple[list[float], list[float]]:
    """Kept activations and workspace of the stages of 8 layers."""
    layouts = Layouts.of([Layout(pp=pp, gbs=8, recompute=recompute, **layout)])  # type: ignore[arg-type]
    stages = place_stages(layouts, replace(LLAMA, num_layers=8), which="all")
    kept, workspace = activation_bytes(layouts, stages, acts(), model=replace(LLAMA, num_layers=8))
    return [float(v) for v in kept[0]], [float(v) for v in workspace[0]]


def test_sixteen_bytes_a_parameter() -> None:
    """arXiv:1910.02054, section 3.1: 2 weights, 2 gradients, 12 optimizer; Megatron's fp32
    gradients make it 18."""
    assert states(stack=HALF_GRADIENTS, dp=8) == pytest.approx((2, 2, 12))
    assert states(dp=8) == pytest.approx((2, 4, 12))


def test_zero_stages_of_table_1() -> None:
    """arXiv:1910.02054, table 1 and figure 1, on 64 ranks: 4 + 12 / N, 2 + 14 / N; for 7.5 B
    parameters 31.4 and 16.6 GB."""
    assert states(stack=HALF_GRADIENTS, dp=64, sharding="zero1") == pytest.approx((2, 2, 12 / 64))
    assert states(stack=HALF_GRADIENTS, dp=64, sharding="zero2") == pytest.approx(
        (2, 2 / 64, 12 / 64)
    )
    assert 7.5 * sum(states(stack=HALF_GRADIENTS, dp=64, sharding="zero1")) == pytest.approx(
        31.4, abs=0.01
    )
    assert 7.5 * sum(states(stack=HALF_GRADIENTS, dp=64, sharding="zero2")) == pytest.approx(
        16.6, abs=0.05
    )


def test_fsdp_keeps_fp32_shards() -> None:
    """arXiv:2304.11277: sharded fp32 weights and gradients and two moments; 16 / N in all, 1.9 GB
    for 7.5 B parameters on 64 ranks."""
    assert states(dp=64, sharding="zero3") == pytest.approx((4 / 64, 4 / 64, 8 / 64))
    assert 7.5 * sum(states(dp=64, sharding="zero3")) == pytest.approx(1.9, abs=0.05)


def test_context_parallel_ranks_share_states() -> None:
    assert states(dp=4, cp=2, sharding="zero1") == pytest.approx((2, 4, 12 / 8))


def test_hybrid_shards_within_its_groups() -> None:
    assert states(dp=64, sharding="hybrid", shard_size=8) == pytest.approx((4 / 8, 4 / 8, 8 / 8))
    assert states(dp=64, sharding="hybrid", shard_size=64) == states(dp=64, sharding="zero3")


def test_single_precision_keeps_one_copy() -> None:
    """4 weights, 4 gradients, 8 moments."""
    assert states(work=replace(WORK, precision="fp32"), dp=8) == pytest.approx((4, 4, 8))
    assert states(work=replace(WORK, precision="fp32"), dp=8, sharding="zero3") == pytest.approx(
        (0.5, 0.5, 1)
    )


def test_a_second_gradient_passes() -> None:
    """Two bytes of half-precision gradient beside the fp32 sum, in the buckets of a reduction; a
    lone replica has none."""
    stack = replace(STACK, transient_gradient_bytes=2.0)
    assert states(stack=stack, dp=8) == pytest.approx((2, 4 + 2, 12))
    assert states(stack=stack) == pytest.approx((2, 4, 12))


def test_narrow_weights_are_cached_beside_the_half_ones() -> None:
    """By rows and by columns, a byte each in fp8, of all but embedding and head; half precision
    caches nothing."""
    cached, ends = replace(STACK, narrow_weight_copies=2.0), 2 * LLAMA.vocab * LLAMA.hidden
    assert states(stack=cached, work=replace(WORK, precision="fp8"))[0] == pytest.approx(
        2 + 2 * (PARAMS - ends) / PARAMS
    )
    assert states(stack=cached)[0] == pytest.approx(2)


def test_layers_beside_adapters_in_four_bits() -> None:
    """Half a byte a weight of layers and norms; embedding and head keep two."""
    four_bits = (
        memory(stack=replace(STACK, frozen_weight_bytes=0.5), work=replace(WORK, lora_rank=16))
        .terms["weights"]
        .sum()
    )
    ends = 2 * LLAMA.vocab * LLAMA.hidden
    assert four_bits == pytest.approx(0.5 * (PARAMS - ends) + 2 * ends)


def test_frozen_weights_in_8_bits_have_a_copy_for_each_orientation() -> None:
    """One on Blackwell, two on Hopper, whose products need the transpose; 2 bytes in half."""
    own, work = replace(STACK, narrow_param_gather=True), replace(WORK, lora_rank=16)
    ends = 2 * LLAMA.vocab * LLAMA.hidden

    def each(generation: str, precision: Precision) -> float:
        chip = replace(CHIP, generation=generation)
        terms = memory(stack=own, work=replace(work, precision=precision), chip=chip).terms
        return float((terms["weights"].sum() - 2 * ends) / (PARAMS - ends))

    assert each("blackwell", "fp8") == pytest.approx(1)
    assert each("hopper", "fp8") == pytest.approx(2)
    assert each("blackwell", "bf16") == each("blackwell", "mxfp8") == pytest.approx(2)


def test_adapters_alone_have_gradients_and_states() -> None:
    work = replace(WORK, lora_rank=16)
    learning = adapter_params(LLAMA, work) / PARAMS
    assert 0 < learning < 0.05
    assert states(work=work) == pytest.approx((2, 4 * learning, 12 * learning))


def test_experts_are_shared_by_fewer_ranks() -> None:
    """dp = 8, ep = 4: each expert has two replicas, everything else eight."""
    experts = 4 * 8 * 3 * 1024 * 512
    dense = model_params(MOE).total - experts
    terms = memory(MOE, dp=8, ep=4, sharding="zero1").terms
    assert terms["optimizer"].sum() == pytest.approx(12 * (dense / 8 + experts / 4 / 2))
    shards = data_shards(Layouts.of([Layout(dp=8, ep=8, gbs=8, sharding="zero3")]), STACK)
    assert [
        float(array[0, 0]) for array in (*shards.weights, *shards.gradients, *shards.optimizer)
    ] == [8, 1, 8, 1, 8, 1]


def test_experts_of_two_groups_of_shards_are_shared_within_each() -> None:
    """dp = 8, ep = 2: four replicas of an expert, two in each of two groups of four shards; with ep
    = 4 one in each."""
    found = [
        data_shards(
            Layouts.of([Layout(dp=8, ep=ep, gbs=8, sharding="zero1", shard_size=4)]), STACK
        ).optimizer
        for ep in (1, 2, 4)
    ]
    assert [(float(dense[0, 0]), float(expert[0, 0])) for dense, expert in found] == [
        (4, 4),
        (4, 2),
        (4, 1),
    ]


def test_one_f_one_b_holds_activations_in_flight() -> None:
    """2 layers of 100 bytes for 4, 3, 2 and 1 micro batches; while one works, its widest part."""
    assert held() == ([800, 600, 400, 200], [7] * 4)
    assert held(pp=1) == ([800], [7])


def test_interleaving_holds_more_of_them() -> None:
    """11, 9, 7, 5 chunks of one layer."""
    assert held(vpp=2) == ([1100, 900, 700, 500], [7] * 4)


def test_selective_recompute_keeps_what_it_does_not_redo() -> None:
    assert held("selective", recompute_modules=("mlp",)) == ([480, 360, 240, 120], [40 + 7] * 4)


def test_full_recompute_keeps_inputs_and_works_on_one_layer() -> None:
    assert held("full") == ([80, 60, 40, 20], [100 + 7] * 4)


def test_full_recompute_in_units_of_two_layers() -> None:
    """One input per unit, and the whole unit while it is redone (Megatron-Core, --recompute-method
    uniform)."""
    assert held("full", recompute_layers=2) == ([40, 30, 20, 10], [200 + 7] * 4)


def test_block_recompute_redoes_the_first_layers_of_a_chunk() -> None:
    """Of 2 layers a stage one keeps its input, the other everything (--recompute-method block)."""
    assert held("full", recompute_method="block", recompute_layers=1) == (
        [440, 330, 220, 110],
        [100 + 7] * 4,
    )
    assert held("full", recompute_method="block", recompute_layers=0)[0] == held()[0]
    assert held("full", recompute_method="block", recompute_layers=2) == held("full")


def test_share_of_layers_that_are_redone() -> None:
    layouts = Layouts.of(
        [
            Layout(pp=2, gbs=8, recompute="full"),
            Layout(pp=2, gbs=8, recompute="full", recompute_method="block", recompute_layers=1),
            Layout(
                pp=2, vpp=2, gbs=8, recompute="full", recompute_method="block", recompute_layers=1
            ),
            Layout(pp=2, gbs=8, recompute="selective", recompute_modules=("mlp",)),
            Layout(pp=2, gbs=8),
        ]
    )
    stages = place_stages(layouts, replace(LLAMA, num_layers=8), which="all")
    assert redone_share(layouts, stages).tolist() == [
        [1, 1],
        [0.25, 0.25],
        [0.5, 0.5],
        [0, 0],
        [0, 0],
    ]


def test_head_and_loss_lie_on_the_last_stage() -> None:
    terms = memory(pp=4).terms
    assert terms["logits"].tolist() == [[0, 0, 0, 50]]
    assert terms["activations"].tolist() == [[400, 300, 200, 100 + 5]]


def test_loss_is_over_before_the_first_layer_works_back() -> None:
    """Logits of 50 and a workspace of 7 never meet; of one of 80 only what goes beyond them
    counts."""
    assert memory(pp=4).terms["recompute_workspace"].tolist() == [[7, 7, 7, 0]]
    assert memory(pp=4, widest=80.0).terms["recompute_workspace"].tolist() == [
        [80, 80, 80, 80 - 50]
    ]


def test_libraries_keep_a_workspace_for_each_handle() -> None:
    """Two of torch's threads and Transformer Engine; a deterministic run enlarges torch's two."""
    chip = replace(CHIP, gemm_workspace_bytes=8.0)
    assert memory(chip=chip, stack=replace(STACK, library_workspaces=3.0)).terms[
        "libraries"
    ].tolist() == [[24]]
    large = replace(STACK, library_workspaces=3.0, thread_workspace_bytes=32.0)
    assert memory(chip=chip, stack=large).terms["libraries"].tolist() == [[32 + 32 + 8]]
    assert memory(chip=replace(chip, gemm_workspace_bytes=32.0), stack=large).terms[
        "libraries"
    ].tolist() == [[96]]
    assert memory().terms["libraries"].tolist() == [[0]]


def test_grouped_products_of_experts_have_workspaces_of_their_own() -> None:
    chip, stack = (
        replace(CHIP, gemm_workspace_bytes=8.0),
        replace(STACK, library_workspaces=3.0, grouped_workspaces=4.0),
    )
    assert memory(chip=chip, stack=stack).terms["libraries"].tolist() == [[24]]
    assert memory(MOE, chip=chip, stack=stack).terms["libraries"].tolist() == [[24 + 32]]


def test_losses_of_further_tokens_wait_for_their_backward_pass() -> None:
    """Two modules beside the head: two softmaxes of 20 are kept while the third loss takes its
    50."""
    layouts, model = Layouts.of([Layout(pp=4, gbs=1024)]), replace(LLAMA, mtp_layers=2)
    stages, two = place_stages(layouts, model, which="all"), acts()
    two = replace(
        two,
        **{
            name: 2 * getattr(two, name) for name in ("kept", "after_selective", "inputs", "widest")
        },
    )
    params = stage_params(model, STACK, layouts, stages)
    found = price_memory(
        layouts, stages, params, two, model=model, work=WORK, stack=STACK, pool=POOL
    )
    assert found.terms["logits"].tolist() == [[0, 0, 0, 50 + 2 * 20]]


def test_half_weights_may_be_the_upper_part_of_the_fp32_ones() -> None:
    assert states(stack=replace(STACK, master_bytes=2.0), dp=8) == pytest.approx((2, 4, 8 + 2))
    assert states(stack=replace(STACK, master_bytes=2.0), dp=8, sharding="zero1") == pytest.approx(
        (2, 4, (8 + 2) / 8)
    )


def test_messages_of_a_pipeline_have_buffers() -> None:
    """One in, one out, per chunk."""
    assert memory(pp=4).terms["communication"].tolist() == [[6] * 4]
    assert memory(pp=2, vpp=2).terms["communication"].tolist() == [[12] * 2]
    assert memory().terms["communication"].tolist() == [[0]]


def test_buffers_made_ahead_are_one_for_each_micro_batch_and_end_that_receives() -> None:
    """By hand: 8 micro batches, messages of 3; the first stage receives gradients alone (8), the
    second 16 less the one input that its micro batch in flight keeps, the last of 1F1B forwards
    alone; with two chunks a stage has one end more on each side.
    """
    ahead = replace(STACK, messages_ahead=True)
    assert memory(pp=2, mbs=128, stack=ahead).terms["communication"].tolist() == [
        [3 * 8, 3 * (8 - 1)]
    ]
    assert memory(pp=4, mbs=128, stack=ahead).terms["communication"].tolist() == [
        [3 * 8, 3 * (16 - 3), 3 * (16 - 2), 3 * (8 - 1)]
    ]
    first, last = memory(pp=2, vpp=2, mbs=128, stack=ahead).terms["communication"].tolist()[0]
    assert first == 3 * 24
    assert 3 * 16 < last < 3 * 24
    assert memory(pp=1, mbs=128, stack=ahead).terms["communication"].tolist() == [[0]]
    assert [
        name
        for name in ("torchtitan", "embedded", "megatron", "nanotron")
        if find_stack(name).messages_ahead
    ] == [
        "torchtitan",
        "embedded",
    ]


def test_a_gathered_input_may_stay() -> None:
    """Two messages of 3 and one copy of 6."""
    assert memory(pp=4, stack=replace(STACK, gathered_copies=1.0)).terms[
        "communication"
    ].tolist() == [[6 + 6] * 4]


def test_inputs_are_gathered_over_a_sequence_parallel_group() -> None:
    """2048 tokens of 1024 in two bytes."""
    stack = replace(STACK, gathered_copies=1.0)

    def buffer(**layout: Any) -> float:
        layouts = Layouts.of([Layout(gbs=8, **layout)])
        found = price(
            layouts, model=LLAMA, pool=POOL, work=WORK, stack=stack, which="all"
        ).memory.terms["communication"]
        return float(found[0, 0])

    assert [buffer(), buffer(tp=4), buffer(tp=4, sp=True)] == [0, 0, 2 * 2048 * 1024]


def test_full_sharding_gathers_two_layers_of_weights_and_reduces_one_of_gradients() -> None:
    """Mean layer of four: 2 * 2 bytes of half weights, and the reduction's 4."""
    ends = 2 * LLAMA.vocab * LLAMA.hidden
    by_hand = (PARAMS - ends) / 4 * (2 * 2 + 4) + ends * (2 + 4)
    assert memory(dp=8, sharding="zero3").terms["communication"].sum() == pytest.approx(by_hand)


FREED = replace(STACK, family="fsdp", gradients_freed=True)


def fsdp_terms(*, micro_batches: int, stack: Stack = FREED, loss: float = 50.0) -> dict[str, float]:
    """Terms of one stage of 4 layers on 8 ranks, its activations 405 bytes."""
    layouts = Layouts.of([Layout(dp=8, gbs=8 * micro_batches, sharding="zero3")])
    stages = place_stages(layouts, LLAMA, which="all")
    params = stage_params(LLAMA, stack, layouts, stages)
    found = price_memory(
        layouts,
        stages,
        params,
        acts(loss_peak=loss),
        model=LLAMA,
        work=WORK,
        stack=stack,
        pool=POOL,
    )
    return {name: float(size.sum()) for name, size in found.terms.items()}


def test_a_large_loss_meets_no_gradients_of_its_own_step() -> None:
    """Weights of embedding and head stay gathered; gradients of 4 bytes a shard are there from the
    second micro batch on."""
    ends = 2 * LLAMA.vocab * LLAMA.hidden * 2
    first, later = fsdp_terms(micro_batches=1, loss=1e12), fsdp_terms(micro_batches=2, loss=1e12)
    assert (first["logits"], first["activations"], first["gradients"]) == (1e12, 405, 0)
    assert later["gradients"] == pytest.approx(PARAMS * 4 / 8)
    assert first["communication"] == later["communication"] == pytest.approx(ends)


def test_the_end_of_the_backward_pass_has_all_gradients_and_no_activations() -> None:
    """A loss of 50 bytes is nothing beside the gradients: they, the weights in work and a workspace
    of 7 are the peak."""
    ends = 2 * LLAMA.vocab * LLAMA.hidden
    found = fsdp_terms(micro_batches=1)
    assert (found["activations"], found["logits"], found["recompute_workspace"]) == (0, 0, 7)
    assert found["gradients"] == pytest.approx(PARAMS * 4 / 8)
    assert found["communication"] == pytest.approx(
        (PARAMS - ends) / 4 * (2 * 2 + 4) + ends * (2 + 4)
    )


def test_zero1_may_keep_gradients_in_shards() -> None:
    assert states(
        stack=replace(STACK, zero1_shards="states-and-gradients"), dp=8, sharding="zero1"
    ) == pytest.approx((2, 4 / 8, 12 / 8))


def test_a_deferred_reduction_keeps_gradients_whole() -> None:
    """4 bytes of each parameter on every rank, once there is more than one micro batch."""
    deferred = replace(FREED, reduction_deferred=True)
    assert fsdp_terms(micro_batches=2, stack=deferred)["gradients"] == pytest.approx(PARAMS * 4)
    assert fsdp_terms(micro_batches=1, stack=deferred) == fsdp_terms(micro_batches=1)


def test_a_deferred_reduction_beside_tensor_parallelism_needs_no_replica() -> None:
    """A mesh of one rank is wrapped where others hold parts of the layer: sums are as wide as the
    reduction. A lone GPU has no mesh."""

    def gradients(stack: Stack, tp: int) -> float:
        return float(
            memory(stack=stack, dp=1, tp=tp, mbs=512, sharding="zero3").terms["gradients"].sum()
        )

    deferred = replace(FREED, reduction_deferred=True, gradient_bytes=2.0)
    wide = replace(deferred, gradient_bytes=4.0)
    assert gradients(deferred, 1) == pytest.approx(PARAMS * 2)
    assert gradients(deferred, 2) == pytest.approx(gradients(wide, 2))


def test_a_deferred_reduction_keeps_gradients_whole_with_zero2_too() -> None:
    """2 bytes of each parameter where gradients are reduced in halves, until the last of several
    micro batches."""
    deferred = replace(FREED, reduction_deferred=True, reduce_bytes=2.0)
    gradients = [
        memory(stack=deferred, dp=8, mbs=128 // count, sharding="zero2").terms["gradients"].sum()
        for count in (1, 2)
    ]
    assert gradients == pytest.approx([PARAMS * 4 / 8, PARAMS * 2])


def test_buckets_of_gradients_are_copies_where_torchs_ddp_sends_them() -> None:
    copies = replace(STACK, transient_gradient_bytes=4.0)
    found = [
        states(stack=copies, dp=dp, sharding=kind)[1]
        for dp, kind in ((1, "none"), (8, "none"), (8, "zero2"), (8, "zero3"))
    ]
    assert found == pytest.approx([4, 8, 4 / 8, 4 / 8])


def test_buckets_on_their_way_to_other_ranks() -> None:
    """DeepSpeed's two of 100 bytes, one with zero3, none where nothing is sharded or nobody else
    is."""
    sent = replace(STACK, bucket_copies=2.0, bucket_bytes=100.0)
    pairs = ((8, "zero1"), (8, "zero2"), (8, "zero3"), (8, "none"), (1, "zero1"))
    found = [
        (memory(stack=kind, dp=dp, sharding=name).terms["communication"]).sum()
        for dp, name in pairs
        for kind in (sent, STACK)
    ]
    assert [
        with_them - without for with_them, without in zip(found[::2], found[1::2], strict=True)
    ] == pytest.approx([200, 200, 100, 0, 0])


def test_an_optimizer_may_be_cut_over_replicas_alone() -> None:
    """12 bytes over 4 replicas, whatever the ranks that share a context; over all 8 ranks else."""
    alone = replace(STACK, zero1_shards="states-over-dp")
    found = [states(stack=stack, dp=4, cp=2, sharding="zero1")[2] for stack in (alone, STACK)]
    assert found == pytest.approx([12 / 4, 12 / 8])


def test_an_optimizer_step_may_be_the_peak() -> None:
    """14 bytes of each updated parameter when activations are gone; a step that needs less than
    they and the loss did is none."""
    found = memory(stack=replace(STACK, step_bytes=14.0), dp=8, sharding="zero1").terms
    assert found["optimizer"].sum() == pytest.approx(PARAMS * (12 + 14) / 8)
    assert (
        found["activations"].sum(),
        found["logits"].sum(),
        found["recompute_workspace"].sum(),
    ) == (0, 0, 0)
    assert memory(stack=replace(STACK, step_bytes=1e-9), dp=8).terms["activations"].tolist() == [
        [405]
    ]


def test_fsdp_under_a_pipeline_keeps_its_stage_whole() -> None:
    """2 bytes of weights and 4 of gradients for each of the stage's parameters until the last micro
    batch, and two messages of 3 bytes."""
    fsdp = memory(stack=replace(STACK, family="fsdp"), pp=2, dp=4, sharding="zero3").terms[
        "communication"
    ]
    assert fsdp.sum() == pytest.approx(PARAMS * (2 + 4) + 2 * 6)


def test_matrices_gathered_one_by_one() -> None:
    """Two of hidden x ffn in half precision and the gradient of one, whatever the layer's other
    weights."""
    single = memory(stack=replace(STACK, gathered="matrix"), dp=8, sharding="zero3").terms[
        "communication"
    ]
    assert single.sum() == pytest.approx(LLAMA.hidden * LLAMA.ffn * (2 * 2 + 4), rel=1e-3)


def test_pure_half_precision() -> None:
    """2 weights, 2 gradients, two moments of 2."""
    pure = replace(STACK, master_bytes=0.0, moment_bytes=4.0, gradient_bytes=2.0)
    assert states(stack=pure, dp=8, sharding="zero3") == pytest.approx((2 / 8, 2 / 8, 4 / 8))
    assert states(stack=pure) == pytest.approx((2, 2, 4))


def test_activations_on_the_host_leave_the_device() -> None:
    def kept(recompute: str, **host: int) -> float:
        layouts = Layouts.of(
            [
                Layout(
                    gbs=1,
                    recompute=recompute,  # type: ignore[arg-type]
                    recompute_modules=("mlp",) if recompute == "selective" else (),
                )
            ]
        )
        priced = price(layouts, model=LLAMA, pool=POOL, work=WORK, stack=replace(STACK, **host))  # type: ignore[arg-type]
        return float(priced.memory.terms["activations"][0, 0])

    entries = 4 * 2048 * LLAMA.hidden * 2.0
    assert kept("full") - kept("full", offloads_inputs=True) == pytest.approx(entries)
    assert kept("selective", offloads_kept=True) == pytest.approx(kept("full"))
    assert kept("selective", offloads_inputs=True, offloads_kept=True) == pytest.approx(
        kept("full") - entries
    )
    head = 2 * entries / 4  # of one layer's size each: the last norm's input and the head's
    assert LLAMA.num_layers == 4
    assert kept("none", offloaded_layers=3) - head == pytest.approx((kept("none") - head) / 4)
    assert kept("none", offloaded_layers=9) == pytest.approx(head)


def test_slack_and_context_are_the_stacks() -> None:
    """Of what comes and goes in many pieces (4 layers of 100, head 5, and 10 of a workspace of 60
    beyond logits of 50) a tenth where its tensors pass through exchanges, and a quarter of that on
    a lone rank."""
    stack = replace(STACK, fragmentation_frac=0.1, context_bytes=9.0)
    terms = memory(widest=60.0, stack=stack).terms
    assert terms["slack"].tolist() == [[pytest.approx((400 + 5 + 10) / 40)]]
    assert terms["context"].tolist() == [[9]]
    exchanged = ({"tp": 2}, {"cp": 2}, {"dp": 2, "sharding": "zero3"})
    for layout in exchanged:
        assert memory(widest=60.0, stack=stack, **layout).terms["slack"].tolist() == [
            [pytest.approx((400 + 5 + 10) / 10)]
        ]
    assert memory(widest=60.0, stack=stack, dp=2, sharding="zero1").terms["slack"].tolist() == [
        [pytest.approx((400 + 5 + 10) / 40)]
    ]


def test_peaks_are_sums_of_terms() -> None:
    found = memory(
        stack=replace(STACK, fragmentation_frac=0.1, context_bytes=9.0),
        pp=4,
        dp=2,
        sharding="zero1",
    )
    assert set(found.terms) == set(MEMORY_TERMS)
    whole = np.sum([found.terms[name] for name in MEMORY_TERMS], axis=0)
    assert found.used == pytest.approx(whole)
    assert found.reserved == pytest.approx(whole - found.terms["context"])
    assert found.allocated == pytest.approx(whole - found.terms["context"] - found.terms["slack"])


def test_a_step_prices_its_layers_memory() -> None:
    """Llama layer, flash: norms 2 * 4 h, Q, K, V and output (16 + 8 + 16) 64 * 2, row sums 4 * 16,
    gate, value, product 3 * 2 * 3072."""
    layer = 2048 * (8 * 1024 + 2 * 64 * (16 + 8 + 16) + 4 * 16 + 3 * 2 * 3072)
    priced = price(
        Layouts.of([Layout(pp=4, gbs=8)]),
        model=LLAMA,
        pool=POOL,
        work=WORK,
        stack=STACK,
        which="all",
    )
    head = 4 * 2048 * 1024
    assert priced.memory.terms["activations"].tolist() == [
        [4 * layer, 3 * layer, 2 * layer, layer + head]
    ]
    assert priced.peak_used_bytes.tolist() == [priced.memory.used.max()]
