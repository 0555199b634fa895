"""Which card is meant by its memory alone, as users of AutoConfigurator name it."""

from __future__ import annotations

import csv
import pkgutil
from dataclasses import dataclass

from meshwright.errors import ConfigError
from meshwright.hardware.catalogue import find_chip

__all__ = ["Card", "card_of", "card_rows"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A chip, and how much of its memory may be used where that is less than all."""

    chip: str
    max_memory_gib: float | None = None

    @property
    def words(self) -> str:
        """For a message."""
        return (
            self.chip
            if self.max_memory_gib is None
            else f"{self.chip} held to {self.max_memory_gib:g} GiB"
        )


def card_rows() -> dict[float, str]:
    """Return the usual chip by its memory in GB, ascending (`presets/nemo1_chips.csv`)."""
    table = pkgutil.get_data("meshwright", "presets/nemo1_chips.csv")
    assert table is not None, "the package is installed without presets/nemo1_chips.csv"
    rows = csv.DictReader(table.decode().splitlines())
    return dict(sorted((float(row["gpu_memory_gb"]), row["chip"]) for row in rows))


def card_of(gpu_memory_gb: float, *, chip: str | None = None) -> Card:
    """Return the chip that is named, else the usual one with this memory, else the next larger one
    held to it."""
    if chip is not None:
        return Card(chip=find_chip(chip).name)
    rows = card_rows()
    found = next((memory for memory in rows if memory >= gpu_memory_gb), None)
    if found is None:
        raise ConfigError(
            f"gpu_memory_gb={gpu_memory_gb:g}: no card is known with as much ({max(rows):g} is the"
            " most); name one by chip="
        )
    return Card(
        chip=find_chip(rows[found]).name,
        max_memory_gib=None if found == gpu_memory_gb else gpu_memory_gb,
    )
