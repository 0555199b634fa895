"""What a folder of a software has beside its `stack.toml`: the object `SOFTWARE`, and who finds it.

Every folder of this package that has one is found by its name; those of other packages by an entry
point of the group `meshwright.software`. Nothing else lists them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import meshwright.software
from meshwright.values.errors import ConfigError
from meshwright.values.stack_files import plugins

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget, ImportSource
    from meshwright.software.described import Described
    from meshwright.software.log import Collected
    from meshwright.software.serving import ServingEngine

__all__ = ["LogForm", "Software", "TimeForm", "Training", "all_software", "log_forms", "parts"]

TimeForm = Literal[
    "days-hours:minutes:seconds",
    "nDnHnMnS",
    "days:hours:minutes:seconds",
    "seconds",
    "minutes",
    "decimal minutes",
]
"""Of Slurm, of Base Command, of Lightning and NeMo, of Kubernetes and `timeout`, of Megatron-LM, of
the embedded trainer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogForm:
    """The lines that a software writes of its steps."""

    framework: str
    """Name of the software that wrote them."""
    marks: tuple[str, ...]
    """One of these is in every line that says something."""
    read: Callable[[str, Collected], None]
    """Reads a line into what was found; any text is read or passed over, none raises."""
    sample: str
    """The line of one step, which the contract suite holds the reader to."""
    redraws: bool = False
    """Whether a step's line is drawn more than once."""
    counts_samples: bool = False
    """Whether the batch that it says is in sequences."""
    describe: Callable[[str, int | None], Described] | None = None
    """What a whole log says of its run beside its steps, where its batch by the lines of steps is
    known; None: it has no dump of its arguments that is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What a software does at the end of a job's time and at its next start."""

    name: str
    """A target of `meshwright export`, or that of the embedded trainer."""
    stop: tuple[str, ...] = ()
    """Words that end it by itself, with a checkpoint, where {limit} is the time; empty: it knows no
    such end."""
    form: TimeForm = "minutes"
    """Of {limit}."""
    resumes: Literal["load", "alone"] = "alone"
    """load: from `load_dir`, the folder that it saves into; alone: it looks there by itself."""
    keeps: int | None = None
    """Checkpoints that stay, beside the one being written; None: all of them."""
    reads_indexed: bool = True
    """Whether its data are .bin/.idx pairs."""
    source: str
    """Of the words above."""


def parts(package: str, *places: str) -> Callable[[], tuple[Any, ...]]:
    """Return a function that imports the objects of a package (`export:NEMO1`) when it is called,
    so that a reader of logs loads no exporter."""

    def load() -> tuple[Any, ...]:
        found = (place.partition(":") for place in places)
        return tuple(
            getattr(import_module(f"{package}.{module}"), name) for module, _, name in found
        )

    return load


_NONE = parts("")


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """One software; its parts are functions, so that each is loaded when it is asked for."""

    name: str
    title: str
    order: int
    """Help names softwares, and files and logs are tried, in this order; those of other packages
    come last."""
    targets: Callable[[], tuple[ExportTarget, ...]] = _NONE
    """What plans are written for."""
    sources: Callable[[], tuple[ImportSource, ...]] = _NONE
    """Kinds of files that plans are read from."""
    logs: Callable[[], tuple[LogForm, ...]] = _NONE
    """Forms of its lines of steps."""
    engines: Callable[[], tuple[ServingEngine, ...]] = _NONE
    """What serves a model."""
    training: tuple[Training, ...] = ()
    """Of each target that a job can start and go on with."""


@cache
def all_software() -> tuple[Software, ...]:
    """Return every software with an object `SOFTWARE`, in their order."""
    own = [
        _software_of(f"{meshwright.software.__name__}.{module.name}")
        for module in pkgutil.iter_modules(meshwright.software.__path__)
        if module.ispkg
    ]
    others = [_software_of(plugin.package) for plugin in plugins()]
    known = sorted((one for one in own if one is not None), key=lambda one: one.order)
    found = (*known, *(one for one in others if one is not None))
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"software {twice}: two packages have it; rename or uninstall one")
    return found


@cache
def log_forms() -> dict[str, LogForm]:
    """Return every form of lines by the software that writes them."""
    return {form.framework: form for software in all_software() for form in software.logs()}


def _software_of(package: str) -> Software | None:
    """Return the object of a package; None where it has a `stack.toml` alone."""
    try:
        found = getattr(import_module(package), "SOFTWARE", None)
    except ImportError as error:
        raise ConfigError(f"software: package {package} can't be imported ({error})") from None
    if found is not None and not isinstance(found, Software):
        raise ConfigError(f"{package}.SOFTWARE: expected a {Software.__module__}.Software")
    return found
