"""A job: one program on every chip of some nodes, before it is written for a platform."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from meshwright.errors import ConfigError
from meshwright.exports.exported import EnvVar, ExportedFile, RunsOn

__all__ = ["Job", "JobText", "Launch", "Mount", "parse_mount"]

Launch = Literal["torchrun", "ranks"]
"""`torchrun`: one task per node, in which torchrun starts one process per chip. `ranks`: the
platform starts one task per chip."""

_MOUNT = re.compile(
    r"(?:(?P<kind>[a-z][\w:.-]*)=)?(?P<source>.+?):(?P<target>/[^:]*)(?::(?P<mode>ro|rw))?"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """What a container sees of the world outside."""

    kind: str = "path"
    """`path` of the host; or the platform's word for a volume: `pvc`, `workspace`, `dataset`, a
    volume of Lepton."""
    source: str
    """A path, or the name of the volume."""
    target: str
    """Absolute path in the container."""
    read_only: bool = False

    def __post_init__(self) -> None:
        """Check that it can be written on one line."""
        for text in (self.source, self.target):
            _check_line(text, "a mount")
        if not self.target.startswith("/"):
            raise ConfigError(
                f"mount {self.source}:{self.target}: expected an absolute path in the container"
                " after the colon"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Everything that a job script says. What a platform has no word for is refused there, not
    dropped."""

    name: str
    command: tuple[str, ...]
    """The program and its arguments without interpreter or launcher: `pretrain_gpt.py --bf16 ...`,
    `-m torchtitan.train ...`."""
    nodes: int
    gpus_per_node: int
    runs_on: RunsOn = "rank"
    """Who runs the command. `once` is no job: it starts jobs itself."""
    environment: tuple[EnvVar, ...] = ()
    vendor: str = "NVIDIA"
    launch: Launch | None = None
    """None: the platform's usual way."""
    asks_for: Literal["gpus", "nodes"] = "gpus"
    """`nodes`: work for processors alone, one process on each node; the platform is asked for no
    chip."""
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
    words: tuple[str, ...] = ()
    """More options for the platform's own command, as they are."""

    def __post_init__(self) -> None:
        """Check what holds on every platform."""
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
            _check_text(word, "a word of the program")
        for variable in self.environment:
            _check_variable(variable)
        for name in (
            "image",
            "workdir",
            "account",
            "partition",
            "instance",
            "log_dir",
            "memory",
            "shared_memory",
            "priority",
        ):
            _check_line(getattr(self, name) or "", name)
        for word in self.words:
            _check_line(word, "an option for the platform")
        if self.files and self.workdir:
            raise ConfigError(
                f"workdir={self.workdir}: the program reads {self.files[0].name} and starts where"
                " that is; leave workdir out"
            )
        for file in self.files:
            _check_text(file.name + file.text, f"file {file.name}")
        if len({variable.name for variable in self.environment}) < len(self.environment):
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
    if not _NAME.fullmatch(variable.name):
        raise ConfigError(
            f"{variable.name!r} is no name of an environment variable: expected letters, digits and"
            " underscores"
        )
    _check_text(variable.value, f"the value of {variable.name}")


def _check_text(text: str, what: str) -> None:
    """No process can be handed a NUL, nor text that UTF-8 cannot carry."""
    if "\0" in text:
        raise ConfigError(f"{what} holds a NUL byte, which no program can be given")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} cannot be written in UTF-8: {text!r}") from None


def _check_line(text: str, what: str) -> None:
    _check_text(text, what)
    if "\n" in text or "\r" in text:
        raise ConfigError(f"{what} must be one line, got {text!r}")
