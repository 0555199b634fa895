"""Marked secrets through a whole flow: no file, no output and no process list has one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SECRETS = {"WANDB_API_KEY": "marked-wandb-5f2c91", "HF_TOKEN": "marked-hub-77ab30"}
MARK = "marked-"
ASKED = ["llama3.2-1b", "--cluster", "h100:1", "--seq", "512", "--gbs", "16", "--layout", "mbs=1"]
PROGRAM = """import os, sys, time
if os.environ["WANDB_API_KEY"].startswith("marked-"):
    open(os.environ["SEEN"], "w").close()
time.sleep(1)
sys.exit("no data here")
"""
GPUS = """#!/bin/bash
[[ $* == *index* ]] && echo 0 || echo "NVIDIA H100 80GB HBM3"
"""
FLOW = [
    ["plan", *ASKED[:-2], "--json"],
    ["models", SECRETS["HF_TOKEN"]],
    ["export", *ASKED, "--to", "megatron-lm", "--launcher", "slurm", "-o", "out"],
    [
        *("train", *ASKED, "--to", "megatron-lm", "--launcher", "local", "--steps", "10"),
        *("--program", "PLACE/pretrain_gpt.py", "--env", "WANDB_API_KEY", "--env", "HF_TOKEN"),
        *("-o", "run", "--jobs", "1", "--allow", "storage"),
    ],
    ["train", "status", "run", "--json"],
    ["train", "logs", "run"],
    ["watch", "run", "--once"],
    ["fix", "train.sh", "--cluster", "h100:8"],
    ["why-oom", "train.sh", "--cluster", "h100:8"],
    ["export", "--from", "train.sh", "--cluster", "h100:8", "--to", "megatron-lm", "-o", "copy"],
    ["report", "plan.json", "-o", "page.html"],
]
SCRIPT = f"""export WANDB_API_KEY={SECRETS["WANDB_API_KEY"]}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 --wandb-api-key {SECRETS["WANDB_API_KEY"]}
"""


@contextmanager
def _watching(found: list[str]) -> Iterator[None]:
    """Look at the command lines of all processes of this machine, again and again."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    words = place.read_bytes()
                    if MARK.encode() in words and b"models" not in words:
                        found.append(words.decode("utf-8", "replace"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_no_secret_stands_anywhere_after_a_whole_flow(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(GPUS)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    place = tmp_path / "place"
    place.mkdir()
    (place / "train.sh").write_text(SCRIPT)
    (place / "pretrain_gpt.py").write_text(PROGRAM)
    seen = tmp_path / "seen"
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    env = {**os.environ, **SECRETS, "PATH": path, "SEEN": str(seen), "HOME": str(tmp_path)}
    processes: list[str] = []
    with _watching(processes):
        for words in FLOW:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "meshwright",
                    *(w.replace("PLACE", str(place)) for w in words),
                ],
                cwd=place,
                env=env,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode in (0, 1, 2), (words, done.stderr)
            assert MARK not in done.stdout + done.stderr, words
            assert "Traceback" not in done.stderr, done.stderr
            if words[0] == "plan":
                (place / "plan.json").write_text(done.stdout)
    holding = {
        str(file.relative_to(place)): stat.S_IMODE(file.stat().st_mode)
        for file in place.rglob("*")
        if file.is_file() and MARK.encode() in file.read_bytes()
    }
    # the user's own script, and its copy, which must hold its words and which no one else may read
    assert holding.pop("train.sh")
    assert holding.pop("pretrain_gpt.py")  # names the mark, not a secret
    assert {mode & 0o077 for mode in holding.values()} <= {0}
    assert set(holding) <= {"copy/train.sh"}
    assert processes == []
    assert seen.exists(), "the program did not get its secret"
