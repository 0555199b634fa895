"""What a user says to a launcher's executor beyond the jobs themselves."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import ConfigError

__all__ = ["LocalOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOptions:
    """This machine."""

    devices: tuple[int, ...] | None = None
    """GPUs that runs may use, by their numbers; () for none, when processes get a core each. None: those of CUDA_VISIBLE_DEVICES, else
    all that nvidia-smi lists."""
    cores: int | None = None
    """Cores that runs on processors may use, one for each process; None: all that this process may."""
    stop_grace_s: float = 10.0
    """Time between asking a job to end and killing it."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.cores is not None and self.cores < 1:
            raise ConfigError(f"cores={self.cores}: expected 1 or more")
        if self.stop_grace_s < 0:
            raise ConfigError(f"stop_grace_s={self.stop_grace_s}: expected seconds, 0 or more")
