"""Layouts that need more memory than there is; needs no torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.trainer.curves import job_of

from meshwright.trainer.job import TrainJob
from meshwright.trainer.room import Room, predicted, require_room
from meshwright.values.errors import LayoutError
from meshwright.values.models.catalogue import named_model
from meshwright.values.units import GIB

H100 = "NVIDIA H100 80GB HBM3"


def _job(words: str, model: str = "llama3-8b") -> TrainJob:
    job: TrainJob = job_of(f"dense:{words}", precision="bf16", seq_len=2048)
    return replace(job, model=named_model(model))


def _room(gib: float, device_name: str | None = H100, *, ranks: range = range(2)) -> Room:
    return Room(device_name=device_name, bytes_per_rank=gib * GIB, ranks=ranks)


def test_the_planners_sentence() -> None:
    """8.03 B parameters at 2 + 4 + 12 bytes, which copies hold whole on every rank, are 134.6
    GiB."""
    with pytest.raises(
        LayoutError,
        match=(
            r"^Memory of stage 0: it needs 1\d\d\.\d GiB of 79\.1 GiB, .* GiB too much; most of it"
            r" is optimizer"
        ),
    ):
        require_room(_job("dp=2,mbs=1"), _room(79.1))


@pytest.mark.parametrize(
    "words", ["dp=2,mbs=1,sharding=zero3,recompute=full", "tp=2,mbs=1,recompute=full"]
)
def test_what_fits_is_let_through(words: str) -> None:
    require_room(_job(words), _room(141.0))


def test_a_host_is_shared_by_its_ranks() -> None:
    """Two uneven stages that together fit the host run, though one is above the mean; each GPU
    stands by itself."""
    job = _job("pp=2,mbs=1,layers=26+6,recompute=full")
    used = [stage.used_bytes / GIB for stage in predicted(job, _room(1e3, None)).stages]
    mean = sum(used) / 2
    assert used[0] > 1.2 * mean
    require_room(job, _room(1.01 * mean, None))
    with pytest.raises(LayoutError, match=r"Ranks of this host share .* check_memory=false"):
        require_room(job, _room(0.99 * mean, None))
    with pytest.raises(LayoutError, match="Memory of stage 0"):
        require_room(job, _room(1.01 * mean))


def test_only_the_stages_of_this_host_count() -> None:
    """The second host of a pipeline holds the smaller stage."""
    job = _job("pp=2,mbs=1,layers=26+6,recompute=full")
    second = predicted(job, _room(1e3)).stages[1].used_bytes / GIB
    require_room(job, _room(1.01 * second, ranks=range(1, 2)))
    with pytest.raises(LayoutError, match="Memory of stage 0"):
        require_room(job, _room(1.01 * second, ranks=range(1)))


def test_a_device_that_the_catalogue_lacks() -> None:
    require_room(_job("tp=2", "tiny-llama"), _room(8.0, "Unheard-of 9000"))
    with pytest.raises(LayoutError, match=r"of 0\.1 GiB"):
        require_room(_job("tp=2", "tiny-llama"), _room(0.1, "Unheard-of 9000"))
