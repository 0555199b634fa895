"""Activations in host memory, on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import CHIP, LLAMA, MOE, POOL, STACK, WORK, site

from meshwright.cost.feedforward import feedforward_output_bytes
from meshwright.cost.layer import price_layer
from meshwright.cost.offload import exposed_offload_s, offloaded_bytes, on_device_bytes
from meshwright.cost.step import Priced, price
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import Block
from meshwright.values.stack import Stack

TOKENS, HIDDEN = 2048, 1024
ONE = np.array([0])
ALL = replace(STACK, offloads_inputs=True, offloads_kept=True, offloads_outputs=True)


def moved(recompute: str, stack: Stack = ALL) -> float:
    """Of a layer of which selective recompute leaves twice its input."""
    layer = price_layer(site(LLAMA), LLAMA.segments[0])
    layouts = Layouts.of([Layout(recompute=recompute, recompute_modules=MODULES[recompute])])  # type: ignore[arg-type]
    kept = 2.0 * layer.input_bytes
    return float(offloaded_bytes(layouts, layer, kept, ONE, stack=stack)[0])


MODULES: dict[str, tuple[str, ...]] = {"none": (), "full": (), "selective": ("mlp",)}


def test_what_is_kept_goes_to_the_host() -> None:
    """A layer's input and its feed-forward's output are 2048 * 1024 halves each."""
    half = TOKENS * HIDDEN * 2.0
    assert moved("none") == 0.0
    assert moved("full") == 2 * half
    assert moved("selective") == 3 * half
    assert moved("full", replace(ALL, offloads_outputs=False)) == half
    assert moved("selective", replace(ALL, offloads_inputs=False)) == 2 * half
    assert moved("selective", STACK) == 0.0


def test_what_is_offloaded_is_not_on_the_device() -> None:
    layer = price_layer(site(LLAMA), LLAMA.segments[0])
    kept = 3.0 * layer.input_bytes
    half = TOKENS * HIDDEN * 2.0
    assert on_device_bytes(layer, kept, ONE, STACK) == 3 * half
    assert on_device_bytes(layer, kept, ONE, replace(STACK, offloads_inputs=True)) == 2 * half
    assert on_device_bytes(layer, kept, ONE, replace(STACK, offloads_kept=True)) == half


def test_experts_hand_back_a_row_for_each_choice() -> None:
    rows = {kind: Block(kind=kind) for kind in ("mlp", "moe", "attention")}
    sizes = [float(feedforward_output_bytes(site(MOE), block)[0]) for block in rows.values()]
    assert sizes == [TOKENS * HIDDEN * 2.0, 2 * TOKENS * HIDDEN * 2.0, 0.0]


def test_a_slow_link_shows_what_compute_does_not_hide() -> None:
    """1e9 bytes at 1e9 bytes/s are a second each way."""
    one = np.array([1e9])

    def waits(rate: float | None, forward: float, backward: float) -> tuple[float, float]:
        found = exposed_offload_s(
            one,
            replace(CHIP, host_bytes_per_s=rate),
            forward_s=np.array([forward]),
            backward_s=np.array([backward]),
        )
        return float(found.forward_s[0]), float(found.backward_s[0])

    assert waits(1e9, 0.25, 0.75) == pytest.approx((0.75, 0.25))
    assert waits(1e9, 1.5, 0.75) == pytest.approx((0.0, 0.25))
    assert waits(None, 0.25, 0.75) == (0.0, 0.0)


def test_a_step_waits_for_the_host_by_layer_and_micro_batch() -> None:
    """With a link so slow that compute hides next to nothing, every layer and micro batch takes
    its input there and back: 2 * 4 MiB at 1 MB/s."""

    def step(rate: float | None, **stack: Any) -> Priced:
        chip = replace(CHIP, host_bytes_per_s=rate)
        return price(
            Layouts.of([Layout(mbs=1, gbs=3, recompute="full")]),
            model=LLAMA,
            pool=replace(POOL, node=replace(POOL.node, chip=chip)),
            work=WORK,
            stack=replace(STACK, **stack),
        )

    waits = step(1e6, offloads_inputs=True)
    each = 2.0 * TOKENS * HIDDEN * 2.0 / 1e6
    assert waits.time["offload"][0] == pytest.approx(3 * LLAMA.num_layers * each, rel=0.01)
    assert step(1e6).time["offload"][0] == step(None, offloads_inputs=True).time["offload"][0] == 0
    assert waits.step_s[0] - step(1e6).step_s[0] == pytest.approx(waits.time["offload"][0])
