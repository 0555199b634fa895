"""Tables of nccl-tests (all_reduce_perf and its kin): latency and rate of a link by least squares.

The form is that of nccl-tests' src/util.cu: `# Rank ...` lines name the devices, then a line per size with the out-of-place time in
microseconds in the sixth column (fifth in versions before 2.11, whose tables have no root).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.calibration import LinkRates
from meshwright.cost.collectives import Group, all_gather_s, all_reduce_s, all_to_all_s, group_of, reduce_scatter_s
from meshwright.errors import ConfigError
from meshwright.hardware.cluster import Link, Pool
from meshwright.units import MICROSECOND

__all__ = ["CollectiveTable", "link_rates", "looks_like_nccl_tests", "read_nccl_tests"]

Floats = NDArray[np.float64]
Operation = Callable[[Group, Floats], Floats]
_OPERATIONS: dict[str, Operation] = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "alltoall": all_to_all_s,
}
_NAMED = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\b")
_RANK = re.compile(r"^#?\s+Rank\s+(\d{1,7})\s.*?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)$", re.MULTILINE)
_RATE = r"\d{1,9}(?:\.\d{1,6})?"
_ROW = re.compile(
    rf"^\s*(?P<bytes>\d{{1,15}})\s+\d+\s+[a-z]\w*\s+(?:[a-z]+\s+)?(?:-?\d+\s+)?"
    rf"(?P<us>\d{{1,12}}(?:\.\d{{1,6}})?(?:e\+\d{{1,2}})?)\s+(?P<alg>{_RATE})\s+(?P<bus>{_RATE})\s",
    re.MULTILINE,
)
LEAST_SIZES = 3
"""Sizes that two unknowns need with one to spare."""
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
        return f"{self.operation}_perf of {self.ranks} ranks on {self.hosts} host{'' if self.hosts == 1 else 's'}, {len(self.bytes)} sizes"


def looks_like_nccl_tests(text: str) -> bool:
    """Whether a text has a table of nccl-tests."""
    return "algbw" in text and "busbw" in text


def read_nccl_tests(text: str, *, source: str, ranks: int | None = None, per_node: int | None = None) -> CollectiveTable:
    """Read one table; `ranks` and `per_node` (the cluster's) stand in where the list of devices was cut off."""
    found = [(float(row["bytes"]), float(row["us"]) * MICROSECOND, float(row["alg"]), float(row["bus"])) for row in _ROW.finditer(text)]
    rows = [row for row in found if row[0] > 0 and row[1] > 0]
    if len({row[0] for row in rows}) < LEAST_SIZES:
        raise ConfigError(f"{source}: {len(rows)} sizes in the table; {LEAST_SIZES} or more tell latency and rate apart (-b 8M -e 8G -f 2)")
    devices = {int(rank): (host, device.strip()) for rank, host, device in _RANK.findall(text)}
    count = len(devices) or ranks
    if count is None or count < 2:
        raise ConfigError(f"{source}: {count or 'no'} ranks are named; give --cluster with the count that took part, such as h100:16")
    hosts = len({host for host, _ in devices.values()}) or -(-count // (per_node or count))
    return CollectiveTable(
        operation=_operation(text, rows, count, source=source),
        ranks=count,
        hosts=hosts,
        device=next(iter(devices.values()))[1] if devices else None,
        bytes=tuple(row[0] for row in rows),
        times_s=tuple(row[1] for row in rows),
    )


def _operation(text: str, rows: Sequence[tuple[float, float, float, float]], ranks: int, *, source: str) -> str:
    """The name that the output or the command has, else what the ratio of bus to algorithm rate says."""
    named = _NAMED.search(text)
    if named is not None:
        if named[1] not in _OPERATIONS:
            raise ConfigError(f"{source}: {named[1]}_perf is not read; expected {', '.join(f'{name}_perf' for name in _OPERATIONS)}")
        return named[1]
    _, _, alg, bus = max(rows)
    if abs(bus / alg / (2 * (ranks - 1) / ranks) - 1) < 0.03:
        return "all_reduce"
    raise ConfigError(f"{source}: which collective it is can't be told; keep the line that names the program, such as all_gather_perf")


def link_rates(table: CollectiveTable, pool: Pool) -> LinkRates:
    """Return the link's figures under which the model's collective takes the measured times.

    Minimises the relative error over all sizes, in two unknowns: the link's rate, and one factor of its latency, its set-up and its half
    message together, whose proportions stay those of the catalogue.
    """
    node = pool.node
    level: Literal["domain", "network"] = "domain" if table.ranks * _stride(table, pool) <= node.domain_size else "network"
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
    """Least squares in the logarithms of rate and latency, from several rates: beyond the rate of another link the slope is 0."""
    measured = np.log(table.times_s)

    def residuals(logs: Floats) -> Floats:
        return np.asarray(measured - _predicted(table, pool, link, level, logs), dtype=np.float64)

    found = [_descend(residuals, np.array([start, 0.0])) for start in STARTS]
    return _changed(link, min(found, key=lambda logs: float((residuals(logs) ** 2).sum())))


def _descend(residuals: Callable[[Floats], Floats], logs: Floats) -> Floats:
    """Gauss-Newton, damped."""
    left, damping = residuals(logs), 1e-3
    for _ in range(ROUNDS):
        slopes = np.stack([(residuals(logs + PROBE * unit) - left) / PROBE for unit in np.eye(2)], axis=1)
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
        half_message_bytes=link.half_message_bytes * wait * float(np.exp(logs[0])),
    )


def _predicted(table: CollectiveTable, pool: Pool, link: Link, level: str, logs: Floats) -> Floats:
    node = replace(pool.node, **{f"{level}_link": _changed(link, logs)})  # type: ignore[arg-type]
    sizes = np.array(table.bytes)
    group = group_of(np.full_like(sizes, table.ranks), np.full_like(sizes, _stride(table, pool)), replace(pool, node=node))
    return np.asarray(np.log(_OPERATIONS[table.operation](group, sizes)), dtype=np.float64)
