"""A job of NVIDIA Base Command Platform, for NGC CLI up to 4.19.1, the last that has them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.platforms.job import (
    BATCH,
    IMAGE,
    QUEUE,
    SECRETS_OF,
    Job,
    JobText,
    Mount,
    check_fields,
    mount_of,
    required,
    way,
)
from meshwright.platforms.shell import (
    MASTER_PORT,
    STRICT,
    command,
    file_folders,
    heredoc,
    lines_of,
    node_words,
    quote,
    rank_words,
    reasons,
    script,
    title,
)
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import DAY_S, HOUR_S, MINUTE_S, parse_duration

__all__ = ["base_command_script", "base_command_time", "node_lines", "one_gpu_instance"]

RESULT_DIR = "/results"
"""Where Base Command's own examples mount the results of a job."""
LAST_NGC_CLI = "4.19.1"
_RANKS = (
    "One task per GPU: bcprun starts every process and sets RANK, LOCAL_RANK, WORLD_SIZE,"
    " MASTER_ADDR and MASTER_PORT."
)


def base_command_script(job: Job) -> JobText:
    """Write a script that submits a job; bcprun starts the ranks of several nodes."""
    check_fields(job, "bcp", (*BATCH, *QUEUE, "priority", "words", "secrets"))
    ranks = job.nodes > 1 and job.runs_on == "rank"
    way(job, "bcp", ("ranks",) if ranks else ("torchrun",))
    blocks = [
        (
            f"#!/usr/bin/env bash\n{title(job, _RANKS if ranks else '')}\n# Needs NGC CLI"
            f" {LAST_NGC_CLI} or earlier, the last with base-command. Submit it: bash"
            f" job.sh\n{STRICT}"
        ),
        reasons(job),
        "# What the first node runs.\n" + heredoc("commandline", node_lines(job)),
        command(_submit(job)),
    ]
    return JobText(file_name="job.sh", text=script(blocks), submit="bash job.sh")


def base_command_time(seconds: int) -> str:
    """Write a limit as nDnHnMnS without zeros; Base Command takes no bare number."""
    parts = []
    for sign, size in (("D", DAY_S), ("H", HOUR_S), ("M", MINUTE_S), ("S", 1)):
        count, seconds = divmod(seconds, size)
        parts += [f"{count}{sign}"] if count else []
    return "".join(parts)


def _submit(job: Job) -> list[str]:
    words = [
        *("--name", job.name),
        *("--image", required(job, "bcp", "image", IMAGE)),
        *("--instance", required(job, "bcp", "instance", "dgxa100.80g.8.norm")),
        *(("--org", job.account) if job.account else ()),
        *(("--ace", job.partition) if job.partition else ()),
        *(("--replicas", str(job.nodes), "--array-type", "PYTORCH") if job.nodes > 1 else ()),
        *("--result", job.log_dir or RESULT_DIR),
        *(("--port", str(job.port)) if job.port else ()),
        # A graceful stop: the job is told to end, and is killed later.
        *(("--total-runtime", base_command_time(job.time_limit_s)) if job.time_limit_s else ()),
    ]
    words += _queue_words(job)
    for mount in job.mounts:
        words += _mount_words(mount_of(mount, "bcp", ("workspace", "dataset")))
    # SECRET:KEY:VARIABLE, by ngcsdk 3.59 (basecommand/command/batch.py).
    for name in job.secrets:
        words += ["--secret", f"{SECRETS_OF}:{name}:{name}"]
    return [
        "ngc base-command job run",
        *lines_of([*words, *job.words]),
        '--commandline "$commandline"',
    ]


_PRIORITIES = ("HIGH", "NORMAL", "LOW")
_CLASSES = ("RUNONCE", "RESUMABLE", "RESTARTABLE")
_LAST_ORDER = 99
"""Choices of `ngc base-command job run` of NGC CLI 4.19.1."""


