"""A launch script edited in place: the function behind `meshwright fix`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from meshwright.api.existing import Run, price_of, read_run
from meshwright.api.problems import problem_of
from meshwright.search.plan import fitting_plans
from meshwright.search.problem import Asked, Problem
from meshwright.search.quote import Quote
from meshwright.search.request import PlanRequest
from meshwright.software.contract import Mended, import_text
from meshwright.software.plan import plan_of
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout

__all__ = ["Fixed", "fix_run"]

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "sharding": ("sharding",),
    "recompute": ("recompute", "recompute_method", "recompute_layers", "recompute_modules"),
    "mbs": ("mbs",),
    "vpp": ("vpp",),
    "sp": ("sp",),
    "tp": ("tp", "sp"),
    "pp": ("pp", "vpp"),
    "cp": ("cp",),
    "ep": ("ep", "etp"),
}
"""What is changed together; those that train the same numbers in the same order come first."""
_MOST_GROUPS = 3
"""Changes that are tried together before all may change: 129 searches of a few layouts each."""
_MOST_PLANS = 50
"""Looked through for one that an edit writes: even stages, sharding as the file's or zero1."""
_EDITED_SHARDINGS = ("none", "zero1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed:
    """A file's edit and what it is for."""

    run: Run
    text: str
    """The edited file."""
    layout: Layout
    quote: Quote
    """Of the edited file."""
    before: Quote | None
    """Of the file as it is; None where it does not run, and `refused` says why."""
    refused: str | None
    notes: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The edit as a unified diff; empty where nothing changes."""
        name = self.run.path.as_posix()
        old, new = self.run.text.splitlines(True), self.text.splitlines(True)
        lines = difflib.unified_diff(old, new, f"a/{name.lstrip('/')}", f"b/{name.lstrip('/')}")
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "file": str(self.run.path),
            "diff": self.diff,
            "layout": self.layout.words(),
            "step_s": self.quote.step_s,
            "fits": self.quote.verdict,
            "before": None
            if self.before is None
            else {
                "layout": self.before.layout.words(),
                "step_s": self.before.step_s,
                "fits": self.before.verdict,
            },
            "refused": self.refused,
            "notes": list(self.notes),
        }


def fix_run(path: Path, fields: Mapping[str, Any], *, best: bool = False) -> Fixed | None:
    """Return the smallest edit of a launch script that makes it fit and valid on a cluster, or with
    `best` the one that makes it fastest; None where no layout fits.

    `fields` are those of a PlanRequest without the model. What the file switches off of its
    software stays off, before and after.
    """
    run = read_run(path, dict(fields), option="")
    if run.source.mend is None:
        raise ConfigError(
            f"{path}: {run.source.title} is not edited in place; `meshwright plan --from {path}"
            " --export DIR` writes a new one"
        )
    problem = run.as_it_is(problem_of(PlanRequest.of({**run.fields(), **fields})))
    before, refused = _before(run, problem)
    if before is not None and before.verdict == "yes" and not best:
        asked = Asked(layout=before.layout, problem=problem)
    else:
        found = _best(run, problem) if best else _nearest(run, problem)
        if found is None:
            return None
        asked = found
    assert run.source.mend is not None
    mended = run.source.mend(
        run.text, run.found, plan_of(asked, settings=run.found.settings, details=run.found.details)
    )
    _require_read_back(run, mended, asked.layout)
    return Fixed(
        run=run,
        text=mended.text,
        layout=asked.layout,
        quote=price_of(asked),
        before=before,
        refused=refused,
        notes=mended.notes,
    )


def _before(run: Run, problem: Problem) -> tuple[Quote | None, str | None]:
    try:
        return price_of(run.asked(problem)), None
    except ConfigError as error:
        return None, str(error)


def _nearest(run: Run, problem: Problem) -> Asked | None:
    """Return the fastest layout that fits among those with the fewest changes."""
    for count in range(1, _MOST_GROUPS + 1):
        found = [
            asked
            for groups in combinations(_GROUPS, count)
            if (asked := _fastest(run, problem, _held(run, groups))) is not None
        ]
        if found:
            return min(found, key=lambda asked: price_of(asked).step_s)
    return _best(run, problem)


def _best(run: Run, problem: Problem) -> Asked | None:
    return _fastest(run, problem, {})


def _held(run: Run, free: tuple[str, ...]) -> dict[str, list[int | str]]:
    """Return the pins of all groups but the free ones, at the file's values."""
    freed = {name for group in free for name in _GROUPS[group]}
    held: dict[str, list[int | str]] = {}
    for name in dict.fromkeys(name for names in _GROUPS.values() for name in names):
        value = run.found.layout.get(name, getattr(Layout(), name))
        if name in freed or value in (None, ()) or name == "recompute_method":
            continue
        held[name] = ["+".join(value) if isinstance(value, tuple) else _plain(value)]
    return held


def _plain(value: Any) -> int | str:
    return value if isinstance(value, str) else int(value)


def _fastest(run: Run, problem: Problem, held: Mapping[str, list[int | str]]) -> Asked | None:
    """Return the fastest layout that fits, under pins, and that an edit can write."""
    mine = run.found.layout.get("sharding", "none")
    allowed = [mine, "zero1"] if mine in _EDITED_SHARDINGS else [mine]
    pins = {"sharding": list(dict.fromkeys(allowed)), **held, **problem.request.pins}
    request = problem.request.model_copy(update={"pins": pins, "top": _MOST_PLANS})
    try:
        plans = fitting_plans(replace(problem, request=request))
    except ConfigError:  # no layout keeps the rules under these pins
        return None
    splits = (None, run.found.layout.get("layers_per_stage"))
    for plan in plans:
        if plan.fits == "yes" and plan.layout.layers_per_stage in splits:
            return Asked(layout=plan.layout, problem=problem)
    return None


_AXES = ("tp", "pp", "vpp", "cp", "ep", "mbs", "gbs", "sharding", "recompute")


def _require_read_back(run: Run, mended: Mended, layout: Layout) -> None:
    """Refuse an edit whose text does not read as the layout: nothing is written on trust."""
    again = import_text(mended.text, source=run.source).layout
    usual = Layout()
    for name in _AXES:
        if (reads := again.get(name, getattr(usual, name))) != getattr(layout, name):
            raise ConfigError(
                f"{run.path}: after the edit it would read {name}={reads}, not"
                f" {getattr(layout, name)}; `meshwright plan --from {run.path} --export DIR` writes"
                " a new one"
            )


def changes(fixed: Fixed) -> Iterator[str]:
    """Yield what a reader is told beside the diff."""
    before, after = fixed.before, fixed.quote
    if before is None:
        yield f"as it is it does not run: {fixed.refused}"
    else:
        yield (
            f"as it is: {before.layout.words()}: {before.step_s:.3f} s a step, fits:"
            f" {before.verdict}"
        )
    yield (
        f"after the edit: {after.layout.words()}: {after.step_s:.3f} s a step, fits:"
        f" {after.verdict}"
    )
