"""What is known by name: the functions behind `meshwright models`, `chips`, `stacks` and
`prices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from meshwright.platforms.given import read_hf_config
from meshwright.search.started import recipe_span
from meshwright.software.registry import TARGETS
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import ChipRow, chip_rows, find_row
from meshwright.values.hardware.parse import Server, servers
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import ModelInfo, ModelRow, model_info, models_info
from meshwright.values.stack import find_stack
from meshwright.values.stack_files import StackEntry, all_entries
from meshwright.values.switches import switches_of

__all__ = [
    "PriceRow",
    "StackRow",
    "describe_chip",
    "describe_model",
    "describe_stack",
    "list_chips",
    "list_models",
    "list_prices",
    "list_servers",
    "list_stacks",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackRow:
    """One training software as the cost model sees it."""

    name: str
    about: str
    builds_on: str | None
    targets: tuple[str, ...]
    """What writes its files: words of `--to`."""
    figures: Mapping[str, Any]
    """In which it differs from what it builds on."""
    sources: Mapping[str, str]
    """Of each figure."""
    recipes: tuple[str, ...]
    """First and last release whose recipes start it; () where it has none."""
    switches: Mapping[str, str]
    """Words of `switches`, each with what it does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceRow:
    """What an hour of one chip costs."""

    chip: str
    usd_per_hour: float
    source: str
    kind: Literal["on-demand", "spot", "reserved"] = "on-demand"
    provider: str = ""
    date: str = ""
    """The day that the source was read; blank where the source says it."""


def list_models() -> list[ModelRow]:
    """Return the models that are known by name: shape, parameters, what is published of them."""
    return models_info()


def describe_model(name: str | None = None, /, *, hf: str | Path | None = None) -> ModelInfo:
    """Return a model's dims and parameters by part: `describe_model("qwen3-30b-a3b")`, or its dims,
    `"layers=32,hidden=4096,..."`.

    `hf` is a config.json of Hugging Face, or its folder, to read instead; the notes say what the
    shape leaves out of it.
    """
    if (name is None) == (hf is None):
        raise ConfigError("a model: give either a name or a config")
    if hf is None:
        return model_info(named_model(name or ""))
    reading = read_hf_config(Path(hf))
    return replace(model_info(reading.spec), notes=reading.notes)


def list_chips() -> tuple[ChipRow, ...]:
    """Return the chips of clusters, each with its server, its links and its sources."""
    return chip_rows()


def describe_chip(name: str, /) -> ChipRow:
    """Return one chip by name or alias, `describe_chip("h100")`; UnknownNameError for none."""
    return find_row(name)


def list_servers() -> tuple[Server, ...]:
    """Return the servers that are sold, by the names that `cluster` takes: `p5.48xlarge:32`."""
    return servers()


def list_stacks() -> list[StackRow]:
    """Return the training software that `stack` names."""
    return [_stack_row(entry) for entry in all_entries()]


def describe_stack(name: str, /) -> StackRow:
    """Return one training software by name; UnknownNameError for none."""
    found = find_stack(name).name
    return next(row for row in list_stacks() if row.name == found)


def _stack_row(entry: StackEntry) -> StackRow:
    return StackRow(
        name=entry.name,
        about=entry.about,
        builds_on=entry.builds_on,
        targets=tuple(target.name for target in TARGETS if entry.name in target.stacks),
        figures=dict(entry.figures),
        sources=dict(entry.sources),
        recipes=recipe_span(entry.name),
        switches={one.word: one.source for one in switches_of(entry.name) if one.word},
    )


def list_prices() -> list[PriceRow]:
    """Return the price of an hour of each chip that has a public one: on demand, then spot and
    reserved (`values/hardware/prices.csv`), in the catalogue's order."""
    on_demand = [
        PriceRow(
            chip=row.chip.name,
            usd_per_hour=row.chip.usd_per_hour,
            source=row.cells["price_source"],
        )
        for row in chip_rows()
        if row.chip.usd_per_hour is not None
    ]
    others = [
        PriceRow(
            **cast("Any", {name: cell for name, cell in cells.items() if name != "usd_per_hour"}),
            usd_per_hour=float(cells["usd_per_hour"]),
        )
        for cells in package_rows("values/hardware/prices.csv")
    ]
    place = {row.chip.name: n for n, row in enumerate(chip_rows())}
    return sorted([*on_demand, *others], key=lambda row: place[row.chip])
