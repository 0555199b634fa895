"""The door for users of Baidu AIAK's adaptive parallel strategy search: its flags, defaults, limits
and records, over our plans.

What its record says: one tp, pp, mbs, the chip and the layers of each stage, recomputation per kind
of chip. So one tp is searched for all kinds, one way to recompute per kind, no interleaving and no
context parallelism; with one kind of chip all stages hold equally many layers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

from meshwright.platforms.given import ask_nvidia_smi
from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.mixed.problem import MAX_GPUS
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan, PlanResult
from meshwright.search.rules.rule import nearest_multiples
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.parse import parse_count
from meshwright.values.mixed_layout import MixedLayout, StageLayout
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.options import Option
from meshwright.values.units import GIB, MIB

__all__ = [
    "ASSUMED_CHIP",
    "LEGACY_CHIPS",
    "LEGACY_MODELS",
    "ApssAnswer",
    "ApssRequest",
    "Device",
    "Kind",
    "apss",
    "device_of",
    "device_of_listing",
]

Record = dict[str, Any]
LEGACY_MODELS = (
    *("llama-7b", "llama-65b", "llama-175b", "llama-540b", "llama-1800b"),
    *("llama2-7b", "llama2-13b", "llama2-35b", "llama2-70b"),
    *("glm-67b", "glm-130b", "galactica-6.7b", "galactica-30b", "galactica-120b"),
)
"""The tool's models (Baidu Cloud, AIHC documentation); any of ours is taken too."""
LEGACY_CHIPS = ("a800", "h800", "h100", "kunlun3", "ascend_910b")
"""Its chips; any of ours is taken too."""
LEGACY_MULTIPLE = 512
"""Of the batch and of the sequence."""
LEGACY_MOST = 2**20
"""Largest batch and sequence."""
NO_LIMIT = -1
_PINS: dict[str, list[int | str]] = {
    "cp": [1],
    "vpp": [1],
    "sharding": ["zero1"],
    "recompute": ["none", "selective", "full"],
    "recompute_modules": ["core_attn"],
}
"""What a record can say; selective recomputation is Megatron-LM's of the attention core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of chip, as the user named it."""

    name: str
    most: int | None
    """Chips of it at most; None: no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApssRequest:
    """What the tool is asked with; the defaults are its own."""

    model_name: Annotated[
        str,
        Option("One of the tool's 14 models, or any of `meshwright models`.", usual="llama2-70b"),
    ] = "llama2-70b"
    num_gpus: Annotated[int, Option("Chips to use at most, to 1048576.", usual=256)] = 256
    nproc_per_node: Annotated[int, Option("Chips in one server.", usual=8)] = 8
    gpu_infos: Annotated[
        str,
        Option(
            "Kinds of chips, each with how many there are at most; -1 or none: no limit.",
            metavar="KIND[:MOST][,...]",
            usual="a800",
        ),
    ] = "a800"
    global_batch_size: Annotated[
        int, Option("Sequences in one step; a multiple of 512.", usual=1024)
    ] = 1024
    sequence_length: Annotated[
        int, Option("Tokens in one sequence; a multiple of 512.", usual=4096)
    ] = 4096
    top: Annotated[int, Option("Strategies to print.", usual=5)] = 5
    legacy_limits: bool = True
    """Whether batch and sequence must be multiples of 512 up to 1,048,576."""

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of chips; ConfigError for one unknown, twice, or without a count."""
        found = tuple(_kind(part.strip(), self.gpu_infos) for part in self.gpu_infos.split(","))
        names = [find_chip(kind.name).name for kind in found]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"--gpu-infos {self.gpu_infos}: {name} is named twice; give it once"
                )
        return found

    def plan_request(self) -> PlanRequest:
        """Return the request for plans; ConfigError, in this tool's flags, if out of range."""
        kinds = self.kinds()
        self._check(kinds)
        most = self.num_gpus
        caps = [most if kind.most is None else min(kind.most, most) for kind in kinds]
        names = [find_chip(kind.name).name for kind in kinds]
        pools = [f"{name}:{cap}" for name, cap in zip(names, caps, strict=True)]
        return PlanRequest.of(
            {
                "model": self.model_name,
                "cluster": ",".join(pools),
                "num_gpus": self.num_gpus,
                "gpus_per_node": self.nproc_per_node,
                "seq_len": self.sequence_length,
                "gbs": self.global_batch_size,
                "pins": _PINS,
                "stack": "megatron",
                "same": ["tp", "recompute"] if len(kinds) > 1 else ["tp", "recompute", "layers"],
                "top": self.top,
            }
        )

    def _check(self, kinds: tuple[Kind, ...]) -> None:
        _at_least_one("--num-gpus", self.num_gpus)
        _at_least_one("--nproc-per-node", self.nproc_per_node)
        _at_least_one("--top", self.top)
        if self.num_gpus > MAX_GPUS:
            raise ConfigError(f"--num-gpus {self.num_gpus}: expected at most {MAX_GPUS}")
        if self.num_gpus % self.nproc_per_node:
            near = " or ".join(map(str, nearest_multiples(self.num_gpus, self.nproc_per_node)))
            raise ConfigError(
                f"--num-gpus {self.num_gpus}: no multiple of --nproc-per-node"
                f" {self.nproc_per_node}; nearest that are: {near}"
            )
        caps = [kind.most for kind in kinds]
        whole = sum(cap for cap in caps if cap is not None)
        if None not in caps and whole < self.num_gpus:
            raise ConfigError(
                f"--gpu-infos {self.gpu_infos}: at most {whole} chips, fewer than --num-gpus"
                f" {self.num_gpus}; raise a maximum, or take --num-gpus"
                f" {whole - whole % self.nproc_per_node}"
            )
        self._check_size("--global-batch-size", self.global_batch_size)
        self._check_size("--sequence-length", self.sequence_length)

    def _check_size(self, flag: str, value: int) -> None:
        _at_least_one(flag, value)
        if not self.legacy_limits:
            return
        if value > LEGACY_MOST:
            raise ConfigError(
                f"{flag} {value}: expected at most {LEGACY_MOST}; --no-legacy-limits takes any"
            )
        if value % LEGACY_MULTIPLE:
            near = " or ".join(map(str, nearest_multiples(value, LEGACY_MULTIPLE)))
            raise ConfigError(
                f"{flag} {value}: no multiple of {LEGACY_MULTIPLE}; nearest that are: {near};"
                " --no-legacy-limits takes any"
            )


