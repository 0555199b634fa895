"""How long a plan takes: the whole process cold, layouts priced per second, and the memory it
needs.

    python benchmarks/plan.py

Each line gives the figure, its limit, and figure / limit: below 1 is good for seconds and memory,
above 1 for layouts per second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from time import perf_counter

REPEATS = 3
PLAN = ["plan", "llama3-70b", "--seq", "8192", "--gbs", "512", "--json", "--cluster"]
SPACES = (
    {
        "model": "llama3-70b",
        "cluster": "h100:256",
        "seq_len": 8192,
        "gbs": 512,
        "pins": {"sharding": ["none", "zero1"], "sp": [0, 1]},
    },
    {"model": "llama3-405b", "cluster": "h100:1024", "seq_len": 131072, "gbs": 128},
    {"model": "deepseek-v3", "cluster": "h800:2048", "seq_len": 4096, "gbs": 15360},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(arguments: list[str]) -> Child:
    """Run one process to its end."""
    with tempfile.TemporaryFile() as output:
        start = perf_counter()
        child = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=output
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, f"{arguments} ended with {child.returncode}"
    return Child(
        wall_s=wall_s, cpu_s=usage.ru_utime + usage.ru_stime, peak_mib=usage.ru_maxrss / 1024
    )


def show(what: str, figure: float, limit: float, unit: str) -> None:
    """Print one line."""
    print(f"{what:<58} {figure:>10.4g} {unit:<10} limit {limit:>8.4g}   ratio {figure / limit:.2f}")


def cold(what: str, arguments: list[str], limit_s: float) -> None:
    """Print the quickest of a few processes: the others were held up by the machine's other
    work."""
    best = min(
        (run(["-m", "meshwright", *arguments]) for _ in range(REPEATS)),
        key=lambda child: child.wall_s,
    )
    show(f"{what}, wall", best.wall_s, limit_s, "s")
    show(f"{what}, peak memory", best.peak_mib, 1536, "MiB")


def speed(space: dict[str, object]) -> None:
    """Print layouts per second of the search alone, best few not priced again."""
    from meshwright.search.axes import axes_of
    from meshwright.search.exhaustive import search_space
    from meshwright.search.problem import resolve
    from meshwright.search.request import PlanRequest
    from meshwright.search.space import Rejections, make_space

    problem = resolve(PlanRequest.of(space))
    best = 0.0
    for _ in range(REPEATS):
        start, rejections = perf_counter(), Rejections()
        found = search_space(problem, make_space(problem, axes_of(problem), rejections), rejections)
        best = max(best, found.priced / (perf_counter() - start))
    show(
        f"{space['model']} on {space['cluster']}: {found.priced} layouts",
        best,
        500_000,
        "layouts/s",
    )


def main() -> None:
    """Print everything."""
    print(f"{os.cpu_count()} cores; the quickest of {REPEATS} runs each")
    cold("meshwright --help", ["--help"], 0.3)
    cold("plan on 256 chips", [*PLAN, "h100:256"], 1.5)
    cold("plan on 1,048,576 chips", [*PLAN, "h100:1048576"], 5.0)
    big = [
        "plan",
        "deepseek-v3",
        "--cluster",
        "h800:2048",
        "--seq",
        "4096",
        "--gbs",
        "15360",
        "--json",
    ]
    cold("plan deepseek-v3 on 2048 chips", big, 10.0)
    for space in SPACES:
        speed(space)


if __name__ == "__main__":
    main()
