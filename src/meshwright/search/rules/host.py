"""Rules of what waits on the host, and of the number formats of optimizer states and frozen
weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.search.rules.rule import RuleCase, rule, some
from meshwright.search.rules.software import stack_rules
from meshwright.values.layout import OFFLOADS, OPTIMIZERS, SHARDINGS, Layout, Layouts

__all__ = ["HOST_RULES"]

_STATES = SHARDINGS.index("zero1")
_WEIGHTS = SHARDINGS.index("zero3")


def _keeps_offload(layouts: Layouts, case: RuleCase) -> Any:
    known = [OFFLOADS.index(word) for word in OFFLOADS if word in stack_rules(case.stack).offloads]
    sharded = layouts.sharding >= np.where(layouts.hosts_weights, _WEIGHTS, _STATES)
    alone = (layouts.tp == 1) & (layouts.pp == 1) & (layouts.optimizer == 0)
    return np.isin(layouts.offload, known) & (~layouts.hosted | (sharded & alone))


def _offload_message(layout: Layout, case: RuleCase) -> str:
    known = stack_rules(case.stack).offloads
    if layout.offload not in known:
        return (
            f"offload={layout.offload}: stack {case.stack.name} has {some(known)}; take one of"
            " them, or another --stack"
        )
    if layout.tp > 1 or layout.pp > 1 or layout.optimizer != "adam":
        words = f"tp={layout.tp}, pp={layout.pp}, optimizer={layout.optimizer}"
        return f"offload={layout.offload} with {words}: it takes tp=1, pp=1 and optimizer=adam"
    least = "zero3" if "weights" in layout.offload else "zero1"
    return (
        f"offload={layout.offload} with sharding={layout.sharding}: what waits is sharded; take"
        f" sharding={least} or beyond"
    )


def _whole(layouts: Layouts) -> Any:
    """Whether each rank holds whole tensors, (N,)."""
    return (layouts.sharding == 0) | (layouts.dp * layouts.cp == 1)


def _keeps_optimizer(layouts: Layouts, case: RuleCase) -> Any:
    rules = stack_rules(case.stack)
    known = [OPTIMIZERS.index(word) for word in OPTIMIZERS if word in rules.optimizers]
    return np.isin(layouts.optimizer, known) & ((layouts.optimizer == 0) | _whole(layouts))


def _optimizer_message(layout: Layout, case: RuleCase) -> str:
    known = stack_rules(case.stack).optimizers
    if layout.optimizer not in known:
        return f"optimizer={layout.optimizer}: stack {case.stack.name} has {some(known)}"
    return (
        f"optimizer={layout.optimizer} with sharding={layout.sharding}: it takes sharding=none, or"
        " one chip"
    )


def _keeps_frozen(layouts: Layouts, case: RuleCase) -> Any:
    if case.work.frozen == "half":
        return True
    return _whole(layouts) & (case.work.frozen in stack_rules(case.stack).frozen)


def _frozen_message(layout: Layout, case: RuleCase) -> str:
    if case.work.frozen not in stack_rules(case.stack).frozen:
        return f"frozen weights in {case.work.frozen}: stack {case.stack.name} has none"
    return (
        f"frozen weights in {case.work.frozen} with sharding={layout.sharding}: they take"
        " sharding=none, or one chip"
    )


HOST_RULES = (
    rule("offload", _keeps_offload, _offload_message),
    rule("optimizer", _keeps_optimizer, _optimizer_message),
    rule("frozen", _keeps_frozen, _frozen_message),
)
