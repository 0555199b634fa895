"""PlanRequest: what a plan is asked with, the same in Python, YAML, JSON and commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import to_jsonable_python

from meshwright.search.rules.software import NEWEST_MEGATRON
from meshwright.values.amounts import MOST, check_amounts
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import parse_layout
from meshwright.values.options import Option
from meshwright.values.units import parse_number
from meshwright.values.workload import LORA_TARGETS

__all__ = [
    "OBJECTIVES",
    "SHARED",
    "CudaGraphs",
    "Finetune",
    "Objective",
    "PlanRequest",
    "Shared",
    "parse_pins",
    "parse_same",
    "parse_switches",
]

Objective = Literal["step_time", "tokens_per_dollar", "tokens_per_joule", "memory"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
Finetune = Literal["full", "lora", "qlora"]
CudaGraphs = Literal["none", "moe_router", "attn", "full_iteration"]
Shared = Literal["tp", "recompute", "layers", "order"]
"""What stages of plans over several kinds of chips can be held to have in common."""
SHARED: tuple[Shared, ...] = get_args(Shared)
PinValue = int | str
_COUNTS = (
    *("num_gpus", "gpus_per_node", "seq_len", "decoder_seq_len", "sample_len"),
    *("gbs", "max_gbs", "top"),
)
_AMOUNTS = (
    *("max_memory_gib", "min_tokens_per_s", "usd_per_hour"),
    *("host_memory_gib", "nvme_gib"),
)
MOST_PLANS = 1000
"""More plans than anybody reads; each is simulated."""


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


def parse_targets(words: str) -> list[str]:
    """Read `linear_qkv,linear_proj`; UnknownNameError for what is no layer with adapters."""
    found = [word.strip() for word in words.split(",")]
    for word in found:
        if word not in LORA_TARGETS:
            raise UnknownNameError("layer of --lora-targets", word, LORA_TARGETS)
    return list(dict.fromkeys(found))


def parse_switches(words: str) -> list[str]:
    """Read `use-mc2,overlap-grad-reduce`, or `none`."""
    found = [word.strip() for word in words.split(",")]
    return [] if found == ["none"] else list(dict.fromkeys(found))


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


class PlanRequest(BaseModel):
    """What to plan: each field with its type, its default, and how people give it.

    Frozen; an unknown key is an error; it can be written to YAML or JSON and read back unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    model: Annotated[
        str | dict[str, Any],
        Option(
            "A model's name (`meshwright models` lists them), or its dims:"
            " layers=32,hidden=4096,...",
            kind=str,
            is_argument=True,
        ),
    ]
    """A name of `meshwright models`, or the dims of a ModelSpec with parts (`moe`, `mla`, `mamba`,
    `hybrid`) as mappings."""
    cluster: Annotated[
        str, Option("Chips, such as h100:256, a YAML file, or local.", metavar="KIND:COUNT")
    ]
    num_gpus: Annotated[
        int | None, Option("Chips to use at most; the cluster's counts are then caps.")
    ] = None
    """Some of them may be left idle where that is faster."""
    seq_len: Annotated[int, Option("Tokens in one sequence.", ("--seq", "--seq-len"))]
    sample_len: Annotated[
        int | None,
        Option("Tokens of a mean sample where several are packed into a sequence [default: one]."),
    ] = None
    """Packed samples attend to their own alone."""
    gbs: Annotated[int | None, Option("Global batch in sequences; it is never changed.")] = None
    max_gbs: Annotated[int | None, Option("Without --gbs: the largest batch to try.")] = None
    """None goes by the model's size, see `search/batch_rule.csv`."""
    precision: Annotated[
        str | None, Option("Number format of the matrix products [default: bf16 or else fp16].")
    ] = None
    """None is the first of bf16, fp16 and fp32 that all chips have."""
    stack: Annotated[
        str | None, Option("Training software [default: what the maker of the chips ships].")
    ] = None
    """None: that of a calibration that is given, else what the maker of all the chips ships:
    megatron-bridge, primus, maxtext, neuron, mindspeed; megatron for others and for several
    makers."""
    calibration: Annotated[
        str | None,
        Option(
            "What `meshwright calibrate` or `anchor` wrote.",
            ("--calibration", "--anchor"),
            metavar="FILE",
            is_file=True,
        ),
    ] = None
    """Of this chip and this stack."""
    profile: Annotated[
        str | None,
        Option("What `meshwright profile` wrote on this chip.", metavar="FILE", is_file=True),
    ] = None
    """With it, `cluster` may be `local`, the machine of the profile, or `local:16`."""
    megatron_version: Annotated[
        str, Option("Version of Megatron-Core whose rules hold [default: the newest].")
    ] = NEWEST_MEGATRON
    pins: Annotated[
        dict[str, list[PinValue]],
        Option(
            "Values that an axis may take: tp=1,2.",
            ("--set",),
            metavar="KEY=V[,V...]",
            kind=list[str],
            read=parse_pins,
        ),
    ] = {}
    """Allowed values by field of Layout; what is not named is searched."""
    same: Annotated[
        list[Shared],
        Option(
            "Over several kinds of chips: tp for all kinds; recompute or layers for a kind's"
            " stages; order: a kind never comes back.",
            metavar="WHAT[,WHAT...]",
            kind=str,
            read=parse_same,
        ),
    ] = []
    """Over several kinds of chips, or with `num_gpus`: `tp` is one for all kinds, `recompute` one
    for all stages of a kind, `layers` are as many on all stages of a kind, and with `order` all
    stages of a kind follow each other."""
    unlike_batch: Annotated[
        bool,
        Option(
            "Over several kinds of chips: each may have its own dp and mbs, with dp * mbs in"
            " common."
        ),
    ] = False
    top: Annotated[int, Option("Plans to print.")] = 10
    objective: Annotated[
        Objective, Option("step_time, tokens_per_dollar, tokens_per_joule or memory.")
    ] = "step_time"
    fastest: Annotated[
        bool, Option("Put the fastest first, also where a simpler plan is as fast as we can tell.")
    ] = False
    """Of one kind of chip; without it the simplest of those that tie with the fastest is first."""
    racks: Annotated[
        bool,
        Option("Also look at 64 of each rack's 72 chips: where the rest idle, it may be faster."),
    ] = False
    """A second search, of the largest power of two of each fast domain's chips."""
    min_tokens_per_s: Annotated[
        float | None, Option("Throughput that a plan must reach; chips may be left idle.")
    ] = None
    """With tokens_per_dollar the plan that keeps this deadline is the cheapest one."""
    max_memory_gib: Annotated[
        float | None, Option("GiB that one process may use [default: all it sees].")
    ] = None
    headroom: Annotated[
        float | None,
        Option("Kept free: below 1 a share of memory, else GiB [default: by its interval]."),
    ] = None
    """Plans that need a part of it are `at risk`. None keeps free what the upper end of the
    memory's 80 % interval needs, by the published runs of this kind (docs/accuracy.md)."""
    gpus_per_node: Annotated[
        int | None, Option("Chips in one server [default: as the chip is sold].")
    ] = None
    usd_per_hour: Annotated[
        float | None, Option("Price of one chip [default: the catalogue's].")
    ] = None
    attention: Annotated[
        str | None, Option("flash, flash1, fused-softmax or unfused [default: flash if there].")
    ] = None
    """None is flash, or under Megatron fused-softmax where a chip has no flash attention."""
    fused_norm: Annotated[bool, Option("Whether normalization runs as one fused kernel.")] = True
    """False is one kernel an operation, as plain PyTorch's own RMSNorm of before 2025."""
    cp_comm_type: Annotated[
        str | None,
        Option("Of context parallelism: p2p, a2a, all_gather or a2a+p2p [default: the fastest]."),
    ] = None
    """By Megatron-Core's names; None is the fastest that the software has."""
    cuda_graphs: Annotated[
        CudaGraphs | None,
        Option(
            "What CUDA graphs capture: none, moe_router, attn or full_iteration [default: as the"
            " software starts]."
        ),
    ] = None
    """By Megatron-Core's scopes: the router's part of a layer, about half of its kernels (attention
    or feed-forward), or all of a step."""
    switches: Annotated[
        list[str] | None,
        Option(
            "What the software is told beside the layout, by its own words; none for nothing"
            " [default: as its own configurations].",
            metavar="WORD[,WORD...]",
            kind=str,
            read=parse_switches,
        ),
    ] = None
    """`meshwright stacks NAME` lists the words; None is those of the configuration that the
    software's repository has for the model and the chip."""
    finetune: Annotated[
        Finetune | None,
        Option("Fine-tuning of a model: full, lora, or qlora (frozen weights in four bits)."),
    ] = None
    """None is by `lora_rank`. With it, the software is TRL on one server of GPUs unless `stack`
    names another, and the rank of adapters is 16."""
    host_memory_gib: Annotated[
        float | None,
        Option("Main memory of a server that offloading may use [default: by the chip]."),
    ] = None
    """By `values/hardware/hosts.csv`."""
    nvme_gib: Annotated[
        float | None,
        Option("Of a server's NVMe drives, what offloading may use [default: by the chip]."),
    ] = None
    lora_rank: Annotated[
        int, Option("Rank of adapters beside frozen weights; 0 trains all weights.")
    ] = 0
    lora_targets: Annotated[
        list[str],
        Option(
            "Layers with adapters: linear_qkv, linear_proj, linear_fc1, linear_fc2"
            " [default: the recipe's, or all].",
            metavar="LAYER[,LAYER...]",
            kind=str,
            read=parse_targets,
        ),
    ] = []
    """By Megatron's names; none is those of the software's recipe, or else all four."""
    routing: Annotated[str, Option("Of experts: balanced, in-turn, typical or worst.")] = "balanced"
    """How tokens spread over experts; where it is not given, as the software's own benchmarks force
    it (NeMo AutoModel's: in-turn)."""
    decoder_seq_len: Annotated[
        int | None,
        Option(
            "Tokens in one sequence of the decoder [default: a quarter of --seq].",
            ("--decoder-seq",),
        ),
    ] = None

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
            request = PlanRequest(**{name: _read(name, value) for name, value in fields.items()})
        except ValidationError as error:
            raise ConfigError(_one_line(error)) from None
        request._check()
        return request

    def _check(self) -> None:
        for name in _COUNTS:
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
        check_amounts(self, _AMOUNTS)
        check_amounts(self, ["lora_rank"], least=0)
        if self.headroom is not None and not 0 <= self.headroom < MOST:
            raise ConfigError(
                f"headroom={self.headroom}: expected 0 or more; below 1 it is a share of the"
                " memory, else GiB"
            )
        if "gbs" in self.pins:
            raise ConfigError("pins: gbs is no pin; give gbs (--gbs) or max_gbs (--max-gbs)")

    @property
    def pin_words(self) -> str:
        """The pins as people give them, `tp=1,2 recompute=none`."""
        return " ".join(f"{key}={','.join(map(str, values))}" for key, values in self.pins.items())

    def to_dict(self) -> dict[str, Any]:
        """Return every field in plain types, for YAML and JSON."""
        return self.model_dump(mode="json")

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """Return what every field is that nobody gave, in plain types."""
        known = cls.model_fields.items()
        given = {name: field.default for name, field in known if not field.is_required()}
        return cast("dict[str, Any]", to_jsonable_python(given))


def _read(name: str, value: Any) -> Any:
    """Read `8k` of a count as the command line does: 1024 of lengths and batches, else 1000."""
    if name not in _COUNTS or not isinstance(value, str):
        return value
    thousand = 1024 if name.endswith(("_len", "gbs")) else 1000
    return parse_number(value, name=name, whole=True, thousand=thousand)


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
