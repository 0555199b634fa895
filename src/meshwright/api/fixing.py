"""A launch script or configuration edited in place: the function behind `meshwright fix`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from meshwright.api.existing import Run, price_of, read_run
from meshwright.api.problems import problem_of
from meshwright.search.plan import fitting_plans, search_problem
from meshwright.search.problem import Asked, Problem
from meshwright.search.quote import Quote
from meshwright.search.request import PlanRequest
from meshwright.search.rules.software import stack_rules
from meshwright.software.contract import Mended, import_text
from meshwright.software.plan import plan_of
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout
from meshwright.values.units import GIB

__all__ = ["Fixed", "fix_run", "why_none"]

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
    "offload": ("offload",),
}
"""What is changed together; those that train the same numbers in the same order come first."""
_MOST_GROUPS = 3
"""Changes that are tried together before all may change: 129 searches of a few layouts each."""
_MOST_REASONS = 3
"""Named where no layout fits."""
_MOST_PLANS = 50
"""Looked through for one that an edit writes."""


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
    """Return the smallest edit of a script or configuration that makes it fit and valid on a
    cluster, or with `best` the one that makes it fastest; None where no layout fits.

    A layout at risk is taken only where no other is found. `fields` are those of a PlanRequest
    without the model. What the file switches off of its software stays off, before and after.
    """
    run = read_run(path, dict(fields), option="")
    if run.source.mend is None:
        raise ConfigError(
            f"{path}: {run.source.title} is not edited in place; `meshwright plan --from {path}"
            " --export DIR` writes a new one"
        )
    problem = run.as_it_is(problem_of(PlanRequest.of({**run.fields(), **fields})))
    run.require_batch(problem)
    before, refused = _before(run, problem)
    as_it_is = None if before is None else Asked(layout=before.layout, problem=problem)
    edits = _Edits(run=run, problem=problem)
    edit: _Edit | None
    if before is not None and as_it_is is not None and before.verdict == "yes" and not best:
        edit = edits.written(as_it_is)
    else:
        try:
            edit = edits.best() if best else edits.nearest()
        except ConfigError as error:
            if refused is None:
                raise
            raise ConfigError(
                f"{refused}; of the layouts that do run none is an edit of the file alone: {error}"
            ) from None
        if edit is None and as_it_is is not None and before is not None:
            edit = edits.written(as_it_is) if before.verdict == "at risk" else None
        edit = edit or edits.at_risk()
    if edit is None:
        return None
    return Fixed(
        run=run,
        text=edit.mended.text,
        layout=edit.asked.layout,
        quote=price_of(edit.asked),
        before=before,
        refused=refused,
        notes=(*edit.mended.notes, *_risk(edit.asked)),
    )


def why_none(path: Path, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why no layout fits where `fix_run` found none: what turned most of them away, and the
    nearest miss."""
    run = read_run(path, dict(fields), option="")
    problem = run.as_it_is(problem_of(PlanRequest.of({**run.fields(), **fields})))
    known = dict.fromkeys([run.found.layout.get("sharding", "none"), *run.source.shardings])
    pins = {"sharding": list(known), **problem.request.pins}
    request = problem.request.model_copy(update={"pins": pins, "top": 1})
    try:
        found = search_problem(replace(problem, request=request))
    except ConfigError as error:
        return (str(error),)
    reasons = [f"{count:,} layouts: {reason}" for reason, count in found.rejected.items()]
    miss = found.nearest_miss
    if miss is None:
        return tuple(reasons[:_MOST_REASONS])
    over = f"{miss.over_bytes / GIB:.1f} GiB too much on its fullest stage"
    return (*reasons[:_MOST_REASONS], f"nearest miss: {miss.layout.words()}, {over}")


def _risk(asked: Asked) -> tuple[str, ...]:
    """Say that a layout is at risk, where nothing safer was found."""
    if price_of(asked).verdict != "at risk":
        return ()
    return (
        "at risk: it fits by the estimate, and needs a part of what is kept free for the"
        " estimate's error; no layout within these settings needs less than that",
    )


