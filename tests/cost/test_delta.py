"""Linear attention by the delta rule, gates and heads of their own, on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.cases import CHIP, POOL, WORK, named, saved, site

from meshwright.cost.attention import attention_parts
from meshwright.cost.delta import delta_parts
from meshwright.cost.flops import model_flops_per_token
from meshwright.cost.layer import block_parts
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import Block

QWEN = find_model("qwen3.5-27b")  # 16 key heads, 48 value heads of 128, hidden 5120
DELTA = Block(kind="delta")


def test_the_rule_is_linear_in_the_sequence() -> None:
    rules = [
        named(delta_parts(site(QWEN, replace(WORK, seq_len=seq)), DELTA), "delta rule")
        for seq in (8192, 16384)
    ]
    ramps = 5 * CHIP.ramp_s
    assert rules[1].forward_s - ramps == pytest.approx(2 * (rules[0].forward_s - ramps))
    assert saved(rules[1]) == 2 * saved(rules[0])


def test_the_rule_is_no_faster_than_its_kernels() -> None:
    """48 heads, 2 * 64 * (3 * 128 + 2 * 128) + 6 * 128 * 128 FLOP a token and head: 15 % of 1e14
    FLOP/s, 47e12 FLOP/s on a chip of 1e15."""
    flops = 2048 * 48 * (2 * 64 * 640 + 6 * 128 * 128)
    times = []
    for peak in (1e14, 1e15, 1e16):
        chip = replace(CHIP, bf16_flops_per_s=peak)
        at = site(QWEN, pool=replace(POOL, node=replace(POOL.node, chip=chip)))
        times.append(float(named(delta_parts(at, DELTA), "delta rule").forward_s[0]))
    assert times[0] - times[1] == pytest.approx(flops / 1.5e13 - flops / 4.7e13)
    assert times[1] == times[2]


def test_delta_attention_splits_over_tensor_parallel_ranks() -> None:
    for tp in (1, 8):
        keys, values = 16 * 128 / tp, 48 * 128 / tp
        parts = delta_parts(site(QWEN, tp=tp), DELTA)
        assert saved(named(parts, "delta rule")) == 2048 * (4 * keys + 4 * values + 48 / tp) * 2
        assert saved(named(parts, "delta output projection")) == 2048 * values * 2
        projected = 2048 * 2 * 5120 * (2 * keys + 2 * values + 2 * 48 / tp)
        assert named(parts, "delta input projection").flops == pytest.approx(projected)
    assert all(np.all(np.isfinite(part.forward_s)) for part in parts)


def test_a_decay_of_each_channel_is_projected_through_a_head() -> None:
    kimi = find_model("kimi-linear-48b-a3b")  # 32 heads of 128, hidden 2304
    parts = delta_parts(site(kimi), DELTA)
    downs = [part for part in parts if part.name == "gate down projection"]
    ups = [part for part in parts if part.name == "gate up projection"]
    assert [np.asarray(part.flops).item() for part in downs] == [2048 * 2 * 2304 * 128] * 2
    assert [np.asarray(part.flops).item() for part in ups] == [2048 * 2 * 128 * 32 * 128] * 2


def test_flops_count_three_visits_of_a_state() -> None:
    """A model with delta attention in every layer: 6 FLOP a weight, and per layer and value head 6
    * 3 * 128 * 128 for its state, whatever the sequence."""
    assert QWEN.delta is not None
    alone = replace(QWEN, delta=replace(QWEN.delta, num_layers=64), mtp_layers=0)
    params = model_params(alone)
    weights = params.delta + params.mlp + params.head
    state = 64 * 6 * 3 * 48 * 128 * 128
    found = [model_flops_per_token(alone, replace(WORK, seq_len=seq)) for seq in (4096, 65536)]
    assert found[0] == found[1] == pytest.approx(6 * weights + state)


def test_a_gate_widens_the_projection_and_is_kept() -> None:
    llama = find_model("llama3-8b")
    gated = replace(llama, attention_gate=True)
    block = Block(kind="attention")
    plain, wide = (attention_parts(site(model), block) for model in (llama, gated))
    name = "attention input projection"
    more = named(wide, name).flops - named(plain, name).flops
    assert more == pytest.approx(2048 * 2 * 4096 * 32 * 128)
    assert saved(named(wide, "attention gate")) == 2 * 2048 * 32 * 128 * 2


def test_layers_that_see_all_have_their_own_heads() -> None:
    """Gemma 4 31B: 32 heads of 512 and 4 keys that are the values too, else 16 of 256."""
    gemma = find_model("gemma4-31b")
    name = "attention input projection"
    whole = named(block_parts(site(gemma), Block(kind="attention")), name)
    local = named(block_parts(site(gemma), Block(kind="attention", window=1024)), name)
    assert whole.flops == pytest.approx(2048 * 2 * 5376 * (32 + 4) * 512)
    assert local.flops == pytest.approx(2048 * 2 * 5376 * (32 + 2 * 16) * 256)
