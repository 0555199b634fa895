"""What an export looked at: nothing that a plan sets is dropped in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

from meshwright.software.plan import TrainingPlan
from meshwright.values.errors import ConfigError

__all__ = ["dropped_fields", "plain", "require_none", "tracked"]


T = TypeVar("T")


class _Tracked:
    """Stands before a frozen value; the name of each field that is read goes into `seen`,
    properties do not count."""

    __slots__ = ("_path", "_seen", "_values")

    def __init__(self, values: Any, path: str, seen: set[str]) -> None:
        self._values = values
        self._path = path
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._values, name)
        if name not in {field.name for field in fields(self._values)}:
            return value
        path = f"{self._path}{name}"
        self._seen.add(path)
        return _Tracked(value, f"{path}.", self._seen) if is_dataclass(value) else value


def tracked(values: T, seen: set[str]) -> T:
    """Return a stand-in for a frozen value that adds `layout.tp` to `seen` when that is read."""
    return cast("T", _Tracked(values, "", seen))


def plain(values: T) -> T:
    """Return the value behind a stand-in, for functions that read all of it; nothing counts as
    looked at."""
    return cast("T", values._values) if isinstance(values, _Tracked) else values


def _fields_set(values: Any, path: str) -> dict[str, Any]:
    """Return the fields that have no default or another value than it, by path; nested values give
    their own fields."""
    found: dict[str, Any] = {}
    for one in fields(values):
        value = getattr(values, one.name)
        if is_dataclass(value):
            found |= {f"{path}{one.name}": value, **_fields_set(value, f"{path}{one.name}.")}
        elif one.default is MISSING or value != one.default:
            found[f"{path}{one.name}"] = value
    return found


_NOT_ASKED = {
    "model.name": "a label",
    "model.context_tokens": "a limit of requests, which the sequence of a training need not keep",
    "model.checkpoint": "how others published it; what is trained from is the user's to say",
    "model.rotation_has_factor": "a kernel's time; Megatron takes it with learned sinks",
    "model.moe.clamps_gate": "a kernel's time; details.gate_clamp is the bound that is written",
    "layout.dp": "follows from the chips and the other axes",
    "work.gbs": "the layout's",
    "work.attention": "a kernel, not a result",
    "work.sample_len": "a figure of the data, which files name",
    "work.cp_comm_type": "how the same keys and values travel, not a result",
    "work.lora_targets": "nothing without adapters, which exports that have none refuse",
    "work.routing": "how tokens are taken to spread over experts, for the estimate",
    "work.fused_norm": "a kernel, not a result",
    "settings.train_tokens": "completed to train_steps",
    "settings.extra": "appended by targets that take words, see ExportTarget.takes_extra",
}
"""Fields that an exporter need not look at, each with the reason."""


def dropped_fields(plan: TrainingPlan, seen: set[str], *, takes_extra: bool) -> dict[str, Any]:
    """Return what a plan sets, by path, that an export of it did not look at."""
    parts = ("model", "work", "layout", "settings", "details")
    wanted = {
        name: value
        for part in parts
        for name, value in _fields_set(getattr(plan, part), f"{part}.").items()
    }
    free = {name for name in _NOT_ASKED if name != "settings.extra" or takes_extra}
    return {name: plain(value) for name, value in wanted.items() if name not in seen | free}


def require_none(dropped: Mapping[str, Any], *, name: str) -> None:
    """Refuse for an export where there is such a field, with the way to do without."""
    if dropped:
        shown = ", ".join(f"{path}={value!r}" for path, value in dropped.items())
        raise ConfigError(
            f"{name}: has no place for {shown}; {_way_out(dropped)}, or export to another target"
        )


def _way_out(names: Iterable[str]) -> str:
    """Say how an export can do without some fields of a plan."""
    parts = [name.partition(".") for name in names]
    can_go = all(part in ("details", "settings") for part, _, _ in parts)
    listed = ",".join(name for _, _, name in parts)
    return f"--leave-out {listed} writes it without" if can_go else "leave it out"
