"""Secrets: taken from who submits or from the platform's store, and in no file or line printed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.platforms.examples import JOBS
from tests.platforms.platforms import install, run

from meshwright import cli
from meshwright.platforms.job import Job
from meshwright.platforms.registry import job_text, launchers
from meshwright.software.contract import EnvVar
from meshwright.values.errors import ConfigError
from meshwright.values.secrets import is_secret

MARKED = "marked-secret-5f2c"
NAMES = ("HF_TOKEN", "WANDB_API_KEY")
FIRST: dict[str, Job] = {}
for _launcher, _job in JOBS.values():
    FIRST.setdefault(_launcher, replace(_job, secrets=NAMES))
REFUSE = ("pai-dlc", "runai")
"""Platforms that have no word for a variable from outside."""


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, MARKED)


@pytest.mark.parametrize("launcher", launchers())
def test_a_job_names_its_secrets_and_never_says_them(launcher: str) -> None:
    if launcher in REFUSE:
        with pytest.raises(ConfigError, match="has no word for secrets"):
            job_text(FIRST[launcher], launcher=launcher)
        return
    text = job_text(FIRST[launcher], launcher=launcher)
    assert all(name in text.text for name in NAMES)
    assert MARKED not in text.text + text.submit


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_a_script_hands_the_shell_s_secrets_to_the_program(launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    job = replace(FIRST[launcher], workdir=None, log_dir=None)
    script.write_text(job_text(job, launcher=launcher).text)
    env = {"SLURM_JOB_NODELIST": "node-[a-c]", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}
    given = dict.fromkeys(NAMES, MARKED)
    call = run(["bash", str(script)], bin_dir=install(tmp_path / "bin"), env=env | given)
    assert {name: call.env[name] for name in NAMES} == given
    without = subprocess.run(
        ["bash", str(script)],
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **env, "HF_TOKEN": MARKED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert without.returncode != 0
    assert "WANDB_API_KEY: set it where you submit" in without.stderr


@pytest.mark.parametrize("launcher", [name for name in launchers() if name.startswith("k8s-")])
def test_kubernetes_takes_secrets_from_its_own_store(launcher: str) -> None:
    content = yaml.safe_load(job_text(FIRST[launcher], launcher=launcher).text)
    found = [
        variable
        for variable in _variables(content)
        if "valueFrom" in variable and variable["name"] == "HF_TOKEN"
    ]
    assert found
    for variable in found:
        assert variable["valueFrom"] == {"secretKeyRef": {"name": "meshwright", "key": "HF_TOKEN"}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "a", "image": "b", "env": [variable]}]},
        }
        kubernetes_validate.validate(pod, "1.34", strict=True)


def _variables(content: object) -> Iterator[dict[str, object]]:
    if isinstance(content, dict):
        if isinstance(content.get("env"), list):
            yield from content["env"]
        for value in content.values():
            yield from _variables(value)
    elif isinstance(content, list):
        for value in content:
            yield from _variables(value)


def test_stores_are_named_as_each_platform_says() -> None:
    assert "--secret meshwright:HF_TOKEN:HF_TOKEN" in job_text(FIRST["bcp"], launcher="bcp").text
    assert "--secret HF_TOKEN" in job_text(FIRST["lepton"], launcher="lepton").text
    task = job_text(FIRST["sky"], launcher="sky")
    assert yaml.safe_load(task.text)["secrets"] == dict.fromkeys(NAMES)
    assert "--secret WANDB_API_KEY" in task.submit


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "KEY")),
        *((name, True) for name in ("DB_PASSWORD", "hf_token", "NGC_API_KEYS", "MY_CREDENTIALS")),
        *((name, False) for name in ("TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "MONKEY", "KEYBOARD")),
    ],
)
def test_which_names_are_secrets(name: str, secret: bool) -> None:
    assert is_secret(name) == secret


def test_a_name_stands_once() -> None:
    job = FIRST["slurm"]
    with pytest.raises(ConfigError, match="occurs twice"):
        replace(job, environment=(EnvVar(name="HF_TOKEN", value="a", why="b"),))
    with pytest.raises(ConfigError, match="no name of an environment variable"):
        replace(job, secrets=("$(id)",))


TRAIN = [
    *("train", "llama3-8b", "--cluster", "h100:16", "--seq", "8192", "--gbs", "64"),
    *("--layout", "tp=2,mbs=1", "--to", "megatron-lm", "--launcher", "slurm", "--steps", "100"),
]


def test_a_secret_s_value_on_the_command_line_is_refused_and_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run([*TRAIN, "--env", f"WANDB_API_KEY={MARKED}", "--dry-run"]) == 2
    said = "".join(capsys.readouterr())
    assert "give --env WANDB_API_KEY" in said
    assert MARKED not in said


def test_a_dry_run_names_a_secret_and_shows_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TRAIN, "--env", "WANDB_API_KEY", "--env", "NCCL_DEBUG=INFO", "-o", "run", "--dry-run"]
    cli.run(words)
    said = "".join(capsys.readouterr())
    assert "WANDB_API_KEY (from your shell" in said
    assert "NCCL_DEBUG=INFO" in said
    assert MARKED not in said
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(MARKED in text for text in files)
    monkeypatch.delenv("WANDB_API_KEY")
    assert cli.run(words) == 1
    assert "not set in this shell: WANDB_API_KEY" in "".join(capsys.readouterr())
