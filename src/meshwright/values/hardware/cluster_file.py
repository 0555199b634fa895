"""A cluster as a YAML file: pools, with chips and links of the user's own where the catalogue has
none.

    chips:                        # optional: a chip from scratch, or one `like` another with
                                  changes
      h100-capped: {like: h100, tdp_w: 500, bf16_tflops: 850}
    links:                        # optional: the same for links
      busy-ib: {like: ib-400, efficiency: 0.7}
    pools:
      - chip: h100-capped
        count: 256
        gpus_per_node: 8          # this and the rest: as the catalogue has it, where absent
        domain_size: 8
        domain_link: nvlink4
        network: busy-ib          # a name, Gb/s per chip, or a link's own numbers
        oversubscription: 2
        host: {memory_gib: 256}   # what offloading may use; also nvme_gib, and gb_per_s of both
    pool_link: roce-100           # between pools; absent: the slower pool's network

Each number may be written in the units of people (`bf16_tflops`, `gb_per_s`, `latency_us`) or under
the field's own name (`bf16_flops_per_s`, `bytes_per_s`, `latency_s`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
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

from meshwright.values.errors import ConfigError, nearest_names
from meshwright.values.hardware.catalogue import (
    CHIP_UNITS,
    HOST_UNITS,
    LINK_UNITS,
    ChipRow,
    chip_rows,
    find_chip,
    find_link,
    find_row,
    host_of,
    network_link,
    node_of,
)
from meshwright.values.hardware.chip import Chip, share_at_power
from meshwright.values.hardware.cluster import Cluster, Host, Link, Node, Pool
from meshwright.values.hardware.tables import reads_own_tables

__all__ = [
    "TABLES",
    "ClusterForm",
    "PoolForm",
    "check",
    "cluster_to_yaml",
    "form_of",
    "load_yaml",
    "read_cluster",
]

TABLES = "tables"
"""The field of Chip that a profile fills; no cluster file holds it."""

NO_HOST = "none"
"""In place of a host's figures: nothing waits there."""
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
    host: Any = None
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
        key, known = str(found["loc"][-1]), ", ".join(model.model_fields)
        near = nearest_names(key, model.model_fields, most=1)
        advice = f"did you mean {near[0]!r}?" if near else f"known: {known}"
        return f"{where}: no field {key!r}; {advice}"
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
    kind: type[Chip | Link | Host], units: Mapping[str, tuple[str, float]], value: Any, *, at: str
) -> dict[str, Any]:
    """Fields that `value` gives, by their own names and in base units; `like` where given."""
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
    kind: type[Chip | Link | Host], units: Mapping[str, tuple[str, float]]
) -> type[BaseModel]:
    """Fields of the dataclass by their own names and by people's, all optional, and `like`;
    measured tables have no place in a file."""
    types: dict[str, Any] = {"str": str, "bool": StrictBool, "float": Number}
    types["float | None"] = Number | None
    given = [field for field in fields(kind) if field.name != TABLES]
    own: dict[str, Any] = {field.name: (types[str(field.type)], None) for field in given}
    people: dict[str, Any] = {key: own[field] for key, (field, _) in units.items()}
    if kind is not Host:
        own["like"] = (str, None)
    model: type[BaseModel] = create_model(
        f"{kind.__name__}Form", __config__=_STRICT, **own, **people
    )
    return model


_FORMS: dict[type[Chip | Link | Host], type[BaseModel]] = {
    Chip: _form_model(Chip, CHIP_UNITS),
    Link: _form_model(Link, LINK_UNITS),
    Host: _form_model(Host, HOST_UNITS),
}


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
        reason = (*str(error).splitlines(), type(error).__name__)[0]
        raise ConfigError(f"not YAML: {reason}") from None


Value = TypeVar("Value", Chip, Link)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Names:
    """What the file defines itself; a chip keeps the catalogue row it is like, for its server."""

    chips: Mapping[str, tuple[Chip, ChipRow | None]]
    links: Mapping[str, Link]


