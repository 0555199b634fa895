"""Layout: how one model is cut over the chips; and Layouts, the same as columns.

One name everywhere: a field of `Layout`, a column of `Layouts`, a key of `--layout`, a heading of
the CSV.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "OFFLOADS",
    "OPTIMIZERS",
    "RECOMPUTES",
    "RECOMPUTE_MODULES",
    "SCHEDULES",
    "SHARDINGS",
    "Layout",
    "Layouts",
    "Offload",
    "Optimizer",
    "Recompute",
    "RecomputeMethod",
    "Schedule",
    "Sharding",
    "head_alone",
    "module_bits",
    "parse_layout",
]

Sharding = Literal["none", "zero1", "zero2", "zero3", "hybrid"]
"""What data parallel ranks split: nothing; optimizer states (Megatron's distributed optimizer); and
gradients; and weights (fsdp is another word for zero3); `hybrid` is zero3 inside groups of
`shard_size` ranks, replicas across (HSDP)."""
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
RecomputeMethod = Literal["uniform", "block"]
Schedule = Literal["1f1b", "zero-bubble", "gpipe"]
"""1f1b is interleaved where vpp > 1."""
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Offload = Literal["none", "optimizer", "weights", "optimizer-nvme", "weights-nvme"]
"""What waits in the host's memory: nothing; the optimizer's states and gradients, which the host
then updates (ZeRO-Offload, arXiv:2101.06840); weights too. With `-nvme` it lies on the host's NVMe
drives (ZeRO-Infinity, arXiv:2104.07857)."""
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
Optimizer = Literal["adam", "adam-8bit", "paged-adam-8bit"]
"""Adam with moments as the software keeps them; in 8 bits (arXiv:2110.02861); and those paged out
to the host's memory between steps (bitsandbytes' paged optimizers)."""
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
RECOMPUTE_MODULES = (
    "core_attn",
    "layernorm",
    "mlp",
    "moe",
    "moe_act",
    "mla_up_proj",
    "shared_experts",
    "mlp_act",
    "ops",
)
"""Megatron-Core's `--recompute-modules`; `mlp_act`: the activation function alone; `ops`:
torchtitan's selective checkpointing, which keeps every second matrix product and the attention
output and computes the rest again."""

MOST_CHUNKS = 2**16
"""More than any model has layers; beyond it a count is a slip."""
Ints = NDArray[np.int64]
_WHOLE = ("tp", "cp", "ep", "pp", "vpp", "dp", "mbs", "gbs")
"""Fields with a number of 1 or more, which columns hold as they are."""
_ALWAYS_SAID = ("tp", "pp", "dp", "mbs", "gbs")


def module_bits(modules: Iterable[str]) -> int:
    """Return the modules as a bit mask in the order of RECOMPUTE_MODULES."""
    bits = 0
    for module in modules:
        if module not in RECOMPUTE_MODULES:
            raise UnknownNameError("recompute module", module, RECOMPUTE_MODULES)
        bits |= 1 << RECOMPUTE_MODULES.index(module)
    return bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How one model is trained on `tp * cp * dp * pp` chips."""

    tp: int = 1
    sp: bool = False
    """Sequence parallelism over the tp group."""
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Tensor parallelism of experts; None follows `tp`, as in Megatron-Core."""
    pp: int = 1
    vpp: int = 1
    """Chunks of layers per stage."""
    dp: int = 1
    sharding: Sharding = "none"
    shard_size: int | None = None
    """Ranks that share one copy of what is split; None is all of dp * cp. Fewer: replicas across
    (HSDP, several optimizer instances)."""
    mbs: int = 1
    gbs: int = 1
    recompute: Recompute = "none"
    recompute_method: RecomputeMethod = "uniform"
    recompute_layers: int | None = None
    """With `full`: layers per recomputed unit (uniform), or recomputed layers per chunk (block);
    None is every layer, one by one."""
    recompute_modules: tuple[str, ...] = ()
    """With `selective`."""
    schedule: Schedule = "1f1b"
    layers_per_stage: tuple[int, ...] | None = None
    """Layers of each of the pp stages, or of each of the pp * vpp chunks in model order; None
    splits as evenly as can be."""
    offload: Offload = "none"
    optimizer: Optimizer = "adam"

    def __post_init__(self) -> None:
        for name in (*_WHOLE, "etp", "shard_size"):
            value, is_whole = getattr(self, name), name in _WHOLE
            if (is_whole and not isinstance(value, int)) or (value is not None and value < 1):
                raise ConfigError(f"{name}={value}: expected a whole number of 1 or more")
        if self.recompute_layers is not None and self.recompute_layers < 0:
            raise ConfigError(f"recompute_layers={self.recompute_layers}: expected 0 or more")
        for name, choices in (
            ("sharding", SHARDINGS),
            ("recompute", RECOMPUTES),
            ("schedule", SCHEDULES),
            ("offload", OFFLOADS),
            ("optimizer", OPTIMIZERS),
            ("recompute_method", get_args(RecomputeMethod)),
        ):
            if getattr(self, name) not in choices:
                raise UnknownNameError(name, str(getattr(self, name)), choices)
        module_bits(self.recompute_modules)

    @property
    def num_chips(self) -> int:
        """Chips that the layout runs on; ep and etp cut the same ones."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_microbatches(self) -> int:
        """Micro batches per step and replica."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism of experts with the default filled in."""
        return self.etp if self.etp is not None else self.tp

    def words(self) -> str:
        """Write it as `--layout` takes it, defaults left out."""
        default = Layout()
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == getattr(default, field.name) and field.name not in _ALWAYS_SAID:
                continue
            if isinstance(value, tuple):
                value = "+".join(
                    _run_words(str(part), len(list(run))) for part, run in groupby(value)
                )
            parts.append(f"{field.name}={int(value) if isinstance(value, bool) else value}")
        return ",".join(parts)


