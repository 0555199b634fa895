"""What every platform of the registry keeps, one of another package too."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.platforms.examples import IMAGE, JOBS, ON_NODES, SMALL
from tests.platforms.executors.harness import package_of_orbit

from meshwright import cli
from meshwright.platforms.contract import Platform
from meshwright.platforms.executor import UNKNOWN, JobState, state_of
from meshwright.platforms.registry import (
    executor,
    find_platform,
    find_runner,
    job_text,
    launchers,
    launchers_without_gpus,
    platforms,
    runners,
)
from meshwright.runs.tune import Tuning
from meshwright.values.errors import ConfigError, UnknownNameError

ROOT = Path(__file__).parents[2]
PLAN = ["llama3-8b", "--cluster", "h100:8", "--seq", "8192", "--gbs", "64"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def orbit(tmp_path: Path) -> Iterator[Platform]:
    with package_of_orbit(tmp_path):
        yield find_platform("orbit")


def records() -> list[Any]:
    return [pytest.param(platform, id=platform.name) for platform in platforms()]


def test_names_stand_in_the_order_of_help() -> None:
    assert launchers() == (
        "torchrun",
        *("slurm", "k8s-trainjob", "k8s-pytorchjob", "k8s-jobset", "k8s-mpijob"),
        *("bcp", "bcprun", "runai", "lepton", "sky", "pai-dlc"),
    )
    assert launchers_without_gpus() == (
        *("slurm", "k8s-jobset", "bcp", "bcprun", "runai", "lepton", "sky", "pai-dlc"),
    )
    assert runners() == (
        *("local", "slurm", "k8s", "k8s-pytorchjob", "k8s-jobset", "k8s-mpijob"),
        *("bcp", "bcprun", "runai", "lepton", "sky", "pai-dlc"),
    )


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("export", launchers()),
        ("workflow", launchers_without_gpus()),
        ("data run", launchers_without_gpus()),
        ("train", tuple(name for name in runners() if not find_runner(name).fixed)),
    ],
)
def test_help_names_every_platform(command: str, names: tuple[str, ...], capsys: Capture) -> None:
    """Help is written by hand, since making it of the registry would load numpy for `--help`."""
    assert cli.run([*command.split(), "--help"]) == 0
    told = re.sub(r"[│\s]+", "", capsys.readouterr().out)
    for name in names:
        assert name.removeprefix("k8s") in told


@pytest.mark.parametrize("platform", records())
def test_a_record_is_whole(platform: Platform) -> None:
    assert platform.title and platform.needs
    assert all(find_platform(name) is platform for name in platform.names)
    assert set(platform.states.values()) <= set(get_args(JobState))
    if platform.start is None:
        with pytest.raises(ConfigError, match=f"launcher {platform.name}: .*that needs"):
            find_runner(platform.name)
        return
    assert state_of("a word of next year", platform.states) == "unknown"
    assert {"queued", "running"} & set(platform.states.values()) or platform.launcher in (
        "local",
        "bcprun",
    )
    assert {"succeeded", "failed"} <= set(platform.states.values())
    assert executor(platform.launcher).name == platform.launcher
    assert set(platform.option_names).isdisjoint(platform.fixed)


@pytest.mark.parametrize("platform", records())
def test_its_text_is_a_function_of_the_job(platform: Platform) -> None:
    jobs = [job for launcher, job in JOBS.values() if launcher == platform.name]
    assert jobs
    for job in jobs:
        texts = [job_text(replace(job), launcher=name) for name in platform.names for _ in "ab"]
        assert all(text == texts[0] for text in texts)
        assert job.name in texts[0].text.lower() or job.name in texts[0].text


@pytest.mark.parametrize("platform", records())
def test_a_job_without_gpus_is_taken_or_refused(platform: Platform) -> None:
    job = replace(ON_NODES, asks_for="nodes", gpus_per_node=1)
    if not platform.without_gpus:
        with pytest.raises(UnknownNameError, match="launcher of jobs without GPUs"):
            job_text(job, launcher=platform.name)


def test_each_page_names_every_platform() -> None:
    pages = {
        "launchers.md": [(p.launcher, p.title) for p in platforms()],
        "jobs.md": [(p.name, "") for p in platforms()],
    }
    for page, rows in pages.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for name, title in rows:
            row = next((line for line in text.splitlines() if f"| `{name}` |" in line), "")
            assert row and title in row, (page, name)


def test_both_names_of_a_platform_are_one_launcher(tmp_path: Path) -> None:
    assert Tuning(folder=tmp_path, launcher="torchrun").launcher == "local"
    assert Tuning(folder=tmp_path, launcher="k8s-trainjob").launcher == "k8s"
    assert Tuning(folder=tmp_path, launcher="k8s-jobset").launcher == "k8s-jobset"


def test_a_kind_of_job_is_said_once() -> None:
    assert executor("k8s-jobset").options.kind == "jobset"  # type: ignore[attr-defined]
    assert executor("k8s", kind="mpijob").name == "k8s-mpijob"
    with pytest.raises(UnknownNameError, match="option of the launcher k8s-jobset"):
        executor("k8s-jobset", kind="mpijob")


@pytest.mark.parametrize(
    "words",
    [
        ["tune", *PLAN, "--launcher", "paper"],
        ["train", *PLAN, "--steps", "10", "--launcher", "paper"],
    ],
)
def test_what_is_only_written_is_refused_with_the_reason(
    words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    """A package may have a platform whose jobs it cannot start."""
    text = (
        "from dataclasses import replace\n"
        "from meshwright.platforms.lepton import PLATFORMS\n"
        "MINE = replace(PLATFORMS[0], name='paper', start=None, why_not_started='only written')\n"
    )
    with package(tmp_path, "broken_orbit:MINE", text):
        assert "paper" in launchers() and "paper" not in runners()
        assert cli.run([*words, "--dry-run"]) == 2
    assert "launcher paper: only written" in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_a_platform_of_another_package(orbit: Platform, capsys: Capture) -> None:
    assert launchers()[-1] == "orbit" and runners()[-1] == "orbit"
    assert (
        "orbit training pytorch submit"
        in job_text(replace(SMALL, image=IMAGE), launcher="orbit").text
    )
    layout = ["--layout", "tp=2,mbs=1", "--image", IMAGE, "--dry-run"]
    for words in (
        ["export", *PLAN, *layout, "--to", "torchtitan"],
        ["tune", *PLAN, "--image", IMAGE, "--dry-run"],
        ["train", *PLAN, *layout, "--steps", "10", "--save-dir", "/x", "--allow", "storage"],
    ):
        assert cli.run([*words, "--launcher", "orbit"]) == 0, words
        assert "orbit training pytorch submit" in capsys.readouterr().out
    assert find_runner("orbit") is orbit


def test_it_is_gone_with_its_package() -> None:
    assert "orbit" not in launchers()


@contextmanager
def package(folder: Path, entry: str, text: str) -> Iterator[None]:
    """Install a package of one module."""
    (folder / "broken_orbit.py").write_text(text)
    (folder / "broken-1.dist-info").mkdir()
    (folder / "broken-1.dist-info" / "METADATA").write_text("Name: broken\nVersion: 1\n")
    (folder / "broken-1.dist-info" / "entry_points.txt").write_text(
        f"[meshwright.platforms]\nbroken = {entry}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.delitem(sys.modules, "broken_orbit", raising=False)
        platforms.cache_clear()
        yield
    platforms.cache_clear()


SECOND_SLURM = "from meshwright.platforms.slurm import PLATFORMS as MINE\n"


@pytest.mark.parametrize(
    ("entry", "text", "words"),
    [
        ("broken_orbit:MINE", "1 / 0\n", "platform broken: .* can't be loaded .ZeroDivisionError"),
        ("broken_orbit:NONE", "MINE = 1\n", "platform broken: .* can't be loaded .AttributeError"),
        ("broken_orbit:MINE", "MINE = 1\n", "is 1; expected a Platform, or a tuple of them"),
        (
            "broken_orbit:MINE",
            f"{SECOND_SLURM}from dataclasses import replace\n"
            "MINE = replace(MINE[0], title='another')\n",
            "platform slurm: there are two of that name, Slurm and another",
        ),
    ],
)
def test_a_broken_package_is_named(tmp_path: Path, entry: str, text: str, words: str) -> None:
    with package(tmp_path, entry, text), pytest.raises(ConfigError, match=words):
        launchers()


def test_a_platform_that_is_started_says_how_it_is_read() -> None:
    slurm = find_platform("slurm")
    cases: tuple[dict[str, Any], ...] = (
        {"states": {}},
        {"states": {UNKNOWN: "failed"}},
        {"limit": ""},
        {"start": None},
        {"why_not_started": "but it is"},
    )
    for broken in cases:
        with pytest.raises(AssertionError):
            replace(slurm, **broken)