def read_cluster(
    text: str, *, source: str = "cluster", gpus_per_node: int | None = None
) -> Cluster:
    """Read the YAML form; `gpus_per_node` is for pools that do not say it. ConfigError names the
    place."""
    try:
        form = check(ClusterForm, load_yaml(text), at="")
        links: dict[str, Link] = {}
        for name, value in form.links.items():
            links[name] = _link(value, _Names(chips={}, links=links), at=f"links.{name}", name=name)
        chips: dict[str, tuple[Chip, ChipRow | None]] = {}
        names = _Names(chips=chips, links=links)
        for name, value in form.chips.items():
            chips[name] = _chip(value, names, at=f"chips.{name}", name=name)
        pools = tuple(
            _pool(value, names, at=f"pools[{i}]", gpus_per_node=gpus_per_node)
            for i, value in enumerate(form.pools)
        )
        link = None if form.pool_link is None else _link(form.pool_link, names, at="pool_link")
        return Cluster(pools=pools, pool_link=link)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _pool(value: Any, names: _Names, *, at: str, gpus_per_node: int | None) -> Pool:
    form = check(PoolForm, value, at=at)
    if form.gpus_per_node and gpus_per_node and form.gpus_per_node != gpus_per_node:
        raise ConfigError(
            f"{at}.gpus_per_node={form.gpus_per_node}, but gpus_per_node={gpus_per_node} was asked"
            " for; drop one of them"
        )
    chip, row = _chip(form.chip, names, at=f"{at}.chip")
    given: dict[str, Any] = {"chip": chip}
    if form.domain_size is not None:
        given["domain_size"] = form.domain_size
    if form.domain_link is not None:
        given["domain_link"] = _link(form.domain_link, names, at=f"{at}.domain_link")
    if form.network is not None:
        given["network_link"] = _link(form.network, names, at=f"{at}.network", row=row)
    node = _node(given, row, at=at, gpus_per_node=form.gpus_per_node or gpus_per_node)
    if form.host is not None:
        host = None if form.host == NO_HOST else _host(node.host, form.host, at=f"{at}.host")
        node = replace(node, host=host)
    return Pool(node=node, num_chips=form.count, oversubscription=form.oversubscription)


def _host(usual: Host | None, value: Any, *, at: str) -> Host:
    """A server's host with changes; one that nothing is known of needs all of its figures."""
    given = form_of(Host, HOST_UNITS, value, at=at)
    if usual is not None:
        return replace(usual, **given)
    missing = [field.name for field in fields(Host) if field.name not in given]
    if missing:
        raise ConfigError(f"{at}: {', '.join(missing)} missing, as the catalogue has no such host")
    return Host(**given)


def _node(
    given: dict[str, Any], row: ChipRow | None, *, at: str, gpus_per_node: int | None
) -> Node:
    """The catalogue's server with changes; a chip like none in it needs the whole server told."""
    if row is not None:
        return replace(node_of(row, gpus_per_node=gpus_per_node), **given)
    told = {
        "gpus_per_node": gpus_per_node,
        "domain_link": given.get("domain_link"),
        "network": given.get("network_link"),
    }
    missing = [field for field, content in told.items() if content is None]
    if missing or gpus_per_node is None:
        raise ConfigError(
            f"{at}: chip {given['chip'].name!r} is like none in the catalogue, so say"
            f" {', '.join(missing)} too"
        )
    return Node(**{"chips_per_node": gpus_per_node, "domain_size": gpus_per_node} | given)


def _chip(
    value: Any, names: _Names, *, at: str, name: str | None = None
) -> tuple[Chip, ChipRow | None]:
    """A chip by name, or by its figures; with the row of the catalogue that tells its server."""
    if isinstance(value, str):
        if value in names.chips:
            return names.chips[value]
        known = find_row(value)
        return known.chip, known
    given = form_of(Chip, CHIP_UNITS, value, at=at)
    like = given.pop("like", None)
    if like is None:
        return _changed(Chip, None, given, at=at, name=name), None
    base, row = _chip(like, names, at=f"{at}.like")
    chip = _at_its_power(_changed(Chip, base, given, at=at, name=name), base, given)
    for field in _PRODUCTS:
        if given.get(field) not in (None, getattr(base, field)) and reads_own_tables(chip):
            raise ConfigError(
                f"{at}.{field}={given[field]}: no effect, as products of {base.name} are read from"
                " measured tables; sustained_share scales them"
            )
    return chip, row


_PRODUCTS = ("matmul_efficiency", "fp8_matmul_efficiency")
"""Shares that stand in where no chip of the generation was measured."""


