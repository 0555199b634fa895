"""Tables of nccl-tests (all_reduce_perf and its kin).

The form is that of nccl-tests' src/util.cu: `# Rank ...` lines name the devices, then a line per
size with the out-of-place time in microseconds in the sixth column (fifth in versions before 2.11,
whose tables have no root).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.errors import ConfigError
from meshwright.search.link_rates import OPERATIONS, CollectiveTable
from meshwright.units import MICROSECOND, counted

__all__ = ["looks_like_nccl_tests", "read_nccl_tests"]

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
