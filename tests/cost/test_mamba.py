"""Mixers on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.cases import CHIP, MEMORY_BYTES_PER_S, POOL, WORK, named, saved, site

from meshwright.cost.mamba import mamba_parts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import Block

RAMP_S = 2e-6


def test_a_mixer_is_linear_in_the_sequence() -> None:
    model = find_model("nemotron-h-8b")
    block = Block(kind="mamba")
    short, long = (
        mamba_parts(site(model, replace(WORK, seq_len=seq)), block) for seq in (8192, 16384)
    )
    scans = [named(parts, "state scan") for parts in (short, long)]
    assert scans[1].forward_s - 10e-6 == pytest.approx(2 * (scans[0].forward_s - 10e-6))  # 5 ramps
    assert sum(saved(part) for part in long) == 2 * sum(saved(part) for part in short)


def test_a_scan_is_no_faster_than_its_kernels() -> None:
    """128 heads, 2 * 128 * (128 + 64) + 4 * 128 * 64 FLOP a token and head: 15 % of 1e14 FLOP/s,
    47e12 FLOP/s on a chip of 1e15."""
    model, block = find_model("nemotron-h-8b"), Block(kind="mamba")
    flops = 2048 * 128 * (2 * 128 * 192 + 4 * 128 * 64)
    times = []
    for peak in (1e14, 1e15, 1e16):
        chip = replace(CHIP, bf16_flops_per_s=peak)
        at = site(model, pool=replace(POOL, node=replace(POOL.node, chip=chip)))
        times.append(float(named(mamba_parts(at, block), "state scan").forward_s[0]))
    assert times[0] - times[1] == pytest.approx(flops / 1.5e13 - flops / 4.7e13)
    assert times[1] == times[2]


def test_a_scan_works_back_by_its_kernels() -> None:
    """128 heads of 64, states of 128: with 128 tokens seen, products inside a chunk are made three
    times (each one's two gradients, and B by C again or the decays' gradients), states five times
    where forward makes them twice; the inputs cross memory twice as often, in 14 kernels for 5."""
    model, block = find_model("nemotron-h-8b"), Block(kind="mamba")
    scan = named(mamba_parts(site(model), block), "state scan")
    inside, across = 2 * 128 * (128 + 64), 2 * 128 * 64
    wide = 2 * 8192 + 2 * 8 * 128 + 128
    for seconds, flops, crossed, kernels in (
        (scan.forward_s, inside + 2 * across, 2, 5),
        (scan.backward_s, 3 * inside + 5 * across, 4, 14),
    ):
        by_hand = 2048 * (128 * flops / 47e12 + crossed * wide * 2 / MEMORY_BYTES_PER_S)
        assert seconds == pytest.approx(by_hand + kernels * RAMP_S)
    assert (scan.kernels_forward, scan.kernels_backward) == (5, 14)


def test_a_mixer_splits_over_tensor_parallel_ranks() -> None:
    model = find_model("nemotron-h-8b")  # 128 heads of 64, 8 groups, states of 128
    for tp in (1, 8):
        inner, states = 128 * 64 / tp, 2 * 8 / tp * 128
        wide = 2 * inner + states + 128 / tp
        parts = mamba_parts(site(model, tp=tp), Block(kind="mamba"))
        assert saved(named(parts, "state scan")) == 2048 * (wide + inner + states) * 2
        assert saved(named(parts, "mixer output projection")) == 2048 * inner * 2
    assert all(np.all(np.isfinite(part.forward_s)) for part in parts)
