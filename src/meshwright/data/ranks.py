"""Which share of a step's shards is this process's: its rank, and how many ranks there are."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.values.errors import ConfigError

__all__ = ["ALONE", "Place", "find_place", "share_of"]

_PAIRS = (
    ("RANK", ("WORLD_SIZE",)),
    ("NODE_RANK", ("NNODES",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("JOB_COMPLETION_INDEX", ("JOB_COMPLETIONS", "WORLD_SIZE")),
    ("NGC_ARRAY_INDEX", ("NGC_ARRAY_SIZE",)),
)
"""Rank and number of ranks by platform, the first pair that is set wins: torchrun and bcprun, our
own job scripts, Slurm's srun, Open MPI, an indexed Job of Kubernetes (which has no variable for the
number of its pods: set JOB_COMPLETIONS), an array of Base Command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where this process stands among those that share a step."""

    rank: int
    """From 0."""
    world_size: int
    source: str
    """The variables that said so, or why there are none."""

    def __post_init__(self) -> None:
        """Check that the rank is one of them."""
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"{self.source}: rank {self.rank} of {self.world_size}: expected a rank from 0 to"
                f" {self.world_size - 1}"
            )


ALONE = Place(rank=0, world_size=1, source="one process")


def find_place(environment: Mapping[str, str]) -> Place:
    """Read rank and number of ranks from the environment; one process where none is set.

    The shell of a Slurm batch script has a rank and a number of tasks too, but is no task: without
    srun it does all the work. ConfigError where a rank is set without the number of ranks, or
    either is no number.
    """
    for rank_name, size_names in _PAIRS:
        if rank_name not in environment or (
            rank_name == "SLURM_PROCID" and _is_batch_shell(environment)
        ):
            continue
        size_name = next((name for name in size_names if name in environment), None)
        if size_name is None:
            raise ConfigError(
                f"{rank_name}={environment[rank_name]} is set without {size_names[0]}: set it to"
                " the number of processes"
            )
        source = f"{rank_name}={environment[rank_name]} {size_name}={environment[size_name]}"
        return Place(
            rank=_number(environment, rank_name),
            world_size=_number(environment, size_name),
            source=source,
        )
    return ALONE


def _is_batch_shell(environment: Mapping[str, str]) -> bool:
    return "SLURM_JOB_ID" in environment and not {
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "SLURM_STEP_NUM_TASKS",
    } & set(environment)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ConfigError(f"{name}={environment[name]}: expected a whole number") from None


def share_of(sizes: Sequence[int], place: Place) -> list[int]:
    """Return the indices of this rank's shards, ascending: largest first, each to the rank with the
    fewest bytes so far.

    A pure function of sizes and place, so that ranks agree without talking. An empty shard counts
    as one byte, so that many spread too.
    """
    heap = [(0, rank) for rank in range(place.world_size)]
    mine = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        total, rank = heap[0]
        heapq.heapreplace(heap, (total + max(1, sizes[index]), rank))
        if rank == place.rank:
            mine.append(index)
    return sorted(mine)
