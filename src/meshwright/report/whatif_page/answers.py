"""What the page asks, and its answers as plain objects: the figures that commands print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from meshwright.report.charts.machine import draw_machine
from meshwright.report.charts.timeline import draw_timeline
from meshwright.report.explain_json import rival_record
from meshwright.report.parts.computed import mixed_timeline_info, timeline_info
from meshwright.report.parts.machine import machine_info, mixed_machine_info
from meshwright.report.whatif_page.follow import follow
from meshwright.report.whatif_page.priced import Priced, facts_of, mixed_record
from meshwright.report.whatif_page.state import WhatIf, query_of
from meshwright.search.axes import nearest_valid
from meshwright.search.diff import compare
from meshwright.search.explain import rivals_of
from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.plan import search_problem
from meshwright.search.problem import Asked, Files, Problem, ask, resolve
from meshwright.search.quote import quotes
from meshwright.search.quote_record import figures_record
from meshwright.search.refine import requote, setting_of
from meshwright.search.request import PlanRequest
from meshwright.search.result import PlanResult
from meshwright.serving.search import plan as plan_serving
from meshwright.software.contract import export_plan
from meshwright.software.plan import plan_of
from meshwright.software.registry import find_target
from meshwright.values.errors import ConfigError, LayoutError, MeshwrightError
from meshwright.values.layout import parse_layout

__all__ = ["Answers"]

_KEPT = 64
"""Requests whose names stay looked up."""
_KEPT_FOUND = 8
"""Answers of searches over several kinds of chips, which the figures and the pictures share."""


class Answers:
    """Answers under the user's own calibration and profile, where there are any."""

    def __init__(
        self,
        files: Files | None = None,
        *,
        calibration: str | None = None,
        profile: str | None = None,
        compared: Callable[[WhatIf], dict[str, Any]] | None = None,
    ) -> None:
        """`compared` answers for several clusters: that stands above the rooms read here."""
        self._files = files or Files()
        self._named = {
            name: value
            for name, value in (("calibration", calibration), ("profile", profile))
            if value is not None
        }
        self._resolve = lru_cache(maxsize=_KEPT)(
            lambda text: resolve(PlanRequest.model_validate_json(text), files=self._files)
        )
        self._found = lru_cache(maxsize=_KEPT_FOUND)(
            lambda text: search_mixed_plans(PlanRequest.model_validate_json(text))
        )
        self._compared = compared

    def price(
        self, state: WhatIf, *, moved: str | None = None, was: int | None = None
    ) -> dict[str, Any]:
        """Return time, memory, cost and what binds one layout; `broken` where it breaks a rule,
        with the nearest values that do not.

        Where `moved` names what was changed, from `was`, other values follow until every rule is
        kept; the answer has their `query`, and in `followed` what changed, in words.
        """
        if state.is_mixed:
            return self._price_mixed(state)
        if moved is None:
            return self._price(state)
        try:
            found = self._price(state)
        except MeshwrightError:
            found = {"broken": "it can't be priced"}
        if found["broken"] is None:
            return {**found, "query": query_of(state), "followed": []}
        other = follow(state, moved=moved, was=was, problem_of=self._problem)
        if other is None:
            return self._price(state)
        changes = list(other.changes)
        return {**self._price(other.state), "query": query_of(other.state), "followed": changes}

    def _price(self, state: WhatIf) -> dict[str, Any]:
        problem = self._problem(state)
        try:
            asked = ask(state.layout, problem)
        except LayoutError as error:
            mends = nearest_valid(parse_layout(state.layout), problem)
            return {
                "broken": str(error),
                "mends": [{"axis": mend.axis, "value": mend.value} for mend in mends],
                **facts_of(problem),
            }
        problem = asked.problem
        setting = setting_of(problem)
        [quote] = requote(quotes([asked.layout], setting), problem)
        found = Priced(state=state, problem=problem, quote=quote)
        return {"broken": None, **figures_record(quote, setting), **found.record()}

    def _price_mixed(self, state: WhatIf) -> dict[str, Any]:
        """The best plan over several kinds of chips: no layout of theirs is set by hand."""
        result = self._mixed(state)
        if not result.plans:
            return {"broken": "Nothing fits these chips.", "mends": [], "rejected": result.rejected}
        return mixed_record(result, state)

    def near(self, state: WhatIf) -> dict[str, Any]:
        """Return the layouts that differ in one axis, as `explain --json` has them, in words."""
        asked = self._asked(state)
        found = rivals_of(asked.layout, asked.problem)
        rivals = [
            {
                **rival_record(rival),
                "words": None if rival.layout is None else rival.layout.words(),
            }
            for rival in found.rivals
        ]
        return {"step_s": found.quote.step_s, "binding": found.binding, "rivals": rivals}

    def pictures(self, state: WhatIf, *, wide: int) -> dict[str, Any]:
        """Return the machine map and the pipeline as drawings so many pixels wide; a sentence where
        there is no pipeline."""
        if state.is_mixed:
            mixed = resolve_mixed(state.request)
            best = self._mixed(state).to_dict()["plans"][0]
            found = mixed_machine_info(best, mixed), mixed_timeline_info(best, mixed)
        else:
            asked = self._asked(state)
            setting = setting_of(asked.problem)
            [quote] = requote(quotes([asked.layout], setting), asked.problem)
            record = figures_record(quote, setting)
            found = machine_info(record, asked.problem), timeline_info(record, asked.problem)
        machine, pipeline = found
        return {
            "machine": draw_machine(machine, wide),
            "pipeline": pipeline if isinstance(pipeline, str) else draw_timeline(pipeline, wide),
        }

    def plan(self, state: WhatIf) -> dict[str, Any]:
        """Return what `plan --json` prints for the same model, cluster and batch."""
        result = self._mixed(state) if state.is_mixed else search_problem(self._problem(state))
        words = [plan.layout.words() for plan in result.plans]
        return {**result.to_dict(), "words": words, "notes": list(result.notes)}

    def serve(self, state: WhatIf) -> dict[str, Any]:
        """Return what `serving plan --json` prints: deployments, the best first."""
        found = plan_serving(
            model=state.model,
            cluster=state.cluster,
            input_len=state.input,
            output_len=state.output,
            ttft_s=state.ttft,
            tpot_s=state.tpot,
            usd_per_chip_hour=state.usd,
        )
        return found.to_dict()

    def compare(self, state: WhatIf) -> dict[str, Any]:
        """Return what `compare --json` prints: each cluster with its own best plan."""
        if not state.tokens:
            raise ConfigError("tokens: say how many the training reads, such as 2T")
        if self._compared is None:
            raise ConfigError("this page was made without the comparison of clusters")
        return self._compared(state)

    def export(self, state: WhatIf, *, to: str) -> dict[str, Any]:
        """Return the files of a layout in the words of a training software."""
        return export_plan(
            plan_of(self._asked(state), settings=None, details=None), target=find_target(to)
        ).to_dict()

    def difference(self, state: WhatIf, other: WhatIf) -> dict[str, Any]:
        """Return what a run of one plan has to do to go on as the other."""
        sides = [_fields(self._asked(one)) for one in (state, other)]
        found = compare(
            sides[0],
            sides[1],
            has_experts=any(
                self._problem(one).setting.model.moe is not None for one in (state, other)
            ),
        )
        rows = [
            {
                "field": row.field,
                "a": _text(row.a),
                "b": _text(row.b),
                "meaning": "; ".join(m.reason for m in row.meanings),
            }
            for row in found.differences
        ]
        return {"differences": rows, "labels": list(found.labels), "notes": list(found.notes)}

    def _mixed(self, state: WhatIf) -> PlanResult:
        if self._named:
            names = " and ".join(self._named)
            raise ConfigError(f"{names}: fitted on one kind of chip; start the page without")
        return self._found(state.request.model_dump_json())

    def _problem(self, state: WhatIf) -> Problem:
        return self._resolve(state.request.model_copy(update=self._named).model_dump_json())

    def _asked(self, state: WhatIf) -> Asked:
        return ask(state.layout, self._problem(state))


def _fields(asked: Asked) -> dict[str, Any]:
    return {field.name: getattr(asked.layout, field.name) for field in fields(asked.layout)}


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