def _at_its_power(chip: Chip, base: Chip, given: dict[str, Any]) -> Chip:
    """The chip with the shares that its power limit sustains, where it differs from the base's in
    that limit and says no shares."""
    if "tdp_w" not in given or not chip.tdp_w or not base.tdp_w or "sustained_share" in given:
        return chip
    peaks = [c.bf16_flops_per_s or c.fp16_flops_per_s for c in (chip, base)]
    if peaks[0] is None or peaks[1] is None:
        return chip
    ratio = chip.tdp_w / base.tdp_w * peaks[1] / peaks[0]
    narrow = base.narrow_sustained_share
    return replace(
        chip,
        sustained_share=share_at_power(base.sustained_share, ratio),
        narrow_sustained_share=None if narrow is None else share_at_power(narrow, ratio),
    )


def _link(
    value: Any, names: _Names, *, at: str, name: str | None = None, row: ChipRow | None = None
) -> Link:
    """A link by name, by Gb/s (in the family of the chip's usual network), or by its figures."""
    if isinstance(value, str):
        return names.links[value] if value in names.links else find_link(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return network_link(value, family="ib" if row is None else row.network.partition("-")[0])
    given = form_of(Link, LINK_UNITS, value, at=at)
    like = given.pop("like", None)
    base = None if like is None else _link(like, names, at=f"{at}.like")
    return _changed(Link, base, given, at=at, name=name)


def _changed(
    kind: type[Value], base: Value | None, given: dict[str, Any], *, at: str, name: str | None
) -> Value:
    """The base with the given fields, or a new value where there is no base."""
    if name is not None:
        given = given | {"name": name}
    if base is not None:
        return replace(base, **given)
    required = [field.name for field in fields(kind) if field.default is field.default_factory]
    missing = [field for field in required if given.get(field) is None]
    if missing:
        raise ConfigError(
            f"{at}: {', '.join(missing)} missing; give them, or say which known one it is `like`"
        )
    return kind(**given)


def cluster_to_yaml(cluster: Cluster) -> str:
    """Write a cluster so that `read_cluster` gives it back, to the last digit."""
    import yaml

    document: dict[str, Any] = {"pools": [_pool_form(pool) for pool in cluster.pools]}
    if cluster.pool_link is not None:
        document["pool_link"] = _link_form(cluster.pool_link)
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _pool_form(pool: Pool) -> dict[str, Any]:
    node = pool.node
    return {
        "chip": node.chip.name if _is_known_chip(node.chip) else _form(node.chip, CHIP_UNITS),
        "count": pool.num_chips,
        "gpus_per_node": node.chips_per_node,
        "domain_size": node.domain_size,
        "domain_link": _link_form(node.domain_link),
        "network": _link_form(node.network_link),
        "oversubscription": pool.oversubscription,
    } | _host_form(node)


def _host_form(node: Node) -> dict[str, Any]:
    """The host of a server, where it is not the one that the catalogue puts the chip into."""
    usual = host_of(node.chip.name) if _is_known_chip(node.chip) else None
    if node.host == usual:
        return {}
    return {"host": NO_HOST if node.host is None else _form(node.host, HOST_UNITS)}


def _is_known_chip(chip: Chip) -> bool:
    return any(row.chip.name == chip.name for row in chip_rows()) and find_chip(chip.name) == chip


def _link_form(link: Link) -> str | dict[str, Any]:
    try:
        known = find_link(link.name)
    except ConfigError:
        known = None
    return link.name if known == link else _form(link, LINK_UNITS)


def _form(value: Chip | Link | Host, units: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """All fields that differ from the default, in people's units where that loses no digit."""
    people = {field: (key, unit) for key, (field, unit) in units.items()}
    form: dict[str, Any] = {}
    for field in fields(value):
        content = getattr(value, field.name)
        if content == field.default or field.name == TABLES:
            continue
        key, unit = people.get(field.name, (field.name, 1.0))
        number = _in_unit(content, unit) if field.name in people and content is not None else None
        form[field.name if number is None else key] = content if number is None else number
    return form


def _in_unit(content: float, unit: float) -> float | None:
    """The number that times `unit` is exactly `content`, or None."""
    guess = content / unit
    near = (math.nextafter(guess, 0), math.nextafter(guess, math.inf))
    numbers = (float(f"{guess:.12g}"), guess, *near)
    return next((number for number in numbers if number * unit == content), None)
