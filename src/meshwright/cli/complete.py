"""Shell completion of values: what an option may be, by its name, the same in every command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

__all__ = ["add_values", "is_asked", "rejoin_words"]

_VARIABLE = "_MESHWRIGHT_COMPLETE"
_BREAKS = ("=", ":")
"""Letters at which bash cuts a word in parts (COMP_WORDBREAKS)."""
_SOME_COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_TWO_COUNTS = (8, 256)
"""Before the colon is typed: enough that a shell sets no blank behind it."""
_SOME_AXIS_VALUES = (1, 2, 4, 8, 16)


def is_asked() -> bool:
    """Whether a shell asks for completions, not a user for a command."""
    return _VARIABLE in os.environ


def add_values(command: Any, *, group: str, item: type) -> None:
    """Let a command's arguments and options complete values; `item` is one completion's class."""
    for param in command.params:
        find = _of_param(f"{group} {command.name}".strip(), param.name)
        if find is not None:
            param.shell_complete = partial(_items, find=find, item=item)


def rejoin_words() -> None:
    """Put the words together that bash has cut at `=` and `:`, as `--layout tp=8` and `--cluster
    h100:8` are one value each."""
    if not os.environ.get(_VARIABLE, "").endswith("_bash"):
        return
    words, position = (
        os.environ.get("COMP_WORDS", "").split("\n"),
        int(os.environ.get("COMP_CWORD", "0")),
    )
    joined: list[str] = []
    for word in words[: position + 1]:
        if joined and (word in _BREAKS or joined[-1].endswith(_BREAKS)):
            joined[-1] += word
        else:
            joined.append(word)
    os.environ |= {"COMP_WORDS": "\n".join(joined), "COMP_CWORD": str(len(joined) - 1)}


def _items(
    _context: Any, incomplete: str, *, find: Callable[[str], Iterable[str]], item: type
) -> list[Any]:
    """Values that begin so; bash gets the part behind its last cut, all that it puts in place."""
    in_bash = os.environ.get(_VARIABLE, "").endswith("_bash")
    cut = 1 + max(incomplete.rfind(letter) for letter in _BREAKS) if in_bash else 0
    return [item(value[cut:]) for value in find(incomplete) if value.startswith(incomplete)]


def _of_param(command: str, name: str) -> Callable[[str], Iterable[str]] | None:
    """What completes a parameter of this command, else of its name in the group, else anywhere."""
    keys = ((command, name), (f"{command.rpartition(' ')[0]} *", name), ("", name))
    return next((_VALUES[key] for key in keys if key in _VALUES), None)


def _listed(module: str, attribute: str, _incomplete: str) -> list[str]:
    found = getattr(import_module(f"meshwright.{module}"), attribute)
    return [
        value if isinstance(value, str) else value.name
        for value in (found() if callable(found) else found)
    ]


def _models(_incomplete: str) -> list[str]:
    from meshwright.values.models.catalogue import presets

    return [preset.spec.name for preset in presets()]


def _chips(_incomplete: str) -> list[str]:
    from meshwright.values.hardware.catalogue import chip_rows

    return [row.chip.name for row in chip_rows()]


def _chips_and_servers(_incomplete: str) -> list[str]:
    from meshwright.values.hardware.parse import servers

    return [*_chips(""), *(server.name for server in servers())]


def _clusters(incomplete: str) -> list[str]:
    """Chips and servers with some counts, after `,` as well, and `local`."""
    before, comma, last = incomplete.rpartition(",")
    kind = last.partition(":")[0]
    pairs = (
        product([kind], _SOME_COUNTS)
        if ":" in last
        else product(_chips_and_servers(""), _TWO_COUNTS)
    )
    counted = [f"{name}:{count}" for name, count in pairs]
    return [f"{before}{comma}{word}" for word in (*([] if comma else ["local"]), *counted)]


def _layouts(incomplete: str) -> list[str]:
    """Keys with the values that they may have, or some of them, after `,` as well."""
    from dataclasses import fields

    from meshwright.values.layout import RECOMPUTE_MODULES, RECOMPUTES, SCHEDULES, SHARDINGS, Layout

    words = {
        "sharding": SHARDINGS,
        "recompute": RECOMPUTES,
        "schedule": SCHEDULES,
        "recompute_modules": RECOMPUTE_MODULES,
    }
    words |= {"sp": ("0", "1"), "recompute_method": ("uniform", "block")}
    before, comma, _ = incomplete.rpartition(",")
    given = {word.partition("=")[0] for word in before.split(",")}
    keys = [field.name for field in fields(Layout) if field.name not in given]
    return [
        f"{before}{comma}{key}={value}"
        for key in keys
        for value in words.get(key, _SOME_AXIS_VALUES)
    ]


def _axes(incomplete: str) -> list[str]:
    """Axes of a worker that serves, after `,` as well."""
    before, comma, _ = incomplete.rpartition(",")
    return [
        f"{before}{comma}{axis}={value}"
        for axis in ("tp", "pp", "ep", "attention_dp")
        for value in _SOME_AXIS_VALUES
    ]


_VALUES: dict[tuple[str, str], Callable[[str], Iterable[str]]] = {
    ("", "model"): _models,
    ("", "cluster"): _clusters,
    ("", "engine"): partial(_listed, "serving.engine", "engine_names"),
    ("", "precision"): partial(_listed, "values.workload", "PRECISIONS"),
    ("", "routing"): partial(_listed, "values.workload", "ROUTINGS"),
    ("", "cp_comm_type"): partial(_listed, "values.workload", "CP_COMM_TYPES"),
    ("", "stack"): partial(_listed, "values.stack", "stack_names"),
    ("chips", "name"): _chips_and_servers,
    ("models", "name"): _models,
    ("export", "plan"): _models,
    ("train", "plan"): _models,
    ("export", "launcher"): partial(_listed, "platforms.registry", "launchers"),
    ("data run", "launcher"): partial(_listed, "platforms.registry", "launchers_without_gpus"),
    ("workflow", "launcher"): partial(_listed, "platforms.registry", "launchers_without_gpus"),
    ("workflow", "spec"): partial(_listed, "runs.workflows.spec", "named_specs"),
    ("tune", "launcher"): partial(_listed, "platforms.registry", "runners"),
    ("train", "launcher"): partial(_listed, "platforms.registry", "runners"),
    ("serving tune", "launcher"): partial(_listed, "platforms.registry", "runners"),
    **dict.fromkeys(((" *", "layout"), (" *", "a"), (" *", "b"), (" *", "pins")), _layouts),
    (" *", "to"): partial(_listed, "software.registry", "TARGETS"),
    (" *", "objective"): partial(_listed, "search.request", "OBJECTIVES"),
    ("serving *", "layout"): _axes,
}
"""By command and parameter; ` *` is every command of no group, `serving *` every command of that
group, an empty word every command."""
