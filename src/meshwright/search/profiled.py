"""A pool of chips with a profile in it, and the machine that was profiled as a cluster."""

from __future__ import annotations

from dataclasses import replace

from meshwright.hardware.catalogue import default_node, find_device, find_link
from meshwright.hardware.cluster import Link, Node, Pool
from meshwright.hardware.profile import Profile, Series
from meshwright.hardware.profiled import profiled_chip, with_measured_link
from meshwright.search.link_rates import CollectiveTable, link_rates

__all__ = ["local_pool", "profiled_pool"]

_OPERATION = "collective/all_reduce"
"""The collective that a link's rate and latency are fitted to."""
LEAST_SIZES = 3
"""Sizes that two unknowns need with one to spare."""
ASSUMED_DOMAIN, ASSUMED_NETWORK = "pcie4-shared", "tcp-25"
"""Links of a machine that the catalogue lacks, until collectives are measured there."""


def profiled_pool(profile: Profile, pool: Pool) -> Pool:
    """Return the pool with the profile's chip and, where collectives were measured, its links;
    ConfigError for another chip."""
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
    """Put the measured links in: that of the most ranks within a host, and that of the most ranks
    over hosts."""
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
