"""Racks whose chips are no power of two: whether a training runs faster with some left idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwright.search.problem import Problem
from meshwright.search.result import Plan

__all__ = ["rack_notes"]


def rack_notes(
    problem: Problem, plans: Sequence[Plan], *, search: Callable[[Problem], Sequence[Plan]]
) -> tuple[str, ...]:
    """Say where the largest power of two of each rack's chips trains faster than all of them.

    Experts, layers and heads mostly divide by powers of two, and 72 chips of an NVL72 rack do not.
    Only full racks are looked at. `search` plans the smaller cluster, in which fast domains have
    the chips that are used.
    """
    pool = problem.setting.pool
    whole = pool.node.domain_size
    used = 1 << (whole.bit_length() - 1)
    racks, left = divmod(pool.num_chips, whole)
    if used == whole or left or racks < 2 or used % pool.node.chips_per_node or not plans:
        return ()
    if not problem.request.racks:
        return (f"racks of {whole}: --racks also looks at {used} of each rack's chips",)
    node = replace(pool.node, domain_size=used)
    fewer = replace(pool, num_chips=racks * used, node=node)
    found = search(replace(problem, setting=replace(problem.setting, pool=fewer)))
    if not found:
        return ()
    some, every = (min(each, key=_per_sequence) for each in (found, plans))
    if _per_sequence(some) >= _per_sequence(every):
        return ()
    chip, nodes = pool.node.chip.name, used // pool.node.chips_per_node
    return (
        f"with {whole - used} of each rack's {whole} chips idle it is faster: {some.step_s:.3g}"
        f" s on {fewer.num_chips}, {every.step_s:.3g} s on {pool.num_chips}; for plan and export"
        f" give --cluster a YAML file of 'pools: [{{chip: {chip}, count: {fewer.num_chips},"
        f" domain_size: {used}}}]', and have the scheduler take {nodes} of each rack's"
        f" {whole // pool.node.chips_per_node} nodes (of Slurm: its topology/block plugin)",
    )


def _per_sequence(plan: Plan) -> float:
    return plan.step_s / plan.layout.gbs
