"""What is known of a model, as values for tables: the list of all, and one model by part."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from meshwright.html_text import html_table
from meshwright.models.params import model_params
from meshwright.models.presets import Preset, presets
from meshwright.models.spec import ModelSpec
from meshwright.units import format_count

__all__ = ["ModelInfo", "ModelRow", "model_html", "model_info", "models_info"]

_PART_NAMES = (
    "embedding",
    "positions",
    "attention",
    "mamba",
    "mlp",
    "experts",
    "router",
    "norms",
    "head",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """One line of the list of models."""

    name: str
    series: str
    family: str
    num_layers: int
    hidden: int
    params: int
    """From the shape."""
    published_params: int
    published_kind: Literal["exact", "nominal"]
    difference_frac: float
    """(from the shape - published) / published."""
    active_params: int
    aliases: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """One model by part; `parts` sum to `params`."""

    spec: ModelSpec
    dims: dict[str, Any]
    """Dims and choices that are not the default, nested ones as `moe.top_k`."""
    parts: dict[str, int]
    params: int
    """From the shape, layers for multi-token prediction left out."""
    mtp_params: int
    active_params: int
    published: ModelRow | None
    """The row of the table with this shape (its name may be another); None where there is none."""
    notes: tuple[str, ...] = ()
    """What is left out of the configuration that it was read from."""


def models_info() -> list[ModelRow]:
    """Return one row for each known model, in the table's order."""
    return [_row(preset) for preset in presets()]


def model_info(spec: ModelSpec) -> ModelInfo:
    """Return a model's dims and its parameters by part, with what is published when it is one of
    the table."""
    params = model_params(spec)
    preset = _preset_of(spec)
    return ModelInfo(
        spec=spec,
        dims=_dims(spec, ""),
        parts={name: getattr(params, name) for name in _PART_NAMES if getattr(params, name)},
        params=params.total,
        mtp_params=params.mtp,
        active_params=params.active,
        published=_row(preset) if preset is not None else None,
    )


def model_html(spec: ModelSpec) -> str:
    """Return a model's dims and its parameters by part as HTML."""
    found = model_info(spec)
    active = (
        f", {format_count(found.active_params)} active"
        if found.active_params < found.params
        else ""
    )
    rows = [
        (name, format_count(count), f"{count / found.params:.1%}")
        for name, count in found.parts.items()
    ]
    dims = ", ".join(f"{key}={value}" for key, value in found.dims.items())
    return html_table(
        f"{spec.name}: {format_count(found.params)} parameters{active}",
        ("part", "parameters", "share"),
        rows,
        note=dims,
    )


def _preset_of(spec: ModelSpec) -> Preset | None:
    """Return the row of this very shape: the one of the same name where several share it, else the
    first."""
    same = [preset for preset in presets() if replace(preset.spec, name=spec.name) == spec]
    return next(
        (preset for preset in same if preset.spec.name == spec.name), same[0] if same else None
    )


def _row(preset: Preset) -> ModelRow:
    spec, params = preset.spec, model_params(preset.spec)
    return ModelRow(
        name=spec.name,
        series=preset.series,
        family=spec.family,
        num_layers=spec.total_layers,
        hidden=spec.hidden,
        params=params.total,
        published_params=preset.published_params,
        published_kind=preset.published_kind,
        difference_frac=params.total / preset.published_params - 1,
        active_params=params.active,
        aliases=preset.aliases,
        source=preset.source,
    )


def _dims(values: Any, prefix: str) -> dict[str, Any]:
    dims: dict[str, Any] = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if is_dataclass(value):
            dims |= _dims(value, f"{prefix}{field.name}.")
        elif field.default is MISSING or value != field.default:
            dims[prefix + field.name] = value
    return {key: value for key, value in dims.items() if key != "name"}