def _run_words(part: str, count: int) -> str:
    """Write equal neighbours once: `13x5` for five stages of 13 layers."""
    return f"{part}x{count}" if count > 1 else part


_ALIASES = {
    "dp_shard": "shard_size",
    "zero": "sharding",
    "layers": "layers_per_stage",
    "recompute_num_layers": "recompute_layers",
}
_SHARDING_WORDS: Mapping[str, Sharding] = {
    "0": "none",
    "1": "zero1",
    "2": "zero2",
    "3": "zero3",
    "fsdp": "zero3",
    "hsdp": "hybrid",
    "ddp": "none",
    "distributed-optimizer": "zero1",
}


def head_alone(chunks: tuple[int, ...]) -> bool:
    """Whether the last two chunks hold no layer: the head has the last to itself, multi-token
    prediction the one before."""
    return len(chunks) > 2 and chunks[-2:] == (0, 0)


def parse_layout(text: str) -> dict[str, Any]:
    """Read `tp=8,pp=4,mbs=1,recompute=full` into fields of Layout; lists are joined by `+`, and
    blanks may stand for commas."""
    given: dict[str, Any] = {}
    names = [f.name for f in fields(Layout)]
    for word in re.split(r"[,;\s]+", re.sub(r"\s*=\s*", "=", text.strip())):
        if not word:
            continue
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"layout {word!r}: expected key=value, such as tp=8")
        name = _ALIASES.get(key, key)
        if name not in names:
            raise UnknownNameError("layout key", key, names)
        if name in given:
            raise ConfigError(f"layout: {key} is given twice")
        given[name] = _parse_value(name, value)
    return given


def _parse_value(name: str, value: str) -> Any:
    if name == "sharding":
        return _SHARDING_WORDS.get(value.lower(), value)
    if name in ("recompute", "recompute_method", "schedule", "offload", "optimizer"):
        return value
    if name == "recompute_modules":
        return tuple(value.split("+"))
    if name == "sp":
        if value.lower() not in ("0", "1", "true", "false", "on", "off"):
            raise ConfigError(f"sp={value}: expected 0 or 1")
        return value.lower() in ("1", "true", "on")
    try:
        return _read_split(value) if name == "layers_per_stage" else int(value)
    except ValueError:
        raise ConfigError(f"{name}={value}: expected a whole number") from None


def _read_split(value: str) -> tuple[int, ...]:
    """Read `13x5+12`, or every number by itself; ValueError for anything else."""
    runs = [part.partition("x") for part in value.split("+")]
    found = [(int(layers), int(count) if times else 1) for layers, times, count in runs]
    if sum(count for _, count in found) > MOST_CHUNKS:
        raise ValueError
    return tuple(layers for layers, count in found for _ in range(count))


