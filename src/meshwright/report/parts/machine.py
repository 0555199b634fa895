"""The machine map of a plan: which chip does what, and what its groups exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.report.charts.forms import Machine
from meshwright.report.charts.svg import number
from meshwright.report.parts.part import is_mixed, layout_of, short_words
from meshwright.search.groups import Exchange, exchanges_of
from meshwright.search.mixed.front import mixed_layout_of
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.problem import Problem
from meshwright.values.hardware.cluster import Node
from meshwright.values.mixed_layout import MixedLayout
from meshwright.values.ranks import stage_ranks

__all__ = ["machine_info", "mixed_machine_info"]

WIDEST_DOMAIN = 128
"""Chips of a fast domain that is drawn as one box; a larger one is drawn node by node."""


def machine_info(plan: Mapping[str, Any], problem: Problem) -> Machine:
    """Return the map of a plan as `plan` prints it: `layout`, `time` and `step_s` are read.

    `draw_machine` of `report.charts.machine` draws it; `Machine.data` is its table of exchanges.
    """
    layout, setting = layout_of(plan["layout"]), problem.setting
    exchanges = exchanges_of(layout, setting, plan["time"])
    box, word = _box(setting.pool.node)
    return Machine(
        key="machine",
        title=f"Machine map of {short_words(plan)}",
        sentence=_sentence(exchanges, plan["step_s"]),
        stages=stage_ranks(layout),
        box=box,
        box_word=word,
        exchanges=exchanges,
        step_s=plan["step_s"],
    )


def mixed_machine_info(plan: Mapping[str, Any], problem: MixedProblem) -> Machine:
    """Return the map of a plan over several kinds of chips: nodes follow each other by stage."""
    assert is_mixed(plan)
    layout = mixed_layout_of(plan, problem)
    box = problem.parts[layout.stages[0].pool].setting.pool.node.chips_per_node
    chips = ", ".join(dict.fromkeys(stage.chip for stage in layout.stages))
    exchanges = _mixed_exchanges(plan, layout, problem)
    return Machine(
        key="machine",
        title=f"Machine map of {short_words(plan)}",
        sentence=f"Stages follow each other over {chips}. {_sentence(exchanges, plan['step_s'])}",
        stages=stage_ranks(layout),
        box=box,
        box_word="node",
        exchanges=exchanges,
        step_s=plan["step_s"],
    )


def _mixed_exchanges(
    plan: Mapping[str, Any], layout: MixedLayout, problem: MixedProblem
) -> tuple[Exchange, ...]:
    """The plan's own seconds, with the link of each kind of chip; the bytes of the kind that sends
    most."""
    found: dict[str, list[tuple[str, Exchange]]] = {}
    for pool in layout.pools:
        at = next(place for place, stage in enumerate(layout.stages) if stage.pool == pool)
        setting = problem.parts[pool].setting
        for one in exchanges_of(layout.row(at), setting, plan["time"]):
            found.setdefault(one.term, []).append((layout.stages[at].chip, one))
    return tuple(_joined(every, problem) for every in found.values())


def _joined(every: list[tuple[str, Exchange]], problem: MixedProblem) -> Exchange:
    links = [f"{chip} {one.link}" for chip, one in every]
    if every[0][1].axis == "pp" and len(every) > 1:
        link = problem.cluster.pool_link
        links.append(f"between kinds {'the slower network' if link is None else link.name}")
    most = max((one for _, one in every), key=lambda one: one.sent_bytes)
    return replace(most, link="; ".join(links))


def _box(node: Node) -> tuple[int, str]:
    if node.chips_per_node < node.domain_size <= WIDEST_DOMAIN:
        return node.domain_size, "domain"
    return node.chips_per_node, "node"


def _sentence(exchanges: tuple[Exchange, ...], step_s: float) -> str:
    how = "Point at a chip, or give its number, to see its groups."
    if not exchanges:
        return f"Every chip works alone: nothing is exchanged. {how}"
    worst = max(exchanges, key=lambda one: one.step_s)
    waited = sum(one.step_s for one in exchanges)
    return (
        f"A step waits {number(waited)} s for exchanges, {100 * waited / step_s:.1f} % of it; most"
        f" for {worst.title} ({number(worst.step_s)} s). {how}"
    )
