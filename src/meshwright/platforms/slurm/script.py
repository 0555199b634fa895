"""A batch script of Slurm, with an image in a container by pyxis or Apptainer."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.platforms.job import BATCH, Job, JobText, Launch, Mount, check_fields, mount_of, way
from meshwright.platforms.shell import (
    STRICT,
    command,
    environment,
    lines_of,
    program,
    quote,
    rank_words,
    script,
    title,
)
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import device_plugin
from meshwright.values.units import DAY_S, HOUR_S, MINUTE_S

__all__ = ["array_script", "slurm_script", "slurm_time"]

_RANKS = (
    "One task per GPU: srun starts every process, and RANK, LOCAL_RANK and WORLD_SIZE are taken"
    " from Slurm."
)
_TORCHRUN_TASK = 'exec torchrun --node-rank="$SLURM_NODEID" "$@"'
_NODE_TASK = 'export NODE_RANK="$SLURM_NODEID"; exec "$@"'
_RANK_TASK = 'export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"; exec "$@"'

_OWN = ("#SBATCH --job-name", "#SBATCH --output")
"""What each job of an array says for itself."""

_SRUN = "srun "
"""How a further word begins that is an option of srun, such as `srun --mpi=pmix`."""
_HERE_TOO = '"$PWD:$PWD"'
"""The folder that the job was submitted from, under its own name: the program reads files there."""


def slurm_script(job: Job) -> JobText:
    """Write a script for sbatch; without `log_dir` being there Slurm drops the output."""
    check_fields(job, "slurm", (*BATCH, "words", "secrets"))
    if job.mounts and job.image is None:
        raise ConfigError(
            "slurm: mounts need an image; without a container the program sees the node's own paths"
        )
    launch = _way(job)
    before = f"mkdir -p {quote(job.log_dir)} && " if job.log_dir else ""
    submit = f"{before}sbatch job.sbatch"
    blocks = [
        "#!/usr/bin/env bash\n" + "\n".join(_directives(job, launch)),
        f"{title(job, _RANKS if launch == 'ranks' else '')}\n# Submit it: {submit}\n{STRICT}",
        _rendezvous(job, launch),
        environment(job),
        program(list(job.command) if launch == "torchrun" else rank_words(job)),
        f"cd -- {quote(job.workdir)}" if job.workdir and job.image is None else "",
        "# The words in single quotes are for the bash of each task, which knows its own number.\n#"
        " shellcheck disable=SC2016\n" + command(_launch(job, launch)),
    ]
    return JobText(file_name="job.sbatch", text=script(blocks), submit=submit)


def array_script(
    jobs: Sequence[Job], *, folders: Sequence[str], at_once: int | None = None
) -> JobText:
    """Write a script whose task N runs the script of job N in its folder, with its output beside
    the folder; all ask for the same.

    `at_once` is how many tasks run at a time; None: as many as Slurm starts.
    """
    asked = [
        [line for line in _directives(job, _way(job)) if not line.startswith(_OWN)] for job in jobs
    ]
    for job, lines in zip(jobs, asked, strict=True):
        if lines != asked[0]:
            other = next(
                line for line in [*lines, *asked[0]] if line not in lines or line not in asked[0]
            ).removeprefix("#SBATCH ")
            raise ConfigError(
                f"slurm: tasks of an array ask for the same, and {job.name} differs from"
                f" {jobs[0].name} in {other}"
            )
    tasks = f"0-{len(jobs) - 1}" + (f"%{at_once}" if at_once else "")
    own = [f"#SBATCH --array={tasks}", "#SBATCH --output=task-%a.log"]
    blocks = [
        "\n".join(["#!/usr/bin/env bash", *asked[0], *own]),
        (
            f"# An array of {len(jobs)} jobs: task N runs the script in folder N.\n# Submit it:"
            f" sbatch job.array.sbatch\n{STRICT}"
        ),
        program(folders, name="folders"),
        (
            'cd -- "${folders[$SLURM_ARRAY_TASK_ID]}"\nexec bash job.sbatch > ../stdout.log 2>'
            " ../stderr.log"
        ),
    ]
    return JobText(
        file_name="job.array.sbatch", text=script(blocks), submit="sbatch job.array.sbatch"
    )


def slurm_time(seconds: int) -> str:
    """Write a limit as days-hours:minutes:seconds, the one form of Slurm that needs no guessing."""
    days, rest = divmod(seconds, DAY_S)
    hours, rest = divmod(rest, HOUR_S)
    return f"{days}-{hours:02}:{rest // MINUTE_S:02}:{rest % MINUTE_S:02}"


def _way(job: Job) -> Launch:
    return way(job, "slurm", ("torchrun", "ranks"))


def _directives(job: Job, launch: Launch) -> list[str]:
    log = "%x-%j.log"
    words = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": str(job.gpus_per_node if launch == "ranks" else 1),
        "gres": f"gpu:{job.gpus_per_node}" if job.asks_for == "gpus" else "",
        "exclusive": None,
        "mem": "0",
        "time": slurm_time(job.time_limit_s) if job.time_limit_s else "",
        "account": job.account or "",
        "partition": job.partition or "",
        "constraint": job.instance or "",
        "output": f"{job.log_dir.rstrip('/')}/{log}" if job.log_dir else log,
    }
    lines = [
        f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={_directive_value(value)}"
        for name, value in words.items()
        if value != ""
    ]
    return [*lines, *(f"#SBATCH {word}" for word in job.words if not word.startswith(_SRUN))]


def _directive_value(value: str) -> str:
    """Quote as sbatch reads its lines: blanks and # end a word outside double quotes."""
    if not set(value) & set(" \t#'\"\\"):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _rendezvous(job: Job, launch: Launch) -> str:
    lines = [
        (
            "# All processes meet at the first node, where this runs; the port differs from job to"
            " job, and is one where nobody listens."
        ),
        'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "export MASTER_ADDR=${nodes%%$'\\n'*}",
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        'while (: <"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null; do',
        "  MASTER_PORT=$((20000 + (MASTER_PORT + 1) % 10000))",
        "done",
        "export MASTER_PORT",
    ]
    if launch == "ranks":
        lines.append(f"export WORLD_SIZE={job.num_gpus}")
    elif job.runs_on == "node":
        lines.append(f"export NNODES={job.nodes}")
    return "\n".join(lines)


