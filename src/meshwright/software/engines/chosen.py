"""A deployment that was chosen of a serving plan, read from what `meshwright serving plan --json`
prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from meshwright.search.problem import model_of
from meshwright.serving.engine import Cache, Engine, Weights, Worker, check_worker, find_engine
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec

__all__ = ["SERVING_TARGETS", "ChosenPart", "Role", "ServedWorker", "ServingChoice", "read_choice"]

SERVING_TARGETS = ("vllm", "sglang", "trtllm", "k8s", "dynamo", "llm-d")
"""Names of everything that a serving plan can be written for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedWorker:
    """Everything that an engine's command says of one worker."""

    model: ModelSpec
    path: str
    """What the engine loads: a folder, or a name that it can fetch."""
    engine: Engine
    worker: Worker
    weights: Weights
    cache: Cache
    max_len: int
    """Tokens of the longest request, prompt and answer."""
    max_sequences: int
    """Requests that run at once on one attention rank."""
    drafted: int | None = None
    """Tokens that the model's own layers for multi-token prediction draft ahead; None: none."""
    port: str = "8000"
    extra: tuple[str, ...] = ()
    """The user's own words for the engine's command."""

    def __post_init__(self) -> None:
        """Check what every engine needs."""
        check_worker(self.worker, self.model)
        if not self.path.strip() or any(ord(letter) < 32 for letter in self.path):
            raise ConfigError(f"model path {self.path!r}: expected a folder or a name on one line")
        if self.max_len < 2:
            raise ConfigError(
                f"max_len={self.max_len}: expected a token of the prompt and one of the answer at"
                " least"
            )
        if self.drafted is not None and not self.model.mtp_layers:
            raise ConfigError(
                f"drafted={self.drafted}: {self.model.name} has no layers for multi-token"
                " prediction"
            )
        if self.max_sequences < 1:
            raise ConfigError(f"max_sequences={self.max_sequences}: expected 1 or more")


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
