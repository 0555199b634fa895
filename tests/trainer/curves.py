"""Loss curves of layouts on gloo processes of this machine: `python -m tests.trainer.curves
PROCESSES STORE OUT CASE ...`.

A case is `model:layout words`, with `:ring`, `:compile` or `:bf16` behind. One group of processes
runs all of them, because starting one takes longer than twenty steps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
BF16_STEPS = 5
SEQ_LEN = 32
GBS = 8
_SHAPE: dict[str, Any] = {
    "num_layers": 4,
    "hidden": 64,
    "ffn": 128,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab": 500,
}
_MOE = {"num_experts": 4, "top_k": 2, "expert_ffn": 64, "shared_ffn": 64, "first_dense_layers": 1}
_MLA = {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "dense": _SHAPE,
    "tied": (
        _SHAPE
        | {
            "tied": True,
            "norm": "layernorm",
            "positions": "learned",
            "max_positions": 64,
            "gated": False,
            "linear_bias": True,
        }
    ),
    "moe": _SHAPE | {"moe": _MOE},
    "mla": _SHAPE | {"num_kv_heads": 4, "head_dim": 24, "mla": _MLA},
    "windows": _SHAPE | {"qk_norm": True, "norms_per_layer": 4, "window": 16, "global_every": 2},
    "alibi": (
        _SHAPE
        | {
            "parallel_block": True,
            "norms_per_layer": 1,
            "positions": "alibi",
            "gated": False,
            "norm": "layernorm",
        }
    ),
}


def job_of(case: str, **changes: Any) -> Any:
    """Return the TrainJob of a case."""
    from meshwright.search.problem import model_of
    from meshwright.trainer.job import OptimizerSettings, TrainJob
    from meshwright.values.layout import Layout, parse_layout

    model, words, *more = case.split(":")
    layout = Layout(**{"gbs": GBS, "mbs": 2, **parse_layout(words)})
    optimizer = OptimizerSettings(learning_rate=3e-3, warmup_steps=2)
    given: dict[str, Any] = {
        "precision": "fp32",
        "steps": STEPS,
        "device": "cpu",
        "seq_len": SEQ_LEN,
        "optimizer": optimizer,
        "profile_step": 0,
    }
    given |= {"precision": "bf16", "steps": BF16_STEPS} if "bf16" in more else {}
    given |= {"context": "ring"} if "ring" in more else {}
    given |= {"compile": True} if "compile" in more else {}
    return TrainJob(
        model=model_of(MODELS[model] | {"name": model}), layout=layout, **(given | changes)
    )


def curves(
    processes: int,
    cases: Sequence[str],
    *,
    timeout_s: float = 1200,
    changes: dict[str, Any] | None = None,
) -> list[Any]:
    """Return for each case the lines of steps, and of evaluations where `changes` asks for them,
    that rank 0 tells.

    `{case}` in the folder of checkpoints is the number of the case, from 0.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        words = [
            str(processes),
            str(Path(folder, "store")),
            str(out),
            json.dumps(changes or {}),
            *cases,
        ]
        ranks = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.curves", *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            told = ranks.communicate(timeout=timeout_s)[0]
        finally:
            with suppress(ProcessLookupError):  # every rank is of its group
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
        assert ranks.returncode == 0, told[-5000:]
        found: list[Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _start(processes: int, *words: Any) -> int:
    """Read torch once, and fork every rank from here; return how many failed."""
    import meshwright.trainer.run  # noqa: F401  # what every rank needs

    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            try:
                _work(rank, processes, *words)
            except BaseException:
                traceback.print_exc()
                sys.stdout.flush()
            os._exit(1)
        children.append(child)
    codes = []
    for _ in children:
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
        if codes[-1] != 0:  # the others would wait for it
            return 1
    return 0


def _work(
    rank: int, processes: int, store: str, out: str, changes: dict[str, Any], cases: Sequence[str]
) -> None:
    import torch
    import torch.distributed as dist

    from meshwright.trainer.checks import require_trainable
    from meshwright.trainer.job import SaveSettings, ValidSettings
    from meshwright.trainer.run import train

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=processes,
        timeout=timedelta(minutes=5),
    )
    kinds: dict[str, Any] = {"save": SaveSettings, "valid": ValidSettings}
    changes = changes | {
        name: kind(**changes[name]) for name, kind in kinds.items() if name in changes
    }
    found = []
    for number, case in enumerate(cases):
        lines: list[str] = []
        job = job_of(case, **changes)
        if job.save.folder is not None:
            job = replace(
                job, save=replace(job.save, folder=job.save.folder.replace("{case}", str(number)))
            )
        require_trainable(job, num_processes=processes)
        train(job, torch.device("cpu"), tell=lines.append, started=perf_counter())
        found.append(
            [line for line in map(json.loads, lines) if line["event"] in ("step", "validation")]
        )
        print(case, "done", flush=True)
    if rank == 0:
        Path(out).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(
        0
        # as the trainer ends: gloo's threads abort when the interpreter is taken down before they are  # noqa: E501
        # done
    )


if __name__ == "__main__":
    sys.exit(
        _start(int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), sys.argv[5:])
    )
