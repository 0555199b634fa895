"""A stand-in for Base Command's bcprun: every flag is checked, and the processes run here."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(prog="bcprun", allow_abbrev=False)
    parser.add_argument("--nnodes", type=int, required=True)
    parser.add_argument("--npernode", type=int, required=True)
    parser.add_argument("--no_redirect", action="store_true")
    parser.add_argument("--workdir")
    parser.add_argument("--launcher")
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--cmd", required=True)
    asked = parser.parse_args()
    most, gpus = int(os.environ["NGC_ARRAY_SIZE"]), int(os.environ["NGC_GPUS_PER_NODE"])
    if not 1 <= asked.nnodes <= most or not 1 <= asked.npernode <= gpus:
        parser.error(f"{asked.nnodes} nodes of {asked.npernode}, and this job has {most} of {gpus}")
    if wrong := [pair for pair in asked.env if "=" not in pair]:
        parser.error(f"--env {wrong[0]}: expected K=V")
    given = dict(pair.split("=", maxsplit=1) for pair in asked.env)
    tasks = []
    for rank in range(asked.nnodes * asked.npernode):
        known = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % asked.npernode),
            "WORLD_SIZE": str(asked.nnodes * asked.npernode),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29511",
        }
        words = ["sh", "-c", asked.cmd]
        env = {**os.environ, **given, **known}
        tasks.append(subprocess.Popen(words, env=env, cwd=asked.workdir))
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
