"""`python -m meshwright.trainer PLAN.json [key=value ...]`, alone or under torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from meshwright.errors import MeshwrightError, MissingExtraError
from meshwright.trainer.checks import require_on, require_trainable
from meshwright.trainer.job import job_keys, read_job

_STARTED = perf_counter()


def main(words: list[str]) -> int:
    """Run the job; 0 done, 1 failed, 2 a bad plan or word."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: python -m meshwright.trainer PLAN.json [key=value ...]\n\n" + _keys())
        return 0 if words else 2
    try:
        return _run(words)
    except MeshwrightError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
        return 2
    except (ArithmeticError, ConnectionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    job = read_job(Path(words[0]), words[1:])
    started = int(os.environ.get("WORLD_SIZE", "1"))
    require_trainable(job, num_processes=started)
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "train")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read with torch: its profiler would write of its stages among our lines
    from meshwright.trainer._processes import processes
    from meshwright.trainer._run import train

    with processes(job.device, compile=job.compile) as device:
        require_on(job, device.type)
        train(job, device, tell=lambda line: print(line, flush=True), started=_STARTED)
    return 0


def _keys() -> str:
    return "keys: " + ", ".join(job_keys())


def _end(code: int) -> NoReturn:
    """End the process as it stands: gloo's threads may still hold tensors, and abort where the interpreter is gone before them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
