from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.platforms.examples import IMAGE, JOBS, LARGE, ON_NODES, PATHS, SMALL, WITH_FILES

from meshwright.platforms.base_command.script import base_command_time
from meshwright.platforms.job import Job, Mount, parse_mount
from meshwright.platforms.registry import job_text, launchers
from meshwright.platforms.slurm.script import array_script, slurm_time
from meshwright.software.contract import EnvVar
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import parse_duration

TEXTS = {name: job_text(job, launcher=launcher) for name, (launcher, job) in JOBS.items()}
TEXTS["slurm-array"] = array_script(
    [replace(LARGE, name=name, partition="gpu") for name in ("a", "b", "c")],
    folders=["/runs/a", "/runs/b $x", "/runs/it's c"],
    at_once=2,
)
SCRIPTS = {name: text.text for name, text in TEXTS.items() if text.text.startswith("#!")}
SHELL: dict[str, str] = SCRIPTS | {
    name: "#!/usr/bin/env bash\n" + yaml.safe_load(text.text)["run"]
    for name, text in TEXTS.items()
    if name.startswith("sky")
}
"""Everything that bash reads."""
SHELL |= {
    f"{name}, inside": (
        f"#!{'/bin/sh' if name.startswith('bcp') else '/usr/bin/env bash'}\n{found[2]}\n"
    )
    for name, text in SCRIPTS.items()
    for found in re.finditer(r"<<'(END\w*)' [|][|] :\n(.*?)\n\1\n", text, flags=re.DOTALL)
}
"""Scripts inside scripts; which shell reads the one of Base Command is not documented."""
DAY, HOUR, MINUTE = 86_400, 3_600, 60


@pytest.mark.parametrize("name", list(TEXTS))
def test_text_is_as_it_was(name: str) -> None:
    golden = Path(__file__).parent / "golden" / f"{name}.golden"
    text = TEXTS[name].text
    if os.environ.get("MESHWRIGHT_ACCEPT"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), (
        "read the difference; to accept it, run pytest once with MESHWRIGHT_ACCEPT=1"
    )


def test_every_platform_has_a_golden_text() -> None:
    assert {launcher for launcher, _ in JOBS.values()} == set(launchers())


@pytest.mark.parametrize("name", list(SHELL))
def test_bash_reads_it(name: str) -> None:
    result = subprocess.run(
        ["bash", "-n"], input=SHELL[name], text=True, capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", list(SHELL))
def test_shellcheck_finds_nothing(name: str) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; requirements-dev.txt brings it")
    # Dollar signs in single quotes are meant to stay; elsewhere a comment says so, for which one
    # line of a command has no place.
    exclude = ["--exclude=SC1003,SC2016"] if name.startswith("bcp") else []
    result = subprocess.run(
        [shellcheck, *exclude, "-"], input=SHELL[name], text=True, capture_output=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("name", list(SHELL))
def test_scripts_stop_at_the_first_error(name: str) -> None:
    commands = [line for line in SHELL[name].splitlines() if line and not line.startswith("#")]
    assert commands[0] == "set -euo pipefail" or (
        name.startswith("bcp") and " && exec " in SHELL[name]
    )


@pytest.mark.parametrize("name", list(JOBS))
def test_text_says_how_processes_are_started_and_why_variables_are_set(name: str) -> None:
    text = TEXTS[name].text
    assert "one process per GPU" in text or "One task per GPU" in text
    assert "communication is launched before the compute that hides it" in text
    assert "where NCCL writes" in text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5D", 5 * DAY),
        ("5d", 5 * DAY),
        ("10h", 10 * HOUR),
        ("1.5h", 90 * MINUTE),
        ("1D12H", 36 * HOUR),
        ("90s", 90),
        ("2d3h4m5s", 2 * DAY + 3 * HOUR + 4 * MINUTE + 5),
        ("5-00:00:00", 5 * DAY),
        ("1-12", 36 * HOUR),
        ("1-12:30", 36 * HOUR + 30 * MINUTE),
        ("4:23:30:00", 4 * DAY + 23 * HOUR + 30 * MINUTE),
        ("23:30:00", 23 * HOUR + 30 * MINUTE),
        ("100:00:00", 100 * HOUR),
    ],
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "60", "2:30", "0h", "h", "5x", "-5D", "1:2:3", "5D 3"])
def test_durations_that_could_mean_two_things_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a duration such as 30d"):
        parse_duration(text, name="time")


@pytest.mark.parametrize(
    ("seconds", "slurm", "base_command"),
    [
        (5 * DAY, "5-00:00:00", "5D"),
        (10 * HOUR, "0-10:00:00", "10H"),
        (4 * DAY + 23 * HOUR + 30 * MINUTE, "4-23:30:00", "4D23H30M"),
        (61, "0-00:01:01", "1M1S"),
    ],
)
def test_limits_are_written_in_the_form_of_each_platform(
    seconds: int, slurm: str, base_command: str
) -> None:
    assert slurm_time(seconds) == slurm
    assert base_command_time(seconds) == base_command
    assert parse_duration(slurm) == parse_duration(base_command) == seconds


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a:/b", Mount(source="/a", target="/b")),
        ("/a:/b:ro", Mount(source="/a", target="/b", read_only=True)),
        ("/a:/b:rw", Mount(source="/a", target="/b")),
        ("pvc=data:/b", Mount(kind="pvc", source="data", target="/b")),
        ("s3://bucket/x:/b", Mount(source="s3://bucket/x", target="/b")),
        ("node-nfs:shared=/a:/b", Mount(kind="node-nfs:shared", source="/a", target="/b")),
        ("/a=b:/c", Mount(source="/a=b", target="/c")),
    ],
)
def test_mounts_are_read(text: str, mount: Mount) -> None:
    assert parse_mount(text) == mount


