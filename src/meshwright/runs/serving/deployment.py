"""A deployment that a study may run: one worker, with its types of weights and cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from meshwright.serving.engine import Cache, Weights, Worker

__all__ = ["Deployment", "deployment_of"]

DIGITS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One copy of the model; a cluster holds as many as its chips allow, and each serves as
    much."""

    worker: Worker
    weights: Weights
    cache: Cache

    @property
    def words(self) -> str:
        """`tp=2,weights=bf16,cache=bf16`."""
        return f"{self.worker.name},weights={self.weights},cache={self.cache}"

    @property
    def run_id(self) -> str:
        """`tp2-bf16-bf16-1f3a9c07`, the last part a digest of every field."""
        digest = hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[
            :DIGITS
        ]
        axes = self.worker.name.replace("attention_dp", "adp").replace("=", "").split(",")
        return "-".join([*axes, self.weights, self.cache, digest])

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {"worker": asdict(self.worker), "weights": self.weights, "cache": self.cache}


def deployment_of(content: Mapping[str, Any]) -> Deployment:
    """Read it back from plain types."""
    worker = Worker(**content["worker"])
    return Deployment(
        worker=worker,
        weights=cast("Weights", content["weights"]),
        cache=cast("Cache", content["cache"]),
    )
