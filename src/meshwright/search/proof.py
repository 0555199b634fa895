"""How near to the best of its space a plan of one kind of chip is: a bound of every layout, and the
simulation of each whose bound is below the best plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cost.stages import Floats
from meshwright.cost.step import Priced
from meshwright.search.axes import Axes
from meshwright.search.balance import balanced, can_balance, handicap, least_pipeline_s
from meshwright.search.problem import Problem
from meshwright.search.quote import price_in
from meshwright.search.refine import Repriced, reprice, tidy
from meshwright.values.layout import OFFLOADS, OPTIMIZERS, SCHEDULES, SHARDINGS, Layout, Layouts

__all__ = ["Bound", "bound_keys", "over_words", "prove"]

_ONCE_A_STEP = ("dp_comm", "optimizer", "overhead")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """What no plan of a space that was priced whole undercuts.

    It is about layouts that leave the headroom free with their layers dealt evenly, and about every
    deal of those; what a step takes once, and how long a pipeline beyond the simulator's reach
    takes, is the closed form's.
    """

    bound_s: float
    """Seconds per step, at the fastest plan's batch."""
    gap_frac: float
    """How much faster than the fastest plan another might be, as a share of its step."""
    simulated: int
    """Layouts whose bound was below the fastest plan, all of which were simulated."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as `search` of the contract has it."""
        return {
            "exhaustive": self.gap_frac == 0.0,
            "bound_gap": self.gap_frac,
            "bound_step_s": self.bound_s,
            "simulated": self.simulated,
        }

    def words(self) -> str:
        """Say it in a line."""
        more = "" if self.gap_frac == 0.0 else f"more than {self.gap_frac:.2%} "
        return f"no layout that fits is {more}faster than the fastest ({self.simulated} simulated)"


def bound_keys(problem: Problem, priced: Priced, layouts: Layouts) -> Floats:
    """Return seconds per sequence that no deal of a layout's layers undercuts, (N,).

    Formula:  (M * stage + what a step takes once) / gbs; stage is the slowest one where layers
              cannot be dealt otherwise, else the mean one
    Units:    seconds.
    Source:   derived: a stage runs all M micro batches; bubble and messages only add to them.
    Valid:    layouts of one request.
    Checked:  tests/search/test_proof.py
    """
    time = priced.time
    waiting = time["bubble"] + time["pp_comm"]
    free = can_balance(layouts, problem.setting)
    return np.asarray(
        (priced.step_s - waiting - np.where(free, time["imbalance"], 0.0)) / layouts.gbs
    )


def prove(
    problem: Problem, layouts: Layouts, keys: Floats, fastest: Repriced, *, beyond: float
) -> tuple[Bound, list[Repriced]]:
    """Return the bound, and the layouts that are faster than the fastest plan, best first.

    `layouts` fit, with their `bound_keys`; those of all others of the space are at least `beyond`.
    Every layout whose bound is below the fastest plan is simulated event by event: with its own
    deal of layers and with the deal whose slowest stage is fastest. Where its layers cannot be
    dealt otherwise that is all of it; else the bound over all deals stays. An uneven deal is taken
    where it gains WORTH_A_SPLIT; what it gains else is in the gap.
    """
    best = _key(fastest)
    near = layouts.take(np.flatnonzero(keys < best))
    sharp = _sharp_keys(problem, near)
    near, sharp = near.take(np.flatnonzero(sharp < best)), sharp[sharp < best]
    limit = problem.setting.limit_bytes - problem.headroom_bytes
    tried = [one for one in reprice(problem, _deals(problem, near)) if one.peak_bytes <= limit]
    worth = handicap(fastest.layout) * best
    better = [one for one in tried if handicap(one.layout) * _key(one) < worth]
    better.sort(key=lambda one: handicap(one.layout) * _key(one))
    open_keys = sharp[can_balance(near, problem.setting)]
    bound = min(beyond, best, *open_keys.tolist(), *map(_key, tried))
    winner = better[0] if better else fastest
    gap = max(0.0, 1.0 - bound / _key(winner))
    return (
        Bound(
            bound_s=bound * winner.layout.gbs,
            gap_frac=gap if gap > _ROUNDING else 0.0,
            simulated=len(near),
        ),
        better,
    )


def _key(one: Repriced) -> float:
    return one.step_s / one.layout.gbs


_ROUNDING = 1e-9


def _sharp_keys(problem: Problem, layouts: Layouts) -> Floats:
    """`bound_keys`, with the pipeline's own bound over deals of whole layers."""
    if not len(layouts):
        return np.zeros(0)
    priced = price_in(problem.setting, layouts)
    keys = bound_keys(problem, priced, layouts)
    free = np.flatnonzero(can_balance(layouts, problem.setting))
    if len(free):
        once = sum(priced.time[name][free] for name in _ONCE_A_STEP)
        rows = layouts.take(free)
        sharp = (once + least_pipeline_s(rows, problem.setting)) / rows.gbs
        keys[free] = np.maximum(keys[free], sharp)
    return keys


def _deals(problem: Problem, layouts: Layouts) -> list[Layout]:
    """Each layout, and the deal of its layers whose slowest stage is fastest."""
    if not len(layouts):
        return []
    setting = problem.setting
    rows = [tidy(layouts.row(i)) for i in range(len(layouts))]
    free = np.flatnonzero(can_balance(layouts, setting))
    even = balanced(layouts.take(free), setting) if len(free) else layouts.take(free)
    splits = [tidy(even.row(i)) for i in range(len(even))]
    return list(dict.fromkeys([*rows, *splits]))


def over_words(axes: Axes) -> dict[str, Any]:
    """Return the values of every axis that was searched; those that follow from others in words."""
    names: dict[str, tuple[str, ...]] = {
        "sharding": SHARDINGS,
        "schedule": SCHEDULES,
        "offload": OFFLOADS,
        "optimizer": OPTIMIZERS,
    }
    plain = {name: list(getattr(axes, name)) for name in ("tp", "cp", "pp", "ep", "mbs")}
    words = {name: [known[value] for value in getattr(axes, name)] for name, known in names.items()}
    open_axes = {name: getattr(axes, name) for name in _FOLLOWS}
    rest = {
        name: _FOLLOWS[name] if values is None else list(values)
        for name, values in open_axes.items()
    }
    if axes.sp is None and axes.either_sp:
        rest["sp"] = "with tp > 1, and without"
    rest["recompute"] = f"{len(axes.recomputations)} ways"
    return plain | words | rest


_FOLLOWS = {
    "sp": "with tp > 1",
    "etp": "1 and tp",
    "vpp": "every even split, and uneven ones as the notes say",
    "dp": "the rest of the chips",
    "shard_size": "whole fast domains, or divisors of one",
}