@pytest.mark.parametrize("text", ["/a", "/a:b", "/a:/b:rx", ":/b", "/a:/b\n"])
def test_broken_mounts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="mount"):
        parse_mount(text)


def test_unknown_platform_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'slurm'"):
        job_text(SMALL, launcher="slrum")
    with pytest.raises(UnknownNameError, match="k8s-jobset"):
        job_text(SMALL, launcher="k8s-job")
    with pytest.raises(UnknownNameError, match="known: bcp, bcprun, k8s-jobset"):
        job_text(SMALL, launcher="flyte")


@pytest.mark.parametrize(
    ("launcher", "job", "words"),
    [
        (
            "torchrun",
            replace(SMALL, image=IMAGE, account="a"),
            "torchrun has no word for image, account; leave them out",
        ),
        (
            "torchrun",
            replace(SMALL, launch="ranks"),
            "torchrun does not start processes by ranks; it does by torchrun",
        ),
        ("slurm", replace(SMALL, mounts=PATHS), "mounts need an image"),
        (
            "slurm",
            replace(SMALL, image=IMAGE, mounts=(Mount(kind="pvc", source="a", target="/b"),)),
            "cannot mount pvc a at /b: expected a path",
        ),
        (
            "slurm",
            replace(SMALL, image=IMAGE, mounts=(Mount(source="/a,b", target="/b"),)),
            "holds one of",
        ),
        ("slurm", replace(SMALL, image="a.sif", vendor="Google"), "Google; known: NVIDIA, AMD"),
        ("bcp", replace(SMALL, image=IMAGE), "bcp needs instance, such as dgxa100.80g.8.norm"),
        ("bcp", replace(LARGE, image=IMAGE, instance="i", launch="torchrun"), "it does by ranks"),
        (
            "bcp",
            replace(SMALL, image=IMAGE, instance="i", mounts=PATHS),
            "expected workspace=NAME or dataset=NAME",
        ),
        ("k8s-jobset", SMALL, "k8s-jobset needs image"),
        ("k8s-jobset", replace(SMALL, image=IMAGE, name="Llama_3.1-8B"), "llama-3-1-8b would do"),
        ("k8s-jobset", replace(SMALL, image=IMAGE, name="8b"), "b would do"),
        (
            "k8s-jobset",
            replace(SMALL, image=IMAGE, account="a"),
            "no word for account; leave it out",
        ),
        (
            "k8s-trainjob",
            replace(
                SMALL, image=IMAGE, environment=(EnvVar(name="PET_NNODES", value="1", why=""),)
            ),
            "PET_NNODES may not be set",
        ),
        ("k8s-mpijob", replace(SMALL, image=IMAGE, launch="torchrun"), "it does by ranks"),
        ("k8s-mpijob", replace(ON_NODES, image=IMAGE), "bash is to be run once per node"),
        ("k8s-mpijob", WITH_FILES, "cannot bring config.toml, data/blend.txt to the nodes"),
        ("torchrun", replace(ON_NODES, log_dir="logs"), "bash is run without it"),
        (
            "runai",
            replace(
                SMALL,
                image=IMAGE,
                mounts=(Mount(kind="pvc", source="a", target="/a", read_only=True),),
            ),
            "read only",
        ),
        (
            "lepton",
            replace(
                SMALL,
                image=IMAGE,
                instance="i",
                mounts=(Mount(kind="pvc", source="a", target="/a"),),
            ),
            "node-TYPE:NAME",
        ),
        ("sky", SMALL, "sky needs instance, such as H100"),
        ("sky", replace(SMALL, instance="H100", words=("--x",)), "sky has no word for words"),
    ],
)
def test_what_a_platform_has_no_word_for_is_refused(launcher: str, job: Job, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        job_text(job, launcher=launcher)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 0},
        {"command": ()},
        {"command": ("a\0b",)},
        {"command": ("a\ud800",)},
        {"runs_on": "once"},
        {"files": WITH_FILES.files, "workdir": "/a"},
        {"runs_on": "node", "launch": "ranks"},
        {"name": "a b"},
        {"name": "-a"},
        {"account": "a\n#SBATCH --qos=x"},
        {"image": "--bind=/etc:/x.sif"},
        {"log_dir": "-m 777"},
        {"words": ("--a\n--b",)},
        {"environment": (EnvVar(name="A", value="1", why=""), EnvVar(name="A", value="2", why=""))},
    ],
)
def test_jobs_that_nothing_could_run_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(SMALL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=1"])
def test_variables_that_no_shell_exports_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no name of an environment variable"):
        replace(SMALL, environment=(EnvVar(name=name, value="", why=""),))


def test_base_command_uses_flags_of_ngc_4_19_1_only() -> None:
    """The flags of `ngc base-command job run --help`, NGC CLI 4.19.1."""
    known = {
        *(
            "--name",
            "--image",
            "--instance",
            "--commandline",
            "--result",
            "--workspace",
            "--datasetid",
            "--array-type",
            "--replicas",
        ),
        *(
            "--total-runtime",
            "--preempt",
            "--org",
            "--team",
            "--ace",
            "--network",
            "--env-var",
            "--label",
            "--secret",
            "--priority",
        ),
    }
    for name in ("bcp-small", "bcp-large"):
        text = TEXTS[name].text
        words = text[text.index("ngc base-command job run") :].split()
        assert {word for word in words if word.startswith("--")} <= known
        assert "4.19.1" in text
