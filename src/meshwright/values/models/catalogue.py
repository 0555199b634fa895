"""A model given by its dims instead of a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, cast, get_args

from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.spec import MODEL_PARTS, Family, ModelSpec, MoeSpec

__all__ = [
    "Preset",
    "find_model",
    "find_preset",
    "model_from_dims",
    "named_model",
    "parse_dims",
    "presets",
]

_WORDS_WITHOUT_SHAPE = (
    "meta hf instruct chat base it pt bf16 fp8 fp4 nvfp4 mxfp4 kv awq gptq int4 int8 w4a16 w8a8"
    " thinking dynamic"
)
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
    left_out: str = ""
    """What the model has that its shape here has not, in words."""


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
    return tuple(_preset(row) for row in package_rows("values/models/models.csv"))


@cache
def _index() -> dict[str, Preset]:
    index: dict[str, Preset] = {}
    for preset in presets():
        for word in (preset.spec.name, *preset.aliases):
            other = index.setdefault(_key(word), preset)
            assert other is preset, (
                f"values/models/models.csv: {word!r} names both"
                f" {preset.spec.name} and {other.spec.name}"
            )
    return index


def _key(name: str) -> str:
    """Runs of letters and digits, with a dot kept between two numbers only: `Llama_3.1-70B` is
    `llama3.1.70b`, never `llama317.0b`."""
    runs = re.findall(r"[a-z]+|[0-9]+", name.lower().rsplit("/", 1)[-1])
    return re.sub(r"(?<=[0-9]) (?=[0-9])", ".", " ".join(runs)).replace(" ", "")


def _without_free_words(name: str) -> str:
    words, free = (
        re.split(r"[-_\s]+", name.lower().rsplit("/", 1)[-1]),
        _WORDS_WITHOUT_SHAPE.split(),
    )
    return "-".join(word for word in words if word not in free and not _DATE.fullmatch(word))


def _preset(row: dict[str, str]) -> Preset:
    try:
        return Preset(
            spec=_spec(row),
            series=row["series"],
            published_params=int(row["published_params"]),
            published_kind=cast("Literal['exact', 'nominal']", row["published_kind"]),
            source=row["source"],
            aliases=tuple(row["aliases"].split()),
            left_out=row["left_out"],
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"values/models/models.csv, {row.get('name')}: {error}") from error


def _spec(row: dict[str, str]) -> ModelSpec:
    given = {key: cell for key, cell in row.items() if cell}
    given.setdefault("num_kv_heads", row["num_heads"])
    given.setdefault("head_dim", str(int(row["hidden"]) // int(row["num_heads"])))
    # Columns such as `moe.top_k` fill a part; one with blank columns is None.
    parts = {name: _part(kind, given, name + ".") for name, kind in MODEL_PARTS.items()}
    known = {name: part for name, part in parts.items() if part is not None}
    return ModelSpec(**_values(ModelSpec, given), **known)


def _part(kind: type[Any], given: dict[str, str], prefix: str) -> Any:
    if not any(key.startswith(prefix) for key in given):
        return None
    required = [field for field in fields(kind) if field.default is MISSING]
    blanks = {field.name: None for field in required if "None" in str(field.type)}
    return kind(**blanks | _values(kind, given, prefix=prefix))


def _values(kind: type[Any], given: dict[str, str], *, prefix: str = "") -> dict[str, Any]:
    """Cells of the fields, in the types that their annotations (text) name."""
    return {
        field.name: _convert(str(field.type), given[prefix + field.name])
        for field in fields(kind)
        if prefix + field.name in given
    }


def _convert(annotation: str, cell: str) -> str | int | float | bool:
    if annotation == "bool":
        return {"yes": True, "no": False}[cell]
    if annotation.startswith("int"):
        return int(cell)
    return float(cell) if annotation.startswith("float") else cell


_MOST_HEADS = 4096
"""Where the search for a number of heads that fits ends."""
_FFN_MULTIPLE = 64
"""Widths of feed-forwards that are worked out are rounded up to this, for the matrix units."""
_EXAMPLE = "layers=32,hidden=4096,heads=32,vocab=128256"
_NEEDED = ("layers", "hidden", "heads", "vocab")


def named_model(text: str) -> ModelSpec:
    """Return the model that a text names: a name of the table, or dims by hand such as
    `layers=32,hidden=4096,heads=32,vocab=128256`."""
    return parse_dims(text) if "=" in text else find_model(text)


def parse_dims(text: str) -> ModelSpec:
    """Read `layers=32,hidden=4096,heads=32,vocab=128256`; the keys are those of `_KEYS`, and what
    may be left out is worked out."""
    given: dict[str, Any] = {}
    for word in (word.strip() for word in text.split(",")):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"model {word!r}: expected key=value, such as {_EXAMPLE}")
        if key not in _KEYS:
            raise UnknownNameError("model dim", key, list(_SHORT))
        name, read = _KEYS[key]
        if name in given:
            raise ConfigError(f"model: {key} is given twice")
        given[name] = read(key, value)
    missing = [key for key in _NEEDED if _KEYS[key][0] not in given]
    if missing:
        raise ConfigError(
            f"model by hand: {', '.join(missing)} not given; expected at least {_EXAMPLE}"
        )
    return model_from_dims(**given)


def _count(key: str, value: str) -> int:
    """A whole number; ModelSpec says which of them make sense."""
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"model: {key}={value}: expected a whole number") from None


def _flag(key: str, value: str) -> bool:
    words = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
    if value.lower() not in words:
        raise ConfigError(f"model: {key}={value}: expected 0 or 1")
    return words[value.lower()]


def _family(key: str, value: str) -> str:
    if value not in get_args(Family):
        raise UnknownNameError(f"model {key}", value, get_args(Family))
    return value


_SHORT: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "layers": ("num_layers", _count),
    "hidden": ("hidden", _count),
    "heads": ("num_heads", _count),
    "kv_heads": ("num_kv_heads", _count),
    **{name: (name, _count) for name in ("head_dim", "ffn", "vocab")},
    "experts": ("num_experts", _count),
    "topk": ("top_k", _count),
    **{name: (name, _count) for name in ("expert_ffn", "shared_ffn")},
    **{name: (name, _flag) for name in ("gated", "tied")},
    "family": ("family", _family),
}
"""The field of `model_from_dims` that a word fills, and how its value is read."""
_KEYS = _SHORT | {name: (name, read) for name, read in _SHORT.values()}
"""The fields' own names do as well: messages speak of them."""


