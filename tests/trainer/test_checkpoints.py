"""Checkpoints: resumed at another layout, after a kill and never from a half-written one; needs
torch."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("torch", reason="trains with torch: pip install 'meshwright[train]'")

from tests.trainer.curves import curves
from tests.trainer.ranks import finish, run, start, write_plan

STEPS, HALF = 6, 4


def of(lines: list[Any], event: str) -> dict[int, float]:
    """Losses by step."""
    return {line["step"]: line["loss"] for line in lines if line["event"] == event}


@pytest.mark.slow
def test_a_run_goes_on_at_other_layouts(tmp_path: Path) -> None:
    """Steps 5 and 6 after a checkpoint are those of the run that was not cut, under other dp, tp,
    pp and sharding; so are evaluations."""
    saved = tmp_path / "saved"
    save = {"folder": str(saved), "every": HALF, "wait": "no"}
    valid = {"every": 1, "batches": 1}
    (whole,) = curves(
        2, ["moe:dp=2,sharding=zero1"], changes={"steps": STEPS, "save": save, "valid": valid}
    )
    assert sorted(child.name for child in saved.iterdir()) == [f"step-{HALF}", f"step-{STEPS}"]
    shutil.rmtree(saved / f"step-{STEPS}")
    (saved / "part-5").mkdir()  # a save that was cut off
    shutil.copytree(saved / f"step-{HALF}", saved / "step-9")
    (saved / "step-9" / "run.json").unlink()  # without what is written last
    shutil.copytree(saved / f"step-{HALF}", saved / "step-10")
    shutil.rmtree(saved / "step-10" / "optimizer")  # without what a run needs to go on
    others = ("moe:tp=2,sp=1", "moe:pp=2,vpp=2", "moe:dp=2,sharding=zero3")
    for number in range(len(others)):
        shutil.copytree(saved, tmp_path / str(number))
    found = curves(
        2,
        others,
        changes={"steps": STEPS, "save": {"folder": str(tmp_path / "{case}")}, "valid": valid},
    )
    for number, rest in enumerate(found):
        for event in ("step", "validation"):
            expected = {step: loss for step, loss in of(whole, event).items() if step > HALF}
            assert of(rest, event) == pytest.approx(expected, abs=1e-4), others[number]
        assert not (tmp_path / str(number) / "part-5").exists()


@pytest.mark.slow
def test_a_killed_run_repeats_its_losses_and_sigterm_saves_in_time(tmp_path: Path) -> None:
    """Killed behind step 7, it goes on from step 4 with the losses that it had; asked to stop, it
    saves the step at hand and ends."""
    saved = tmp_path / "saved"
    words = [
        "steps=100000",
        "profile_step=0",
        f"save.folder={saved}",
        "save.every=4",
        "save.keep=1",
        "save.best=1",
        "save.keep_every=4",
    ]
    words += ["save.drop_states=true", "valid.every=100", "valid.batches=1"]
    plan = write_plan(tmp_path, {}, seq_len=16)
    losses, _ = _until(plan, words, step=7, then=signal.SIGKILL)
    again, ended_s = _until(plan, words, step=9, then=signal.SIGTERM)
    assert min(again) == 5
    assert [again[step] for step in (5, 6, 7)] == pytest.approx(
        [losses[step] for step in (5, 6, 7)], abs=1e-5
    )
    assert ended_s < 20
    last = max(again)
    kept = {child.name: (child / "optimizer").exists() for child in saved.iterdir()}
    assert kept == {"step-4": False, "step-8": False, f"step-{last}": True}
    facts = {
        step: json.loads((saved / f"step-{step}" / "run.json").read_text(encoding="utf-8"))
        for step in (8, last)
    }
    assert facts[8]["validation_loss"] == pytest.approx(
        7.6, abs=0.3
    )  # near ln 2048: it has hardly learned
    assert facts[last]["validation_loss"] is None  # a run that is asked to stop does not evaluate


def _until(
    plan: Path, words: list[str], *, step: int, then: signal.Signals
) -> tuple[dict[int, float], float]:
    """Run until a step is told, then send a signal; return the losses by step, and how long the end
    took."""
    (rank,) = ranks = start(plan, words, processes=1)
    assert rank.stdout is not None
    lines = [json.loads(rank.stdout.readline())]
    while lines[-1]["step"] < step:
        lines.append(json.loads(rank.stdout.readline()))
    rank.send_signal(then)
    asked = monotonic()
    (ended,) = finish(ranks)
    lines += ended.lines
    if then == signal.SIGTERM:
        assert (ended.code, lines[-1]["event"], lines[-1]["ended_by"]) == (0, "summary", "signal")
    return of(lines, "step"), monotonic() - asked


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["save.best=2"],
            (
                "save.best=2: the validation loss says which are best; valid.every says how often"
                " it is taken"
            ),
        ),
        (
            ["valid.share=0.1"],
            "valid.share=0.1: random tokens have no documents to hold out; give data.blend",
        ),
        (
            ["save.keep=0"],
            "save.keep=0: expected 1 or more; a run goes on from the newest checkpoint",
        ),
        (["save.folder=plan.json/under"], "save.folder=plan.json/under: Not a directory"),
    ],
)
def test_what_can_not_be_kept_is_refused(
    tmp_path: Path,
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from meshwright.trainer.checks import require_trainable
    from meshwright.trainer.job import read_job
    from meshwright.values.errors import ConfigError

    plan = write_plan(tmp_path, {})
    if "under" in words[0]:
        monkeypatch.chdir(tmp_path)
        (ended,) = run(plan, words, processes=1)
        assert (ended.code, ended.err) == (2, f"error: rank 0: {says}\n")
        return
    with pytest.raises(ConfigError) as raised:
        require_trainable(read_job(plan, words), num_processes=1)
    assert str(raised.value) == says
