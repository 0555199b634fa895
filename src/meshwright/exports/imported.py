"""What is read from another software's command line or configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.exports.settings import ModelDetails, TrainingSettings
from meshwright.models.spec import ModelSpec
from meshwright.stack import Feature
from meshwright.workload import Workload

__all__ = ["Imported"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A training run as its files describe it."""

    source: str
    """Name of the ImportSource."""
    model: ModelSpec
    work: Workload
    layout: dict[str, Any]
    """Fields of Layout that the file sets (or that follow from its program's defaults);
    `rules.complete_layout` fills in the rest."""
    stack: str = "megatron"
    left_off: tuple[Feature, ...] = ()
    """What the stack counts on and the file does not switch on."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    details: ModelDetails = field(default_factory=ModelDetails)
    megatron_version: str | None = None
    num_chips: int | None = None
    """Where the file says so."""
    chips_per_node: int | None = None
    warnings: tuple[str, ...] = ()
    """What the reader must know: options that no longer exist, values that contradict each
    other."""
    passed_through: tuple[str, ...] = ()
    """Words without a place in a plan, in their order; `import_text` appends them to
    `settings.extra`, so that an export hands them on."""
