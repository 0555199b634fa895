"""Mixers on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.cases import CHIP, POOL, WORK, named, saved, site

from meshwright.cost.mamba import mamba_parts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import Block


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


def test_a_mixer_splits_over_tensor_parallel_ranks() -> None:
    model = find_model("nemotron-h-8b")  # 128 heads of 64, 8 groups, states of 128
    for tp in (1, 8):
        inner, states = 128 * 64 / tp, 2 * 8 / tp * 128
        wide = 2 * inner + states + 128 / tp
        parts = mamba_parts(site(model, tp=tp), Block(kind="mamba"))
        assert saved(named(parts, "state scan")) == 2048 * (wide + inner + states) * 2
        assert saved(named(parts, "mixer output projection")) == 2048 * inner * 2
    assert all(np.all(np.isfinite(part.forward_s)) for part in parts)
