"""The cluster of a composed configuration, as runs need to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.settings import JOB_NAME_PREFIX
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import JobOptions
from meshwright.platforms.registry import executor
from meshwright.values.errors import ConfigError

__all__ = ["Platform", "platform_of"]

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
    cluster, launcher = config["cluster"], _LAUNCHERS[str(config["cluster_type"])]
    notes = (*_idle_keys(config), *_idle(cluster))
    if launcher == "local":
        return Platform(launcher=launcher, notes=notes)
    # A job of ours has all of its nodes.
    memory = [f"--mem={cluster['mem']}"] if cluster.get("mem") not in (None, 0) else []
    if cluster.get("nodelist") is not None:
        memory = [*memory, f"--nodelist={cluster['nodelist']}"]
    more = {"slurm": memory, "bcp": ["--team", str(cluster["team"])] if cluster.get("team") else []}
    job = JobOptions(
        image=config.get("training_container"),
        mounts=_mounts(config),
        account=cluster.get("account") or cluster.get("org"),
        partition=cluster.get("partition") or cluster.get("ace"),
        instance=cluster.get("instance"),
        words=tuple(more.get(launcher, ())),
    )
    namespace = cluster.get("namespace") if launcher == "k8s" else None
    starter = {"namespace": namespace} if namespace else {}
    parallel = config["parallel_runs"]
    return Platform(launcher=launcher, job=job, starter=starter, parallel=parallel, notes=notes)


def _mounts(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the container sees: the user's mounts, and the tool's folders under their own names."""
    if config["cluster_type"] == "bcm" and config.get("training_container") is None:
        return ()  # the program sees the node's own paths
    given = [str(mount) for mount in config["container_mounts"] or () if mount]
    keys = ("auto_configurator_path", "base_results_dir", "data_dir")
    own = [str(config[key]) for key in keys if config.get(key)]
    cluster = config["cluster"]
    if config["cluster_type"] == "bcp":
        # It has no folders of a host: results come back with the log.
        workspace = cluster.get("workspace")
        return (*([] if workspace is None else [f"workspace={workspace}:/workspace"]), *given)
    absolute = [str(Path(folder).resolve()) for folder in own]
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
    if cluster.get("srun_args") not in (None, ["--no-container-mount-home"]):
        found.append(
            "cluster.srun_args has no effect: jobs are started by sbatch scripts of ours; put"
            " options for sbatch into a job file"
        )
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
