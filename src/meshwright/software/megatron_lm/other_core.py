"""A plan as the command line of the Megatron-LM that another software brings along."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported
from meshwright.software.megatron_lm.export import MEGATRON_LM
from meshwright.software.plan import TrainingPlan
from meshwright.values.errors import CannotExpress

__all__ = ["at_core"]


class _AtCore:
    """A plan as of another version of Megatron-Core; everything else is read from the plan
    itself."""

    def __init__(self, plan: TrainingPlan, core: str) -> None:
        self._plan = plan
        self._core = core

    @property
    def megatron_version(self) -> str:
        """Return the version that the software brings along."""
        return self._core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


def at_core(plan: TrainingPlan, *, core: str, name: str) -> Exported:
    """Return the command line by the words of a version; CannotExpress of the software `name` where
    it has none."""
    try:
        return MEGATRON_LM.write(_AtCore(plan, core))  # type: ignore[arg-type]  # stands in for it
    except CannotExpress as error:
        newer = error.nearest.startswith("megatron_version")
        nearest = "--to megatron-lm" if newer else error.nearest
        reason = f"{error.reason} (it runs core {core})"
        raise CannotExpress(name, reason, nearest=nearest) from None
