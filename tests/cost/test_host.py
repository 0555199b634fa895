"""What waits on a server's host, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost.host import (
    hosted_bytes,
    hosted_update_s,
    paged_s,
    weights_from_host_s,
)
from meshwright.cost.stages import place_stages
from meshwright.cost.states import EIGHT_BIT_MOMENTS, data_shards, split, states_of
from meshwright.cost.weights import StageParams, stage_params
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Host, Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import model_params
from meshwright.values.stack import Stack, find_stack
from meshwright.values.workload import Workload

HOST = Host(memory_bytes=2**38, memory_bytes_per_s=1e11, nvme_bytes=1e12, nvme_bytes_per_s=8e9)
NODE = replace(default_node("rtx-4090"), host=HOST)
CHIP = replace(NODE.chip, host_bytes_per_s=2e10)
POOL = Pool(node=replace(NODE, chip=CHIP), num_chips=2)
MODEL = named_model("llama3.1-8b")
WORK = Workload(seq_len=2048, gbs=16)
TRL, DEEPSPEED = find_stack("trl"), find_stack("deepspeed")
PARAMS = 8_030_261_248
"""Of Llama-3.1-8B (its model card says 8B; counted in tests/values/models)."""


def columns(**given: object) -> Layouts:
    return Layouts.of([Layout(**{"dp": 2, "gbs": 16, "sharding": "zero3", **given})])  # type: ignore[arg-type]  # words of a layout


def held(layouts: Layouts, stack: Stack) -> StageParams:
    return stage_params(MODEL, stack, layouts, place_stages(layouts, MODEL))


def test_fsdp_keeps_sixteen_bytes_a_parameter_in_main_memory() -> None:
    """fp32 weights, gradients and two moments of two ranks on one host."""
    layouts = columns(offload="weights")
    params = held(layouts, TRL)
    memory, drives = hosted_bytes(layouts, params, model=MODEL, work=WORK, stack=TRL, pool=POOL)
    assert model_params(MODEL).total == PARAMS
    assert memory[0] == pytest.approx(16 * PARAMS, rel=1e-3)
    assert drives[0] == 0.0


def test_deepspeed_estimates_the_same() -> None:
    """estimate_zero2_model_states_mem_needs: parameters * max(4 * gpus, 16) * 1.5; with weights on
    the host too, estimate_zero3_model_states_mem_needs: 18 * 1.5."""
    for layout, each in (
        (columns(sharding="zero2", offload="optimizer"), 16),
        (columns(offload="weights"), 18),
    ):
        memory, _ = hosted_bytes(
            layout, held(layout, DEEPSPEED), model=MODEL, work=WORK, stack=DEEPSPEED, pool=POOL
        )
        assert memory[0] == pytest.approx(1.5 * each * PARAMS, rel=1e-3)


def test_drives_hold_all_but_the_buffers() -> None:
    layouts = columns(offload="weights-nvme")
    memory, drives = hosted_bytes(
        layouts, held(layouts, DEEPSPEED), model=MODEL, work=WORK, stack=DEEPSPEED, pool=POOL
    )
    assert drives[0] == pytest.approx(18 * PARAMS, rel=1e-3)
    assert memory[0] == pytest.approx(0.5 * 18 * PARAMS, rel=1e-3)


def test_chips_keep_neither_states_nor_weights_that_wait() -> None:
    for offload, weights in (("none", 4 / 2), ("weights", 0.0)):
        layouts = columns(offload=offload)
        params = held(layouts, TRL)
        states = states_of(layouts, params, model=MODEL, work=WORK, stack=TRL, chip=CHIP)
        assert states.weights.max() == pytest.approx(weights * PARAMS, rel=1e-3)
        assert (states.optimizer.max() == 0.0) == (offload == "weights")
        assert (states.gradients.max() == 0.0) == (offload == "weights")


def test_a_host_updates_at_the_rate_of_its_memory() -> None:
    """1e9 parameters a rank, two ranks: 30 bytes each at 0.8 * 100 GB/s = 0.75 s; gradients of 2
    bytes and halves of 2 over 20 GB/s = 0.2 s; from drives of 4 GB/s a rank 12 twice: 6 s."""
    updated = np.array([1e9])
    seconds = [
        hosted_update_s(columns(offload=offload), updated, pool=POOL, stack=DEEPSPEED)[0]
        for offload in ("optimizer", "weights", "weights-nvme")
    ]
    assert seconds == pytest.approx([0.75 + 0.2, 0.75, 0.75 + 6.0])


def test_weights_come_over_the_link_or_from_the_drives() -> None:
    """1e8 parameters of 2 bytes: 10 ms over 20 GB/s, 50 ms from 4 GB/s of drives a rank."""
    for offload, seconds in (("none", 0.0), ("weights", 0.01), ("weights-nvme", 0.05)):
        layouts = columns(offload=offload)
        found = weights_from_host_s(layouts, np.array([1e8]), 2.0, pool=POOL)
        assert found[0] == pytest.approx(seconds)


def test_eight_bit_moments_leave_embeddings_as_they_are() -> None:
    """Two moments of one byte, and two fp32 scales a block of 256; the untied embedding's moments
    stay fp32; paged ones wait in main memory and cross the link twice a step."""
    assert pytest.approx(2.03125) == EIGHT_BIT_MOMENTS
    plain, eight, paged = (
        columns(sharding="none", optimizer=word)
        for word in ("adam", "adam-8bit", "paged-adam-8bit")
    )
    params = held(eight, TRL)
    updated = split(params, data_shards(eight, TRL).optimizer)
    embedding = 128_256 * 4096
    found = [
        states_of(each, params, model=MODEL, work=WORK, stack=TRL, chip=CHIP).optimizer.max()
        - 4 * updated.max()
        for each in (plain, eight, paged)
    ]
    moments = EIGHT_BIT_MOMENTS * (PARAMS - embedding) + 8 * embedding
    assert found == pytest.approx([8 * PARAMS, moments, 0.0], rel=1e-3, abs=1.0)
    assert paged_s(paged, np.array([1e9]), pool=POOL)[0] == pytest.approx(2 * 2.03125e9 / 2e10)
