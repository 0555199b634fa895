from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.data.workers import ALONE, Place, find_place, share_of
from meshwright.values.errors import ConfigError


@pytest.mark.parametrize(
    ("environment", "rank", "world_size"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, 1, 4),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "4",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_JOB_ID": "7",
                "SLURM_STEP_ID": "0",
            },
            1,
            2,
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 0, 2),
        ({"JOB_COMPLETION_INDEX": "2", "JOB_COMPLETIONS": "5"}, 2, 5),
        ({"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "5"}, 2, 5),
        ({"NGC_ARRAY_INDEX": "1", "NGC_ARRAY_SIZE": "16"}, 1, 16),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 1, 2),
    ],
)
def test_place_by_platform(environment: dict[str, str], rank: int, world_size: int) -> None:
    place = find_place(environment)
    assert (place.rank, place.world_size) == (rank, world_size)


def test_without_a_platform_it_is_one_process() -> None:
    assert find_place({"HOME": "/root"}) == ALONE


def test_the_shell_of_a_slurm_script_does_all_the_work() -> None:
    """sbatch runs the script once, with SLURM_PROCID=0 and the number of tasks that srun would
    start."""
    assert find_place({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "16"}) == ALONE


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "0"}, "RANK=0 is set without WORLD_SIZE"),
        ({"JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX=3 is set without JOB_COMPLETIONS"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x: expected a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2"),
    ],
)
def test_half_a_place_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_place(environment)


@given(sizes=st.lists(st.integers(0, 10**12), max_size=60), world_size=st.integers(1, 9))
def test_every_shard_has_one_rank_and_none_has_much_more_than_its_part(
    sizes: list[int], world_size: int
) -> None:
    shares = [
        share_of(sizes, Place(rank=rank, world_size=world_size, source="test"))
        for rank in range(world_size)
    ]
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    loads = [sum(max(1, sizes[index]) for index in share) for share in shares]
    largest = max([max(1, size) for size in sizes], default=0)
    assert max(loads) - min(loads) <= largest


def test_empty_files_are_spread_too() -> None:
    assert [
        len(share_of([0] * 10, Place(rank=rank, world_size=5, source="test"))) for rank in range(5)
    ] == [2] * 5
