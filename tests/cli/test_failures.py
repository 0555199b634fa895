"""What ends a command from outside: full disks, odd names, closed pipes, another's files."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from meshwright.cli import run

PLAN = ["plan", "llama3-8b", "--cluster", "h100:16", "--seq", "8192", "--gbs", "64"]
TABLE = """row_id,model,gpu,n_gpus,framework,seq_len,gbs,tp,pp,dp,mbs
a,llama3-8b,h100,16,megatron-lm,8192,64,2,1,8,1
"""
WRITERS = {
    "plan --csv": [*PLAN, "--csv", "out/plans.csv"],
    "plan --trace": [*PLAN, "--trace", "out"],
    "plan --save-request": [*PLAN, "--save-request", "out/asked.yaml"],
    "explain --trace": [
        *("explain", *PLAN[1:], "--layout", "tp=2,mbs=1", "--trace", "out/step.json"),
    ],
    "export": ["export", "plan.json", "--to", "megatron-lm", "-o", "out/run"],
    "report": ["report", "plan.json", "-o", "out/page.html"],
    "report --format svg": [
        *("report", "plan.json", "--format", "svg", "--chart", "time", "-o", "out/time.svg"),
    ],
    "predict": ["predict", "rows.csv", "-o", "out/predicted.csv"],
    "serving predict": ["serving", "predict", "served.csv", "-o", "out/predicted.csv"],
    "autoconfigurator": ["autoconfigurator", "--write-conf", "out/conf"],
    "fix": ["fix", "out/train.sh", "--cluster", "h100:16", "--write"],
}
SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --bf16 \\
  --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --swiglu \\
  --tensor-model-parallel-size 16
"""
LIMITED = """
import json, os, resource, sys
from meshwright.cli import run

commands = json.load(sys.stdin)
codes = {}
for name, words in commands.items():
    print(f"## {name}", file=sys.stderr, flush=True)
    # A limit for one file stands for the end of a disk: the same error from the same calls.
    resource.setrlimit(resource.RLIMIT_FSIZE, (128, resource.RLIM_INFINITY))
    codes[name] = run(words)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
sys.stdout.write("\\n" + json.dumps(codes))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, truth_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("full")
    (folder / "out").mkdir()
    (folder / "rows.csv").write_text(TABLE)
    with (truth_dir / "inference_fastertransformer.csv").open() as table:
        (folder / "served.csv").write_text("".join(islice(table, 3)))
    (folder / "out" / "train.sh").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *PLAN, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "plan.json").write_text(done.stdout)
    return folder


def test_every_writer_ends_a_full_disk_with_3_a_sentence_and_nothing_half_written(
    place: Path,
) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        input=json.dumps(WRITERS),
        capture_output=True,
        text=True,
        cwd=place,
        check=True,
    )
    codes = json.loads(done.stdout.rpartition("\n")[2])
    said = {
        part.partition("\n")[0]: part.partition("\n")[2] for part in done.stderr.split("## ")[1:]
    }
    assert codes == dict.fromkeys(WRITERS, 3), done.stderr
    for name, words in said.items():
        assert "File too large" in words, name
        assert "Traceback" not in words, name
    after = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    left = {path: data for path, data in after.items() if before.get(path) != data}
    assert not left


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("export", "fix")])
def test_nothing_writes_over_a_file_that_it_did_not_make(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    words = WRITERS[name]
    last = Path(words[-1])
    mine = {"plan --trace": last / "plan-1.json", "autoconfigurator": last / "config.yaml"}
    target = mine.get(name, last)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("my own notes")
    assert run(words) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "my own notes"
    assert run([*words, "--force"]) == 0
    written = target.read_bytes()
    assert written != b"my own notes"
    assert run(words) == 0  # its own file gives way
    target.unlink()


BAD = {
    "a name beyond 255 bytes": ["report", "plan.json", "-o", "a" * 300],
    "a loop of links": ["report", "plan.json", "-o", "loop/page.html"],
    "a folder in a file's place": ["report", "plan.json", "-o", "out"],
    "a file in a folder's place": ["autoconfigurator", "--write-conf", "rows.csv"],
    "nested too deeply": ["report", "deep.json", "-o", "page.html"],
    "a config nested too deeply": ["plan", "--hf", "deep.json", *PLAN[2:]],
    "YAML nested too deeply": ["plan", "--request", "deep.yaml"],
    "no end": ["plan", "--hf", "/dev/zero", *PLAN[2:]],
    "no end, a table": ["predict", "/dev/zero", "-o", "p.csv"],
    "no end, results": ["calibrate", "/dev/zero", "-o", "c.yaml"],
    "not text": ["report", "binary", "-o", "page.html"],
    "not text, a script": ["fix", "binary", "--cluster", "h100:8"],
    "beyond counting": ["plan", "llama3-8b", "--cluster", f"h100:{10**20}", *PLAN[4:]],
}


@pytest.mark.parametrize("name", BAD)
def test_odd_input_is_one_line_and_2(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    (place / "deep.json").write_text("[" * 100_000)
    (place / "deep.yaml").write_text("[" * 20_000)
    (place / "binary").write_bytes(bytes(range(256)))
    if not (place / "loop").is_symlink():
        (place / "loop").symlink_to("loop")
    assert run(BAD[name]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_a_full_standard_output_ends_with_3_and_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "meshwright", "models"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_ends_a_command_as_other_filters() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m meshwright chips | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr == ""
