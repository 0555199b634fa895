"""Answers of the page as plain objects; every figure is the one that the command of the same
question prints."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from meshwright.report.explain_json import explanation_record
from meshwright.report.whatif.state import DEFAULTS, WhatIf
from meshwright.search.asked import Asked, ask
from meshwright.search.axes import nearest_valid
from meshwright.search.diff import compare
from meshwright.search.explain import cost_words, explain
from meshwright.search.plan import search_problem
from meshwright.search.problem import Files, Problem, resolve
from meshwright.search.quote import Quote, quotes
from meshwright.search.request import PlanRequest
from meshwright.search.requote import figures_record, requote, setting_of
from meshwright.search.terms import TIME_READINGS, bound_words
from meshwright.software.contract import export_plan
from meshwright.software.plan import plan_of
from meshwright.software.registry import find_target
from meshwright.values.errors import LayoutError
from meshwright.values.layout import parse_layout
from meshwright.values.models.params import model_params
from meshwright.values.units import DAY_S, GIB, format_count, parse_count

__all__ = [
    "Answers",
]

_KEPT = 64
"""Requests whose names stay looked up."""


class Answers:
    """Answers under the user's own calibration and profile, where there are any."""

    def __init__(
        self,
        files: Files | None = None,
        *,
        calibration: str | None = None,
        profile: str | None = None,
    ) -> None:
        self._files = files or Files()
        self._named = {
            name: value
            for name, value in (("calibration", calibration), ("profile", profile))
            if value is not None
        }
        self._resolve = lru_cache(maxsize=_KEPT)(
            lambda text: resolve(PlanRequest.model_validate_json(text), files=self._files)
        )

    def price(self, state: WhatIf) -> dict[str, Any]:
        """Return time, memory, cost and what binds one layout; `broken` where it breaks a rule,
        with the nearest values that do not."""
        problem = self._problem(state)
        try:
            asked = ask(state.layout, problem)
        except LayoutError as error:
            mends = nearest_valid(parse_layout(state.layout), problem)
            return {
                "broken": str(error),
                "mends": [{"axis": mend.axis, "value": mend.value} for mend in mends],
                **_facts(problem),
            }
        setting = setting_of(problem)
        [quote] = requote(quotes([asked.layout], setting), problem)
        found = _Priced(state=state, problem=problem, quote=quote)
        return {
            "broken": None,
            **figures_record(quote, setting),
            **_facts(problem),
            "words": asked.layout.words(),
            "pipeline": quote.pipeline,
            "micro_batches": quote.layout.num_microbatches,
            "stages": found.stages(),
            "terms": found.terms(),
            "binding": cost_words(quote, setting),
            "cost": found.cost(),
            "command": found.command(),
        }

    def explain(self, state: WhatIf) -> dict[str, Any]:
        """Return what `explain --json` prints, with each neighbour in words."""
        asked = self._asked(state)
        found = explain(asked.layout, asked.problem)
        record = explanation_record(found, asked.problem.request)
        words = [None if rival.layout is None else rival.layout.words() for rival in found.rivals]
        return {
            **record,
            "rivals": [
                {**rival, "words": said}
                for rival, said in zip(record["rivals"], words, strict=True)
            ],
        }

    def plan(self, state: WhatIf) -> dict[str, Any]:
        """Return what `plan --json` prints for the same model, cluster and batch."""
        result = search_problem(self._problem(state))
        words = [plan.layout.words() for plan in result.plans]
        return {**result.to_dict(), "words": words, "notes": list(result.notes)}

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

    def _problem(self, state: WhatIf) -> Problem:
        return self._resolve(state.request.model_copy(update=self._named).model_dump_json())

    def _asked(self, state: WhatIf) -> Asked:
        return ask(state.layout, self._problem(state))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Priced:
    state: WhatIf
    problem: Problem
    quote: Quote

    def stages(self) -> list[dict[str, Any]]:
        """Memory of each stage by term."""
        return [
            {
                "stage": stage.stage,
                "layers": stage.num_layers,
                "used_gib": stage.used_bytes / GIB,
                "memory": {term: held / GIB for term, held in stage.memory_bytes.items()},
            }
            for stage in self.quote.stages
        ]

    def terms(self) -> list[dict[str, Any]]:
        """Terms of the step, largest first, each with what it waits for."""
        found = [
            {
                "term": term,
                "title": TIME_READINGS[term].title,
                "seconds": seconds,
                "share": seconds / self.quote.step_s,
                "what": TIME_READINGS[term].what,
                "bound": bound_words(
                    TIME_READINGS[term].bound, self.quote.layout, self.problem.setting.pool
                ),
            }
            for term, seconds in self.quote.time_s.items()
            if abs(seconds) > 1e-9 * self.quote.step_s
        ]
        return sorted(found, key=lambda row: -float(row["seconds"]))

    def cost(self) -> dict[str, Any]:
        """Dollars of a step and of a billion tokens; of a whole training where its tokens are
        given, steps alone."""
        price, chips, step_s = (
            self.problem.usd_per_chip_s,
            self.problem.num_chips,
            self.quote.step_s,
        )
        step_tokens = self.quote.layout.gbs * self.problem.setting.work.seq_len
        usd = None if price is None else price * chips * step_s
        found: dict[str, Any] = {
            "usd_per_hour": None if price is None else price * 3600,
            "usd_per_step": usd,
            "usd_per_billion_tokens": None if usd is None else usd / step_tokens * 1e9,
            "training": None,
        }
        if self.state.tokens:
            steps = -(-parse_count(self.state.tokens, name="tokens") // step_tokens)
            found["training"] = {
                "steps": steps,
                "days": steps * step_s / DAY_S,
                "usd": None if usd is None else steps * usd,
            }
        return found

    def command(self) -> str:
        """The command line that explains the same layout."""
        state = self.state
        words = (
            f"meshwright explain {state.model} --cluster {state.cluster} --seq {state.seq} --gbs"
            f" {state.gbs}"
        )
        named = (
            ("precision", state.precision, DEFAULTS.precision),
            ("stack", state.stack, DEFAULTS.stack),
        )
        own = "".join(f" --{name} {value}" for name, value, default in named if value != default)
        files = {name: getattr(self.problem.request, name) for name in ("calibration", "profile")}
        own += "".join(
            f" --{name} {shlex.quote(str(path))}"
            for name, path in files.items()
            if path is not None
        )
        return f"{words}{own} --layout {state.layout}"


def _facts(problem: Problem) -> dict[str, Any]:
    setting = problem.setting
    params = model_params(setting.model)
    facts = {
        "params": format_count(params.total),
        "active_params": format_count(params.active),
        "layers": setting.model.total_layers,
        "experts": setting.model.moe.num_experts if setting.model.moe is not None else 1,
        "chips_per_node": setting.pool.node.chips_per_node,
        "limit_gib": setting.limit_bytes / GIB,
        "headroom_gib": problem.headroom_bytes / GIB,
        "num_chips": problem.num_chips,
    }
    return {"facts": facts}


def _fields(asked: Asked) -> dict[str, Any]:
    return {field.name: getattr(asked.layout, field.name) for field in fields(asked.layout)}


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
