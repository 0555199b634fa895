"""A grid that runs, on a launcher that stands in: what is sent, what is read, what is refused, what
is not repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from meshwright.api import problem_of
from meshwright.compat.nemo2.given import changed
from meshwright.compat.nemo2.grid_runs import run_grid
from meshwright.platforms.executor import JobStatus
from meshwright.platforms.job import Job, JobText
from meshwright.search.problem import ask
from meshwright.search.request import PlanRequest
from meshwright.software.contract import export_plan
from meshwright.software.plan import plan_of
from meshwright.software.registry import find_target
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import ConfigError, StudyError
from meshwright.values.text import read_yaml

RATES = [1e-4, 5e-4, 1e-3]


class Launcher:
    """Runs a job at once: a step of a second each, and the validation loss that `losses` has for
    its number."""

    name = "stand-in"

    def __init__(self, losses: Mapping[int, float | None]) -> None:
        self.losses, self.jobs = losses, list[Job]()

    def check(self) -> None:
        """It is always here."""

    def slots(self, job: Job) -> int | None:
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        raise NotImplementedError

    def find(self, label: str, *, directory: Path) -> str | None:
        return None

    def cancel(self, handle: str) -> None:
        raise NotImplementedError

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        loss, number = self.losses[len(self.jobs)], len(self.jobs)
        self.jobs.append(job)
        lines = [
            {"event": "step", "step": step, "step_s": 1.0, "loss": 3.0} for step in range(1, 11)
        ]
        if loss is None:
            (directory / "stderr.log").write_text(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
            )
            return f"{number} failed"
        lines += [
            {"event": "validation", "step": step, "loss": loss + (10 - step)} for step in (5, 10)
        ]
        (directory / "stdout.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return f"{number} succeeded"

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        return {
            handle: JobStatus(state=handle.split()[1], exit_code=int("failed" in handle))  # type: ignore[arg-type]
            for handle in handles
        }  # one of its states


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    """NeMo 1.x's configuration of a tiny model with data, as `meshwright export` writes it."""
    words = {
        "data": "corpus",
        "split": [90, 10, 0],
        "eval_steps": 2,
        "eval_interval": 5,
        "train_steps": 50,
    }
    fields = {
        "model": "tiny-llama",
        "cluster": "h100:2",
        "stack": "megatron",
        "gpus_per_node": 2,
        "seq_len": 128,
        "gbs": 8,
    }
    asked = ask("mbs=1", problem_of(PlanRequest.of(fields)))
    exported = export_plan(
        plan_of(asked, settings=TrainingSettings.of(words)), target=find_target("nemo1-script")
    )
    return read_yaml(exported.files[0].text, what="plan.yaml")


def grid(base: Any, folder: Path, stand_in: Launcher, /, **changes: Any) -> Any:
    words: dict[str, Any] = {
        "param_grid": {"model.optim.lr": RATES},
        "model_name": "m",
        "max_steps_per_run": 10,
        **changes,
    }
    return run_grid(base, base_results_dir=folder, starter=stand_in, **words)


def test_every_combination_runs_once_and_the_least_loss_is_first(
    base: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher({0: 2.5, 1: None, 2: 1.5})
    found = grid(base, tmp_path, launcher)
    assert [
        (one.values["model.optim.lr"], one.losses, one.total_steps, one.step_s) for one in found[:2]
    ] == [
        (1e-3, (1.5,), 10, 1.0),  # the last evaluation, after step 10
        (1e-4, (2.5,), 10, 1.0),
    ]
    assert (found[2].values["model.optim.lr"], found[2].failure[0]) == (5e-4, "cuda_oom")
    for job, rate in zip(launcher.jobs, RATES, strict=True):
        assert job.command[:3] == ("-m", "meshwright.trainer", "plan.json") and (
            job.nodes,
            job.gpus_per_node,
        ) == (1, 2)
        assert {
            f"optimizer.learning_rate={rate}",
            "steps=10",
            "valid.share=0.1",
            "valid.batches=2",
        } <= set(job.command)
        [blend] = [word for word in job.command if word.startswith("data.blend=")]
        assert json.loads(blend.partition("=")[2])[1] == str(
            Path("corpus").resolve()
        )  # a run starts in a folder of its own
    said = capsys.readouterr().out
    assert "best loss 1.5000 (m_grid_search_2)" in said
    assert "3 of 3 configurations ran: every candidate has been run" in said
    again = Launcher({})
    assert [one.losses for one in grid(base, tmp_path, again)] == [
        one.losses for one in found
    ] and not again.jobs
    with pytest.raises(StudyError, match="holds another study"):
        grid(base, tmp_path, again, max_steps_per_run=20)


def test_a_budget_ends_a_grid(
    base: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher({0: 2.5, 1: 1.5, 2: 1.0})
    grid(base, tmp_path, launcher, budget="2runs")
    assert len(launcher.jobs) == 2
    said = capsys.readouterr().out
    assert (
        "2 of 3 configurations ran: 2 runs of 3 candidates, as many as --budget 2runs allows"
        in said
    )
    with pytest.raises(ConfigError, match="no price is known here"):
        grid(base, tmp_path, launcher, budget="$20")


def test_a_script_of_nemo_runs_the_configuration(base: dict[str, Any], tmp_path: Path) -> None:
    launcher = Launcher(dict.fromkeys(range(3), 1.0))
    words = {
        "program": "/opt/NeMo/megatron_gpt_finetuning.py",
        "job": {"image": "nemo", "mounts": ["/data:/data"]},
        "launcher": "slurm",
    }
    adapters = {**base, "model": {**base["model"], "peft": {"peft_scheme": "lora"}}}
    grid(adapters, tmp_path, launcher, **words)
    first = launcher.jobs[0]
    assert first.command == (
        "/opt/NeMo/megatron_gpt_finetuning.py",
        "--config-dir=.",
        "--config-name=m_grid_search_0",
    )
    assert (first.image, first.mounts[0].target, first.time_limit_s) == ("nemo", "/data", 1800)
    values = read_yaml(first.files[0].text, what="first")
    assert values["model"]["optim"]["lr"] == RATES[0] and values["model"]["peft"] == {
        "peft_scheme": "lora"
    }
    assert values["exp_manager"]["explicit_log_dir"] == str(
        tmp_path / "ft_logs" / "m_grid_search_0" / "results"
    )


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        (
            {},
            {"param_grid": {"model.tokenizer.library": ["a", "b"]}},
            "model.tokenizer.library: changes nothing in the embedded trainer",
        ),
        ({"restore_from_path": "/x.nemo"}, {}, "restore_from_path is set"),
        (
            {"model.peft": {"peft_scheme": "lora"}},
            {},
            "model.peft is set, and the embedded trainer trains all weights",
        ),
        ({"model.data.data_prefix": []}, {}, "there is no validation loss to compare"),
        ({"trainer.precision": "16"}, {}, "the embedded trainer computes in bf16 or fp32"),
        ({}, {"launcher": "slurm"}, "launcher=slurm: give program="),
        ({}, {"program": "a.py", "job": {"imag": "x"}}, "'imag' is no known key of a job"),
    ],
)
def test_what_cannot_run(
    base: dict[str, Any], changes: dict[str, Any], words: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        grid(changed(base, changes), tmp_path, Launcher({}), **words)
    assert said in str(caught.value)
