"""Every target that plans are exported to, and every kind of file that they are imported from."""

from __future__ import annotations

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.exports.bridge import BRIDGE_SOURCE, MEGATRON_BRIDGE
from meshwright.exports.engines.targets import SERVING_TARGETS
from meshwright.exports.hf import ACCELERATE, DEEPSPEED
from meshwright.exports.megatron_lm import MEGATRON_LM, MEGATRON_LM_SOURCE
from meshwright.exports.nanotron import NANOTRON, NANOTRON_SOURCE
from meshwright.exports.nemo1 import NEMO1, NEMO1_SCRIPT, NEMO1_SOURCE
from meshwright.exports.nemo2 import NEMO2, NEMO2_SOURCE
from meshwright.exports.pai import PAI
from meshwright.exports.target import ExportTarget, ImportSource
from meshwright.exports.titan import TORCHTITAN, TORCHTITAN_SOURCE, TORCHTITAN_TOML

__all__ = ["SOURCES", "TARGETS", "find_source", "find_target"]

TARGETS: tuple[ExportTarget, ...] = (
    MEGATRON_LM,
    MEGATRON_BRIDGE,
    NEMO2,
    NEMO1,
    NEMO1_SCRIPT,
    TORCHTITAN,
    TORCHTITAN_TOML,
    NANOTRON,
    DEEPSPEED,
    ACCELERATE,
    PAI,
)
"""In the order in which help names them."""

SOURCES: tuple[ImportSource, ...] = (
    BRIDGE_SOURCE,
    NEMO2_SOURCE,
    NEMO1_SOURCE,
    TORCHTITAN_SOURCE,
    NANOTRON_SOURCE,
    MEGATRON_LM_SOURCE,
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
    raise ConfigError(f"{file_name}: not recognised as any of {kinds}{hint}")
