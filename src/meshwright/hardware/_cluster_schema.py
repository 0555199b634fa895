"""The fields of a cluster file, checked by pydantic, with messages for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    create_model,
)

from meshwright.errors import ConfigError, nearest_names
from meshwright.hardware.chip import Chip
from meshwright.hardware.cluster import Link
from meshwright.units import GB, GIB, KIB, MIB, MICROSECOND, TERA

__all__ = [
    "CHIP_UNITS",
    "LINK_UNITS",
    "TABLES",
    "ClusterForm",
    "PoolForm",
    "check",
    "form_of",
    "load_yaml",
]

TABLES = "tables"
"""The field of Chip that a profile fills; no cluster file holds it."""
CHIP_UNITS: Mapping[str, tuple[str, float]] = {
    "nominal_gb": ("nominal_bytes", GIB),
    "usable_gib": ("usable_bytes", GIB),
    "memory_gb_per_s": ("memory_bytes_per_s", GB),
    "bf16_tflops": ("bf16_flops_per_s", TERA),
    "fp16_tflops": ("fp16_flops_per_s", TERA),
    "tf32_tflops": ("tf32_flops_per_s", TERA),
    "fp32_tflops": ("fp32_flops_per_s", TERA),
    "fp8_tflops": ("fp8_flops_per_s", TERA),
    "fp4_tflops": ("fp4_flops_per_s", TERA),
    "launch_us": ("launch_s", MICROSECOND),
    "ramp_us": ("ramp_s", MICROSECOND),
    "gemm_workspace_mib": ("gemm_workspace_bytes", MIB),
    "bytes_in_flight_kib": ("bytes_in_flight", KIB),
}
"""People's word for a field of Chip, the field, and the unit; the words are the columns of
`presets/chips.csv`."""
LINK_UNITS: Mapping[str, tuple[str, float]] = {
    "gb_per_s": ("bytes_per_s", GB),
    "latency_us": ("latency_s", MICROSECOND),
    "setup_us": ("setup_s", MICROSECOND),
    "half_message_kib": ("half_message_bytes", 1024.0),
}
"""The same for Link and `presets/links.csv`."""

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Form = TypeVar("Form", bound=BaseModel)


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, not yes or no")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]
Count = Annotated[int, BeforeValidator(_no_bool)]


class PoolForm(BaseModel):
    """One entry of `pools`."""

    model_config = _STRICT
    chip: Any
    count: Count = Field(ge=1, le=2**30)
    gpus_per_node: Count | None = Field(default=None, ge=1, le=2**20)
    domain_size: Count | None = Field(default=None, ge=1, le=2**30)
    domain_link: Any = None
    network: Any = None
    oversubscription: Number = 1.0


class ClusterForm(BaseModel):
    """The whole file."""

    model_config = _STRICT
    pools: list[Any] = Field(min_length=1)
    chips: dict[str, Any] = {}
    links: dict[str, Any] = {}
    pool_link: Any = None


def check(model: type[Form], value: Any, *, at: str) -> Form:
    """Validate `value`; a ConfigError says the place, what was given and what was expected."""
    if not isinstance(value, Mapping):
        names = ", ".join(model.model_fields)
        raise ConfigError(
            f"{at or 'the file'}: {_shown(value)}: expected a mapping with the keys {names}"
        )
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ConfigError(
            "; ".join(_sentence(dict(found), model, at=at) for found in error.errors()[:3])
        ) from None


def _sentence(found: Mapping[str, Any], model: type[BaseModel], *, at: str) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"])
    where = (at + path).lstrip(".")
    if found["type"] == "extra_forbidden":
        key = str(found["loc"][-1])
        near = nearest_names(key, model.model_fields, most=1)
        return f"{where}: no field {key!r}; " + (
            f"did you mean {near[0]!r}?" if near else f"known: {', '.join(model.model_fields)}"
        )
    if found["type"] == "missing":
        return f"{where}: missing"
    return f"{where}={_shown(found['input'])}: {found['msg'][0].lower()}{found['msg'][1:]}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4300 digits has no repr
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def form_of(
    kind: type[Chip] | type[Link], units: Mapping[str, tuple[str, float]], value: Any, *, at: str
) -> dict[str, Any]:
    """Fields of `kind` that `value` gives, under their own names and in base units; `like` where
    given."""
    form = check(_FORMS[kind], value, at=at)
    given: dict[str, Any] = {}
    for key in form.model_fields_set:
        content = getattr(form, key)
        field, unit = units.get(key, (key, None))
        if field in given or (field != key and field in form.model_fields_set):
            raise ConfigError(f"{at}: {key} and {field} say the same thing; give one of them")
        given[field] = content if unit is None or content is None else content * unit
    return given


def _form_model(
    kind: type[Chip] | type[Link], units: Mapping[str, tuple[str, float]]
) -> type[BaseModel]:
    """Fields of the dataclass by their own names and by people's, all optional, and `like`;
    measured tables have no place in a file."""
    types: dict[str, Any] = {
        "str": str,
        "bool": StrictBool,
        "float": Number,
        "float | None": Number | None,
    }
    own: dict[str, Any] = {
        field.name: (types[str(field.type)], None) for field in fields(kind) if field.name != TABLES
    }
    people: dict[str, Any] = {key: own[field] for key, (field, _) in units.items()}
    model: type[BaseModel] = create_model(
        f"{kind.__name__}Form", __config__=_STRICT, like=(str, None), **own, **people
    )
    return model


_FORMS = {Chip: _form_model(Chip, CHIP_UNITS), Link: _form_model(Link, LINK_UNITS)}


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key may occur once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if isinstance(key, yaml.ScalarNode) and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def load_yaml(text: str) -> Any:
    """Parse YAML; a ConfigError says line and column of the fault."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{place}{error.problem or error.context or 'not YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"not YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None
