"""Bounds of plans over several kinds of chips: no plan of a box takes less, also where memory makes
stages recompute."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.mixed.blocks import Case, value_s
from meshwright.search.mixed.bounds import bound_s
from meshwright.search.mixed.boxes import Boxes, Limits, tightened
from meshwright.search.mixed.curves import MIDDLE, Curve, stage_table
from meshwright.search.mixed.cut_book import CutBook
from meshwright.search.mixed.forced import Places, Room, forced, room_of
from meshwright.search.mixed.grid import make_grid
from meshwright.search.mixed.inner import solve
from meshwright.search.mixed.near import sibling_plans, unlike_plans
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.mixed.together import hold_all_layers
from meshwright.search.request import PlanRequest
from meshwright.search.space import Rejections

LAYERS = 10


class Checked:
    """Boxes of one request, and the plans that are in them."""

    def __init__(self, cluster: str, *, hidden: int = 2048, **fields: Any) -> None:
        model = f"layers={LAYERS},hidden={hidden},heads=16,ffn={4 * hidden},vocab=32000"
        pins = {"cp": [1], "tp": [1], "vpp": [1, 2]}
        problem = resolve_mixed(
            PlanRequest.of(
                {
                    "model": model,
                    "seq_len": 2048,
                    "gbs": 24,
                    "pins": pins,
                    **fields,
                    "cluster": cluster,
                }
            )
        )
        self.problem, self.grid = problem, make_grid(problem, Rejections())
        self.book = CutBook(problem, self.grid)
        stack = problem.site.stack
        self.limits = Limits(
            layers=LAYERS,
            num_gpus=problem.num_gpus,
            blocking=stack.p2p == "blocking",
            whole_rounds=True,
            filled=False,
            dp_overlap=stack.dp_overlap,
            overhead_s=stack.step_overhead_s,
            pp=None,
        )

    def box(
        self,
        options: tuple[int, ...],
        order: tuple[int, ...],
        stages: Any,
        layers: Any,
        *,
        vpp: int,
    ) -> Boxes:
        """One row: of each block its stages and layers, from and to."""
        self.book.add(np.array([options]))
        pairs = [self.book.ids_of(pool, np.array([options[pool]]), piped=True)[0] for pool in order]
        common = int(self.grid.options[0].common[options[0]])
        rows = {"stages": np.array(stages), "layers": np.array(layers)}
        return Boxes(
            ids=np.array([pairs]),
            **{
                f"{name}_{end}": table[None, :, i]
                for name, table in rows.items()
                for i, end in enumerate(("from", "to"))
            },
            num_microbatches=self.grid.num_microbatches[[common]],
            vpp=np.array([vpp]),
            bound_s=np.zeros(1),
        )

    def bound(self, box: Boxes) -> float:
        """Of a box as the search has it; infinite where nothing is left of it."""
        nothing = np.full(1, np.inf)
        rest = tightened(box, self.book.table, self.limits, nothing)
        return (
            float(bound_s(rest, self.book.table, self.limits, nothing)[0]) if len(rest) else np.inf
        )

    def solved(self, leaf: Boxes) -> float:
        """What the best assignment of one plan takes."""
        blocks = tuple(
            self.book.block(int(i), stages=int(s), layers=int(n))
            for i, s, n in zip(leaf.ids[0], leaf.stages_from[0], leaf.layers_from[0], strict=True)
        )
        case = Case(
            num_microbatches=int(leaf.num_microbatches[0]),
            pp=sum(block.stages for block in blocks),
            vpp=int(leaf.vpp[0]),
            blocking=self.limits.blocking,
            dp_overlap=self.limits.dp_overlap,
            overhead_s=self.limits.overhead_s,
            prefix=0,
        )
        found = solve(blocks, case)
        return np.inf if found is None else value_s(blocks, case, found)


CLUSTERS = pytest.mark.parametrize(
    ("cluster", "fields"),
    [
        ("a800:4,h800:4", {"max_memory_gib": 5.0, "headroom": 0}),
        ("a100-40:8,l40s:4", {"max_memory_gib": 6.0, "headroom": 0, "gpus_per_node": 2}),
        ("t4:4,v100-16:4", {"precision": "fp16", "headroom": 0, "gpus_per_node": 2}),
        (
            "t4:8,v100-16:8",
            {"precision": "fp16", "headroom": 0, "gpus_per_node": 1, "hidden": 256},
        ),  # long messages
    ],
)


@CLUSTERS
def test_no_plan_takes_less_than_the_bound_of_its_boxes(
    cluster: str, fields: dict[str, Any]
) -> None:
    checked, finite = Checked(cluster, **fields), 0
    own = checked.grid.options
    for first in range(0, len(own[0].common), 4):
        matches = np.flatnonzero(own[1].common == own[0].common[first])
        for second in matches[:1]:
            options = (first, int(second))
            for order in ((0, 1), (1, 0)):
                caps = [min(4, int(own[pool].stages[options[pool]])) for pool in order]
                for vpp in (1, 2, 3):
                    root = checked.box(
                        options,
                        order,
                        [[1, caps[0]], [1, caps[1]]],
                        [[1, LAYERS], [1, LAYERS]],
                        vpp=vpp,
                    )
                    least = checked.bound(root)
                    for upper in range(1, caps[0] + 1):
                        for layers in range(max(1, upper * vpp), LAYERS, 2):
                            stages = [[upper, upper], [caps[1], caps[1]]]
                            leaf = checked.box(
                                options,
                                order,
                                stages,
                                [[layers, layers], [LAYERS - layers] * 2],
                                vpp=vpp,
                            )
                            bound = checked.bound(leaf)
                            if np.isinf(bound) and vpp > 1:
                                continue  # no whole rounds
                            value = (
                                checked.solved(leaf) if LAYERS - layers >= caps[1] * vpp else np.inf
                            )
                            assert least <= bound * (1 + 1e-9) and bound <= value * (1 + 1e-9)
                            finite += np.isfinite(value)
    assert finite > 5


@CLUSTERS
def test_no_stage_of_a_plan_is_slower_than_it_may_be(cluster: str, fields: dict[str, Any]) -> None:
    """A box that is narrowed to what a plan of it takes still has that plan."""
    checked, finite = Checked(cluster, **fields), 0
    own, book = checked.grid.options, checked.book
    for first in range(0, len(own[0].common), 5):
        second = np.flatnonzero(own[1].common == own[0].common[first])[:1]
        if not len(second):
            continue
        options = (first, int(second[0]))
        for order, vpp in product(((0, 1), (1, 0)), (1, 2)):
            caps = [min(3, int(own[pool].stages[options[pool]])) for pool in order]
            whole = [[1, caps[0]], [1, caps[1]]], [[1, LAYERS], [1, LAYERS]]
            root = checked.box(options, order, *whole, vpp=vpp)
            for one, two, layers in product(
                range(1, caps[0] + 1), range(1, caps[1] + 1), range(1, LAYERS)
            ):
                stages, split = [[one, one], [two, two]], [[layers] * 2, [LAYERS - layers] * 2]
                leaf = checked.box(options, order, stages, split, vpp=vpp)
                rounds = vpp == 1 or int(leaf.num_microbatches[0]) % (one + two) == 0
                if not rounds or min(layers // one, (LAYERS - layers) // two) < vpp:
                    continue
                took = checked.solved(leaf)
                if not np.isfinite(took):
                    continue
                finite += 1
                ceiling = np.full(1, took * (1 + 1e-9))
                kept = tightened(root, book.table, checked.limits, ceiling)
                assert len(kept) and len(tightened(leaf, book.table, checked.limits, ceiling))
                for low, high, plan in (
                    (kept.stages_from, kept.stages_to, leaf.stages_from),
                    (kept.layers_from, kept.layers_to, leaf.layers_from),
                ):
                    assert (low <= plan).all() and (plan <= high).all()
    assert finite > 1


def test_layers_that_stages_hold_together_by_hand() -> None:
    """Of 2 to 4 stages of 3 layers and 1 to 4 of 2, five at most hold 4 * 3 + 2 = 14."""
    low, high, most = (np.array([pair]) for pair in ((2, 1), (4, 4), (3, 2)))
    for depth, layers, fits in ((5, 14, True), (5, 15, False), (2, 1, False), (8, 20, True)):
        found = hold_all_layers(low, high, most, depth=np.array([depth]), layers=layers)
        assert found.tolist() == [fits]


def test_plans_beside_the_best_by_hand() -> None:
    """Two pools: both orders, as many layers in all, and every number of chunks; of those that
    differ in layers alone the first stays."""
    checked = Checked("a800:4,h800:4")
    best = checked.box((0, 0), (0, 1), [[2, 2], [1, 1]], [[6, 6], [4, 4]], vpp=1)
    found = sibling_plans(best, (1, 2))
    assert len(found) == 2 * 7 * 2
    assert set(found.layers_from.sum(axis=1).tolist()) == {10}
    both = best.ids[0].tolist()
    assert {tuple(ids) for ids in found.ids.tolist()} == {tuple(both), tuple(reversed(both))}
    swapped = found.take(np.flatnonzero(found.ids[:, 0] == both[1]))
    assert set(map(tuple, swapped.stages_from.tolist())) == {(1, 2)}
    assert len(unlike_plans(found)) == 4


@cache
def a_curve() -> Curve:
    """Of some way to cut a stage, with all ways to recompute."""
    checked = Checked("a800:4,h800:4")
    checked.book.add(np.array([[0, 0]]))
    return checked.book.cuts[0].curve


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_memory_forces_no_more_than_it_must(data: st.DataObject) -> None:
    """The best of all ways to deal layers over a block's stages is no quicker than the bound says,
    slowest stage and sum."""
    limit, curve = data.draw(st.floats(1.0, 12.0)) * 2**30, a_curve()
    rooms = room_of(curve, limit_bytes=limit)
    room = Room(**{name: np.array([getattr(rooms, name)]) for name in Room.__slots__})
    stages, below, micro, vpp = (data.draw(st.integers(1, most)) for most in (3, 3, 12, 2))
    layers = stages * vpp + data.draw(st.integers(0, 5))
    depth, layer_s = (
        stages + below,
        float(curve.forward_layer_s.min() + curve.backward_layer_s.min()),
    )
    columns = {
        "layers": layers,
        "stages": stages,
        "below": below,
        "depth": depth,
        "num_microbatches": micro * depth,
        "vpp": vpp,
    }
    places = Places(
        **{name: np.array([value]) for name, value in columns.items()},
        layer_s=np.array([layer_s]),
        most_s=np.array([np.inf]),
    )
    found = forced(places, room, np.zeros(1, dtype=np.int64))
    held = places.held(np.arange(stages)[None])[0]
    tables = []
    for flight in held:
        counts = np.arange(1, layers + 1)
        priced = stage_table(
            curve,
            layers=counts,
            prefix=np.zeros_like(counts),
            role=MIDDLE,
            in_flight=float(flight),
            vpp=vpp,
            limit_bytes=limit,
        )
        tables.append(priced.forward_s + priced.backward_s)
    slowest, total = {0: 0.0}, {0: 0.0}
    for table in tables:
        slowest = _dealt(slowest, table, layers, max)
        total = _dealt(total, table, layers, lambda a, b: a + b)
    assert found.slowest_s[0] <= slowest.get(layers, np.inf) * (1 + 1e-6)
    assert layers * layer_s + found.extra_s[0] <= total.get(layers, np.inf) * (1 + 1e-6)


def _dealt(known: dict[int, float], table: Any, layers: int, join: Any) -> dict[int, float]:
    """One stage more: the least for each number of layers."""
    found: dict[int, float] = {}
    for number, value in known.items():
        for own in range(1, layers - number + 1):
            reached = join(value, float(table[own - 1]))
            found[number + own] = min(found.get(number + own, np.inf), reached)
    return found


def test_a_stage_that_must_free_its_activations_by_hand() -> None:
    """Two stages of 4 layers each: 10 s a layer, 8 bytes free, a layer of 1 byte and 1 per micro
    batch; freeing takes 2 s a byte."""
    one = np.ones(1)
    line = np.array([[0.0, 2.0, 0.0, 0.0, 0.0]])
    room = Room(
        layer_bytes=one,
        layer_flight_bytes=one,
        free_bytes=8 * one,
        base_flight_bytes=0 * one,
        chunk_bytes=0 * one,
        most_freed=one,
        slope=line,
        start_s=0 * line,
    )
    number = {"layers": 8, "stages": 2, "below": 0, "depth": 2, "num_microbatches": 8, "vpp": 1}
    places = Places(
        **{name: np.array([value]) for name, value in number.items()},
        layer_s=10 * one,
        most_s=np.inf * one,
    )
    found = forced(places, room, np.zeros(1, dtype=np.int64))
    # the upper stage holds two micro batches: 4 layers need 12 bytes, 4 too many, 2 of each micro
    # batch's at 2 s; 3 and 5 take 52 s
    assert found.slowest_s[0] == pytest.approx(44.0)
    wider = replace(places, stages=np.array([3]), layers=np.array([9]))
    assert forced(wider, room, np.zeros(1, dtype=np.int64)).slowest_s[0] >= 30.0


def test_a_pinned_depth_that_a_fast_plan_cannot_have_leaves_nothing() -> None:
    """Below a ceiling of a layer and a half, pools of eight layers or more have eight stages or
    more each; three in all are asked for."""
    checked = Checked("a800:64,h800:64,h100:64")
    wide = [[1, 10], [1, 10], [1, 10]]
    box = checked.box((0, 0, 0), (0, 1, 2), wide, wide, vpp=1)
    limits = replace(checked.limits, pp=(3,))
    layer_s = float(checked.book.table.layer_s[box.ids].max())
    assert len(tightened(box, checked.book.table, limits, np.array([np.inf]))) == 1
    box = replace(box, layers_from=np.array([[8, 8, 8]]))
    ceiling_s = np.array([1.5 * float(box.num_microbatches[0]) * layer_s])
    assert len(tightened(box, checked.book.table, limits, ceiling_s)) == 0
