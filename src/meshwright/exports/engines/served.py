"""One worker of a deployment as an engine is to run it, before it is written in an engine's
words."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import ConfigError
from meshwright.models.spec import ModelSpec
from meshwright.serving.deployment import Worker, check_worker
from meshwright.serving.engine import Engine
from meshwright.serving.quantisation import Cache, Weights

__all__ = ["ServedWorker"]


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
