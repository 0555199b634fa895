"""What stands beside a file of a run: what its program takes from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.software.settings import ModelDetails
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec

__all__ = ["Beside"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What a reader knows of a run from elsewhere than its file."""

    model: ModelSpec | None = None
    """As it was named, or as the config.json of the file's weights says."""
    details: ModelDetails = field(default_factory=ModelDetails)
    seq_len: int | None = None
    """Tokens in one sequence, where they were given."""
    mbs: int | None = None
    """Sequences of a micro batch, where they were given."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text by name of the files that the file names, or that its program reads with it."""

    def model_of(self, weights: str | None, *, what: str) -> ModelSpec:
        """Return the shape of the run's model; ConfigError where nobody says it."""
        if self.model is not None:
            return self.model
        ask = "name it: --model llama3-8b or --hf config.json (`plan`: plan llama3-8b --from FILE)"
        if weights is None:
            raise ConfigError(f"{what}: the file does not say which model it trains; {ask}")
        try:
            return find_model(weights)
        except UnknownNameError:
            raise ConfigError(f"{what}: the shape of {weights} is not known here; {ask}") from None

    def length(self, given: Any, *, what: str) -> int:
        """Return the tokens in one sequence: as they were given, else as the file has them;
        ConfigError where neither says."""
        found = self.seq_len or given
        if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
            raise ConfigError(f"{what}: sequences of {found!r} tokens: expected a whole number")
        if found is None:
            raise ConfigError(f"{what}: the file does not say how long a sequence is; add --seq")
        return found
