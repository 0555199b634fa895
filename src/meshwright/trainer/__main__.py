"""`python -m meshwright.trainer PLAN.json [key=value ...]`, alone or under torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from meshwright.errors import MeshwrightError, MissingExtraError
from meshwright.trainer.checks import require_trainable
from meshwright.trainer.job import job_keys, read_job


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
    from meshwright.trainer._processes import processes
    from meshwright.trainer._run import train

    with processes(job.device, compile=job.compile) as device:
        train(job, device, tell=lambda line: print(line, flush=True))
    return 0


def _keys() -> str:
    return "keys: " + ", ".join(job_keys())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
