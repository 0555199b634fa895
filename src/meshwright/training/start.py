"""From a problem to a training: the layout that is trained, and its plan as plan.json keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.errors import CannotExpress, LayoutError, MeshwrightError
from meshwright.hardware.profile import Profile
from meshwright.report.explain_json import quote_record
from meshwright.search.asked import Asked, ask
from meshwright.search.plan import search_problem
from meshwright.search.problem import Problem
from meshwright.search.quote import quotes
from meshwright.search.requote import requote, setting_of
from meshwright.search.result import PlanResult
from meshwright.training.folder import read_folder, train_id_of
from meshwright.training.prepare import Prepared, prepare
from meshwright.training.request import TrainRequest

__all__ = ["NothingFits", "Start", "begin"]

_TRIED = 20
"""Plans that the software is asked about, best first."""


class NothingFits(MeshwrightError):
    """No layout fits, or the software runs none of the best; the search's result says why."""

    def __init__(self, result: PlanResult, words: str) -> None:
        """Keep the result."""
        super().__init__(words)
        self.result = result


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A training before its next job."""

    prepared: Prepared
    plan: dict[str, Any]
    """One plan, as `plan --json` prints it."""
    train_id: str
    """It is part of the names of its jobs."""
    machine: Profile | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know of the choice."""


def begin(
    request: TrainRequest,
    *,
    folder: Path,
    problem: Problem,
    machine: Profile | None,
    layout: Mapping[str, Any] | None = None,
) -> Start:
    """Return the training of a folder, or a new one, of the given layout or of the best that its
    software runs."""
    there = read_folder(folder)
    if there is not None:
        there.check(request)
        return _of_plan(request, folder, problem, machine, there.plan)
    if layout is not None:
        return _of_plan(request, folder, problem, machine, _priced(ask(layout, problem)))
    result = search_problem(problem)
    if not result.plans:
        raise NothingFits(result, "no layout fits")
    refused: list[str] = []
    for plan in result.plans[:_TRIED]:
        record = {**result.to_dict(), "plans": [plan.to_dict()]}
        try:
            start = _of_plan(request, folder, problem, machine, record)
        except (CannotExpress, LayoutError) as error:
            refused.append(f"plan #{plan.rank} ({plan.layout.words()}) was passed over: {error}")
            continue
        return replace(start, notes=tuple(refused))
    raise NothingFits(
        result, f"{request.software} runs none of the best {len(refused)}; the first: {refused[0]}"
    )


def _of_plan(
    request: TrainRequest,
    folder: Path,
    problem: Problem,
    machine: Profile | None,
    plan: dict[str, Any],
) -> Start:
    record = plan["plans"][0]
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in record["layout"].items()
    }
    layout = ask(given, problem).layout
    there = read_folder(folder)
    return Start(
        prepared=prepare(request, folder=folder, problem=problem, layout=layout, record=record),
        plan=plan,
        train_id=train_id_of(folder, request) if there is None else there.train_id,
        machine=machine,
    )


def _priced(asked: Asked) -> dict[str, Any]:
    """Return the plan of a layout that nobody searched for."""
    [quote] = requote(quotes([asked.layout], setting_of(asked.problem)), asked.problem)
    record = {"rank": 1, **quote_record(quote, setting_of(asked.problem))}
    return {
        "request": asked.problem.request.to_dict(),
        "plans": [record],
        "rejected": {},
        "search": {"layouts": 1, "exhaustive": False},
    }
