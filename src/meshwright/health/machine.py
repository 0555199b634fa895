"""The accelerators of this machine and what starts jobs from it, each asked with little
patience."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.errors import ConfigError
from meshwright.health.finding import Finding

__all__ = [
    "PATIENCE_S",
    "gpu_finding",
    "kubernetes_finding",
    "ngc_finding",
    "slurm_finding",
    "torch_finding",
]

PATIENCE_S = 5.0
"""Programs that are well answer within a second."""
_SLURM = ("sbatch", "squeue", "scancel", "scontrol")
_NO_CONFIGURATION = "Could not establish a configuration source"
"""Slurm's own words where there is neither a slurm.conf nor a server of one."""
_NO_GPU = (
    "no nvidia-smi here, so no accelerator was found; plans name a cluster such as h100:8, and tune"
    " runs on this machine's cores"
)
_CLIENT_LINE = "pip install 'meshwright[k8s]'"


def gpu_finding() -> Finding:
    """Return the GPUs that nvidia-smi lists, and whether the catalogue knows them."""
    from meshwright.local import cluster_of_listing

    if shutil.which("nvidia-smi") is None:
        return Finding(room="machine", name="gpus", state="absent", words=_NO_GPU)
    said, failure = _ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if said is None:
        words, remedy = (
            f"nvidia-smi {failure}",
            "look at the driver: nvidia-smi must list the GPUs before anything can use them",
        )
        return Finding(room="machine", name="gpus", state="broken", words=words, remedy=remedy)
    rows = [line.rsplit(",", 1) for line in said.splitlines() if line.strip()]
    names = [row[0].strip() for row in rows]
    listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    driver = rows[0][1].strip() if rows and len(rows[0]) == 2 else "unknown"
    try:
        cluster = cluster_of_listing("\n".join(names))
    except ConfigError as error:
        return Finding(
            room="machine", name="gpus", state="broken", words=f"{listed or 'none'}: {error}"
        )
    kinds = ", ".join(f"{pool.node.chip.name}:{pool.num_chips}" for pool in cluster.pools)
    return Finding(
        room="machine",
        name="gpus",
        state="ok",
        words=f"{listed}, driver {driver}; --cluster local is {kinds}",
    )


def torch_finding(version: str | None, *, gpus: Finding) -> Finding | None:
    """Return whether torch is a build that can use the GPUs that are here; None where there are
    none, or no torch."""
    if version is None or gpus.state != "ok":
        return None
    if version.endswith("+cpu"):
        words = f"{version} is a build for processors, and trains and profiles on none of the GPUs"
        remedy = "pip uninstall torch, then install the build for CUDA (pytorch.org/get-started)"
        return Finding(room="machine", name="torch", state="broken", words=words, remedy=remedy)
    return Finding(room="machine", name="torch", state="ok", words=version)


def slurm_finding() -> Finding:
    """Return whether Slurm's commands are here and its controller answers."""
    missing = [program for program in _SLURM if shutil.which(program) is None]
    if len(missing) == len(_SLURM):
        return Finding(
            room="launchers",
            name="slurm",
            state="absent",
            words="sbatch is not on the PATH; --launcher slurm needs a login node",
        )
    if missing:
        return Finding(
            room="launchers",
            name="slurm",
            state="broken",
            words=f"{', '.join(missing)} not on the PATH, though others of Slurm are",
        )
    said, failure = _ask("scontrol", "ping")
    if said is None and _NO_CONFIGURATION in failure:
        words = (
            "its commands are here, and no cluster is configured for them (no slurm.conf);"
            " --launcher slurm needs one"
        )
        return Finding(room="launchers", name="slurm", state="absent", words=words)
    version, _ = _ask("sbatch", "--version")
    name = (version or "slurm of an unknown version").strip()
    if said is None:
        return Finding(
            room="launchers",
            name="slurm",
            state="broken",
            words=f"{name}, but its controller does not answer: scontrol ping {failure}",
        )
    return Finding(
        room="launchers", name="slurm", state="ok", words=f"{name}; {' '.join(said.split())}"
    )


def kubernetes_finding(
    *, client_version: str | None, environ: Any = os.environ, home: Path | None = None
) -> Finding:
    """Return which cluster the client's configuration names; the cluster itself is not asked."""
    paths = [Path(word) for word in environ.get("KUBECONFIG", "").split(os.pathsep) if word] or [
        (home or Path.home()) / ".kube" / "config"
    ]
    inside = "KUBERNETES_SERVICE_HOST" in environ
    path = next((path for path in paths if path.is_file()), None)
    if path is None and not inside:
        words = f"no configuration at {paths[0]}; --launcher k8s needs one"
        return Finding(room="launchers", name="kubernetes", state="absent", words=words)
    where, failure = ("inside a pod", None) if path is None else _context_of(path)
    if failure is not None:
        return Finding(room="launchers", name="kubernetes", state="broken", words=failure)
    if client_version is None:
        words = f"{where}, but its Python client is not installed"
        return Finding(
            room="launchers", name="kubernetes", state="absent", words=words, remedy=_CLIENT_LINE
        )
    return Finding(
        room="launchers",
        name="kubernetes",
        state="ok",
        words=f"{where}, client {client_version}; not asked whether it answers",
    )


def _context_of(path: Path) -> tuple[str, str | None]:
    """The current context of a configuration, or what is wrong with the file."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        return "", f"{path} can't be read: {' '.join(str(error).split())}"
    context = found.get("current-context") if isinstance(found, dict) else None
    if not context:
        return "", f"{path} names no current context: kubectl config use-context NAME chooses one"
    return f"context {context} of {path}", None


def ngc_finding() -> Finding:
    """Return the version of NGC CLI, which starts jobs on Base Command."""
    if shutil.which("ngc") is None:
        return Finding(
            room="launchers",
            name="base command",
            state="absent",
            words="ngc is not on the PATH; --launcher bcp needs NGC CLI",
        )
    said, failure = _ask("ngc", "--version")
    if said is None:
        return Finding(
            room="launchers", name="base command", state="broken", words=f"ngc --version {failure}"
        )
    return Finding(room="launchers", name="base command", state="ok", words=" ".join(said.split()))


def _ask(*words: str) -> tuple[str | None, str]:
    """What a program said, or None and why it said nothing."""
    try:
        answer = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return None, f"gave no answer in {PATIENCE_S:.0f} s"
    except OSError as error:
        return None, f"can't be started: {error.strerror or error}"
    if answer.returncode != 0:
        return None, f"ended with {answer.returncode}{_last_line(answer.stderr or answer.stdout)}"
    return str(answer.stdout), ""


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""
