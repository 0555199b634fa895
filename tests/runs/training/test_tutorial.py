"""docs/train.md's tutorial with fewer tokens: a corpus, its ids, a training that is killed and goes
on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platforms.executors.harness import machine_of_its_own

pytest.importorskip(
    "torch", reason="trains with the embedded trainer: pip install 'meshwright[train]'"
)
pytest.importorskip("sentencepiece", reason="trains a tokenizer: pip install 'meshwright[data]'")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
FEWER = {
    "--tokens 2M": "--tokens 9k",
    "--save-every 100": "--save-every 3",
    "--seq 128": "--seq 64",
}
"""512 tokens a step: 18 steps."""
MESHWRIGHT = '#!/bin/sh\nexec {python} -m meshwright "$@"\n'


def blocks() -> list[str]:
    """The shell of the tutorial, block by block."""
    text = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^```bash\n(.*?)^```",
        text[text.index("## From a folder of files") :],
        flags=re.DOTALL | re.MULTILINE,
    )
    for full, short in FEWER.items():
        assert any(full in block for block in found), f"the tutorial has no {full} any more"
        found = [block.replace(full, short) for block in found]
    return found


def shell(block: str, *, code: int = 0) -> str:
    """Run a block as a user would; return what it prints."""
    done = subprocess.run(
        ["bash", "-euc", block], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the tutorial is followed, with this Python's own meshwright, and a smaller corpus
    made."""
    place = tmp_path_factory.mktemp("tutorial")
    (place / "bin").mkdir()
    for name, text in (("meshwright", MESHWRIGHT), ("python", '#!/bin/sh\nexec {python} "$@"\n')):
        (place / "bin" / name).write_text(text.format(python=sys.executable))
        (place / "bin" / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, machine_of_its_own(place):
        patch.chdir(place)
        patch.setenv("PATH", f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("OMP_NUM_THREADS", "1")
        shell(blocks()[0])
        shell(blocks()[1])
        yield place


def losses(job: Path) -> dict[int, float]:
    """The loss of each step that a job reports."""
    lines = [
        json.loads(line)
        for line in (job / "stdout.log").read_text().splitlines()
        if line.startswith("{")
    ]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}


def test_the_tutorial(folder: Path) -> None:
    _, _, start, kill, again, left = blocks()
    said = shell(start)
    assert "the highest id seen in the data is 1,999" in said
    assert (
        "job 1: failed (killed from outside together with its watcher; no exit code was left)"
        in shell(kill)
    )
    end = shell(again)
    assert "done: step 18 of 18 is done" in end
    first, second = losses(Path("run/jobs/1")), losses(Path("run/jobs/2"))
    saved = min(second) - 1
    assert saved >= 3, "it goes on from a checkpoint"
    assert saved % 3 == 0
    assert max(second) == 18
    for step in set(first) & set(second):
        assert first[step] == pytest.approx(second[step], abs=1e-5), (
            "what was lost with the machine comes again to the same losses"
        )
    assert second[18] < first[1] - 0.3, "the loss falls"
    assert "step-18" in shell(left)
    report = json.loads(Path("report.json").read_text())
    assert (report["done_steps"], report["saved_steps"], len(report["jobs"])) == (18, 18, 2)
    facts = {
        path.parent.name: json.loads(path.read_text())["validation_loss"]
        for path in Path("run/checkpoints").glob("step-*/run.json")
    }
    best = sorted((loss, name) for name, loss in facts.items() if loss is not None)[:2]
    assert len(facts) <= 4, "the best two and the newest two"
    assert best
