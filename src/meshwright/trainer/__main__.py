"""`python -m meshwright.trainer PLAN.json [key=value ...]`, alone or under torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from meshwright.trainer.checks import require_on, require_trainable
from meshwright.trainer.job import TrainJob, job_keys, read_job
from meshwright.values.errors import MeshwrightError, MissingExtraError

_STARTED = perf_counter()
_DONE, _FAILED, _REFUSED, _INTERRUPTED = 0, 1, 2, 130


def main(words: list[str]) -> int:
    """Run the job; 0 done, 1 failed, 2 a bad plan or word, 130 interrupted before a step."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: python -m meshwright.trainer PLAN.json [key=value ...]\n")
        print(f"keys: {', '.join(job_keys())}")
        return _DONE if words else _REFUSED
    try:
        job = read_job(Path(words[0]), words[1:])
        require_trainable(job, num_processes=int(os.environ.get("WORLD_SIZE", "1")))
        return _run(job)
    except MeshwrightError as error:
        # every rank of a host finds the same
        if os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0":
            print(f"error: {error}", file=sys.stderr)
        return _REFUSED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(job: TrainJob) -> int:
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "train")
    # read with torch: its profiler would write of its stages among our lines
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from meshwright.trainer.mesh import joined, open_device, room_of

    device = open_device(job)
    require_on(job, device.type)
    if job.check_memory:
        from meshwright.trainer.room import require_room

        require_room(job, room_of(device))
    from meshwright.trainer.run import train

    rank = os.environ.get("RANK", "0")
    try:
        with joined(job, device):
            train(job, device, tell=lambda line: print(line, flush=True), started=_STARTED)
    except ArithmeticError as error:  # every rank finds the same
        return _failed(str(error)) if rank == "0" else _FAILED
    except MeshwrightError as error:  # data or checkpoints of this rank alone may be at fault
        print(f"error: rank {rank}: {error}", file=sys.stderr)
        return _REFUSED
    except (OSError, MemoryError) as error:  # a rank is lost, the disk full, memory out
        return _failed(f"rank {rank}: {error}")
    return _DONE


def _failed(words: str) -> int:
    print(f"error: {words}", file=sys.stderr)
    return _FAILED


def _end(code: int) -> NoReturn:
    """End the process as it stands: gloo's threads may still hold tensors, and abort where the
    interpreter is gone before them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