def _at_least_one(flag: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{flag} {value}: expected 1 or more")


def _kind(part: str, text: str) -> Kind:
    name, colon, most = (word.strip() for word in part.partition(":"))
    if not name or (colon and not most):
        raise ConfigError(
            f"--gpu-infos {text}: expected KIND[:MOST][,KIND[:MOST]...] such as a800 or"
            " a800:128,h800:160"
        )
    find_chip(name)
    unlimited = not colon or most == str(NO_LIMIT)
    return Kind(name=name, most=None if unlimited else parse_count(most, kind=name, text=text))


@dataclass(frozen=True, kw_only=True, slots=True)
class ApssAnswer:
    """Records as the tool prints them, and the plans that they tell of."""

    records: tuple[Record, ...]
    """Best first."""
    result: PlanResult


def apss(request: ApssRequest | None = None, /, **fields: Any) -> ApssAnswer:
    """Return the best strategies of a request, or of its fields: `apss(model_name="llama2-70b",
    gpu_infos="a800:128,h800:160")`.

    ConfigError says what is wrong with the request; where nothing fits there are no records, and
    `result.rejected` has the reasons.
    """
    if request is not None and fields:
        raise ConfigError(f"apss: give a request or fields ({', '.join(fields)}), not both")
    known = [*ApssRequest.__slots__]
    for name in fields:
        if name not in known:
            raise UnknownNameError("field of apss", name, known)
    asked = request if request is not None else ApssRequest(**fields)
    result = search_mixed_plans(asked.plan_request())
    model = find_model(asked.model_name)
    return ApssAnswer(
        records=tuple(_record(plan, asked, model, result.request) for plan in result.plans),
        result=result,
    )


def _record(plan: Plan, asked: ApssRequest, model: ModelSpec, priced: PlanRequest) -> Record:
    """One strategy. Kinds are in the order of --gpu-infos; one of which no chip is used holds 0.0
    and None.

    `sim_throughput` is the job's tokens per second, rounded up; `sim_total_time_s` is the seconds
    of one step.
    """
    layout = plan.mixed
    assert layout is not None, "plans of the mixed search say their stages"
    names = [kind.name for kind in asked.kinds()]
    peaks = [0.0] * len(names)
    for stage, size in zip(layout.stages, plan.peak_memory_bytes, strict=True):
        peaks[stage.pool] = max(peaks[stage.pool], size)
    return {
        "sim_throughput": ceil(asked.global_batch_size * asked.sequence_length / plan.step_s),
        "sim_total_time_s": plan.step_s,
        "max-use-mem-size": [round(peak / GIB, 2) for peak in peaks],
        "strategy": _strategy(layout, names, model, flash=priced.attention == "flash"),
    }


def _strategy(layout: MixedLayout, names: list[str], model: ModelSpec, *, flash: bool) -> Record:
    first = layout.stages[0]
    several, chips = len(names) > 1, [names[stage.pool] for stage in layout.stages]
    experts = {"expert-model-parallel-size": layout.ep} if layout.ep > 1 else {}
    if experts and layout.etp not in (None, first.tp):
        experts["expert-tensor-parallel-size"] = layout.etp or 1
    flags = {
        "use-flash-attn": flash,
        "sequence-parallel": first.sp,
        "use-distributed-optimizer": layout.sharding == "zero1",
        "fused-rmsnorm": model.norm == "rmsnorm",
        "apply-rotary-positional-embedding-kernel": model.positions == "rope",
    }
    return {
        "pipeline-model-parallel-size": layout.pp,
        "tensor-model-parallel-size": first.tp,
        **experts,
        "micro-batch-size": first.mbs,
        **{flag: "" for flag, applies in flags.items() if applies},
        "pipeline-stage-chips": chips if several else names,
        **({"pipeline-stage-layers": [stage.layers for stage in layout.stages]} if several else {}),
        **_recompute(layout, len(names)),
    }


def _recompute(layout: MixedLayout, kinds: int) -> Record:
    """Granularity, method and layers of each kind; block's layers are of the fullest stage."""
    found: Record = {f"recompute-{name}": [] for name in ("granularity", "method", "num-layers")}
    for pool in range(kinds):
        own = [stage for stage in layout.stages if stage.pool == pool]
        heaviest = max(own, key=lambda stage: stage.recompute_layers or 0, default=None)
        for values, value in zip(found.values(), _recomputed(heaviest), strict=True):
            values.append(value)
    return found


def _recomputed(stage: StageLayout | None) -> tuple[str | None, str | None, int | None]:
    """Granularity, method and layers."""
    if stage is None or stage.recompute == "none":
        return None, None, None
    if stage.recompute != "full":
        return stage.recompute, None, None
    layers = 1 if stage.recompute_layers is None else stage.recompute_layers
    return stage.recompute, stage.recompute_method, layers


MEMORY_VARIABLE = "DEVICE_MEMORY_GB"
ASSUMED_CHIP = "a100-80"
"""Where only a memory is known. Speed needs a chip; the tool with this variable was for PAI's A100
and A800 of that time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A chip by its name in the catalogue, and what one process may use of its memory."""

    chip: str
    max_memory_gib: float | None = None
    """None: all that the chip gives a process."""
    assumed: bool = False
    """Whether the chip was guessed."""


def device_of(*, chip: str | None, environment: Mapping[str, str]) -> Device:
    """Return the named chip, else this machine's, else an assumed one of the told memory."""
    memory_gib = _memory_of(environment)
    if chip is not None:
        return _limited(chip, memory_gib, assumed=False)
    listing = _listing()
    if listing is not None:
        return device_of_listing(listing)
    if memory_gib is None:
        raise ConfigError(
            "no GPU was found here; name one by --chip, such as --chip h100, or set"
            f" {MEMORY_VARIABLE}"
        )
    return _limited(ASSUMED_CHIP, memory_gib, assumed=True)


def device_of_listing(listing: str) -> Device:
    """Read nvidia-smi's answer, one GPU a line: its name and its memory in MiB."""
    lines = {line.strip() for line in listing.splitlines() if line.strip()}
    if len(lines) != 1:
        raise ConfigError(f"nvidia-smi lists {len(lines)} kinds of GPU; name one by --chip")
    name, _, memory_mib = next(iter(lines)).rpartition(",")
    if not memory_mib.strip().isdecimal():
        raise ConfigError(f"nvidia-smi answered {listing.strip()!r}; name the GPU by --chip")
    try:
        return _limited(name.strip(), float(memory_mib) * MIB / GIB, assumed=False)
    except UnknownNameError as error:
        raise ConfigError(f"{error}; name one by --chip") from None


def _limited(name: str, memory_gib: float | None, *, assumed: bool) -> Device:
    """Return a chip held to less memory; a process sees a little less than its sold size."""
    chip = find_chip(name)
    if memory_gib is None:
        return Device(chip=chip.name)
    if memory_gib * GIB > chip.nominal_bytes * 1.01:
        guess = ", which is assumed," if assumed else ""
        size = f"{chip.nominal_bytes / GIB:g} GiB"
        raise ConfigError(
            f"{MEMORY_VARIABLE}={memory_gib:g}: the {chip.name}{guess} has {size}; name the chip by"
            " --chip"
        )
    limit = None if memory_gib * GIB >= chip.usable_bytes else memory_gib
    return Device(chip=chip.name, max_memory_gib=limit, assumed=assumed)


def _memory_of(environment: Mapping[str, str]) -> float | None:
    text = environment.get(MEMORY_VARIABLE)
    if text is None:
        return None
    try:
        memory_gib = float(text)
    except ValueError:
        memory_gib = 0.0
    if not 0 < memory_gib < float("inf"):
        raise ConfigError(f"{MEMORY_VARIABLE}={text}: expected GiB of one GPU, such as 80")
    return memory_gib


def _listing() -> str | None:
    try:
        listing = ask_nvidia_smi("name,memory.total", form="csv,noheader,nounits")
    except (OSError, subprocess.SubprocessError):
        return None
    return listing if listing and listing.strip() else None
