"""A price as the page shows it: stages, terms, cost, and the command that prints the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.report.whatif_page.state import DEFAULTS, WhatIf
from meshwright.search.explain import cost_words
from meshwright.search.problem import Problem
from meshwright.search.quote import Quote
from meshwright.search.refine import setting_of
from meshwright.search.result import PlanResult
from meshwright.search.titles import TIME_READINGS, bound_words
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import model_params
from meshwright.values.units import DAY_S, GIB, format_count, parse_count

__all__ = ["Priced", "facts_of", "mixed_record"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """One layout with its price, in the words of the page."""

    state: WhatIf
    problem: Problem
    quote: Quote

    def record(self) -> dict[str, Any]:
        """Everything beside the figures themselves."""
        setting = setting_of(self.problem)
        return {
            **facts_of(self.problem),
            "words": self.quote.layout.words(),
            "pipeline": self.quote.pipeline,
            "micro_batches": self.quote.layout.num_microbatches,
            "stages": self.stages(),
            "terms": self.terms(),
            "binding": cost_words(self.quote, setting),
            "cost": self.cost(),
            "command": self.command(),
        }

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
        layout, pool = self.quote.layout, self.problem.setting.pool
        return [
            {**row, "bound": bound_words(TIME_READINGS[row["term"]].bound, layout, pool)}
            for row in _terms_of(self.quote.time_s, self.quote.step_s)
        ]

    def cost(self) -> dict[str, Any]:
        """Dollars of a step, a billion tokens, and a whole training if its tokens are given."""
        price = self.problem.usd_per_chip_s
        usd_per_s = None if price is None else price * self.problem.num_chips
        own = None if price is None else price * 3600
        return {"usd_per_hour": own, **_cost(usd_per_s, self.quote.step_s, self.state)}

    def command(self) -> str:
        """The command line that explains the same layout."""
        state = self.state
        words = _asked("explain", state)
        named = (
            ("precision", state.precision, DEFAULTS.precision),
            ("finetune", state.finetune, DEFAULTS.finetune),
        )
        own = "".join(f" --{name} {value}" for name, value, default in named if value != default)
        files = {name: getattr(self.problem.request, name) for name in ("calibration", "profile")}
        own += "".join(
            f" --{name} {shlex.quote(str(path))}"
            for name, path in files.items()
            if path is not None
        )
        return f"{words}{own} --layout {state.layout}"


def facts_of(problem: Problem) -> dict[str, Any]:
    """What the page says of the model and the cluster."""
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


def _asked(command: str, state: WhatIf) -> str:
    """A command line with the software, which the command would choose by the chip."""
    return (
        f"meshwright {command} {state.model} --cluster {state.cluster} --seq {state.seq} --gbs"
        f" {state.gbs} --stack {state.stack}"
    )


def _terms_of(time_s: Mapping[str, float], step_s: float) -> list[dict[str, Any]]:
    found = [
        {
            "term": term,
            "title": TIME_READINGS[term].title,
            "seconds": seconds,
            "share": seconds / step_s,
            "what": TIME_READINGS[term].what,
            "bound": "",
        }
        for term, seconds in time_s.items()
        if abs(seconds) > 1e-9 * step_s
    ]
    return sorted(found, key=lambda row: -row["seconds"])


def _cost(usd_per_s: float | None, step_s: float, state: WhatIf) -> dict[str, Any]:
    """Dollars of a step and what follows; None without a price."""
    step_tokens = state.gbs * state.seq
    usd = None if usd_per_s is None else usd_per_s * step_s
    found: dict[str, Any] = {
        "usd_per_step": usd,
        "usd_per_billion_tokens": None if usd is None else usd / step_tokens * 1e9,
        "training": None,
    }
    if state.tokens:
        steps = -(-parse_count(state.tokens, name="tokens") // step_tokens)
        found["training"] = {
            "steps": steps,
            "days": steps * step_s / DAY_S,
            "usd": None if usd is None else steps * usd,
        }
    return found


def mixed_record(result: PlanResult, state: WhatIf) -> dict[str, Any]:
    """Return the best plan over several kinds of chips in the shape of a price."""
    best = result.to_dict()["plans"][0]
    cluster, model = parse_cluster(state.cluster), named_model(state.model)
    counts = [pool.num_chips for pool in cluster.pools]
    rates = [pool.node.chip.usd_per_hour for pool in cluster.pools]
    priced = [rate * count for rate, count in zip(rates, counts, strict=True) if rate is not None]
    usd_per_s = sum(priced) / 3600 if len(priced) == len(rates) else None
    params = model_params(model)
    stages = [
        {**stage, "stage": i, "used_gib": used, "memory": {}}
        for i, (stage, used) in enumerate(zip(best["stages"], best["peak_memory_gib"], strict=True))
    ]
    usual = min(pool.node.chip.usable_bytes for pool in cluster.pools)
    return {
        **best,
        "broken": None,
        "is_mixed": True,
        "words": best["layout"],
        "micro_batches": best["layout"]["gbs"] // (best["layout"]["mbs"] * best["layout"]["dp"]),
        "stages": stages,
        "terms": _terms_of(best["time"], best["step_s"]),
        "binding": "Found by search over all kinds of chips: its stages lie on unlike chips.",
        "cost": {"usd_per_hour": None, **_cost(usd_per_s, best["step_s"], state)},
        "command": _asked("plan", state),
        "facts": {
            "params": format_count(params.total),
            "active_params": format_count(params.active),
            "layers": model.total_layers,
            "limit_gib": usual / GIB,
            "num_chips": sum(counts),
        },
    }
