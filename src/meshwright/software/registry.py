"""Every target that plans are exported to, and every kind of file that they are imported from."""

from __future__ import annotations

from meshwright.software.accelerate.export import ACCELERATE
from meshwright.software.contract import ExportTarget, ImportSource
from meshwright.software.deepspeed.export import DEEPSPEED
from meshwright.software.engines.chosen import SERVING_TARGETS
from meshwright.software.megatron_bridge.export import MEGATRON_BRIDGE
from meshwright.software.megatron_bridge.read import BRIDGE_SOURCE
from meshwright.software.megatron_lm import MEGATRON_LM, MEGATRON_LM_SOURCE
from meshwright.software.nanotron.export import NANOTRON
from meshwright.software.nanotron.read import NANOTRON_SOURCE
from meshwright.software.nemo1.export import NEMO1
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.software.nemo1.script import NEMO1_SCRIPT
from meshwright.software.nemo2.export import NEMO2
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.software.pai_megatron_patch.export import PAI
from meshwright.software.torchtitan.export import TORCHTITAN
from meshwright.software.torchtitan.read import TORCHTITAN_SOURCE
from meshwright.software.torchtitan.toml import TORCHTITAN_TOML
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "SOURCES",
    "TARGETS",
    "find_source",
    "find_target",
]

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
