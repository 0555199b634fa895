from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.values.hardware.profiles import ON_H100

from meshwright.report import doctor as machine
from meshwright.report.doctor import (
    Finding,
    Health,
    State,
    calibration_finding,
    gpu_finding,
    health_lines,
    kubernetes_finding,
    ngc_finding,
    profile_finding,
    slurm_finding,
    torch_finding,
)
from meshwright.trust.calibration import Calibration


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of the PATH but the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_programs_everything_is_absent_with_a_sentence(programs: Path) -> None:
    found = [
        gpu_finding(),
        slurm_finding(),
        ngc_finding(),
        kubernetes_finding(client_version=None, environ={}, home=programs),
    ]
    assert {finding.state for finding in found} == {"absent"}
    assert "--launcher slurm" in found[1].words


def test_gpus_are_named_with_their_cluster(programs: Path) -> None:
    put(programs, "nvidia-smi", "for i in 1 2; do echo 'NVIDIA H100 80GB HBM3, 550.54.15'; done")
    found = gpu_finding()
    assert found.state == "ok"
    assert found.words == "2 x NVIDIA H100 80GB HBM3, driver 550.54.15; --cluster local is h100:2"


def test_a_gpu_that_the_catalogue_lacks_is_said(programs: Path) -> None:
    put(programs, "nvidia-smi", "echo 'NVIDIA Quux 9, 1.0'")
    found = gpu_finding()
    assert found.state == "broken"
    assert found.words.startswith("1 x NVIDIA Quux 9: ")


@pytest.mark.parametrize(
    ("version", "gpus", "state"),
    [
        ("2.13.0+cpu", "ok", "broken"),
        ("2.13.0", "ok", "ok"),
        ("2.13.0+cpu", "absent", None),
        (None, "ok", None),
    ],
)
def test_a_torch_for_processors_beside_gpus_is_broken(
    version: str | None, gpus: State, state: str | None
) -> None:
    found = torch_finding(version, gpus=Finding(room="machine", name="gpus", state=gpus, words=""))
    assert (None if found is None else found.state) == state


def test_a_broken_driver_is_broken(programs: Path) -> None:
    put(
        programs,
        "nvidia-smi",
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
    )
    found = gpu_finding()
    assert found.state == "broken"
    assert (
        found.words
        == "nvidia-smi ended with 18: Failed to initialize NVML: Driver/library version mismatch"
    )


def test_a_program_that_hangs_is_not_waited_for(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PATIENCE_S", 0.2)
    put(programs, "ngc", "exec /bin/sleep 20")
    assert ngc_finding().state == "broken"
    assert "gave no answer" in ngc_finding().words


def test_slurm_with_and_without_its_controller(programs: Path) -> None:
    for name in ("squeue", "scancel"):
        put(programs, name, "true")
    put(programs, "sbatch", "echo slurm 22.05.8")
    assert slurm_finding().words == "scontrol not on the PATH, though others of Slurm are"
    put(programs, "scontrol", "echo 'Slurmctld(primary) at head is UP'")
    assert slurm_finding() == Finding(
        room="launchers",
        name="slurm",
        state="ok",
        words="slurm 22.05.8; Slurmctld(primary) at head is UP",
    )
    put(programs, "scontrol", "echo 'scontrol: error: unable to contact' >&2; exit 1")
    assert slurm_finding().state == "broken"
    assert slurm_finding().words.endswith(
        "scontrol ping ended with 1: scontrol: error: unable to contact"
    )


def test_slurm_that_was_installed_and_never_configured_is_absent(programs: Path) -> None:
    """Debian's slurm-client 22.05 without a slurm.conf; sbatch --version says the same."""
    for name in ("squeue", "scancel", "sbatch", "scontrol"):
        put(
            programs,
            name,
            "echo 'scontrol: fatal: Could not establish a configuration source' >&2; exit 1",
        )
    found = slurm_finding()
    assert found.state == "absent"
    assert "no cluster is configured" in found.words


@pytest.mark.parametrize(
    ("text", "version", "state", "words"),
    [
        ("current-context: lab\n", "30.1", "ok", "context lab of"),
        ("current-context: lab\n", None, "absent", "its Python client is not installed"),
        ("clusters: []\n", "30.1", "broken", "names no current context"),
        ("a: [", "30.1", "broken", "can't be read"),
    ],
)
def test_kubernetes_by_its_configuration(
    tmp_path: Path, text: str, version: str | None, state: str, words: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    found = kubernetes_finding(client_version=version, environ={"KUBECONFIG": str(path)})
    assert found.state == state
    assert words in found.words


def test_kubernetes_inside_a_pod(tmp_path: Path) -> None:
    found = kubernetes_finding(
        client_version="30.1", environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, home=tmp_path
    )
    assert (found.state, found.words) == (
        "ok",
        "inside a pod, client 30.1; not asked whether it answers",
    )


def test_a_calibration_of_another_version_or_without_its_profile_is_broken() -> None:
    fitted = Calibration(chip="h100", stack="megatron", runs=("a", "b"))
    assert calibration_finding(fitted, None).state == "ok"
    assert "h100, stack megatron, 2 runs" in calibration_finding(fitted, None).words
    assert calibration_finding(replace(fitted, version="0.0.9"), None).state == "broken"
    assert (
        calibration_finding(replace(fitted, profile="measured elsewhere"), None).state == "broken"
    )


def test_a_partial_profile_is_broken() -> None:
    assert profile_finding(replace(ON_H100, complete=True)).state == "ok"
    found = profile_finding(replace(ON_H100, complete=False))
    assert found.state == "broken"
    assert found.remedy == "the same `meshwright profile` again measures the rest"


def test_lines_mark_what_is_broken_and_sum_up() -> None:
    fine = Finding(room="software", name="numpy", state="ok", words="2.4")
    bad = Finding(
        room="extras",
        name="train",
        state="broken",
        words="torch 2.4 is too old",
        remedy="pip install 'meshwright[train]'",
    )
    assert health_lines(Health(findings=(fine, bad))) == [
        *("software", "  numpy         ok      2.4", ""),
        *(
            "extras",
            "  train         BROKEN  torch 2.4 is too old: pip install 'meshwright[train]'",
            "",
        ),
        "broken: train",
    ]
    assert health_lines(Health(findings=(fine,)))[-1].startswith("nothing is broken")
