from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshwright
from meshwright.cli import run
from meshwright.report import doctor


def test_json_has_every_finding_and_the_exit_code_says_what_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    names = [finding["name"] for finding in found["findings"]]
    assert names[:3] == ["meshwright", "python", "numpy"]
    assert {"gpus", "slurm", "kubernetes", "base command", "calibration", "profile"} <= set(names)
    monkeypatch.setattr(doctor, "installed_version", lambda name: None)
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "BROKEN  is not installed, and every command needs it: pip install 'numpy>=2.0'" in out
    assert out.splitlines()[-1].startswith("broken: numpy")


def test_a_file_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--calibration", "nope.yaml"]) == 2
    assert capsys.readouterr().err == "error: calibration 'nope.yaml': No such file or directory\n"


def test_the_function_is_public() -> None:
    assert meshwright.doctor is not None
    assert doctor.examine().findings[0].words == meshwright.__version__