def _launch(job: Job, launch: Launch) -> list[str]:
    # Without --cpu-bind=none one task per node would hold all its processes on the few cores of one
    # task.
    srun = ["srun", "--kill-on-bad-exit=1", "--cpu-bind=none", "--distribution=block"]
    srun += [quote(word.removeprefix(_SRUN)) for word in job.words if word.startswith(_SRUN)]
    inside = _container(job)
    if launch == "ranks" or job.runs_on == "node":
        task, name = (_RANK_TASK, "rank") if launch == "ranks" else (_NODE_TASK, "node")
        return [" ".join(srun), *inside, f"bash -c {quote(task)} {name}", '"${program[@]}"']
    sizes = [f"--nnodes={job.nodes}", f"--nproc-per-node={job.gpus_per_node}"]
    flags = [*sizes, '--master-addr="$MASTER_ADDR"', '--master-port="$MASTER_PORT"']
    task = f"bash -c {quote(_TORCHRUN_TASK)} torchrun"
    return [" ".join(srun), *inside, task, *flags, '"${program[@]}"']


def _container(job: Job) -> list[str]:
    if job.image is None:
        return []
    mounts = [mount_of(mount, "slurm", ("path",)) for mount in job.mounts]
    write = _apptainer if job.image.endswith(".sif") else _pyxis
    return write(job, job.image, mounts)


def _pyxis(job: Job, image: str, mounts: list[Mount]) -> list[str]:
    """`--container-env` lets the exports above win over the same names in the image."""
    binds = [_HERE_TOO] if job.files else []
    binds += [quote(_bind(mount, ",+")) for mount in mounts]
    names = ",".join([*(variable.name for variable in job.environment), *job.secrets])
    words = [f"--container-workdir={job.workdir}"] if job.workdir else []
    words += [f"--container-env={names}"] if names else []
    return [
        *lines_of([f"--container-image={image}"]),
        *([f"--container-mounts={','.join(binds)}"] if binds else []),
        *(['--container-workdir="$PWD"'] if job.files else []),
        *lines_of(words),
    ]


def _apptainer(job: Job, image: str, mounts: list[Mount]) -> list[str]:
    gpus = [device_plugin(job.vendor).apptainer_flag] if job.asks_for == "gpus" else []
    words = ["apptainer", "exec", *gpus]
    for mount in mounts:
        words += ["--bind", _bind(mount, ",")]
    if job.workdir:
        words += ["--pwd", job.workdir]
    here = [f"--bind {_HERE_TOO}", '--pwd "$PWD"'] if job.files else []
    return [*lines_of(words), *here, quote(image)]


def _bind(mount: Mount, separators: str) -> str:
    text = f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
    if any(sign in mount.source + mount.target for sign in f"{separators}:"):
        raise ConfigError(
            f"mount {text}: a path in it holds one of {separators}:, which separate mounts"
        )
    return text
