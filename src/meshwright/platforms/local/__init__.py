"""This machine: torchrun under a watcher, or a script that is started by hand on every node."""

from __future__ import annotations

from meshwright.platforms.contract import Platform
from meshwright.platforms.job import Job, JobText, check_fields, way
from meshwright.platforms.local.executor import STATES, LocalExecutor, LocalOptions
from meshwright.platforms.shell import (
    MASTER_PORT,
    STRICT,
    environment,
    lines_of,
    program,
    quote,
    script,
    start,
    timeout_words,
    title,
)
from meshwright.values.errors import ConfigError

__all__ = ["PLATFORMS"]

_HERE = 'cd -- "$(dirname -- "${BASH_SOURCE[0]}")"'
"""To the folder of the export, whose files the program reads."""


def _torchrun_script(job: Job) -> JobText:
    """Write a script of torchrun; each of several nodes is told the first and its number."""
    check_fields(job, "torchrun", ("workdir", "log_dir", "port", "words", "secrets"))
    way(job, "torchrun", ("torchrun",))
    if job.runs_on == "node" and (job.log_dir or job.words):
        raise ConfigError(
            f"torchrun: log_dir and words are options of torchrun, and {job.command[0]} is run"
            " without it"
        )
    several = job.nodes > 1
    submit = "MASTER_ADDR=FIRST_NODE NODE_RANK=0 bash job.sh" if several else "bash job.sh"
    where = " on every node, NODE_RANK counting from 0" if several else ""
    blocks = [
        f"#!/usr/bin/env bash\n{title(job)}\n# Start it{where}: {submit}\n{STRICT}",
        _rendezvous() if several else "",
        environment(job),
        program(job.command),
        f"cd -- {quote(job.workdir)}" if job.workdir else _HERE if job.files else "",
        _launch(job),
    ]
    return JobText(file_name="job.sh", text=script(blocks), submit=submit)


def _rendezvous() -> str:
    return (
        ': "${MASTER_ADDR:?set it to the host name of the node with NODE_RANK=0}"\n'
        ': "${NODE_RANK:?set it to the number of this node, from 0}"\n'
        f"MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}"
    )


def _launch(job: Job) -> str:
    # --foreground: Ctrl-C reaches torchrun.
    limit = timeout_words(job)
    before = ["exec", *limit[:1], "--foreground", *limit[1:]] if limit else ["exec"]
    logs = [f"--log-dir={quote(job.log_dir)}", "--tee=3"] if job.log_dir else []
    own = [*logs, *lines_of(job.words)]
    port = '"$MASTER_PORT"' if job.nodes > 1 else f'"${{MASTER_PORT:-{MASTER_PORT}}}"'
    return start(
        job, rank='"$NODE_RANK"', address='"$MASTER_ADDR"', port=port, before=before, options=own
    )


PLATFORMS = (
    Platform(
        name="torchrun",
        runs_as="local",
        title="this machine",
        place=10,
        write=_torchrun_script,
        needs="torchrun, which comes with PyTorch",
        start=LocalExecutor,
        options=LocalOptions,
        states=STATES,
        limit="its watcher ends it after {time} s",
        sees_here=True,
    ),
)
