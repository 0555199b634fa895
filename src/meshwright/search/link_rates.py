"""Latency and rate of a link by least squares, from the times of one collective by size; and pools
with what a profile measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    group_of,
    reduce_scatter_s,
)
from meshwright.trust.calibration import LinkRates
from meshwright.values.hardware.catalogue import default_node, find_device, find_link
from meshwright.values.hardware.cluster import Link, Node, Pool
from meshwright.values.hardware.profile import Profile, Series
from meshwright.values.hardware.profiled import profiled_chip, with_measured_link
from meshwright.values.units import counted

__all__ = ["OPERATIONS", "CollectiveTable", "link_rates", "local_pool", "profiled_pool"]

Floats = NDArray[np.float64]
Operation = Callable[[Group, Floats], Floats]
OPERATIONS: dict[str, Operation] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "alltoall": all_to_all_s,
}
"""By the name of nccl-tests' program, less `_perf`."""
ROUNDS = 40
PROBE = 0.01
"""Change of a logarithm by which slopes are taken."""
STARTS = (-2.0, -1.0, -0.4, 0.0, 0.7)
"""Logarithms of the rate against the catalogue's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTable:
    """One benchmark."""

    operation: str
    ranks: int
    hosts: int
    device: str | None
    bytes: tuple[float, ...]
    times_s: tuple[float, ...]

    def words(self) -> str:
        """Name it."""
        return (
            f"{self.operation}_perf of {self.ranks} ranks on {counted(self.hosts, 'host')},"
            f" {counted(len(self.bytes), 'size')}"
        )


def link_rates(table: CollectiveTable, pool: Pool) -> LinkRates:
    """Return the link's figures under which the model's collective takes the measured times.

    Minimises the relative error over all sizes, in two unknowns: the link's rate, and one factor of
    its latency and its set-up together, whose proportions stay those of the catalogue. Messages
    ramp up as in the catalogue or not at all, whichever comes closer.
    """
    node = pool.node
    level: Literal["domain", "network"] = (
        "domain" if table.ranks * _stride(table, pool) <= node.domain_size else "network"
    )
    link = node.domain_link if level == "domain" else node.network_link
    fitted = _fit(table, pool, link, level)
    return LinkRates(
        level=level,
        name=link.name,
        bytes_per_s=fitted.bytes_per_s * fitted.efficiency,
        latency_s=fitted.latency_s,
        setup_s=fitted.setup_s,
        half_message_bytes=fitted.half_message_bytes,
        source=table.words(),
    )


def _stride(table: CollectiveTable, pool: Pool) -> int:
    """Distance of neighbouring ranks in chips: more than 1 where a host gave fewer than it has."""
    return max(1, pool.node.chips_per_node * table.hosts // table.ranks) if table.hosts > 1 else 1


def _fit(table: CollectiveTable, pool: Pool, link: Link, level: str) -> Link:
    """Least squares in the logarithms of rate and latency, from several rates: beyond the rate of
    another link the slope is 0."""
    tried = [
        _nearest(table, pool, kind, level) for kind in (link, replace(link, half_message_bytes=0.0))
    ]
    return min(tried, key=lambda found: found[0])[1]


def _nearest(table: CollectiveTable, pool: Pool, link: Link, level: str) -> tuple[float, Link]:
    """Sum of squares of the best fit, and the link that gives it."""
    measured = np.log(table.times_s)

    def residuals(logs: Floats) -> Floats:
        return np.asarray(measured - _predicted(table, pool, link, level, logs), dtype=np.float64)

    def squares(logs: Floats) -> float:
        return float((residuals(logs) ** 2).sum())

    best = min((_descend(residuals, np.array([start, 0.0])) for start in STARTS), key=squares)
    return squares(best), _changed(link, best)


def _descend(residuals: Callable[[Floats], Floats], logs: Floats) -> Floats:
    """Gauss-Newton, damped."""
    left, damping = residuals(logs), 1e-3
    for _ in range(ROUNDS):
        slopes = np.stack(
            [(residuals(logs + PROBE * unit) - left) / PROBE for unit in np.eye(2)], axis=1
        )
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(2), -slopes.T @ left)
        tried = np.clip(logs + np.clip(step, -1, 1), -7, 7)
        found = residuals(tried)
        better = (found**2).sum() < (left**2).sum()
        logs, left, damping = (tried, found, damping / 3) if better else (logs, left, damping * 5)
    return logs


def _changed(link: Link, logs: Floats) -> Link:
    rate = link.bytes_per_s * link.efficiency * float(np.exp(logs[0]))
    wait = float(np.exp(logs[1]))
    peak = max(link.bytes_per_s, rate)
    return replace(
        link,
        bytes_per_s=peak,
        efficiency=rate / peak,
        latency_s=link.latency_s * wait,
        setup_s=link.setup_s * wait,
    )


def _predicted(table: CollectiveTable, pool: Pool, link: Link, level: str, logs: Floats) -> Floats:
    node = replace(pool.node, **{f"{level}_link": _changed(link, logs)})  # type: ignore[arg-type]
    sizes = np.array(table.bytes)
    group = group_of(
        np.full_like(sizes, table.ranks),
        np.full_like(sizes, _stride(table, pool)),
        replace(pool, node=node),
    )
    return np.asarray(np.log(OPERATIONS[table.operation](group, sizes)), dtype=np.float64)


_OPERATION = "collective/all_reduce"
"""The collective that a link's rate and latency are fitted to."""
LEAST_SIZES = 3
"""Sizes that two unknowns need with one to spare."""
ASSUMED_DOMAIN, ASSUMED_NETWORK = "pcie4-shared", "tcp-25"
"""Links of a machine that the catalogue lacks, until collectives are measured there."""


