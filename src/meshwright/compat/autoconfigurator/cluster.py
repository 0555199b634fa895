"""The cluster of a composed configuration, as runs need to know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import commonpath, isabs, normpath
from typing import Any

from meshwright.compat.autoconfigurator.settings import JOB_NAME_PREFIX
from meshwright.platforms.base_command.allocation import Allocation, allocation_here
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import QUEUE, JobOptions
from meshwright.platforms.registry import executor
from meshwright.values.errors import ConfigError

__all__ = ["Platform", "cluster_platform", "platform_of"]

_LAUNCHERS = {"bcm": "slurm", "bcp": "bcp", "k8s": "k8s", "interactive": "local"}
"""The launcher of runs behind each `cluster_type`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One cluster, as runs need to know it."""

    launcher: str
    job: JobOptions = field(default_factory=JobOptions)
    starter: Mapping[str, Any] = field(default_factory=dict)
    """Options of the launcher's executor."""
    parallel: int = 1
    notes: tuple[str, ...]
    """Words that were set and change nothing."""

    @property
    def is_local(self) -> bool:
        return self.launcher == "local"

    def executor(self) -> Executor:
        return executor(self.launcher, **self.starter)


def platform_of(config: Mapping[str, Any]) -> Platform:
    """Return the platform of a composed configuration; ConfigError for words that no job takes."""
    keys = ("auto_configurator_path", "base_results_dir", "data_dir")
    kind, here = str(config["cluster_type"]), allocation_here()
    found = cluster_platform(
        config["cluster"],
        kind=kind,
        image=config.get("training_container"),
        mounts=[str(mount) for mount in config["container_mounts"] or () if mount],
        folders=[str(config[key]) for key in keys if config.get(key)],
        seen=[str(config["data_dir"])],
        inside=here,
    )
    notes = _idle_keys(config)
    if kind == "bcp" and here is not None:
        notes += _inside(config, here)
    parallel = 1 if found.launcher in ("local", "bcprun") else config["parallel_runs"]
    return replace(found, parallel=parallel, notes=(*found.notes, *notes))


def cluster_platform(
    cluster: Mapping[str, Any],
    *,
    kind: str,
    image: str | None,
    mounts: Sequence[str],
    folders: Sequence[str],
    seen: Sequence[str],
    inside: Allocation | None,
) -> Platform:
    """Return the platform of a `cluster` block.

    Args:
        cluster: the block.
        kind: the `cluster_type`.
        image: the container.
        mounts: the line's `container_mounts`.
        folders: what jobs see under its own name where nodes have it.
        seen: folders as the jobs of Base Command see them, on a workspace.
        inside: the job of Base Command that we are in.
    """
    launcher, notes = _LAUNCHERS[kind], _idle(cluster)
    if launcher == "bcp" and inside is not None:
        return Platform(launcher="bcprun", notes=tuple(notes))
    if launcher == "local":
        return Platform(launcher=launcher, notes=tuple(notes))
    if launcher == "bcp" and cluster.get("workspace") is None and not mounts:
        notes.append(
            f"data_dir={seen[0]} is on no workspace of the jobs: cluster.workspace=ID mounts one"
            " there"
        )
    more = {
        "slurm": _slurm_words(cluster, image),
        "bcp": ["--team", str(cluster["team"])] if cluster.get("team") else [],
    }
    job = JobOptions(
        image=image,
        mounts=(
            _on_base_command(cluster, mounts, seen)
            if launcher == "bcp"
            else _mounts(cluster, mounts, folders, bare=launcher == "slurm" and image is None)
        ),
        account=cluster.get("account") or cluster.get("org"),
        partition=cluster.get("partition") or cluster.get("ace"),
        instance=cluster.get("instance"),
        words=tuple(more.get(launcher, ())),
        **{name: cluster.get(name) for name in ("priority", *QUEUE) if launcher == "bcp"},
    )
    namespace = cluster.get("namespace") if launcher == "k8s" else None
    starter = {"namespace": namespace} if namespace else {}
    return Platform(launcher=launcher, job=job, starter=starter, notes=tuple(notes))


