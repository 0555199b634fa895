"""A job: one program on every chip of some nodes, before it is written for a platform."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from meshwright.software.contract import EnvVar, Exported, ExportedFile, RunsOn
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import ConfigError, MissingWord, UnknownNameError
from meshwright.values.hardware.cluster import Pool
from meshwright.values.lines import check_line, check_lines, check_no_option, check_text
from meshwright.values.options import Option
from meshwright.values.secrets import holds_secret
from meshwright.values.units import parse_duration

__all__ = [
    "BATCH",
    "IMAGE",
    "QUEUE",
    "SECRETS_OF",
    "SIZES",
    "Job",
    "JobOptions",
    "JobText",
    "Launch",
    "Mount",
    "check_fields",
    "dns_label",
    "job_of",
    "mount_of",
    "no_files",
    "parse_mount",
    "required",
    "way",
    "with_defaults",
]

Launch = Literal["torchrun", "ranks"]
"""`torchrun`: one task per node, in which torchrun starts one process per chip. `ranks`: the
platform starts one task per chip."""

_MOUNT = re.compile(
    r"(?:(?P<kind>[a-z][\w:.-]*)=)?(?P<source>.+?):(?P<target>/[^:]*)(?::(?P<mode>ro|rw))?"
)
BATCH = ("image", "mounts", "workdir", "account", "partition", "instance", "log_dir", "port")
"""Fields of a job that a batch system has words for."""
SIZES = ("cpus", "memory", "shared_memory", "priority")
_TEXTS = tuple(name for name in (*BATCH, *SIZES) if name not in ("mounts", "port", "cpus"))
_DEFAULTS = ("account", "partition", "instance", "image", "time_limit_s")
"""What executors have options for."""
QUEUE = ("order", "preempt", "min_timeslice")
"""How Base Command queues a job, beside its priority."""
_OPTIONAL = (*BATCH, *SIZES, *QUEUE, "words", "secrets")
IMAGE = "nvcr.io/nvidia/pytorch:25.04-py3"
"""An example."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRETS_OF = "meshwright"
"""The secret of a platform's store whose keys are the names of a job's secrets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """What a container sees of the world outside."""

    kind: str = "path"
    """`path` of the host; else the platform's word: `pvc`, `workspace`, `dataset`, ..."""
    source: str
    """A path, or the name of the volume."""
    target: str
    """Absolute path in the container."""
    read_only: bool = False

    def __post_init__(self) -> None:
        for text in (self.kind, self.source, self.target):
            check_line(text, "a mount")
        if not self.target.startswith("/"):
            raise ConfigError(
                f"mount {self.source}:{self.target}: expected an absolute path in the container"
                " after the colon"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a job script says. A platform refuses what it has no word for."""

    name: str
    command: tuple[str, ...]
    """The program and its arguments without interpreter or launcher: `pretrain_gpt.py --bf16 ...`,
    `-m torchtitan.train ...`."""
    nodes: int
    gpus_per_node: int
    runs_on: RunsOn = "rank"
    """Who runs the command. `once` is no job: it starts jobs itself."""
    environment: tuple[EnvVar, ...] = ()
    secrets: tuple[str, ...] = ()
    """Variables whose values come from the environment of whoever submits, or from the platform's
    store of secrets: no file has them."""
    vendor: str = "NVIDIA"
    launch: Launch | None = None
    """None: the platform's usual way."""
    asks_for: Literal["gpus", "nodes"] = "gpus"
    """`nodes`: work for processors, one process on each node; no chip is asked for."""
    time_limit_s: int | None = None
    image: str | None = None
    """A container image, or a file of one (.sif, .sqsh)."""
    mounts: tuple[Mount, ...] = ()
    workdir: str | None = None
    """Where the program starts; in the container where there is one."""
    files: tuple[ExportedFile, ...] = ()
    """Files that the command names, or that such a file may read. The program starts among them, so
    there is no other workdir then."""
    account: str | None = None
    """Who pays: an account of Slurm, an organization of NGC, a project of Run:ai."""
    partition: str | None = None
    """Where it waits: a partition of Slurm, an ACE, a node pool or group, a queue of Kueue, the
    infrastructure of SkyPilot."""
    instance: str | None = None
    """The kind of node, in the platform's words."""
    log_dir: str | None = None
    port: int | None = None
    """Where the program answers, to be reached from outside: JupyterLab's 8888."""
    cpus: int | None = None
    """Cores of one node that the job asks for; None: what the platform gives."""
    memory: str | None = None
    """Of one node, in the platform's words: 1000Gi."""
    shared_memory: str | None = None
    """Of one node: 256Gi."""
    priority: str | None = None
    """In the platform's words."""
    order: int | None = None
    """Among jobs of one priority, 1 to 99, the first before."""
    preempt: str | None = None
    """What becomes of it when another takes its nodes, in the platform's words."""
    min_timeslice: str | None = None
    """How long it runs before another may: 2H."""
    words: tuple[str, ...] = ()
    """More options for the platform's own command, as they are."""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.cpus is not None and self.cpus < 1:
            raise ConfigError(f"cpus={self.cpus}: expected 1 or more")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: expected 1 to 65535")
        if self.asks_for == "nodes" and (self.runs_on != "node" or self.gpus_per_node != 1):
            raise ConfigError("a job without GPUs runs its program once per node")
        if not self.command:
            raise ConfigError("command: expected the words of a program")
        if self.runs_on == "once":
            raise ConfigError(
                f"{self.command[0]} is run once and starts its processes itself: it needs no job"
                " script"
            )
        if self.runs_on == "node" and self.launch:
            raise ConfigError(
                f"{self.command[0]} is run once per node and starts its ranks itself; leave"
                f" launch={self.launch} out"
            )
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ConfigError(
                f"name={self.name}: expected letters, digits, dots, dashes and underscores, the"
                " first a letter or a digit"
            )
        for word in self.command:
            check_text(word, "a word of the program")
        for variable in self.environment:
            _check_variable(variable)
        for name in (*_TEXTS, "vendor", "preempt", "min_timeslice"):
            check_line(getattr(self, name) or "", name)
        check_no_option(self, (*_TEXTS, "preempt", "min_timeslice"))
        for word in self.words:
            check_line(word, "an option for the platform")
        if self.files and self.workdir:
            raise ConfigError(
                f"workdir={self.workdir}: the program reads {self.files[0].name} and starts where"
                " that is; leave workdir out"
            )
        for file in self.files:
            check_text(file.name + file.text, f"file {file.name}")
        for name in self.secrets:
            _check_name(name)
        names = [*(variable.name for variable in self.environment), *self.secrets]
        if len(set(names)) < len(names):
            raise ConfigError("environment: a name occurs twice")

    @property
    def num_gpus(self) -> int:
        """Chips of all nodes, and ranks of the program."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True, slots=True)
class JobText:
    """A job as one platform wants it."""

    file_name: str
    text: str
    submit: str
    """The command that hands it to the platform."""


def parse_mount(text: str) -> Mount:
    """Read `SOURCE:TARGET`, `SOURCE:TARGET:ro` or `KIND=NAME:TARGET`."""
    found = _MOUNT.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"mount={text}: expected SOURCE:/TARGET, SOURCE:/TARGET:ro, or KIND=NAME:/TARGET such"
            " as pvc=datasets:/data"
        )
    return Mount(
        kind=found["kind"] or "path",
        source=found["source"],
        target=found["target"],
        read_only=found["mode"] == "ro",
    )


def _check_variable(variable: EnvVar) -> None:
    _check_name(variable.name)
    check_text(variable.value, f"the value of {variable.name}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of an environment variable: expected letters, digits and"
            " underscores"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """Fields of a job file, and flags of `meshwright export` (docs/jobs.md)."""

    name: Annotated[
        str | None, Option("Name of the job [default: the model's].", ("--job-name",))
    ] = None
    start: Annotated[
        Launch | None,
        Option("torchrun or ranks: who starts processes [default: the platform's way]."),
    ] = None
    time: Annotated[
        str | None, Option("Limit on the job's time: 5D, 10h, 23:30:00, 4:23:30:00.")
    ] = None
    image: Annotated[str | None, Option("Container image.")] = None
    mounts: Annotated[
        tuple[str, ...],
        Option("What the container sees.", ("--mount",), metavar="SOURCE:TARGET[:ro]"),
    ] = ()
    """SOURCE:TARGET[:ro] or KIND=NAME:TARGET."""
    workdir: Annotated[str | None, Option("Folder that the program starts in.")] = None
    account: Annotated[str | None, Option("Who pays: account, organization or project.")] = None
    partition: Annotated[
        str | None, Option("Where the job waits: partition, queue, ACE, node pool or group.")
    ] = None
    instance: Annotated[str | None, Option("Kind of node, in the platform's words.")] = None
    log_dir: Annotated[str | None, Option("Folder for the job's output.")] = None
    cpus: Annotated[int | None, Option("Cores of one node.")] = None
    memory: Annotated[
        str | None, Option("Host memory of one node, 1000Gi.", ("--node-memory",), metavar="SIZE")
    ] = None
    shared_memory: Annotated[
        str | None, Option("Shared memory of one node, 256Gi.", metavar="SIZE")
    ] = None
    priority: Annotated[
        str | None, Option("In the platform's words: bcp's HIGH, NORMAL, LOW; pai-dlc's 1 to 9.")
    ] = None
    order: Annotated[int | None, Option("bcp: among jobs of one priority, 1 to 99.")] = None
    preempt: Annotated[
        str | None, Option("bcp: RUNONCE, RESUMABLE or RESTARTABLE.", metavar="CLASS")
    ] = None
    min_timeslice: Annotated[
        str | None, Option("bcp: how long it runs before another may: 2h.", metavar="TIME")
    ] = None
    words: Annotated[
        tuple[str, ...],
        Option("One more option for the platform, as it is.", ("--launcher-word",), metavar="WORD"),
    ] = ()

    def __post_init__(self) -> None:
        """Check what is not checked by the job itself."""
        check_lines(self)
        check_amounts(self, ["cpus"], least=1)
        if any(map(holds_secret, self.words)):
            raise ConfigError(
                "words: one of them holds a secret's value, which would stand in the job's script;"
                " name the secret (`train --env NAME`), and set it where you submit"
            )
        if self.start is not None and self.start not in get_args(Launch):
            raise UnknownNameError("way to start processes", self.start, get_args(Launch))

    @staticmethod
    def of(given: Mapping[str, Any]) -> JobOptions:
        """Read plain values (YAML, flags); an unknown key is an error with the nearest one."""
        known = [field.name for field in fields(JobOptions)]
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                raise UnknownNameError("key of a job", str(key), known)
            read: Callable[[str, Any], Any] = _READERS.get(key, _text)
            values[key] = read(key, value)
        return JobOptions(**values)


def _text(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"job: {key}={value}: expected a text; put it in quotes")
    return value


def _number(key: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ConfigError(f"job: {key}={value}: expected a whole number")
    return value


def _list(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise ConfigError(f"job: {key}={value}: expected a list of texts")
    return tuple(value)


_READERS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {"mounts": _list, "words": _list, "cpus": _number, "order": _number}
)


def job_of(exported: Exported, *, model: str, pool: Pool, options: JobOptions) -> Job:
    """Return the job that runs an export on a pool's chips."""
    per_node = min(pool.node.chips_per_node, pool.num_chips)
    if pool.num_chips % per_node:
        raise ConfigError(
            f"{pool.num_chips} chips on nodes of {per_node}: a job starts equally many processes on"
            " every node"
        )
    reads = any(_names(word, file.name) for file in exported.files for word in exported.command)
    return Job(
        name=options.name or _plain(model, 40) or "training",
        command=exported.command,
        runs_on=exported.runs_on,
        environment=exported.environment,
        nodes=pool.num_chips // per_node,
        gpus_per_node=per_node,
        vendor=pool.node.chip.vendor,
        launch=options.start,
        time_limit_s=None if options.time is None else parse_duration(options.time, name="time"),
        mounts=tuple(map(parse_mount, options.mounts)),
        files=exported.files if reads else (),
        words=options.words,
        cpus=options.cpus,
        order=options.order,
        preempt=options.preempt,
        min_timeslice=options.min_timeslice,
        **{name: getattr(options, name) for name in _TEXTS},
    )


def _names(word: str, file: str) -> bool:
    """Whether a word is about a file: its name, a module of Python, or Hydra's configuration."""
    module = file.endswith(".py") and word == file.removesuffix(".py").replace("/", ".")
    config = file.endswith(".yaml") and word == f"--config-name={file.removesuffix('.yaml')}"
    return file in word or module or config


def _plain(name: str, most: int) -> str:
    """Return a name in what every platform takes; empty where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")[:most].strip("-")


def check_fields(job: Job, platform: str, known: Collection[str]) -> None:
    """Refuse what the job says and the platform has no word for."""
    unknown = [name for name in _OPTIONAL if name not in known and getattr(job, name)]
    if unknown:
        raise ConfigError(
            f"{platform} has no word for {', '.join(unknown)}; leave"
            f" {'it' if len(unknown) == 1 else 'them'} out"
        )


def required(job: Job, platform: str, field: str, example: str) -> str:
    """Return a field that the platform cannot do without."""
    value = getattr(job, field)
    if value is None:
        raise MissingWord(
            f"{platform} needs {field}, such as {example}", field=field, value=field.upper()
        )
    return str(value)


def way(job: Job, platform: str, ways: tuple[Launch, ...]) -> Launch:
    """Return how processes are started: as asked, else the first of the platform's ways."""
    if job.runs_on == "node" and "torchrun" not in ways:
        raise ConfigError(
            f"{platform} starts one process per GPU; {job.command[0]} is to be run once per node"
            " and starts them itself"
        )
    if job.launch is not None and job.launch not in ways:
        raise ConfigError(
            f"{platform} does not start processes by {job.launch}; it does by {' or '.join(ways)}"
        )
    return job.launch or ways[0]


def no_files(job: Job, platform: str) -> None:
    """Refuse files where several ranks of a node would write them at once."""
    if job.files:
        names = ", ".join(file.name for file in job.files)
        raise ConfigError(
            f"{platform} cannot bring {names} to the nodes; export the command with the files in"
            " the image or on a mount"
        )


def mount_of(mount: Mount, platform: str, kinds: tuple[str, ...]) -> Mount:
    """Return a mount of a kind that the platform knows."""
    if mount.kind not in kinds:
        words = " or ".join("a path" if kind == "path" else f"{kind}=NAME" for kind in kinds)
        raise ConfigError(
            f"{platform} cannot mount {mount.kind} {mount.source} at {mount.target}: expected"
            f" {words}"
        )
    if mount.kind == "path" and not mount.source.startswith("/"):
        raise ConfigError(
            f"mount {mount.source}:{mount.target}: expected an absolute path on the node"
        )
    return mount


def dns_label(job: Job, platform: str, most: int) -> str:
    """Return the name where the platform makes host names of it."""
    if re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", job.name) and len(job.name) <= most:
        return job.name
    near = _plain(job.name, most) or "job"
    raise ConfigError(
        f"name={job.name}: {platform} takes up to {most} lower-case letters, digits and dashes, the"
        f" first a letter; {near} would do"
    )


def with_defaults(job: Job, options: Any, **more: Any) -> Job:
    """Return the job with an executor's options where it says nothing itself; `more` are those of
    another name."""
    own = {name: getattr(options, name) for name in _DEFAULTS if hasattr(options, name)} | more
    return replace(job, **{name: own[name] for name in own if getattr(job, name) is None})
