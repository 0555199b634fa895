"""Runs of `python -m meshwright.trainer` on processes of this machine, each rank started by hand as
torchrun would."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REQUEST = {"model": "tiny-llama", "seq_len": 64, "precision": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One rank that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def write_plan(folder: Path, layout: Mapping[str, Any], **request: Any) -> Path:
    """Write a plan of one layout of the tiny model."""
    path = folder / "plan.json"
    plan = {
        "request": REQUEST | request,
        "plans": [{"layout": {"gbs": 8, "mbs": 2} | dict(layout)}],
    }
    path.write_text(json.dumps(plan), encoding="utf-8")
    return path


def start(plan: Path, words: Sequence[str], *, processes: int) -> list[subprocess.Popen[str]]:
    """Start every rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [
        subprocess.Popen(
            [sys.executable, "-m", "meshwright.trainer", str(plan), "device=cpu", *words],
            env=os.environ
            | given
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def finish(ranks: Sequence[subprocess.Popen[str]], *, timeout_s: float = 300) -> list[Ended]:
    """Wait for every rank; none is left behind."""
    try:
        told = [rank.communicate(timeout=timeout_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [
        Ended(code=rank.returncode, out=out, err=err)
        for rank, (out, err) in zip(ranks, told, strict=True)
    ]


def run(plan: Path, words: Sequence[str], *, processes: int) -> list[Ended]:
    """Start every rank and wait for all."""
    return finish(start(plan, words, processes=processes))
