"""A batch job of NVIDIA DGX Cloud Lepton, by its command `lep`."""

from __future__ import annotations

from meshwright.platforms.job import Job, JobText, Mount, check_fields, dns_label, required, way
from meshwright.platforms.shell import (
    MASTER_PORT,
    STRICT,
    command,
    environment,
    files,
    heredoc,
    lines_of,
    program,
    quote,
    script,
    start,
    timeout_words,
    title,
)
from meshwright.values.errors import ConfigError

__all__ = [
    "lepton_script",
]

_MOST_LETTERS = 50
_LOCAL = "node-local"
"""Lepton's word for a path of the node itself."""


def lepton_script(job: Job) -> JobText:
    """Write a script that creates a job with one worker per node; Lepton has no limit on its time,
    so `timeout` stops it."""
    check_fields(
        job, "lepton", ("image", "mounts", "workdir", "partition", "instance", "port", "words")
    )
    way(job, "lepton", ("torchrun",))
    blocks = [
        f"#!/usr/bin/env bash\n{title(job)}\n# Submit it: bash job.sh\n{STRICT}",
        "# What every worker runs.\n" + heredoc("worker", _worker(job)),
        command(_submit(job)),
    ]
    return JobText(file_name="job.sh", text=script(blocks), submit="bash job.sh")


def _submit(job: Job) -> list[str]:
    words = [
        *("--name", dns_label(job, "lepton", _MOST_LETTERS)),
        *(
            "--container-image",
            required(job, "lepton", "image", "nvcr.io/nvidia/pytorch:25.04-py3"),
        ),
        *("--resource-shape", required(job, "lepton", "instance", "gpu.8xh100-sxm")),
        *("--num-workers", str(job.nodes)),
        *(("--node-group", job.partition) if job.partition else ()),
        *(("--container-port", f"{job.port}:tcp") if job.port else ()),
    ]
    for mount in job.mounts:
        words += ["--mount", _mount_word(mount)]
    return ["lep job create", *lines_of([*words, *job.words]), '--command "$worker"']


def _mount_word(mount: Mount) -> str:
    """Return FROM:TO:VOLUME; `node-nfs:NAME=/from:/to` names a volume of the node group."""
    volume = _LOCAL if mount.kind == "path" else mount.kind
    if not volume.startswith("node-") or not mount.source.startswith("/") or ":" in mount.source:
        expected = "an absolute path, or node-TYPE:NAME=/path for a volume of the node group"
        raise ConfigError(f"mount {mount.kind}={mount.source}: lepton expects {expected}")
    if mount.read_only:
        raise ConfigError(f"mount {mount.source}:{mount.target}: lepton cannot mount read only")
    return f"{mount.source}:{mount.target}:{volume}"


def _worker(job: Job) -> str:
    address = (
        "# The first worker's name, as Lepton makes"
        " it.\nMASTER_ADDR=${LEPTON_JOB_WORKER_PREFIX}-0.${LEPTON_SUBDOMAIN}"
    )
    run = start(
        job,
        rank='"$LEPTON_JOB_WORKER_INDEX"',
        address='"$MASTER_ADDR"',
        port=str(MASTER_PORT),
        before=["exec", *timeout_words(job)],
    )
    go = f"cd -- {quote(job.workdir)}" if job.workdir else ""
    return script(
        [
            STRICT,
            environment(job),
            files(job),
            address if job.nodes > 1 else "",
            program(job.command),
            go,
            run,
        ]
    )
