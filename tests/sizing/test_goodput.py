from __future__ import annotations

import math
import random

import pytest

from meshwright.sizing.duration import Reliability, best_interval_s, goodput, write_s
from meshwright.values.errors import ConfigError

HOUR = 3600.0


def test_writing_is_shared_by_the_nodes() -> None:
    given = Reliability(write_bytes_per_s_per_node=1e9)
    assert write_s(64e9, nodes=16, reliability=given) == pytest.approx(4.0)


def share(interval_s: float, *, write: float, mtbf: float, restart: float) -> float:
    found = goodput(
        checkpoint_bytes=write * 1e9,
        train_s=1e12,
        chips=1,
        nodes=1,
        reliability=Reliability(
            chip_mtbf_s=mtbf,
            restart_s=restart,
            write_bytes_per_s_per_node=1e9,
            save_interval_s=interval_s,
        ),
    )
    return found.share


@pytest.mark.parametrize(
    ("write", "mtbf"), [(10, 10 * HOUR), (60, 2 * HOUR), (300, 5 * HOUR), (600, HOUR)]
)
def test_the_best_interval_beats_its_neighbours(write: float, mtbf: float) -> None:
    best = best_interval_s(write_s=write, mtbf_s=mtbf)
    at_best = share(best, write=write, mtbf=mtbf, restart=60)
    assert at_best > share(best * 0.8, write=write, mtbf=mtbf, restart=60)
    assert at_best > share(best * 1.25, write=write, mtbf=mtbf, restart=60)


def test_share_against_a_simulation() -> None:
    interval, write, mtbf, restart = 1800.0, 120.0, 4 * HOUR, 600.0
    chance = random.Random(7)
    wall, segments = 0.0, 4000
    for _ in range(segments):
        while True:  # one segment is repeated until no failure strikes in it
            failure = chance.expovariate(1 / mtbf)
            if failure >= interval + write:
                wall += interval + write
                break
            wall += failure
            while (again := chance.expovariate(1 / mtbf)) < restart:  # a restart may fail too
                wall += again
            wall += restart
    assert share(interval, write=write, mtbf=mtbf, restart=restart) == pytest.approx(
        segments * interval / wall, rel=0.01
    )


def test_without_failures_only_writing_is_lost() -> None:
    assert share(900.0, write=100, mtbf=1e12, restart=600) == pytest.approx(0.9, rel=1e-6)


def test_more_chips_fail_more_often() -> None:
    small, large = (
        goodput(
            checkpoint_bytes=14 * 7e10,
            train_s=1e7,
            chips=n,
            nodes=n // 8,
            reliability=Reliability(),
        )
        for n in (256, 16384)
    )
    assert large.mtbf_s == pytest.approx(small.mtbf_s / 64)
    assert large.share < small.share


def test_llama3_405b_of_the_paper() -> None:
    # arXiv:2407.21783, section 3.3.4: more than 90 % effective training time on 16,384 chips, a
    # failure every 3 hours
    found = goodput(
        checkpoint_bytes=14 * 405e9,
        train_s=54 * 24 * HOUR,
        chips=16384,
        nodes=2048,
        reliability=Reliability(),
    )
    assert found.mtbf_s / HOUR == pytest.approx(3.1, abs=0.1)
    assert 0.85 < found.share < 0.97


def test_no_interval_is_longer_than_the_run() -> None:
    found = goodput(
        checkpoint_bytes=14e9, train_s=100.0, chips=8, nodes=1, reliability=Reliability()
    )
    assert found.interval_s == 100.0


def test_a_run_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"64 chips fail every .* such a run never ends"):
        goodput(
            checkpoint_bytes=14 * 8e9,
            train_s=1e6,
            chips=64,
            nodes=8,
            reliability=Reliability(chip_mtbf_s=HOUR),
        )


def test_young_is_the_limit_of_short_writes() -> None:
    assert best_interval_s(write_s=1.0, mtbf_s=1e8) == pytest.approx(math.sqrt(2 * 1e8), rel=1e-3)
