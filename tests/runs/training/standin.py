"""A torchrun that prints what the embedded trainer prints and writes what it writes, in no time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

TEXT = """#!{python}
import json, os, pathlib, sys, time
words = dict(word.split("=", 1) for word in sys.argv if "=" in word and not word.startswith("--"))
folder, total = pathlib.Path(words["save.folder"]), int(words["steps"])
saved = max([int(path.name[5:]) for path in folder.glob("step-*")], default=0)
stop = saved + int(os.environ.get("STEPS_A_JOB", total))
if "FAILS" in os.environ:
    sys.exit("RuntimeError: " + os.environ["FAILS"])
for step in range(saved + 1, min(stop, total) + 1):
    print(json.dumps({{"event": "step", "step": step, "loss": 8.0 - step / 100, "gradient_norm": 1.0, "step_s": 0.5}}), flush=True)
    time.sleep(float(os.environ.get("STEP_S", 0)))
if min(stop, total) > saved:
    new = folder / ("step-%d" % min(stop, total))
    new.mkdir(parents=True)
    (new / "run.json").write_text("{{}}")
"""  # noqa: E501


def put_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with that torchrun on the PATH and none beside Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshwright.platforms.local.executor._path", lambda: os.environ["PATH"])
    monkeypatch.setattr("meshwright.runs.training.launch.POLL_S", 0.05)
    monkeypatch.setattr("meshwright.runs.processors._PROBE_S", 0.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    path = tmp_path / "bin" / "torchrun"
    path.write_text(TEXT.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