def _queue_words(job: Job) -> list[str]:
    """How the job is queued; ConfigError for what NGC CLI has no choice for."""
    words: list[str] = []
    for name, given, known in (
        ("priority", job.priority, _PRIORITIES),
        ("preempt", job.preempt, _CLASSES),
    ):
        if given is not None:
            if given.upper() not in known:
                raise UnknownNameError(f"{name} of bcp", given, known)
            words += [f"--{name}", given.upper()]
    if job.order is not None:
        if not 1 <= job.order <= _LAST_ORDER:
            raise ConfigError(f"order={job.order}: bcp has 1, the first, to {_LAST_ORDER}")
        words += ["--order", str(job.order)]
    if job.min_timeslice is not None:
        seconds = parse_duration(job.min_timeslice, name="min_timeslice")
        words += ["--min-timeslice", base_command_time(seconds)]
    return words


def one_gpu_instance(instance: str | None) -> str | None:
    """Return the instance of one GPU beside one of eight, `dgxa100.80g.1.norm`; another stays."""
    return None if instance is None else re.sub(r"\.8\.(\w+)$", r".1.\1", instance)


def _mount_words(mount: Mount) -> list[str]:
    if ":" in mount.source:
        raise ConfigError(
            f"mount {mount.kind}={mount.source}: expected the id of a {mount.kind}, without a colon"
        )
    if mount.kind == "dataset":
        return ["--datasetid", f"{mount.source}:{mount.target}"]  # datasets are always read only
    return ["--workspace", f"{mount.source}:{mount.target}:{'RO' if mount.read_only else 'RW'}"]


def node_lines(job: Job, *, handed: Sequence[str] = ()) -> str:
    """Return what the first node runs, which starts the others; `handed` are variables of the first
    node's environment that the others have not."""
    return _nodes(job, handed) if job.nodes > 1 else _one_node(job)


def _one_node(job: Job) -> str:
    if job.runs_on == "node":
        where = node_words(job, rank="0", address="127.0.0.1", port=str(MASTER_PORT))
        return _line(job, list(job.command), where)
    return _line(
        job, ["torchrun", "--standalone", f"--nproc-per-node={job.gpus_per_node}", *job.command]
    )


def _nodes(job: Job, handed: Sequence[str]) -> str:
    """bcprun hands `--cmd` to a shell on every node, so the environment travels in it."""
    if job.runs_on == "node":
        where = [f"NNODES={job.nodes}", 'NODE_RANK="$RANK"']
        return _bcprun(job, 1, _line(job, list(job.command), where), handed)
    # bcprun numbers ranks alone; PyTorch Lightning finds a rank by its node and its place there
    # (lightning/fabric/plugins/environments/lightning.py).
    where = [f'NODE_RANK="$((RANK / {job.gpus_per_node}))"']
    return _bcprun(job, job.gpus_per_node, _line(job, rank_words(job), where), handed)


def _bcprun(job: Job, tasks_per_node: int, line: str, handed: Sequence[str]) -> str:
    known = [f'--env "{name}=${name}"' for name in handed]
    tasks = [f"--nnodes {job.nodes}", f"--npernode {tasks_per_node}"]
    return command(["bcprun", *tasks, *known, f"--cmd {quote(line)}"])


def _line(job: Job, words: list[str], where: Sequence[str] = ()) -> str:
    """Return one line for any shell, bash or not: it is not documented which one reads it."""
    before = [f"export {variable.name}={quote(variable.value)}" for variable in job.environment]
    before += [f"export {' '.join(where)}"] if where else []
    before += [f"cd -- {quote(job.workdir)}"] if job.workdir else []
    before += _files(job)
    return " && ".join([*before, "exec " + command(lines_of(words))])


def _files(job: Job) -> list[str]:
    """Return what puts the files of a job into a folder of the node, and goes there: every rank of
    a node writes each beside its name and moves it there whole, so that none reads another's
    half."""
    if not job.files:
        return []
    lines = file_folders(job)
    for file in job.files:
        name = quote(f"./{file.name}")
        lines += [f"printf %s {quote(file.text)} > {name}.$$", f"mv -f -- {name}.$$ {name}"]
    return lines
