"""Stand-ins for the platforms: what each does with a job script, down to the words that the program
gets."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RECORD = r"""#!/bin/bash
printf '%s\0' "$@" > "$CAPTURE.argv"
env -0 > "$CAPTURE.env"
pwd > "$CAPTURE.cwd"
"""
SRUN = r"""#!/bin/bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=2 SLURM_PROCID=19 SLURM_LOCALID=3 exec "$@"
"""
BCPRUN = r"""#!/bin/bash
export RANK=19 LOCAL_RANK=3 MASTER_ADDR=node-a MASTER_PORT=29500
[[ $* == *"--npernode 1 "* ]] && export RANK=2
while [[ $1 != --cmd ]]; do [[ $1 == --env ]] && export "${2?}"; shift; done
exec sh -c "$2"
"""
PROGRAMS = {
    **dict.fromkeys(("torchrun", "python3", "trainer", "ngc", "runai", "lep"), RECORD),
    "srun": SRUN,
    "bcprun": BCPRUN,
    "scontrol": '#!/bin/bash\nprintf "%s\\n" node-a node-b node-c\n',
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """How a program was called."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


def install(folder: Path) -> Path:
    """Put the stand-ins into a folder."""
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(words: list[str], *, bin_dir: Path, env: Mapping[str, str]) -> Call:
    """Run a command and return how the last stand-in in it was called."""
    with tempfile.TemporaryDirectory() as folder:
        capture = f"{folder}/call"
        surroundings = {
            "PATH": f"{bin_dir}:{os.environ['PATH']}",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "CAPTURE": capture,
            **env,
        }
        result = subprocess.run(
            words,
            env=surroundings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        argv, environment = [
            Path(f"{capture}.{part}").read_bytes().decode().split("\0")[:-1]
            for part in ("argv", "env")
        ]
        cwd = Path(f"{capture}.cwd").read_text().strip()
    return Call(argv=argv, env=dict(line.split("=", maxsplit=1) for line in environment), cwd=cwd)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Do what Kubernetes does with the words of a container: `$$` is `$`, `$(NAME)` a known
    variable's value, all else itself."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda found: "$" if found[1] is None else env.get(found[1], found[0]),
        text,
    )


def container_call(
    container: Mapping[str, Any], given: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment that a container starts with."""
    env = dict(given)
    for variable in container.get("env", []):
        env[variable["name"]] = expand(variable["value"], env)
    return [expand(word, env) for word in container["command"]], env


def read(text: str) -> Any:
    """Read a manifest."""
    return yaml.safe_load(text)
