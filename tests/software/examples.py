"""Plans that several tests of exports look at."""

from __future__ import annotations

from typing import Any

from meshwright.search.problem import ask, resolve
from meshwright.search.request import PlanRequest
from meshwright.software.plan import TrainingPlan, plan_of

_USUAL = {"seq_len": 8192, "gbs": 128, "stack": "megatron"}


def training_plan(
    model: Any = "llama3-8b",
    cluster: str = "h100:64",
    layout: str = "tp=2,pp=2,mbs=1",
    **given: Any,
) -> TrainingPlan:
    """Return a plan, for Megatron-Core where nothing else is asked; what is no field of a request
    is one of the plan (settings, details)."""
    parts = {key: given.pop(key) for key in ("settings", "details") if key in given}
    problem = resolve(PlanRequest.of({**_USUAL, **given, "model": model, "cluster": cluster}))
    return plan_of(ask(layout, problem), **parts)
