"""The memory of this host."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_bytes", "host_bytes"]


def host_bytes() -> float:
    """Memory of the host, or what the control group of this process may use of it."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdigit() else total


def available_bytes() -> float:
    """What of it is free now, or could be freed."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return host_bytes()
    found = next((float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), host_bytes())
    return min(found, host_bytes())
