"""The description of a work flow: a file, or a known name, behind `key.sub=value` words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.data.fetching import find_corpus
from meshwright.platforms.job import JobOptions
from meshwright.values.amounts import check_amounts
from meshwright.values.data import package_yaml
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.lines import check_lines
from meshwright.values.text import read_yaml
from meshwright.values.units import parse_duration

__all__ = [
    "DataWords",
    "NotebookWords",
    "TrainWords",
    "Vocabulary",
    "WorkflowSpec",
    "named_specs",
    "plain_spec",
    "read_spec",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Where the files of GPT-2's byte-pair encoding are fetched from."""

    vocab_file: str
    merge_file: str

    def __post_init__(self) -> None:
        check_lines(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataWords:
    """Jobs that make the data; none asks for a GPU."""

    nodes: int
    workers: int
    """Processes of each node."""
    chunks: int | None = None
    """First chunks of the corpus; None: all."""
    time: str | None = None
    """Limit of each job, as of a job file."""
    setup: str | None = None
    """Bash that puts `meshwright` into a node's image, where it is not in it: `pip install
    /mount/data/meshwright.whl`."""
    job: JobOptions = field(default_factory=JobOptions)
    """Words of a job file that go before those of the work flow."""

    def __post_init__(self) -> None:
        check_lines(self, but=("setup",))
        check_amounts(self, ["nodes", "workers", "chunks"], least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainWords:
    """The training job."""

    model: str
    cluster: str
    seq: int
    gbs: int
    layout: str | None = None
    """None: the best one."""
    to: str
    """Training software, as of `meshwright export`."""
    time: str
    """The platform's limit."""
    stop_before: str = "30m"
    """How much sooner the software is told to stop, so that it can save."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """As `meshwright export --setting`; data, tokenizer and folders are the work flow's."""
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_lines(self)
        check_amounts(self, ["seq", "gbs"], least=1)
        before_s = parse_duration(self.stop_before, name="train.stop_before")
        if before_s >= parse_duration(self.time, name="train.time"):
            raise ConfigError(
                f"train.stop_before={self.stop_before}: leaves nothing of train.time={self.time}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NotebookWords:
    """JupyterLab on one node."""

    port: int = 8888
    token: bool = True
    """False lets anybody in who has the address."""
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_amounts(self, ["port"], least=1, below=2**16)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowSpec:
    """A work flow."""

    name: str
    title: str
    folder: str
    """Of everything that it makes, as every node sees it; on a workspace or shared file system."""
    corpus: str
    shards: int
    """Of joined text, and pairs of .bin and .idx."""
    vocabulary: Vocabulary
    data: DataWords
    train: TrainWords | None = None
    notebook: NotebookWords | None = None
    job: JobOptions = field(default_factory=JobOptions)
    """Words of a job file for every job."""

    def __post_init__(self) -> None:
        check_lines(self)
        find_corpus(self.corpus)
        check_amounts(self, ["shards"], least=1)
        if not self.folder.startswith("/"):
            raise ConfigError(
                f"folder={self.folder}: expected an absolute path, as the nodes see it"
            )

    @staticmethod
    def of(name: str, given: Mapping[str, Any]) -> WorkflowSpec:
        """Build a work flow from plain values; ConfigError names the wrong key."""
        built: WorkflowSpec = _built(WorkflowSpec, {"title": name, **given, "name": name}, "")
        return built


_PARTS: dict[str, type] = {
    "vocabulary": Vocabulary,
    "data": DataWords,
    "train": TrainWords,
    "notebook": NotebookWords,
}


def _built(kind: type, given: Mapping[str, Any], path: str) -> Any:
    known = {entry.name: entry for entry in fields(kind)}
    job = {entry.name for entry in fields(JobOptions)} - set(known) if "job" in known else set()
    job = job if path else set()
    allowed = {*known, *job} - ({"job"} if path else set())
    values: dict[str, Any] = {}
    words: dict[str, Any] = {}
    for key, value in given.items():
        if key not in allowed:
            raise UnknownNameError(f"key of {path or 'a work flow'}", str(key), sorted(allowed))
        if key in job:
            words[key] = value
        elif key == "job":
            values[key] = JobOptions.of(_mapping(key, value))
        elif key in _PARTS and not path:
            values[key] = None if value is None else _built(_PARTS[key], _mapping(key, value), key)
        else:
            values[key] = _checked(f"{path}.{key}" if path else key, value, str(known[key].type))
    if words:
        values["job"] = JobOptions.of(words)
    if missing := [name for name, one in known.items() if _needed(one) and name not in values]:
        raise ConfigError(f"{path or 'work flow'}: {', '.join(missing)} is missing")
    return kind(**values)


def _needed(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


_KINDS: dict[str, tuple[type, str]] = {
    "int": (int, "a whole number"),
    "str": (str, "a text"),
    "bool": (bool, "true or false"),
    "Mapping[str, Any]": (dict, "keys and values"),
}


def _checked(key: str, value: Any, kind: str) -> Any:
    """Look at the kind of a plain value, as the field's annotation has it."""
    expected, words = _KINDS[kind.removesuffix(" | None")]
    if value is None and kind.endswith("None"):
        return value
    if isinstance(value, expected) and (kind == "bool" or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{key}={value}: expected {words}")


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}={value}: expected keys and values")
    return value


@cache
def named_specs() -> Mapping[str, Mapping[str, Any]]:
    """Return the work flows known by name, in plain values."""
    return package_yaml("runs/workflows/workflows.yaml")


def read_spec(name: str, *, words: Sequence[tuple[str, Any]] = ()) -> WorkflowSpec:
    """Read a file or a work flow known by name, with values that go before its own, such as
    `("train.time", "3D")`."""
    given = plain_spec(name, words=words)
    return WorkflowSpec.of(str(given.pop("name")), given)


def plain_spec(name: str, *, words: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """Return what `read_spec` reads, in plain values."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            given = read_yaml(path.read_text(encoding="utf-8"), what=name)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not a text in UTF-8"
            raise ConfigError(f"work flow {path}: {why}") from None
        title = str(given.pop("name", path.stem))
    elif name in named_specs():
        given, title = deepcopy(dict(named_specs()[name])), name
    else:
        raise UnknownNameError("work flow", name, named_specs())
    for key, value in words:
        _put(given, key, value)
    return {"name": title, **given}


def _put(given: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at its place; a part that is absent is made."""
    inner, *rest = reversed(key.split("."))
    at = given
    for part in reversed(rest):
        if at.get(part) is None:
            at[part] = {}
        if not isinstance(at[part], dict):
            raise ConfigError(f"{key}: {part} has no keys")
        at = at[part]
    at[inner] = value