@dataclass(frozen=True, kw_only=True, slots=True)
class Layouts:
    """A column per field of Layout, all of shape (N,), int64; choices are indices into their
    tuples. `stages` is None where every layout splits its layers as evenly as can be."""

    tp: Ints
    sp: Ints
    """0 or 1."""
    cp: Ints
    ep: Ints
    etp: Ints
    """Filled in, never missing."""
    pp: Ints
    vpp: Ints
    dp: Ints
    sharding: Ints
    """Index into SHARDINGS."""
    shard_size: Ints
    """Filled in: dp * cp where not given."""
    mbs: Ints
    gbs: Ints
    recompute: Ints
    """Index into RECOMPUTES."""
    block_recompute: Ints
    """1 for method block."""
    recompute_layers: Ints
    """-1 where it is not given (every layer)."""
    recompute_modules: Ints
    """Bit mask, see `module_bits`."""
    schedule: Ints
    """Index into SCHEDULES."""
    offload: Ints
    """Index into OFFLOADS."""
    optimizer: Ints
    """Index into OPTIMIZERS."""
    chunk_layers: tuple[tuple[int, ...] | None, ...] | None = None
    """Explicit layers per stage or chunk, one entry a layout; None where no layout has any."""

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def num_chips(self) -> Ints:
        """Chips of each layout, (N,)."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_microbatches(self) -> Ints:
        """Micro batches per step and replica, (N,)."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def has_split(self) -> NDArray[np.bool_]:
        """Whether a layout says the layers of its stages or chunks, (N,)."""
        if self.chunk_layers is None:
            return np.zeros(len(self), dtype=bool)
        return np.array([split is not None for split in self.chunk_layers], dtype=bool)

    @property
    def hosted(self) -> NDArray[np.bool_]:
        """Whether the host keeps and updates the optimizer's states, (N,)."""
        return np.asarray(self.offload > 0)

    @property
    def hosts_weights(self) -> NDArray[np.bool_]:
        """Whether weights wait on the host too, (N,)."""
        return np.isin(self.offload, [i for i, o in enumerate(OFFLOADS) if "weights" in o])

    @property
    def on_nvme(self) -> NDArray[np.bool_]:
        """Whether what the host keeps lies on its drives, (N,)."""
        return np.isin(self.offload, [i for i, o in enumerate(OFFLOADS) if "nvme" in o])

    @property
    def folded(self) -> NDArray[np.bool_]:
        """Whether the two chunks of each stage lie in a V, which ends where it begins, (N,)."""
        return np.asarray((self.schedule == SCHEDULES.index("zero-bubble")) & (self.vpp == 2))

    @property
    def expert_dp(self) -> Ints:
        """Replicas of one expert shard, (N,): dp * cp * tp / (ep * etp)."""
        return np.maximum(1, self.dp * self.cp * self.tp // (self.ep * self.etp))

    @property
    def expert_shard_size(self) -> Ints:
        """Ranks that share an expert shard's states, (N,): its replicas over the groups."""
        groups = np.maximum(1, self.dp * self.cp // self.shard_size)
        return np.asarray(np.maximum(1, self.expert_dp // groups), dtype=np.int64)

    def take(self, index: NDArray[Any]) -> Layouts:
        """Return the rows that `index` (integers or a mask) selects."""
        columns = {name: getattr(self, name)[index] for name in _columns()}
        chosen = None
        if self.chunk_layers is not None:
            chosen = tuple(self.chunk_layers[i] for i in np.arange(len(self))[index])
        return replace(self, **columns, chunk_layers=chosen)

    def row(self, index: int) -> Layout:
        """Return one row as a Layout."""
        at = {name: int(getattr(self, name)[index]) for name in _columns()}
        modules = tuple(
            m for bit, m in enumerate(RECOMPUTE_MODULES) if at["recompute_modules"] >> bit & 1
        )
        partial = at["shard_size"] != at["dp"] * at["cp"]
        return Layout(
            **{name: at[name] for name in (*_WHOLE, "etp")},
            sp=bool(at["sp"]),
            sharding=SHARDINGS[at["sharding"]],
            shard_size=at["shard_size"] if partial else None,
            recompute=RECOMPUTES[at["recompute"]],
            recompute_method="block" if at["block_recompute"] else "uniform",
            recompute_layers=None if at["recompute_layers"] < 0 else at["recompute_layers"],
            recompute_modules=modules,
            schedule=SCHEDULES[at["schedule"]],
            offload=OFFLOADS[at["offload"]],
            optimizer=OPTIMIZERS[at["optimizer"]],
            layers_per_stage=None if self.chunk_layers is None else self.chunk_layers[index],
        )

    @staticmethod
    def of(layouts: Iterable[Layout]) -> Layouts:
        """Return the columns of some layouts."""
        rows = list(layouts)

        def column(value: Any) -> Ints:
            return np.array([value(r) for r in rows], dtype=np.int64)

        plain = {name: column(attrgetter(name)) for name in _WHOLE}
        explicit = tuple(r.layers_per_stage for r in rows)
        return Layouts(
            **plain,
            sp=column(lambda r: int(r.sp)),
            etp=column(lambda r: r.expert_tp),
            sharding=column(lambda r: SHARDINGS.index(r.sharding)),
            shard_size=column(lambda r: r.shard_size if r.shard_size is not None else r.dp * r.cp),
            recompute=column(lambda r: RECOMPUTES.index(r.recompute)),
            block_recompute=column(lambda r: int(r.recompute_method == "block")),
            recompute_layers=column(
                lambda r: -1 if r.recompute_layers is None else r.recompute_layers
            ),
            recompute_modules=column(lambda r: module_bits(r.recompute_modules)),
            schedule=column(lambda r: SCHEDULES.index(r.schedule)),
            offload=column(lambda r: OFFLOADS.index(r.offload)),
            optimizer=column(lambda r: OPTIMIZERS.index(r.optimizer)),
            chunk_layers=explicit if any(e is not None for e in explicit) else None,
        )

    @staticmethod
    def concat(parts: Iterable[Layouts]) -> Layouts:
        """Return the rows of several, in order; explicit stage splits are kept."""
        blocks = list(parts)
        columns = {
            name: np.concatenate([getattr(block, name) for block in blocks]) for name in _columns()
        }
        explicit: tuple[tuple[int, ...] | None, ...] | None = None
        if any(b.chunk_layers is not None for b in blocks):
            explicit = tuple(entry for b in blocks for entry in b.chunk_layers or (None,) * len(b))
        return Layouts(**columns, chunk_layers=explicit)


def _columns() -> list[str]:
    """Fields of Layouts that are arrays."""
    return [field.name for field in fields(Layouts) if field.name != "chunk_layers"]
