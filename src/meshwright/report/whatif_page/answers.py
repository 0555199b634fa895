"""What the page asks, and its answers as plain objects: the figures that commands print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlencode

from meshwright.report.explain_json import explanation_record
from meshwright.search.axes import nearest_valid
from meshwright.search.diff import compare
from meshwright.search.explain import cost_words, explain
from meshwright.search.plan import search_problem
from meshwright.search.problem import (
    Asked,
    Files,
    Problem,
    ask,
    resolve,
)
from meshwright.search.quote import Quote, quotes
from meshwright.search.quote_record import (
    figures_record,
)
from meshwright.search.refine import requote, setting_of
from meshwright.search.request import PlanRequest
from meshwright.search.rules.software import stack_rules
from meshwright.search.titles import (
    MEMORY_READINGS,
    TIME_READINGS,
    bound_words,
)
from meshwright.software.contract import export_plan
from meshwright.software.plan import plan_of
from meshwright.software.registry import TARGETS, find_target
from meshwright.values.errors import ConfigError, LayoutError, UnknownNameError
from meshwright.values.hardware.catalogue import chip_rows
from meshwright.values.layout import SHARDINGS, parse_layout
from meshwright.values.models.params import model_params, models_info
from meshwright.values.stack import find_stack, stack_names
from meshwright.values.units import DAY_S, GIB, format_count, parse_count
from meshwright.values.workload import PRECISIONS

__all__ = ["DEFAULTS", "Answers", "WhatIf", "choices_record", "query_of", "read_state"]

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]+")
_MOST_WORDS = 2000
"""Letters of one value; the longest honest one names the layers of some hundred stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """One plan that somebody looks at; a value per word of the address."""

    model: str = "llama3-70b"
    cluster: str = "h100:256"
    seq: int = 8192
    gbs: int = 512
    precision: str = "bf16"
    stack: str = "megatron"
    layout: str = "tp=8,pp=4,mbs=1"
    """As `--layout`; dp follows from the chips."""
    tokens: str = ""
    """Of a whole training, for days and cost; empty asks nothing."""
    usd: float | None = None
    """A chip's hour; None is the catalogue's price."""

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.cluster):
            raise ConfigError(
                f"cluster={self.cluster!r}: the page takes one kind of chip and its count, such as"
                " h100:256"
            )
        if not parse_layout(self.layout):
            raise ConfigError("layout: expected key=value words such as tp=8,pp=4,mbs=1")
        if self.tokens:
            parse_count(self.tokens, name="tokens")

    @property
    def request(self) -> PlanRequest:
        """What `meshwright plan` would be asked."""
        fields = {
            "model": self.model,
            "cluster": self.cluster,
            "seq_len": self.seq,
            "gbs": self.gbs,
        }
        price = {} if self.usd is None else {"usd_per_hour": self.usd}
        return PlanRequest.of({**fields, "precision": self.precision, "stack": self.stack, **price})


DEFAULTS = WhatIf()
_KINDS: Mapping[str, type] = {"seq": int, "gbs": int, "usd": float}


def read_state(words: Mapping[str, str]) -> WhatIf:
    """Return what an address asks; ConfigError for a word that is unknown or has no such value."""
    names = list(WhatIf.__dataclass_fields__)
    given: dict[str, Any] = {}
    for name, word in words.items():
        if name not in names:
            raise UnknownNameError("word of the address", name, names)
        if len(word) > _MOST_WORDS:
            raise ConfigError(f"{name}: {len(word)} letters; at most {_MOST_WORDS} are read")
        kind = _KINDS.get(name, str)
        text = (
            word.strip().replace(" ", "+") if name == "layout" else word
        )  # of `3+5`, as it was typed, an address makes `3 5`
        if text == "" and name != "tokens":
            continue
        try:
            given[name] = kind(text)
        except ValueError:
            raise ConfigError(
                f"{name}={text!r}: expected a {'whole number' if kind is int else 'number'}"
            ) from None
    return WhatIf(**given)


def query_of(state: WhatIf) -> str:
    """Return the address of a state, without what is as by default."""
    values = {name: getattr(state, name) for name in WhatIf.__dataclass_fields__}
    return urlencode(
        {name: value for name, value in values.items() if value != getattr(DEFAULTS, name)},
        safe=":,=",
    )


_STEPS: dict[str, tuple[int, ...]] = {
    "gpus": tuple(sorted({*(2**n for n in range(18)), *(3 * 2**n for n in range(5, 17))})),
    "seq": (512, *(1024 * 2**n for n in range(11))),
    "gbs": tuple(2**n for n in range(15)),
    "tp": (1, 2, 4, 8, 16, 32, 64),
    "pp": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 64),
    "vpp": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20),
    "cp": (1, 2, 4, 8, 16, 32, 64),
    "ep": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "mbs": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64),
}
"""Where the sliders stop; the fields beside them take any number."""


@cache
def choices_record() -> dict[str, Any]:
    """Return everything that does not depend on what was chosen."""
    return {
        "models": [
            {
                "name": row.name,
                "params": row.params,
                "layers": row.num_layers,
                "moe": row.active_params < row.params,
            }
            for row in models_info()
        ],
        "chips": [
            {
                "name": row.chip.name,
                "usable_gib": row.chip.usable_bytes / 2**30,
                "precisions": list(row.chip.precisions),
            }
            for row in chip_rows()
        ],
        "stacks": [
            {
                "name": name,
                "recompute_modules": list(stack_rules(find_stack(name)).recompute_modules),
            }
            for name in stack_names()
        ],
        "precisions": list(PRECISIONS),
        "shardings": list(SHARDINGS),
        "targets": [{"name": target.name, "stacks": list(target.stacks)} for target in TARGETS],
        "steps": {name: list(steps) for name, steps in _STEPS.items()},
        "time_terms": {
            term: {"title": reading.title, "what": reading.what}
            for term, reading in TIME_READINGS.items()
        },
        "memory_terms": {
            term: {"title": reading.title, "what": reading.what}
            for term, reading in MEMORY_READINGS.items()
        },
        "defaults": asdict(DEFAULTS),
    }


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
        problem = asked.problem
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
        found = explain(asked.layout, asked.problem, depth="constants")
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
        """Dollars of a step, a billion tokens, and a whole training if its tokens are given."""
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
