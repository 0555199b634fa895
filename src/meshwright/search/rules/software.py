"""What each training software accepts: the rules in `software/*/stack.toml`, where each says only
what differs from the stack that it builds on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast, get_args

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import (
    OFFLOADS,
    OPTIMIZERS,
    RECOMPUTE_MODULES,
    RECOMPUTES,
    SCHEDULES,
    SHARDINGS,
)
from meshwright.values.stack import Stack, find_stack, stack_names
from meshwright.values.stack_files import StackEntry, all_entries, find_entry
from meshwright.values.workload import (
    PRECISIONS,
    ROUTINGS,
    AttentionKernel,
    Frozen,
    Precision,
    Routing,
)

__all__ = [
    "DEALT",
    "NEWEST_MEGATRON",
    "NONE_OR_FULL",
    "StackRules",
    "known_version",
    "parse_version",
    "stack_rules",
    "stacks_with_axis",
    "stacks_with_schedule",
    "usual_attention",
    "usual_layout",
]

DEALT = ("any", "filled")
"""Values of `StackRules.splits` where a configuration says how many layers each stage holds."""
NONE_OR_FULL = "none or full"
NEWEST_MEGATRON = "0.20"
"""Version of Megatron-Core that the rules were last read against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackRules:
    """What one training software accepts."""

    stack: str
    shardings: tuple[str, ...]
    """Accepted with any pipeline."""
    shardings_without_pp: tuple[str, ...]
    """Accepted with pp=1 only."""
    searched_shardings: tuple[str, ...]
    """Tried by a search that is not told which."""
    grouped_shardings: tuple[str, ...]
    """Beside hybrid, those whose groups of ranks may be smaller than all that train alike."""
    recompute_modules: tuple[str, ...]
    """Accepted names for selective recompute."""
    searched_modules: tuple[tuple[str, ...], ...]
    """Sets of modules tried by a search."""
    full_by_blocks: bool
    """Whether full recompute may be of some of a chunk's layers; FSDP and nanotron take all."""
    axes: tuple[str, ...]
    """Kinds of parallelism beside data parallelism that it has: of tp, sp, pp, vpp, cp, ep, etp."""
    schedules: tuple[str, ...]
    """Accepted schedules of a pipeline."""
    searched_schedules: tuple[str, ...]
    """Tried by a search that is not told which."""
    splits: Literal["any", "filled", "fixed", "cost"]
    """Layers of stages: any numbers, where the last chunk may hold the head alone; of one layer at
    least; as even as can be; or by nanotron's rule, `split.split_by_cost`."""
    precisions: tuple[str, ...]
    """Number formats of its matrix products."""
    offloads: tuple[str, ...]
    """What may wait on the host. A search takes more than none where `searched_offloads` has it,
    or nothing fits otherwise."""
    searched_offloads: tuple[str, ...]
    optimizers: tuple[str, ...]
    """Forms of Adam; a search takes others than the plain one where nothing fits otherwise."""
    frozen: tuple[str, ...]
    """Formats of the weights beside adapters."""
    attention: str
    """The kernel that it runs where nobody says: its name, or `NAME to TOKENS` where longer
    sequences take flash attention."""
    recompute: str
    """What it runs again where nobody says: none, selective (with modules behind it) or full; `none
    or full` is full where it would not fit otherwise."""
    sharding: str
    """What it shards where nobody says; empty is zero1, or zero3 of FSDP's family."""
    sequence_parallel: bool
    """Whether tensor parallelism splits the sequence too where nobody says."""
    dropout: bool
    """Whether it trains with dropout where nobody says."""
    routing: Routing
    """How its published benchmarks spread tokens over experts."""
    half_by_sharding: bool
    """Whether it computes in half precision only where data parallelism shards, or does all."""
    kv_copies_from: tuple[int, ...] | None
    """Version of Megatron-Core that first copies KV heads where tp is a multiple; None: never."""
    source: str


def stack_rules(stack: Stack) -> StackRules:
    """Return what a stack accepts, or its family where it is none that a file describes."""
    found = _rules(stack.name) or _rules(stack.family)
    assert found is not None, f"no rules of the family {stack.family}"
    return found


@cache
def _rules(name: str) -> StackRules | None:
    """Return the rules of a described stack: its own where it has some, else those of the stack
    that it builds on, else its family's."""
    entry = find_entry(name)
    if entry is None:
        return None
    own = dict(entry.rules or {})
    basis = _basis(entry, own.pop("like", None))
    if not own:
        if basis is None:
            raise ConfigError(f"{entry.place}: has no rules")
        return basis
    return _with_own(entry, own, basis)