def _before(run: Run, problem: Problem) -> tuple[Quote | None, str | None]:
    try:
        return price_of(run.asked(problem)), None
    except ConfigError as error:
        return None, str(error)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Edit:
    """A layout and the file that says it."""

    asked: Asked
    mended: Mended


@dataclass(kw_only=True, slots=True)
class _Edits:
    """Edits of one file, and what was met on the way to them."""

    run: Run
    problem: Problem
    _risky: list[Asked] = field(default_factory=list)
    """The fastest of each search that are at risk, those with the fewest changes first."""
    _unwritten: ConfigError | None = None
    """Why the first layout that fits could not be written into the file."""

    def nearest(self) -> _Edit | None:
        """Return the fastest layout that fits among those with the fewest changes."""
        for count in range(1, _MOST_GROUPS + 1):
            found = [
                edit
                for groups in combinations(self._groups(), count)
                if (edit := self._fastest(_held(self.run, groups))) is not None
            ]
            if found:
                return min(found, key=lambda edit: price_of(edit.asked).step_s)
        return self.best()

    def _groups(self) -> list[str]:
        """Return what the software has more than one value for."""
        rules = stack_rules(self.problem.setting.stack)
        axes = ("sp", "tp", "pp", "cp", "ep", "vpp")
        return [
            name
            for name in _GROUPS
            if (name not in axes or name in rules.axes)
            and (name != "offload" or len(rules.offloads) > 1)
        ]

    def best(self) -> _Edit | None:
        """Return the fastest layout that fits; ConfigError where the file can say none that
        does."""
        found = self._fastest({})
        if found is None and self._unwritten is not None:
            raise self._unwritten
        return found

    def at_risk(self) -> _Edit | None:
        """Return the first layout met that needs a part of what is kept free."""
        for asked in self._risky:
            try:
                return self.written(asked)
            except ConfigError:
                continue
        return None

    def written(self, asked: Asked) -> _Edit:
        """Return the edit for a layout; ConfigError where the file can't say it."""
        found, mend = self.run.found, self.run.source.mend
        assert mend is not None
        plan = plan_of(asked, settings=found.settings, details=found.details)
        mended = mend(self.run.text, found, plan)
        _require_read_back(self.run, mended, asked.layout)
        return _Edit(asked=asked, mended=mended)

    def _fastest(self, held: Mapping[str, list[int | str]]) -> _Edit | None:
        """Return the fastest layout that fits, under pins, and that the file can say."""
        mine = self.run.found.layout.get("sharding", "none")
        known = self.run.source.shardings
        allowed = [mine, *known] if mine in known else [mine]
        form = self.run.found.layout.get("optimizer", "adam")
        pins = {
            "sharding": list(dict.fromkeys(allowed)),
            "optimizer": [form],  # another trains other numbers
            **held,
            **self.problem.request.pins,
        }
        request = self.problem.request.model_copy(
            update={"pins": pins, "top": _MOST_PLANS, "fastest": True}
        )
        try:
            plans = fitting_plans(replace(self.problem, request=request))
        except ConfigError:  # no layout keeps the rules under these pins
            return None
        for plan in plans:
            asked = Asked(layout=plan.layout, problem=self.problem)
            if plan.fits == "at risk":
                self._risky.append(asked)
            if plan.fits != "yes":
                continue
            try:
                return self.written(asked)
            except ConfigError as error:
                self._unwritten = self._unwritten or error
        return None


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


_AXES = (
    *("tp", "pp", "vpp", "cp", "ep", "mbs", "gbs", "sharding", "recompute", "offload"),
    "optimizer",
)


def _require_read_back(run: Run, mended: Mended, layout: Layout) -> None:
    """Refuse an edit whose text does not read as the layout: nothing is written on trust."""
    again = import_text(mended.text, source=run.source, beside=run.found.beside).layout
    usual = Layout()
    for name in _AXES:
        if name == "gbs" and name not in again:
            continue  # the file leaves it to its program, and its own mend has looked
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
