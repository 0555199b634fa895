"""A deployment that was chosen of a serving plan, read from what `meshwright serving plan --json`
prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from meshwright.errors import ConfigError
from meshwright.exports.engines.served import ServedWorker
from meshwright.models.spec import ModelSpec
from meshwright.search.problem import model_of
from meshwright.serving.deployment import Worker
from meshwright.serving.engine import Engine, find_engine
from meshwright.serving.quantisation import Cache, Weights

__all__ = ["ChosenPart", "Role", "ServingChoice", "read_choice"]

Role = Literal["both", "prefill", "decode"]
"""Prompts and answers on the same chips, or on pools of their own."""
_ROLES: Mapping[str, Role] = {
    "prompts and answers": "both",
    "prompts": "prefill",
    "answers": "decode",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPart:
    """Workers of one kind."""

    role: Role
    chip: str
    vendor: str
    gpus_per_node: int
    worker: Worker
    count: int
    max_sequences: int
    """On one attention rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingChoice:
    """One deployment of a plan."""

    model: ModelSpec
    engine: Engine
    mode: str
    weights: Weights
    cache: Cache
    max_len: int
    parts: tuple[ChosenPart, ...]
    drafted: int | None
    """Tokens drafted ahead; None: none."""

    def served(self, part: ChosenPart, *, path: str, port: str = "8000") -> ServedWorker:
        """Return what an engine's command says of one worker of a part."""
        return ServedWorker(
            model=self.model,
            path=path,
            engine=self.engine,
            worker=part.worker,
            weights=self.weights,
            cache=self.cache,
            max_len=self.max_len,
            max_sequences=part.max_sequences,
            drafted=self.drafted,
            port=port,
        )


def read_choice(content: Mapping[str, Any], *, rank: int, what: str) -> ServingChoice:
    """Read the plan of a rank; ConfigError names what is missing of the file `what`."""
    try:
        request, plans = content["request"], content["plans"]
        found = next((plan for plan in plans if plan["rank"] == rank), None)
        if found is None:
            raise ConfigError(
                f"{what}: has plans 1 to {len(plans)}, and none of rank {rank}"
                if plans
                else f"{what}: holds no plan"
            )
        engine = find_engine(request["engine"])
        return ServingChoice(
            model=model_of(request["dims"]),
            engine=engine,
            mode=found["mode"],
            weights=found["weights"],
            cache=found["cache"],
            max_len=int(request["input_len"]) + int(request["output_len"]),
            parts=tuple(_part(part, found, request, engine) for part in found["parts"]),
            drafted=request["drafted"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{what}: no plan of serving, as `meshwright serving plan --json` prints it ({error!r})"
        ) from None


def _part(
    part: Mapping[str, Any], plan: Mapping[str, Any], request: Mapping[str, Any], engine: Engine
) -> ChosenPart:
    """Requests at once are those of the planned load; workers for prompts take as many as the
    engine does by default."""
    role, worker = _ROLES[part["role"]], Worker(**part["layout"])
    node = request["nodes"][part["chip"]]
    count = int(part["workers"])
    running = (
        plan["concurrency"] / (count * worker.attention_dp)
        if role == "both"
        else part["running_per_rank"]
    )
    return ChosenPart(
        role=role,
        chip=part["chip"],
        vendor=node["vendor"],
        gpus_per_node=int(node["gpus_per_node"]),
        worker=worker,
        count=count,
        max_sequences=engine.max_sequences if role == "prefill" else max(1, ceil(running)),
    )