def _basis(entry: StackEntry, like: str | None) -> StackRules | None:
    """Return the rules that a stack's own are read against; None where they stand alone."""
    name = like or entry.builds_on or find_stack(entry.name).family
    if name == entry.name:
        return None
    found = _rules(name)
    if found is None:
        raise UnknownNameError(f"{entry.place}: rules like", name, stack_names())
    return found


def _with_own(entry: StackEntry, own: dict[str, Any], basis: StackRules | None) -> StackRules:
    """Return rules that differ from others in what a file has; ConfigError for unknown words."""
    if not str(own.get("source", "")).strip():
        raise ConfigError(f"{entry.place}: its rules have no source")
    for name in own:
        if name not in _READ:
            raise UnknownNameError(f"{entry.place}: rule", name, _READ)
    read = {name: _READ[name](name, value, entry.place) for name, value in own.items()}
    if basis is not None:
        return replace(basis, stack=entry.name, **read)
    read = {**_OPEN, **read}
    missing = [name for name in _READ if name not in read]
    if missing:
        raise ConfigError(f"{entry.place}: its rules lack {', '.join(missing)}")
    return StackRules(stack=entry.name, **read)


def _listed(known: tuple[str, ...]) -> _Reader:
    """Read a list of words."""

    def read(name: str, value: Any, place: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ConfigError(f"{place}: {name}={value}: expected a list")
        for word in value:
            if word not in known:
                raise UnknownNameError(f"{place}: {name}", str(word), known)
        return tuple(value)

    return read


def _sets(name: str, value: Any, place: str) -> tuple[tuple[str, ...], ...]:
    """Read a list of lists of modules."""
    if not isinstance(value, list):
        raise ConfigError(f"{place}: {name}={value}: expected a list of lists")
    return tuple(_MODULES(name, one, place) for one in value)


def _kernel(name: str, value: Any, place: str) -> str:
    kernel, _, most = str(value).partition(" to ")
    if kernel not in get_args(AttentionKernel):
        raise UnknownNameError(f"{place}: {name}", kernel, get_args(AttentionKernel))
    if most and not most.isdecimal():
        raise ConfigError(f"{place}: {name}={value}: expected a kernel, or `KERNEL to TOKENS`")
    return str(value)


def _recompute(name: str, value: Any, place: str) -> str:
    mode, _, modules = str(value).partition(" ")
    if value in RECOMPUTES or value == NONE_OR_FULL:
        return str(value)
    if mode != "selective":
        raise UnknownNameError(f"{place}: {name}", str(value), (*RECOMPUTES, NONE_OR_FULL))
    _MODULES(name, modules.split("+"), place)
    return str(value)


def _routing(name: str, value: Any, place: str) -> str:
    if value not in ROUTINGS:
        raise UnknownNameError(f"{place}: {name}", str(value), ROUTINGS)
    return str(value)


def _sharding(name: str, value: Any, place: str) -> str:
    if value not in SHARDINGS:
        raise UnknownNameError(f"{place}: {name}", str(value), SHARDINGS)
    return str(value)


def _flag(name: str, value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{place}: {name}={value}: expected true or false")
    return value


def _split(name: str, value: Any, place: str) -> str:
    if value not in _SPLITS:
        raise UnknownNameError(f"{place}: {name}", str(value), _SPLITS)
    return str(value)


def _version(_: str, value: Any, __: str) -> tuple[int, ...] | None:
    """Read a version; an empty word is never."""
    return parse_version(str(value)) if value else None


def _text(_: str, value: Any, __: str) -> str:
    return str(value)


_Reader = Callable[[str, Any, str], Any]
_SPLITS = ("any", "filled", "fixed", "cost")
_AXES = ("tp", "sp", "pp", "vpp", "cp", "ep", "etp")
_MODULES = _listed(RECOMPUTE_MODULES)
_READ: dict[str, _Reader] = {
    "shardings": _listed(SHARDINGS),
    "shardings_without_pp": _listed(SHARDINGS),
    "searched_shardings": _listed(SHARDINGS),
    "grouped_shardings": _listed(SHARDINGS),
    "recompute_modules": _MODULES,
    "searched_modules": _sets,
    "full_by_blocks": _flag,
    "axes": _listed(_AXES),
    "schedules": _listed(SCHEDULES),
    "searched_schedules": _listed(SCHEDULES),
    "splits": _split,
    "precisions": _listed(PRECISIONS),
    "offloads": _listed(OFFLOADS),
    "searched_offloads": _listed(OFFLOADS),
    "optimizers": _listed(OPTIMIZERS),
    "frozen": _listed(get_args(Frozen)),
    "attention": _kernel,
    "recompute": _recompute,
    "sharding": _sharding,
    "sequence_parallel": _flag,
    "dropout": _flag,
    "routing": _routing,
    "half_by_sharding": _flag,
    "kv_copies_from": _version,
    "source": _text,
}
"""What a file may say, and how it is read."""
_OPEN: dict[str, Any] = {
    **{"recompute": "none", "sequence_parallel": True, "dropout": False},
    "routing": "balanced",
    "sharding": "",
    "grouped_shardings": (),
    **{"offloads": ("none",), "searched_offloads": ("none",), "optimizers": ("adam",)},
    "frozen": ("half",),
}
"""Where neither a software nor what it builds on says."""


def usual_layout(stack: Stack, *, short: bool = False) -> dict[str, Any]:
    """Return what a software's own configurations set of a layout where nobody says: sequence
    parallelism and recompute; `short` where the layout would not fit without any."""
    rules = stack_rules(stack)
    found: dict[str, Any] = {} if rules.sequence_parallel else {"sp": False}
    mode, _, modules = rules.recompute.partition(" ")
    if rules.recompute == NONE_OR_FULL:
        return found | ({"recompute": "full"} if short else {})
    if mode == "none":
        return found
    listed = {"recompute_modules": tuple(modules.split("+"))} if modules else {}
    return found | {"recompute": mode, **listed}


def usual_attention(
    stack: Stack,
    *,
    seq_len: int,
    has_flash: bool,
    precision: Precision = "bf16",
    kernels: str = "",
) -> AttentionKernel:
    """Return the attention kernel that a software runs where nobody names one; `kernels` stands
    before the software's own `StackRules.attention`.

    Flash attention has no kernels for chips before Ampere (Dao-AILab/flash-attention, README);
    Megatron's attention then keeps the scores, torch's scaled_dot_product_attention has its
    memory-efficient kernel. Megatron's fused softmax runs in half precision alone
    (is_kernel_available of megatron/model/fused_softmax.py).
    """
    kernel, _, most = (kernels or stack_rules(stack).attention).partition(" to ")
    usual = "flash" if most and seq_len > int(most) else kernel
    if usual == "flash" and not has_flash and stack.family == "megatron":
        usual = "fused-softmax"
    if usual == "fused-softmax" and precision in ("fp32", "tf32"):
        usual = "unfused"
    return cast("AttentionKernel", usual)


def parse_version(text: str) -> tuple[int, ...]:
    """Read `0.15.1` or `core_v0.16.0rc2` as numbers that compare."""
    match = re.fullmatch(
        r"(?:core_)?v?([0-9]{1,4}(?:\.[0-9]{1,4}){0,3})(?:rc[0-9]+)?", text.strip()
    )
    if match is None:
        raise ConfigError(
            f"megatron_version={text}: expected a version such as 0.15.1 or {NEWEST_MEGATRON}"
        )
    return tuple(int(number) for number in match[1].split("."))


def known_version(text: str) -> tuple[int, ...]:
    """Read a version of Megatron-Core whose rules are known; ConfigError of a later one than they
    were read against."""
    found = parse_version(text)
    if found[:2] > parse_version(NEWEST_MEGATRON):
        raise ConfigError(
            f"megatron_version={text}: what Megatron-Core accepts was read up to {NEWEST_MEGATRON};"
            f" give {NEWEST_MEGATRON}"
        )
    return found


def stacks_with_axis(axis: str) -> tuple[str, ...]:
    """Return the stacks with rules of their own that have a kind of parallelism."""
    return tuple(row.stack for row in _own_rules() if axis in row.axes)


def stacks_with_schedule(schedule: str) -> tuple[str, ...]:
    """Return the stacks with rules of their own that accept a schedule."""
    return tuple(row.stack for row in _own_rules() if schedule in row.schedules)


@cache
def _own_rules() -> tuple[StackRules, ...]:
    rows = [(entry.name, _rules(entry.name)) for entry in all_entries()]
    return tuple(row for name, row in rows if row is not None and row.stack == name)
