"""Rows of a table with the user's profile in their machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwright.accuracy.measured import MeasuredRun
from meshwright.accuracy.rows import Case, Unanswerable
from meshwright.errors import ConfigError
from meshwright.hardware.cluster import Node, Pool
from meshwright.hardware.profile import Profile
from meshwright.hardware.profiled import same_chip
from meshwright.search.profiled import profiled_pool

__all__ = ["is_profiled", "profiled_runs", "with_profile"]


def is_profiled(case: Case | Unanswerable, profile: Profile) -> bool:
    """Whether a row ran on the chip of a profile, and on no other."""
    return (
        isinstance(case, Case)
        and not case.machines.mixed
        and same_chip(profile, case.machines.nodes[0].chip)
    )


def with_profile(
    cases: Iterable[Case | Unanswerable], profile: Profile
) -> list[Case | Unanswerable]:
    """Return the rows, those of the profile's chip with its figures and tables; ConfigError where
    it reaches more than the chip can do."""
    known: dict[
        Node, Node
    ] = {}  # one object for all rows of a machine, which are then priced together
    found: list[Case | Unanswerable] = []
    for case in cases:
        if isinstance(case, Unanswerable) or not is_profiled(case, profile):
            found.append(case)
            continue
        node = case.machines.nodes[0]
        if node not in known:
            known[node] = profiled_pool(
                profile, Pool(node=node, num_chips=case.machines.num_chips)
            ).node
        found.append(replace(case, machines=replace(case.machines, nodes=(known[node],))))
    return found


def profiled_runs(runs: Sequence[MeasuredRun], profile: Profile) -> tuple[MeasuredRun, ...]:
    """Return measured runs as a profile predicts them; ConfigError where one is on another chip."""
    others = sorted(
        {run.case.machines.nodes[0].chip.name for run in runs if not is_profiled(run.case, profile)}
    )
    if others:
        raise ConfigError(
            f"profile of {profile.machine.device_name}, runs on {', '.join(others)}: give the"
            " profile of that chip, or none"
        )
    cases = with_profile((run.case for run in runs), profile)
    return tuple(
        replace(run, case=case)
        for run, case in zip(runs, cases, strict=True)
        if not isinstance(case, Unanswerable)
    )
