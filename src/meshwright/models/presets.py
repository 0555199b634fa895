"""Models that are known by name: the table `presets/models.csv`, one row per model."""

from __future__ import annotations

import csv
import pkgutil
import re
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, Literal, cast

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.models.spec import HybridSpec, MambaSpec, MlaSpec, ModelSpec, MoeSpec

__all__ = ["Preset", "find_model", "find_preset", "presets"]

_PARTS = {"mla": MlaSpec, "moe": MoeSpec, "mamba": MambaSpec, "hybrid": HybridSpec}
"""Columns such as `moe.top_k` fill these parts of a ModelSpec; a part whose columns are all blank
is None."""

_WORDS_WITHOUT_SHAPE = frozenset(
    {"meta", "hf", "instruct", "chat", "base", "it", "pt", "bf16", "fp8", "fp4", "nvfp4", "mxfp4"}
)
_WORDS_WITHOUT_SHAPE |= {
    "kv",
    "awq",
    "gptq",
    "int4",
    "int8",
    "w4a16",
    "w8a8",
    "thinking",
    "dynamic",
}
"""Words of a published name that leave the shape as it is (`Meta-Llama-3-70B-Instruct-FP8`)."""
_DATE = re.compile(r"[012][0-9]{3}")
"""Month and day or year and month of a release of the same shape: `DeepSeek-R1-0528`,
`Qwen3-30B-A3B-Instruct-2507`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A model of the table with what is published about it."""

    spec: ModelSpec
    series: str
    """Models that belong together (`llama3`)."""
    published_params: int
    """Parameters as published."""
    published_kind: Literal["exact", "nominal"]
    """`exact`: a count published for this very shape, to the digits that were printed; `nominal`:
    the size that the model is called by."""
    source: str
    """Where the dims and the count come from."""
    aliases: tuple[str, ...]


def find_model(name: str) -> ModelSpec:
    """Return the shape of the model called `name`."""
    return find_preset(name).spec


def find_preset(name: str) -> Preset:
    """Return the row of the model called `name`; case, `-`, `_`, blanks, an owner before `/` and
    words such as `Instruct` are free."""
    index = _index()
    for key in (_key(name), _key(_without_free_words(name))):
        if key in index:
            return index[key]
    known = [word for preset in presets() for word in (preset.spec.name, *preset.aliases)]
    raise UnknownNameError(
        "model",
        name,
        known,
        hint="; `meshwright models` lists them, a config.json or the dims by hand do as well",
    )


@cache
def presets() -> tuple[Preset, ...]:
    """Return every row of the table, in its order."""
    table = pkgutil.get_data("meshwright", "presets/models.csv")
    assert table is not None, "the package is installed without presets/models.csv"
    header, *rows = csv.reader(table.decode().splitlines())
    return tuple(_preset(dict(zip(header, row, strict=True))) for row in rows)


@cache
def _index() -> dict[str, Preset]:
    index: dict[str, Preset] = {}
    for preset in presets():
        for word in (preset.spec.name, *preset.aliases):
            other = index.setdefault(_key(word), preset)
            assert other is preset, (
                f"presets/models.csv: {word!r} names both {preset.spec.name} and {other.spec.name}"
            )
    return index


def _key(name: str) -> str:
    """Runs of letters and digits, with a dot kept between two numbers only: `Llama_3.1-70B` is
    `llama3.1.70b`, never `llama317.0b`."""
    runs = re.findall(r"[a-z]+|[0-9]+", name.lower().rsplit("/", 1)[-1])
    return re.sub(r"(?<=[0-9]) (?=[0-9])", ".", " ".join(runs)).replace(" ", "")


def _without_free_words(name: str) -> str:
    words = re.split(r"[-_\s]+", name.lower().rsplit("/", 1)[-1])
    return "-".join(
        word for word in words if word not in _WORDS_WITHOUT_SHAPE and not _DATE.fullmatch(word)
    )


def _preset(row: dict[str, str]) -> Preset:
    try:
        return Preset(
            spec=_spec(row),
            series=row["series"],
            published_params=int(row["published_params"]),
            published_kind=cast("Literal['exact', 'nominal']", row["published_kind"]),
            source=row["source"],
            aliases=tuple(row["aliases"].split()),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"presets/models.csv, {row.get('name')}: {error}") from error


def _spec(row: dict[str, str]) -> ModelSpec:
    given = {key: cell for key, cell in row.items() if cell}
    given.setdefault("num_kv_heads", row["num_heads"])
    given.setdefault("head_dim", str(int(row["hidden"]) // int(row["num_heads"])))
    parts = {name: _part(kind, given, name + ".") for name, kind in _PARTS.items()}
    return ModelSpec(
        **_values(fields(ModelSpec), given, prefix=""),
        **{name: part for name, part in parts.items() if part is not None},
    )


def _part(kind: type[Any], given: dict[str, str], prefix: str) -> Any:
    if not any(key.startswith(prefix) for key in given):
        return None
    values = _values(fields(kind), given, prefix=prefix)
    blanks = {
        field.name: None
        for field in fields(kind)
        if field.name not in values and _required(field) and "None" in str(field.type)
    }
    return kind(**values, **blanks)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING


def _values(
    wanted: tuple[Field[Any], ...], given: dict[str, str], *, prefix: str
) -> dict[str, Any]:
    """Cells of the fields in `wanted`, in the types that their annotations (text) name."""
    return {
        field.name: _convert(str(field.type), given[prefix + field.name])
        for field in wanted
        if prefix + field.name in given
    }


def _convert(annotation: str, cell: str) -> str | int | float | bool:
    if annotation == "bool":
        return {"yes": True, "no": False}[cell]
    if annotation.startswith("int"):
        return int(cell)
    return float(cell) if annotation.startswith("float") else cell
