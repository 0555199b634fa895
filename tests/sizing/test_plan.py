"""Interval and disk of a run, worked by hand, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright import api
from meshwright.api import checkpoints as ckpt
from meshwright.cli import run
from meshwright.sizing.checkpoints import CheckpointPlan, Retention, Saved, Schedule
from meshwright.sizing.duration import Reliability
from meshwright.values.errors import ConfigError
from meshwright.values.units import GIB


def planned(**words: Any) -> CheckpointPlan:
    return ckpt.ckpt_plan(**{"model": "gpt3-5b", "cluster": "a100-80:64", **words})


def test_times_by_hand() -> None:
    """5.05 B * 14 bytes over 8 nodes at 1 GB/s; 64 chips fail every 1,000 / 64 h; Young's interval
    is within 5 % of Daly's here."""
    found = planned(
        schedule=Schedule(step_s=3.0, save_every=100),
        reliability=Reliability(
            chip_mtbf_s=1000 * 3600, restart_s=600, write_bytes_per_s_per_node=1e9
        ),
    )
    assert found.write_s == pytest.approx(found.size.params * 14 / 8e9)
    assert found.mtbf_s == pytest.approx(56250)
    young_s = math.sqrt(2 * found.write_s * 56250)
    assert found.best_interval_s == pytest.approx(young_s, rel=0.05)
    assert found.best_interval_steps == round(found.best_interval_s / 3)
    # what is lost at 300 s: a write, half an interval and a restart per failure, to first order
    lost = found.write_s / 300 + (150 + 600) / 56250
    assert found.asked_share == pytest.approx(1 - lost, abs=0.003)
    assert found.best_share is not None and found.asked_share is not None
    assert found.best_share > found.asked_share


def test_peak_disk_is_best_last_and_one_being_written() -> None:
    size = planned().size.total_bytes
    assert (planned().peak_full, planned().peak_bytes) == (12, 12 * size)
    few = planned(schedule=Schedule(steps=6001))
    assert (few.schedule.saves, few.peak_full) == (4, 4)
    marked = planned(
        schedule=Schedule(steps=20_000),
        retention=Retention(best=2, keep_every=8000, drop_states=True),
    )
    assert (marked.peak_full, marked.peak_stripped) == (2, 4)
    assert marked.peak_bytes == 2 * size + 4 * marked.size.without_states_bytes
    with pytest.raises(ConfigError, match="say of how many steps"):
        planned(retention=Retention(keep_every=8000))


def test_a_quota_that_is_too_small_names_what_fits() -> None:
    size = planned().size.total_bytes
    small = planned(quota_bytes=5.5 * size)
    assert (small.fits, small.fitting_best) == (False, 3)
    assert planned(quota_bytes=1.5 * size).fitting_best is None
    assert planned(quota_bytes=12 * size).fits


def test_losses_from_words_and_files(tmp_path: Path) -> None:
    assert ckpt.read_losses("2.5,-,nan", save_every=100)[:2] == [
        Saved(step=100, loss=2.5),
        Saved(step=200),
    ]
    path = tmp_path / "losses.csv"
    path.write_text("step,loss\n500,2.5\n\n1000,2.25\n", encoding="utf-8")
    assert ckpt.read_losses(str(path), save_every=100) == [
        Saved(step=500, loss=2.5),
        Saved(step=1000, loss=2.25),
    ]
    path.write_text("500 2.5\n400 2.25\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"step 400 follows step 500.*line 2"):
        ckpt.read_losses(str(path), save_every=100)
    path.write_text("2.5 good\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"'2\.5 good': expected `LOSS`"):
        ckpt.read_losses(str(path), save_every=100)
    with pytest.raises(
        ConfigError, match=r"nowhere: expected numbers between commas, or a file \(No such file"
    ):
        ckpt.read_losses("nowhere", save_every=100)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ckpt", "plan", "gpt3-5b", "--cluster", "a100-80:64"]
    assert run([*words, "--best", "1", "--losses", "2.9,2.7,2.8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"]["bytes_per_param"] == 14
    assert [moment["kept"] for moment in found["simulated"]] == [[2000], [4000], [4000, 6000]]
    assert run([*words, "--quota-gib", "300"]) == 1
    out = capsys.readouterr().out
    assert "Quota       300.0 GiB: too small by 489.7 GiB\n            --best 2 would fit\n" in out
    assert run([*words, "--quota-gib", "60"]) == 1
    assert "not even --best 0 would fit" in capsys.readouterr().out
    assert run([*words, "--quota-gib", "-5"]) == 2
    assert run([*words, "--optimizer", "adamm"]) == 2
    assert "did you mean 'adam'" in capsys.readouterr().err
    assert run([*words, "--seq", "4096"]) == 2
    assert "--seq and --gbs go together" in capsys.readouterr().err
    assert run([*words, "--seq", "4096", "--gbs", "64", "--step-s", "3"]) == 2
    assert "of no effect with --step-s" in capsys.readouterr().err
    assert run([*words, "--tokens", "1T"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --tokens: needs --seq and --gbs, and goes without --steps\n"
    )
    assert run([*words, "--tokens", "1T", "--seq", "0", "--gbs", "8"]) == 2
    assert (
        capsys.readouterr().err
        == "error: --tokens with --seq 0 --gbs 8: expected 1 or more of each\n"
    )


def test_the_step_of_the_best_plan_is_taken() -> None:
    found = planned(seq_len=2048, gbs=512)
    best = api.plan(model="gpt3-5b", cluster="a100-80:64", seq_len=2048, gbs=512, top=1).plans[0]
    assert found.schedule.step_s == best.step_s
    assert found.quota_bytes is None
    assert planned(quota_bytes=GIB).fits is False
