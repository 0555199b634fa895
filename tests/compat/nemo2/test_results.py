from __future__ import annotations

import csv
import os
import random
from pathlib import Path

import pytest
from tests.compat.nemo2.stand_ins import llama_recipe

from meshwright.compat.nemo2.configurator import AutoConfigurator
from meshwright.compat.nemo2.results import get_results
from meshwright.values.errors import ConfigError

THEIRS = (
    "Model Name,Model Size,Seq Length,TP,PP,CP,EP,MBS,VP,Num Layers,Hidden Size,FFN Hidden"
    " Size,GBS,Nodes,GPUs per Node,Time per Step,Samples per Second,Model TFLOPS / GPU,Model TFLOPS"
    " Aggregate"
)


@pytest.fixture(scope="module")
def runner() -> AutoConfigurator:
    found = AutoConfigurator(
        llama_recipe(),
        "/logs",
        tensor_parallel_sizes=[1, 2],
        pipeline_parallel_sizes=[1],
        micro_batch_sizes=[1, 2],
        max_steps_per_run=12,
    )
    assert len(found.chosen) == 4
    return found


def printer(step_s: float, *, steps: int = 12) -> str:
    """NeMo 2.0's progress printer."""
    lines = (
        f"Training epoch 0, iteration {step}/{steps - 1} | lr: 1e-05 | global_batch_size: 64 |"
        f" global_step: {step} | reduced_train_loss: 10.5 | train_step_timing in s:"
        f" {9.9 if step < 3 else step_s:.4g}"
        for step in range(steps)
    )
    return "\n".join(lines) + "\n"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_runs_are_joined_by_name_and_failures_are_rows(
    runner: AutoConfigurator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third, fourth = (chosen.name for chosen in runner.chosen)
    (tmp_path / second).mkdir()
    (tmp_path / second / "log-x_0.out").write_text(printer(4.0))
    (tmp_path / f"log-{first}.out").write_text(
        printer(8.0)
    )  # as nemo_run names them, beside the folders
    (tmp_path / third).mkdir()
    (tmp_path / third / "log-x_0.out").write_text(
        printer(1.0, steps=2)
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    (tmp_path / f"{fourth}0").mkdir()  # of another run
    (tmp_path / f"{fourth}0" / "log-x_0.out").write_text(printer(0.1))
    get_results(None, runner, tmp_path)
    done = rows(tmp_path / "final_summary_1nodes.csv")
    assert ",".join(done[0]).startswith(THEIRS)
    assert [(row["Run"], row["Time per Step"], row["Samples per Second"]) for row in done] == [
        (second, "4.0", "16.0"),
        (first, "8.0", "8.0"),
    ]
    # 6 * 8.03e9 weights less embeddings, and attention: 64 * 2048 tokens in 4 s on 8 GPUs
    assert float(done[0]["Model TFLOPS / GPU"]) == pytest.approx(
        6 * 7.5e9 * 64 * 2048 / 4 / 8 / 1e12, rel=0.1
    )
    assert float(done[0]["Model TFLOPS Aggregate"]) == pytest.approx(
        8 * float(done[0]["Model TFLOPS / GPU"]), rel=1e-3
    )
    failed = {row["Run"]: row for row in rows(tmp_path / "failed_jobs_1nodes.csv")}
    assert (failed[third]["Class"], failed[fourth]["Class"]) == ("cuda_oom", "never_started")
    assert "no log below" in failed[fourth]["Error Message"] and set(failed) == {third, fourth}
    said = capsys.readouterr().out
    assert (
        "Top 2 configs sorted from fastest to slowest:" in said
        and f"Optimal config: {second} with 4.0000s per global step." in said
    )
    last = said.splitlines()[-1]
    assert last.startswith("Measured 2 of 4 configurations; with ")
    assert "no other is faster than the best by more than 2.0%" in last
    if "The next" in last:  # only what has not run may be next
        assert last.endswith(f"The next worth a run: {fourth}.")


@pytest.mark.parametrize("tag", ["train_step_timing in s", "train_step_timing_in_s"])
def test_events_of_tensorboard_are_read(tag: str, runner: AutoConfigurator, tmp_path: Path) -> None:
    proto = pytest.importorskip(
        "tensorboardX.proto.event_pb2", reason="the extra tensorboard is absent"
    )
    name = runner.chosen[2].name
    (tmp_path / name / "tb").mkdir(parents=True)
    with (tmp_path / name / "tb" / "events.out.tfevents.1.host.1.0").open("wb") as file:
        for step in range(12):
            event = proto.Event(step=step)
            event.summary.value.add(tag=tag, simple_value=9.0 if step < 3 else 4.5)
            record = event.SerializeToString()
            file.write(len(record).to_bytes(8, "little") + bytes(4) + record + bytes(4))
        file.write(b"broken off")
    get_results(None, runner, tmp_path)
    [row] = rows(tmp_path / "final_summary_1nodes.csv")
    assert (row["Run"], row["Time per Step"], row["Steps Measured"]) == (name, "4.5", "9")


def test_what_does_not_count_never_wins_in_any_order(
    runner: AutoConfigurator, tmp_path: Path
) -> None:
    """Of four runs one counts; the others are faster, and cut short, impossible or of before."""
    names = [chosen.name for chosen in runner.chosen]
    chance = random.Random(0)
    for number in range(100):
        folder = tmp_path / str(number)
        good, short, fast, stale = chance.sample(names, 4)
        at = {name: chance.choice([folder / name, folder]) for name in names}
        logs = {name: at[name] / f"log-{name}_0.out" for name in names}
        for name in chance.sample(names, 4):
            at[name].mkdir(parents=True, exist_ok=True)
            text = printer(6.0 if name == good else 0.1 if name == fast else 3.0)
            logs[name].write_text(text)
        cut = chance.choice([2, 3, 5, 8, 11])
        logs[short].write_text("".join(printer(3.0).splitlines(keepends=True)[:cut]))
        (folder / f"{stale}.yaml").write_text("trainer: {}\n")
        os.utime(logs[stale], (1e9, 1e9))
        get_results(None, runner, folder)
        assert [row["Run"] for row in rows(folder / "final_summary_1nodes.csv")] == [good]
        failed = {row["Run"]: row for row in rows(folder / "failed_jobs_1nodes.csv")}
        assert {row["Class"] for row in failed.values()} == {"refused"}
        assert f"its log ends at step {cut} of 12" in failed[short]["Error Message"]
        assert "above 100 %" in failed[fast]["Error Message"]
        assert "older than its configuration" in failed[stale]["Error Message"]


def test_both_names_of_the_timing_are_read(runner: AutoConfigurator, tmp_path: Path) -> None:
    text = printer(4.0).replace("train_step_timing in s", "train_step_timing_in_s")
    (tmp_path / f"log-{runner.chosen[0].name}.out").write_text(text)
    get_results(None, runner, tmp_path)
    assert [row["Time per Step"] for row in rows(tmp_path / "final_summary_1nodes.csv")] == ["4.0"]


def test_nothing_measured_still_writes_both(
    runner: AutoConfigurator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    get_results(None, runner, tmp_path)
    assert rows(tmp_path / "final_summary_1nodes.csv") == []
    assert len(rows(tmp_path / "failed_jobs_1nodes.csv")) == 4
    said = capsys.readouterr().out
    assert "No run finished; 4 are in the list of failures." in said
    assert "Measured 0 of 4 configurations; nothing is known of the others." in said
    with pytest.raises(ConfigError, match="no such folder"):
        get_results(None, runner, tmp_path / "none")
