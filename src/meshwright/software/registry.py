"""Every target that plans are exported to, and every kind of file that they are imported from, as
the folders of software have them."""

from __future__ import annotations

from meshwright.software.contract import ExportTarget, ImportSource
from meshwright.software.folders import all_software
from meshwright.software.serving import SERVING_TARGETS
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["SOURCES", "TARGETS", "find_source", "find_target"]


TARGETS: tuple[ExportTarget, ...] = tuple(
    target for software in all_software() for target in software.targets()
)
"""In the order in which help names them."""

SOURCES: tuple[ImportSource, ...] = tuple(
    sorted(
        (source for software in all_software() for source in software.sources()),
        key=lambda source: source.last,
    )
)
"""In the order in which a file is tried."""


def find_target(name: str) -> ExportTarget:
    """Return a target by name; UnknownNameError with the nearest names."""
    for target in TARGETS:
        if target.name == name.lower():
            return target
    hint = (
        f"; serving plans have it: meshwright serving export --to {name}"
        if name in SERVING_TARGETS
        else ""
    )
    raise UnknownNameError("export target", name, [target.name for target in TARGETS], hint=hint)


def find_source(file_name: str, text: str) -> ImportSource:
    """Return the kind of a file by its name and its text; ConfigError where it is of no known
    kind."""
    for source in SOURCES:
        if source.matches(file_name, text):
            return source
    kinds = ", ".join(source.title for source in SOURCES)
    hint = "; a config.json of Hugging Face goes with --hf" if '"model_type"' in text else ""
    if file_name.endswith(".py"):
        hint = "; Python is not run here: name a configuration, of torchtitan its TOML (0.2)"
    raise ConfigError(f"{file_name}: not recognised as any of {kinds}{hint}")