def profiled_pool(profile: Profile, pool: Pool) -> Pool:
    """Return the pool with the profile's chip and measured links; ConfigError for another chip."""
    return _with_links(
        profile, replace(pool, node=replace(pool.node, chip=profiled_chip(profile, pool.node.chip)))
    )


def local_pool(profile: Profile, *, num_chips: int | None = None) -> Pool:
    """Return the machine of a profile as a pool, or as many of its chips as `num_chips` says."""
    known = find_device(profile.machine.device_name) if profile.machine.device != "cpu" else None
    devices = max(
        profile.machine.num_devices, _most_ranks(profile) if profile.machine.device == "cpu" else 1
    )
    chip = profiled_chip(profile, known)
    if known is not None:
        node = replace(default_node(known.name, gpus_per_node=devices), chip=chip)
    else:
        node = Node(
            chip=chip,
            chips_per_node=devices,
            domain_size=devices,
            domain_link=find_link(ASSUMED_DOMAIN),
            network_link=find_link(ASSUMED_NETWORK),
        )
    return _with_links(profile, Pool(node=node, num_chips=num_chips or profile.machine.num_devices))


def _most_ranks(profile: Profile) -> int:
    series = profile.find(_OPERATION)
    return (
        max((int(sample.point[0]) for sample in series.measured), default=1)
        if series is not None
        else 1
    )


def _with_links(profile: Profile, pool: Pool) -> Pool:
    """Put the measured links in: that of the most ranks within a host, and over hosts."""
    series = profile.find(_OPERATION)
    if series is None:
        return pool
    per_host = (
        pool.node.chips_per_node if profile.machine.device == "cpu" else profile.machine.num_devices
    )
    counts = sorted({int(sample.point[0]) for sample in series.measured})
    for inside in (True, False):
        ranks = [count for count in counts if (count <= per_host) == inside]
        table = _table(series, ranks[-1], profile, per_host) if ranks else None
        if table is not None:
            pool = _with_link(pool, table)
    return pool


def _table(series: Series, ranks: int, profile: Profile, per_host: int) -> CollectiveTable | None:
    rows = [sample for sample in series.measured if sample.point[0] == ranks]
    if len(rows) < LEAST_SIZES:
        return None
    return CollectiveTable(
        operation="all_reduce",
        ranks=ranks,
        hosts=-(-ranks // per_host),
        device=profile.machine.device_name,
        bytes=tuple(sample.point[1] for sample in rows),
        times_s=tuple(sample.seconds or 0.0 for sample in rows),
    )


def _with_link(pool: Pool, table: CollectiveTable) -> Pool:
    rates = link_rates(table, replace(pool, num_chips=table.ranks))
    node = pool.node
    link: Link = node.domain_link if rates.level == "domain" else node.network_link
    changed = {
        f"{rates.level}_link": rates.on(link),
        "chip": with_measured_link(node.chip, f"{rates.level}_link"),
    }
    return replace(pool, node=replace(node, **changed))  # type: ignore[arg-type]  # links and the chip by field name
