"""Runs that break: too large, a rank lost or stopped, losses that are no numbers; on real
processes; needs torch."""

from __future__ import annotations

import signal
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("torch", reason="trains with torch: pip install 'meshwright[train]'")

from tests.trainer.ranks import finish, run, start, write_plan

LIMIT_S = 60
"""Within which ranks end after one is lost."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "words", "says"),
    [
        (signal.SIGKILL, [], "another rank is lost, or behind by more than 50 s; "),
        (signal.SIGSTOP, ["patience_s=4"], "another rank is lost, or behind by more than 4 s; "),
    ],
    ids=["killed", "stopped"],
)
def test_a_lost_rank_ends_the_others(
    tmp_path: Path, loss: signal.Signals, words: list[str], says: str
) -> None:
    ranks = start(
        write_plan(tmp_path, {"dp": 2, "sharding": "zero3"}),
        ["steps=100000", "profile_step=0", *words],
        processes=2,
    )
    assert ranks[0].stdout is not None
    assert '"step": 1' in ranks[0].stdout.readline()
    ranks[1].send_signal(loss)
    lost = monotonic()
    ranks[0].wait(timeout=LIMIT_S)
    assert monotonic() - lost < LIMIT_S
    ranks[1].kill()
    first, _ = finish(ranks)
    assert first.code == 1
    assert f"error: rank 0: {says}" in first.err and "typically" not in first.err
    assert "Traceback" not in first.err


@pytest.mark.slow
def test_a_loss_that_is_no_number_is_named_with_its_step(tmp_path: Path) -> None:
    """A learning rate of 1e30 spoils the weights in step 1; the loss of step 2 shows it, and no
    checkpoint is written."""
    saved = tmp_path / "saved"
    words = [
        "steps=9",
        "optimizer.learning_rate=1e30",
        "optimizer.warmup_steps=0",
        f"save.folder={saved}",
        "profile_step=0",
    ]
    first, second = run(write_plan(tmp_path, {"pp": 2}), words, processes=2)
    assert (first.code, second.code, second.err) == (1, 1, "")
    assert first.err.startswith("error: step 2: the loss is ")
    assert first.err.endswith("nothing of this step was kept\n")
    assert [line["step"] for line in first.lines] == [1]
    assert not list(saved.glob("step-*"))


def test_a_model_that_no_machine_of_ours_holds_is_refused_before_it_starts(tmp_path: Path) -> None:
    (alone,) = run(write_plan(tmp_path, {}, model="llama3-405b"), [], processes=1)
    assert (alone.code, alone.out) == (2, "")
    assert alone.err.startswith("error: Memory of stage 0: it needs ")
    assert alone.err.endswith("That is predicted; check_memory=false starts it all the same\n")


def test_too_few_processes_are_refused_before_they_start(tmp_path: Path) -> None:
    first, second = run(write_plan(tmp_path, {"dp": 4}), [], processes=2)
    assert (first.code, second.code, second.err) == (2, 2, "")
    assert first.err.startswith(
        "error: the layout runs on tp*cp*pp*dp = 4 processes, 2 were started: torchrun"
        " --nproc-per-node 4"
    )
