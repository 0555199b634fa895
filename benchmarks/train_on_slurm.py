"""The embedded trainer in chained jobs on a real Slurm, four nodes on this machine, with limits
that hit.

    python -m benchmarks.train_on_slurm

Needs Debian's slurmctld, slurmd, slurm-client and munge, and torch. Two trainings of tiny-llama on
the bytes of Python's standard library:

- `own clock`: the software stops some seconds before Slurm's limit, saves and ends well; the next
  job, which waits behind it, goes on.
- `platform`: Slurm ends the first job in the middle of its steps (its limit is brought forward once
  a checkpoint is there), and whoever follows sends the next one.

Prints for each the jobs with their states and steps, and the losses; exits with 1 where a job did
not go on from the newest checkpoint of the one before, where steps that were done twice have other
losses, or where the loss did not fall.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.slurm import Cluster, running_slurm

from meshwright.data.indexed import write_index

ROOT = Path(__file__).resolve().parents[1]
TRAIN = (
    "tiny-llama --cluster h100:1 --seq 64 --gbs 8 --precision fp32 --layout mbs=8 --setting"
    " learning_rate=3e-3"
    # the four nodes have no names that resolve
    " --launcher slurm --data bytes --env MASTER_ADDR=127.0.0.1"
)
SAME = 1e-5
"""Between losses of a step that was done twice."""
PATIENCE_S = 900.0


def main() -> int:
    """Run both, print, judge."""
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        _write_corpus(Path("bytes"))
        with running_slurm(Path(name) / "cluster") as cluster:
            good = _own_clock() & _platform(cluster)
    print("all as it should be" if good else "NOT as it should be")
    return 0 if good else 1


def _write_corpus(prefix: Path) -> None:
    texts = [
        path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    ]
    prefix.with_name(f"{prefix.name}.bin").write_bytes(
        np.frombuffer(b"".join(texts), dtype=np.uint8).astype("<u2").tobytes()
    )
    lengths = np.array([len(text) for text in texts], dtype=np.int32)
    with prefix.with_name(f"{prefix.name}.idx").open("wb") as file:
        write_index(file, dtype=np.dtype("<u2"), lengths=lengths, bounds=np.arange(len(texts) + 1))


def _own_clock() -> bool:
    """Fifty seconds of a limit of three minutes."""
    done = _train("own", "--steps 150 --save-every 100 --time 3m --save-margin 130s --follow")
    return _judge("own clock", Path("own"), code=done.wait(PATIENCE_S), first_state="succeeded")


def _platform(cluster: Cluster) -> bool:
    done = _train("cut", "--steps 120 --save-every 10 --time 30m --follow")
    end = time.monotonic() + PATIENCE_S
    while not list(Path("cut/checkpoints").glob("step-2?/run.json")) and time.monotonic() < end:
        time.sleep(0.2)
    number = cluster.ask("squeue", "-h", "-o", "%A")
    cluster.ask("scontrol", "update", f"jobid={number}", "EndTime=now+1")
    return _judge("platform", Path("cut"), code=done.wait(PATIENCE_S), first_state="timed_out")


def _train(folder: str, words: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "meshwright", "train", *f"{TRAIN} {words} -o {folder}".split()],
        env=env,
    )


def _judge(name: str, folder: Path, *, code: int, first_state: str) -> bool:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    # One that made no step says nothing: two Slurms on a machine may give their jobs the same port.
    ended = [
        event for event in events if event["event"] == "ended" and event["last_step"] is not None
    ]
    losses = [_losses(folder / "jobs" / str(event["job"]) / "stdout.log") for event in ended]
    good = code == 0 and len(ended) > 1 and ended[0]["status"]["state"] == first_state
    for event, found in zip(ended, losses, strict=True):
        steps = f"steps {min(found)} to {max(found)}, newest checkpoint {event['saved_step']}"
        print(f"{name}: job {event['job']} {event['status']['state']}, {steps}")
    for before, event, after in zip(losses, ended, losses[1:], strict=False):
        good &= min(after) == event["saved_step"] + 1
        again = [abs(before[step] - after[step]) for step in set(before) & set(after)]
        print(
            f"{name}: {len(again)} steps were done twice, their losses differ by"
            f" {max(again, default=0.0):.1e} at most"
        )
        good &= max(again, default=0.0) <= SAME
    first, last = losses[0][1], losses[-1][max(losses[-1])]
    print(f"{name}: loss {first:.3f} at first, {last:.3f} at step {max(losses[-1])}")
    return good and last < first


def _losses(log: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}


if __name__ == "__main__":
    sys.exit(main())
