"""PlanRequest: everything that a plan is asked with; the same fields in Python, YAML, JSON and on
the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from meshwright.search.rules.software import NEWEST_MEGATRON
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import parse_layout

__all__ = ["OBJECTIVES", "SHARED", "Objective", "PlanRequest", "Shared", "parse_pins", "parse_same"]

Objective = Literal["step_time", "tokens_per_dollar", "tokens_per_joule", "memory"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
Shared = Literal["tp", "recompute", "layers", "order"]
"""What stages of plans over several kinds of chips can be held to have in common."""
SHARED: tuple[Shared, ...] = get_args(Shared)
PinValue = int | str
MOST_PLANS = 1000
"""More plans than anybody reads; each is simulated."""


class PlanRequest(BaseModel):
    """What to plan. Frozen; an unknown key is an error; it can be written to YAML or JSON and read
    back unchanged."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: str | dict[str, Any]
    """A name of `meshwright models`, or the dims of a ModelSpec with parts (`moe`, `mla`, `mamba`,
    `hybrid`) as mappings."""
    cluster: str
    """`h100:256`, `a800:128,h800:160`, or a YAML file."""
    num_gpus: int | None = None
    """Chips to use at most of all that the cluster has; its counts are then caps. Some may be left
    idle where that is faster."""
    gpus_per_node: int | None = None
    seq_len: int
    """Tokens in one sequence."""
    decoder_seq_len: int | None = None
    gbs: int | None = None
    """Global batch in sequences; never changed."""
    max_gbs: int | None = None
    """Without `gbs`: the largest batch to try; None goes by the model's size, see
    `search/batch.py`."""
    precision: str | None = None
    """None is the first of bf16, fp16 and fp32 that all chips have."""
    attention: str | None = None
    """None is flash, or under Megatron fused-softmax where a chip has no flash attention."""
    routing: str = "balanced"
    """How tokens spread over experts: balanced, in-turn, typical or worst."""
    stack: str | None = None
    """None is megatron, or what the maker of all the chips has in its place: maxtext, mindspeed,
    neuron."""
    megatron_version: str = NEWEST_MEGATRON
    """Whose rules hold in a Megatron stack."""
    calibration: str | None = None
    """What `meshwright calibrate` wrote, of this chip and this stack."""
    profile: str | None = None
    """What `meshwright profile` wrote on this chip; with it, `cluster` may be `local`, the machine
    of the profile, or `local:16`."""
    pins: dict[str, list[PinValue]] = {}
    """Allowed values by field of Layout; what is not named is searched."""
    same: list[Shared] = []
    """Over several kinds of chips, or with `num_gpus`: `tp` is one for all kinds, `recompute` one
    for all stages of a kind, `layers` are as many on all stages of a kind, and with `order` all
    stages of a kind follow each other."""
    unlike_batch: bool = False
    """Over several kinds of chips: kinds may have dp and mbs of their own, with dp * mbs in
    common."""
    objective: Objective = "step_time"
    max_memory_gib: float | None = None
    """What one process may use; None is all that the chip gives it."""
    headroom: float | None = None
    """Kept free: below 1 a share of that memory, else GiB. Plans that need a part of it are `at
    risk`. None keeps free what the upper end of the memory's 80 % interval needs, by the published
    runs of this kind (docs/accuracy.md)."""
    min_tokens_per_s: float | None = None
    """Tokens per second that a plan must reach: a deadline. Chips may then be left idle; with
    tokens_per_dollar the plan that keeps it is the cheapest one."""
    usd_per_hour: float | None = None
    """Price of one chip; None takes the catalogue's."""
    top: int = 10
    """How many plans to return."""

    @field_validator("pins", mode="after")
    @classmethod
    def _known_pins(cls, pins: dict[str, list[PinValue]]) -> dict[str, list[PinValue]]:
        return {
            key: list(values) for word, given in pins.items() for key, values in [_pin(word, given)]
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> PlanRequest:
        """Build a request from a mapping, with errors in one line that name the nearest key."""
        if not isinstance(fields, Mapping):
            raise ConfigError(
                "request: expected keys and values such as model: llama3-70b, got"
                f" {type(fields).__name__}"
            )
        known = list(PlanRequest.model_fields)
        for key in fields:
            if key not in known:
                raise UnknownNameError("request key", str(key), known)
        try:
            request = PlanRequest(**dict(fields))
        except ValidationError as error:
            raise ConfigError(_one_line(error)) from None
        request._check()
        return request

    def _check(self) -> None:
        for name in (
            "num_gpus",
            "gpus_per_node",
            "seq_len",
            "decoder_seq_len",
            "gbs",
            "max_gbs",
            "top",
        ):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 2**40:
                raise ConfigError(
                    f"{name}={value}: expected a whole number of 1 or"
                    f" more{' below 2**40' if value > 1 else ''}"
                )
        if self.top > MOST_PLANS:
            raise ConfigError(f"top={self.top}: expected 1 to {MOST_PLANS} plans")
        if self.gbs is not None and self.max_gbs is not None:
            raise ConfigError(f"gbs={self.gbs} and max_gbs={self.max_gbs}: give one of them")
        for name in ("max_memory_gib", "min_tokens_per_s", "usd_per_hour"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value}: expected a positive number")
        if self.headroom is not None and not 0 <= self.headroom < float("inf"):
            raise ConfigError(
                f"headroom={self.headroom}: expected 0 or more; below 1 it is a share of the"
                " memory, else GiB"
            )
        if "gbs" in self.pins:
            raise ConfigError("pins: gbs is no pin; give gbs (--gbs) or max_gbs (--max-gbs)")

    def to_dict(self) -> dict[str, Any]:
        """Return every field in plain types, for YAML and JSON."""
        return self.model_dump(mode="json")


def parse_pins(words: Iterable[str]) -> dict[str, list[PinValue]]:
    """Read `tp=1,2` words; several words of one key are an error."""
    pins: dict[str, list[PinValue]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or not values:
            raise ConfigError(
                f"--set {word}: expected key=value[,value...] such as tp=1,2 or recompute=none"
            )
        if "=" in values:
            raise ConfigError(
                f"--set {word}: one key with its values; write --set once for each key"
            )
        name, parsed = _pin(key.strip(), [value.strip() for value in values.split(",")])
        if name in pins:
            raise ConfigError(f"--set {key}: given twice; join the values by commas: {key}=1,2")
        pins[name] = parsed
    return pins


def parse_same(words: str) -> list[str]:
    """Read `tp,recompute`; UnknownNameError for what stages can't be held to have in common."""
    found = [word.strip() for word in words.split(",")]
    for word in found:
        if word not in SHARED:
            raise UnknownNameError("word of --same", word, SHARED)
    return list(dict.fromkeys(found))


def _pin(key: str, values: Iterable[PinValue]) -> tuple[str, list[PinValue]]:
    """Return the field's name and its values in plain types, each checked."""
    plain: list[PinValue] = []
    name = key
    for value in values:
        [(name, parsed)] = parse_layout(
            f"{key}={int(value) if isinstance(value, bool) else value}"
        ).items()
        if isinstance(parsed, tuple):
            parsed = "+".join(str(part) for part in parsed)
        plain.append(int(parsed) if isinstance(parsed, bool) else parsed)
    if not plain:
        raise ConfigError(f"pins: {key} has no values; leave it out to search it")
    return name, list(dict.fromkeys(plain))


def _one_line(error: ValidationError) -> str:
    """Say the first fault, and how many more there are."""
    first, *others = error.errors()
    where = (
        ".".join(str(part) for part in first["loc"] if not str(part).startswith(("str", "dict[")))
        or "request"
    )
    text = first["msg"].removeprefix("Value error, ")
    given = "" if first["type"] in ("missing", "value_error") else f"={first['input']!r}"
    more = f" (and {len(others)} more)" if others else ""
    return (
        f"{where}{given}:"
        f" {'not given' if first['type'] == 'missing' else text[0].lower() + text[1:]}{more}"
    )