def model_from_dims(
    *,
    num_layers: int,
    hidden: int,
    num_heads: int,
    vocab: int,
    ffn: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    num_experts: int | None = None,
    top_k: int | None = None,
    expert_ffn: int | None = None,
    shared_ffn: int = 0,
    gated: bool = True,
    tied: bool = False,
    family: Family = "decoder",
    name: str = "by-hand",
) -> ModelSpec:
    """Return a model of Llama's make with these dims: rotary positions, RMSNorm, no biases, gated
    feed-forward. What is left out is worked out: `ffn` is 4 hidden (ungated) or 8/3 hidden rounded
    up to 64 (gated), `num_kv_heads` is `num_heads`, `head_dim` is hidden / num_heads, `expert_ffn`
    is `ffn`. An encoder-decoder model has `num_layers` on each side."""
    rounded = -(-8 * hidden // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE
    width = ffn if ffn is not None else rounded if gated else 4 * hidden
    if num_experts is None and expert_ffn is not None:
        raise ConfigError(
            f"expert_ffn={expert_ffn}: of no use without the number of experts (experts, topk)"
        )
    return ModelSpec(
        name=name,
        num_layers=num_layers,
        hidden=hidden,
        ffn=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads if num_kv_heads is not None else num_heads,
        head_dim=head_dim if head_dim is not None else _usual_head_dim(hidden, num_heads),
        vocab=vocab,
        family=family,
        encoder_layers=num_layers if family == "encoder-decoder" else 0,
        gated=gated,
        tied=tied,
        moe=_experts(num_experts, top_k, width if expert_ffn is None else expert_ffn, shared_ffn),
    )


def _usual_head_dim(hidden: int, num_heads: int) -> int:
    if hidden < 1 or num_heads < 1:
        return 1  # ModelSpec refuses these, in its own words
    if hidden % num_heads:
        numbers = range(1, min(2 * num_heads, hidden, _MOST_HEADS) + 1)
        fitting = [heads for heads in numbers if hidden % heads == 0]
        near = sorted(sorted(fitting, key=lambda heads: abs(heads - num_heads))[:2])
        raise ConfigError(
            f"num_heads={num_heads} does not divide hidden={hidden}; give the width of a head, or"
            f" num_heads of {near}"
        )
    return hidden // num_heads


def _experts(
    num_experts: int | None, top_k: int | None, expert_ffn: int, shared_ffn: int
) -> MoeSpec | None:
    if num_experts is None:
        if top_k is not None or shared_ffn:
            raise ConfigError(
                f"top_k={top_k}, shared_ffn={shared_ffn}: of no use without the number of experts"
            )
        return None
    if top_k is None:
        raise ConfigError(f"num_experts={num_experts}: say also how many a token visits (top_k)")
    return MoeSpec(
        num_experts=num_experts, top_k=top_k, expert_ffn=expert_ffn, shared_ffn=shared_ffn
    )
