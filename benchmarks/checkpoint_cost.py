"""What a checkpoint of the embedded trainer costs against writing the same bytes, on a processor.

    python -m benchmarks.checkpoint_cost [--layers 24] [--rounds 3] [--folder DIR]

Needs torch, 5 GB of memory and 8 GB of disk. A model of 0.3 B parameters (24 layers of width 1024)
in fp32 with Adam's states, one process. In each round both write to the same disk, in turns first:
the trainer's `Checkpoints.save` until the checkpoint has its name, and one file of the same bytes
with an fsync. Prints the seconds of each round and the ratio of the medians, and exits with 1 where
that is above 1.3.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

WITHIN = 1.3
DIMS: dict[str, Any] = {
    "name": "0.3b",
    "hidden": 1024,
    "ffn": 2730,
    "num_heads": 16,
    "num_kv_heads": 16,
    "head_dim": 64,
    "vocab": 2048,
}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        return _measure(Path(folder), layers=words.layers, rounds=words.rounds)


def _measure(folder: Path, *, layers: int, rounds: int) -> int:
    import torch

    from meshwright.search.problem import model_of
    from meshwright.trainer.build import build
    from meshwright.trainer.checkpoints import Checkpoints
    from meshwright.trainer.job import SaveSettings, TrainJob
    from meshwright.trainer.mesh import joined
    from meshwright.values.layout import Layout

    torch.set_num_threads(1)
    model = model_of(DIMS | {"num_layers": layers})
    job = TrainJob(
        model=model, layout=Layout(gbs=1, mbs=1), seq_len=8, precision="fp32", device="cpu"
    )
    with joined(job, torch.device("cpu")):
        parts = build(job, torch.device("cpu"))
        tensors = _with_states(parts)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        print(
            f"{size / 12e9:.3f} B parameters, {size / 1e9:.2f} GB, torch {torch.__version__},"
            f" {os.cpu_count()} cores",
            flush=True,
        )
        checkpoints = Checkpoints(
            SaveSettings(folder=str(folder / "saved"), keep=1), device_type="cpu"
        )

        def ours(step: int) -> None:
            checkpoints.save(step, parts.chunks, parts.optimizers, {}, loss=None)
            checkpoints.finish()

        def plain(step: int) -> None:
            with (folder / "plain.bin").open("wb", buffering=0) as file:
                for tensor in tensors:
                    file.write(memoryview(tensor.numpy()).cast("B"))
                os.fsync(file.fileno())

        seconds: dict[str, list[float]] = {"checkpoint": [], "same bytes": []}
        for number in range(rounds):
            pair = [("checkpoint", ours), ("same bytes", plain)]
            for name, write in pair if number % 2 else reversed(pair):
                shutil.rmtree(folder / "saved" / f"step-{number - 1}", ignore_errors=True)
                (folder / "plain.bin").unlink(missing_ok=True)
                os.sync()
                began = perf_counter()
                write(number)
                seconds[name].append(perf_counter() - began)
            print(
                f"round {number + 1}: "
                + ", ".join(f"{name} {values[-1]:.2f} s" for name, values in seconds.items()),
                flush=True,
            )
        ratio = statistics.median(seconds["checkpoint"]) / statistics.median(seconds["same bytes"])
        print(f"ratio of the medians: {ratio:.2f} (at most {WITHIN})")
    return 0 if ratio <= WITHIN else 1


def _with_states(parts: Any) -> list[Any]:
    """Give each weight its optimizer states, one at a time so that few gradients exist at once;
    return all local tensors."""
    import torch

    found = []
    for chunk, optimizer in zip(parts.chunks, parts.optimizers, strict=True):
        for weight in chunk.parameters():
            weight.grad = torch.randn_like(weight)
            optimizer.step()
            weight.grad = None
            states = optimizer.state[weight]
            found += [
                tensor.detach().to_local()
                for tensor in (weight, states["exp_avg"], states["exp_avg_sq"])
            ]
    return found


if __name__ == "__main__":
    sys.exit(main())