def _inside(config: Mapping[str, Any], here: Allocation) -> list[str]:
    """Say where candidates run inside a job of Base Command; ConfigError where it is too small."""
    wanted = int(config["search_config"]["train_settings"]["num_nodes"])
    if wanted > here.nodes:
        raise ConfigError(
            f"train_settings.num_nodes={wanted}: this job of Base Command has {here.nodes} nodes;"
            " search_config.train_settings.num_nodes=$NGC_ARRAY_SIZE takes them all"
        )
    return [
        f"inside a job of Base Command: candidates run one after the other on {wanted} of its"
        f" {here.nodes} nodes, in its own image and with its own mounts"
    ]


def _slurm_words(cluster: Mapping[str, Any], image: str | None) -> list[str]:
    """Options for sbatch, and for srun those of `srun_args`; those of pyxis need a container."""
    # A job of ours has all of its nodes.
    words = [f"--mem={cluster['mem']}"] if cluster.get("mem") not in (None, 0) else []
    if cluster.get("nodelist") is not None:
        words.append(f"--nodelist={cluster['nodelist']}")
    by_pyxis = image is not None and not image.endswith(".sif")
    args = [str(arg) for arg in cluster.get("srun_args") or ()]
    return [*words, *(f"srun {arg}" for arg in args if by_pyxis or "container" not in arg)]


def _on_base_command(
    cluster: Mapping[str, Any], given: Sequence[str], seen: Sequence[str]
) -> tuple[str, ...]:
    """Mounts that say what they are, and the workspace where the line's bare paths are, else where
    its folders are. Base Command has no folders of a host: results come back with the log."""
    name = cluster.get("workspace")
    own = [mount for mount in given if not mount.startswith("/") or ":" in mount]
    if name is None:
        return tuple(given)
    named, _, place = str(name).partition(":")
    shared = commonpath(list(map(normpath, seen))) if all(map(isabs, seen)) else "/"
    bare = [mount for mount in given if mount not in own]
    places = [place] if place else bare or [shared if shared != "/" else "/workspace"]
    return (*(f"workspace={named}:{place}" for place in places), *own)


def _mounts(
    cluster: Mapping[str, Any], given: Sequence[str], folders: Sequence[str], *, bare: bool
) -> tuple[str, ...]:
    """What the container sees: the user's mounts, and the tool's folders under their own names."""
    if bare:
        return ()  # the program sees the node's own paths
    absolute = [str(Path(folder).resolve()) for folder in folders]
    pairs = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*given, *absolute)]
    if cluster.get("volume") is not None:
        pairs = [_claim(str(cluster["volume"])), *pairs[: len(given)]]
    return tuple(dict.fromkeys(pairs))


def _claim(volume: str) -> str:
    """A claim of Kubernetes, NAME:/path; it takes the place of the node's own folders."""
    name, colon, target = volume.partition(":")
    if not colon or not target.startswith("/"):
        raise ConfigError(
            f"cluster.volume={volume}: expected NAME:/path, a volume claim and where the container"
            " sees it"
        )
    return f"pvc={name}:{target}"


def _idle_keys(config: Mapping[str, Any]) -> list[str]:
    """The same of keys outside the cluster."""
    found = []
    nodes = config["search_config"]["train_settings"].get("override_search_num_nodes")
    if nodes is not None:
        found.append(
            f"override_search_num_nodes={nodes} has no effect: candidates run on all nodes, for a"
            " layout's time on fewer is another"
        )
    if config.get("fastertransformer_path") is not None:
        found.append(
            "fastertransformer_path has no effect: FasterTransformer is predicted, and another"
            " engine measured (inference_settings.run.engine)"
        )
    return found


def _idle(cluster: Mapping[str, Any]) -> list[str]:
    """Say which words were set and change nothing here."""
    found = []
    if cluster.get("exclusive") is False:
        found.append(
            "cluster.exclusive=False has no effect: a run holds whole nodes, else its times are not"
            " its own"
        )
    if cluster.get("gpus_per_task") is not None:
        found.append("cluster.gpus_per_task has no effect: each process has one GPU")
    if cluster.get("job_name_prefix") not in (None, JOB_NAME_PREFIX):
        found.append(
            "cluster.job_name_prefix has no effect: a job is named by its study and its run, so"
            " that it is found again"
        )
    if cluster.get("nfs_server") is not None or cluster.get("nfs_path") is not None:
        found.append(
            "cluster.nfs_server and nfs_path have no effect: give cluster.volume=NAME:/path, a"
            " volume claim over them"
        )
    return found
