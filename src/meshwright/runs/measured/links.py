"""Rows of a table with the user's profile in their machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwright.runs.measured.measured import MeasuredRun
from meshwright.runs.measured.rows import Case, Unanswerable
from meshwright.search.link_rates import OPERATIONS, CollectiveTable, profiled_pool
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Node, Pool
from meshwright.values.hardware.profile import Profile
from meshwright.values.hardware.profiled import same_chip
from meshwright.values.units import MICROSECOND, counted

__all__ = [
    "is_profiled",
    "looks_like_nccl_tests",
    "profiled_runs",
    "read_nccl_tests",
    "with_profile",
]

_NAMED = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\b"
)
_RANK = re.compile(
    r"^#?\s+Rank\s+(\d{1,7})\s.*?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)$", re.MULTILINE
)
_RATE = r"\d{1,9}(?:\.\d{1,6})?"
_ROW = re.compile(
    rf"^\s*(?P<bytes>\d{{1,15}})\s+\d+\s+[a-z]\w*\s+(?:[a-z]+\s+)?(?:-?\d+\s+)?"
    rf"(?P<us>\d{{1,12}}(?:\.\d{{1,6}})?(?:e\+\d{{1,2}})?)\s+(?P<alg>{_RATE})\s+(?P<bus>{_RATE})\s",
    re.MULTILINE,
)
LEAST_SIZES = 3
"""Sizes that two unknowns need with one to spare."""


def looks_like_nccl_tests(text: str) -> bool:
    """Whether a text has a table of nccl-tests."""
    return "algbw" in text and "busbw" in text


def read_nccl_tests(
    text: str, *, source: str, ranks: int | None = None, per_node: int | None = None
) -> CollectiveTable:
    """Read one table; `ranks` and `per_node` (the cluster's) stand in where the list of devices was
    cut off."""
    found = [
        (float(row["bytes"]), float(row["us"]) * MICROSECOND, float(row["alg"]), float(row["bus"]))
        for row in _ROW.finditer(text)
    ]
    rows = [row for row in found if row[0] > 0 and row[1] > 0]
    if len({row[0] for row in rows}) < LEAST_SIZES:
        raise ConfigError(
            f"{source}: {counted(len(rows), 'size')} in the table; {LEAST_SIZES} or more tell"
            " latency and rate apart (-b 8M -e 8G -f 2)"
        )
    devices = {int(rank): (host, device.strip()) for rank, host, device in _RANK.findall(text)}
    count = len(devices) or ranks
    if count is None or count < 2:
        raise ConfigError(
            f"{source}: {count or 'no'} ranks are named; give --cluster with the count that took"
            " part, such as h100:16"
        )
    hosts = len({host for host, _ in devices.values()}) or -(-count // (per_node or count))
    return CollectiveTable(
        operation=_operation(text, rows, count, source=source),
        ranks=count,
        hosts=hosts,
        device=next(iter(devices.values()))[1] if devices else None,
        bytes=tuple(row[0] for row in rows),
        times_s=tuple(row[1] for row in rows),
    )


def _operation(
    text: str, rows: Sequence[tuple[float, float, float, float]], ranks: int, *, source: str
) -> str:
    """The name that the output or the command has, else what the ratio of bus to algorithm rate
    says."""
    named = _NAMED.search(text)
    if named is not None:
        if named[1] not in OPERATIONS:
            raise ConfigError(
                f"{source}: {named[1]}_perf is not read; expected"
                f" {', '.join(f'{name}_perf' for name in OPERATIONS)}"
            )
        return named[1]
    _, _, alg, bus = max(rows)
    if abs(bus / alg / (2 * (ranks - 1) / ranks) - 1) < 0.03:
        return "all_reduce"
    raise ConfigError(
        f"{source}: which collective it is can't be told; keep the line that names the program,"
        " such as all_gather_perf"
    )


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
