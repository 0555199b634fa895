"""What follows when one value moves: the batch, then the plain choices, then one other axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log2
from typing import Any

from meshwright.report.whatif_page.choices import STEPS
from meshwright.report.whatif_page.state import WhatIf
from meshwright.search.problem import Problem, ask
from meshwright.values.errors import MeshwrightError
from meshwright.values.layout import parse_layout

__all__ = ["Followed", "follow"]

_DEGREES = ("tp", "pp", "cp", "ep", "vpp", "mbs")
_YIELDING = ("pp", "tp", "cp", "ep")
"""Axes that give way to another one, the cheapest to change first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Followed:
    """A state that keeps every rule, and what was changed for it."""

    state: WhatIf
    changes: tuple[str, ...]
    """In words, without the value that was moved."""


def follow(
    state: WhatIf, *, moved: str, was: int | None, problem_of: Callable[[WhatIf], Problem]
) -> Followed | None:
    """Return the state itself where it keeps every rule, else the nearest that does and has the
    moved value; where no such one is, that of the next stop of its slider, onwards and then back.

    None where nothing near keeps the rules.
    """
    for wanted in _stops(state, moved, was):
        try:
            problem = problem_of(wanted)
        except MeshwrightError:
            continue
        for tried in _tries(wanted, moved, problem):
            if _keeps_rules(tried, problem, wanted):
                return Followed(state=tried, changes=_changes(wanted, tried))
    return None


def _stops(state: WhatIf, moved: str, was: int | None) -> Iterator[WhatIf]:
    yield state
    if moved not in STEPS or was is None:
        return
    now = _value(state, moved)
    onwards = [step for step in STEPS[moved] if (step > now) == (now > was) and step != now]
    onwards.sort(key=lambda step: abs(step - now))
    back = [step for step in STEPS[moved] if min(now, was) < step < max(now, was)]
    back.sort(key=lambda step: abs(step - now))
    for step in (*onwards, *back, was):
        yield _with(state, moved, step)


def _value(state: WhatIf, name: str) -> int:
    if name == "gpus":
        return int(state.cluster.rpartition(":")[2])
    if name in ("seq", "gbs"):
        return int(getattr(state, name))
    return int(parse_layout(state.layout).get(name, 1))


def _with(state: WhatIf, name: str, value: int) -> WhatIf:
    if name == "gpus":
        return replace(state, cluster=f"{state.cluster.rpartition(':')[0]}:{value}")
    if name == "seq":
        return replace(state, seq=value)
    if name == "gbs":
        return replace(state, gbs=value)
    return replace(state, layout=_words({**_fields(state), name: str(value)}))


def _fields(state: WhatIf) -> dict[str, str]:
    """The words of a layout by their keys."""
    return dict(word.split("=", 1) for word in state.layout.replace(" ", ",").split(",") if word)


def _words(fields: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in fields.items())


def _tries(state: WhatIf, moved: str, problem: Problem) -> Iterator[WhatIf]:
    """States with the moved value, the nearest first."""
    yield from _batches(state, moved, problem)
    plain = _plainer(state, moved)
    if plain != state:
        yield from _batches(plain, moved, problem)
    for axis in _YIELDING:
        if axis == moved or (axis == "ep" and problem.setting.model.moe is None):
            continue
        now = _value(plain, axis)
        for step in sorted(STEPS[axis], key=lambda step: (abs(log2(step / now)), step)):
            if step != now:
                yield from _batches(_with(plain, axis, step), moved, problem)
    for simple in _plainest(state, moved, problem):
        yield from _batches(simple, moved, problem)


def _plainest(state: WhatIf, moved: str, problem: Problem) -> Iterator[WhatIf]:
    """Last: tensor parallelism alone, and other axes only where they were moved."""
    kept = {moved: str(_value(state, moved))} if moved in _DEGREES else {}
    for tp in STEPS["tp"]:
        if tp <= problem.num_chips:
            yield replace(state, layout=_words({"tp": str(tp), "mbs": "1", **kept}))


def _plainer(state: WhatIf, moved: str) -> WhatIf:
    """Without chunks and splits of its own, and one sequence at a time."""
    fields = _fields(state)
    for name in ("layers_per_stage", "vpp"):
        if name != moved:
            fields.pop(name, None)
    if moved != "mbs":
        fields["mbs"] = "1"
    return replace(state, layout=_words(fields))


def _batches(state: WhatIf, moved: str, problem: Problem) -> Iterator[WhatIf]:
    """The state, and with the batch nearest to its own that its replicas divide; none where its
    degrees do not divide the chips."""
    sizes = [_value(state, name) for name in ("tp", "pp", "cp")]
    split = sizes[0] * sizes[1] * sizes[2]
    if problem.num_chips % split:
        return
    yield state
    if moved == "gbs":
        return
    replicas = problem.num_chips // split * _value(state, "mbs")
    for of in (replicas, replicas * sizes[1]):  # virtual stages need whole rounds of all stages
        nearest = max(1, round(state.gbs / of)) * of
        if nearest != state.gbs:
            yield replace(state, gbs=nearest)


def _keeps_rules(state: WhatIf, problem: Problem, known: WhatIf) -> bool:
    work = problem.setting.work
    if state.gbs != known.gbs:
        setting = replace(problem.setting, work=replace(work, gbs=state.gbs))
        problem = replace(problem, setting=setting)
    try:
        ask(state.layout, problem)
    except MeshwrightError:
        return False
    return True


def _changes(before: WhatIf, after: WhatIf) -> tuple[str, ...]:
    olds, news = _fields(before), _fields(after)
    found: dict[str, tuple[Any, Any]] = {
        name: (olds.get(name, "1"), news.get(name, "1")) for name in _DEGREES
    }
    found["gbs"] = (before.gbs, after.gbs)
    words = [f"{name} {old} → {new}" for name, (old, new) in found.items() if old != new]
    if "layers_per_stage" in olds and "layers_per_stage" not in news:
        words.append("layers_per_stage left out")
    return tuple(words)
