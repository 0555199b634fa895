"""What is known of a run beyond its log: its batch, its chips, what its plan predicts, what it
costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.errors import ConfigError
from meshwright.logs import Report

__all__ = ["NO_FACTS", "RunFacts", "facts_of_plan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts of a run; None is not known."""

    model: str | None = None
    seq_len: int | None = None
    gbs: int | None = None
    chips: int | None = None
    total_steps: int | None = None
    step_s: float | None = None
    """As the plan predicts."""
    step_interval_s: tuple[float, float] | None = None
    """Of 80 %."""
    mfu: float | None = None
    """Predicted: full attention, recompute not counted."""
    tflops_per_gpu: float | None = None
    """Predicted, in the same count."""
    usd_per_chip_hour: float | None = None

    @property
    def tokens(self) -> int | None:
        """Of one step."""
        return None if self.seq_len is None or self.gbs is None else self.seq_len * self.gbs

    def seconds(self, report: Report) -> float | None:
        """Return a step's time, from a rate where the log says no time and the batch is known."""
        if self.seq_len is not None and self.gbs is not None and self.chips is not None:
            return report.seconds(seq_len=self.seq_len, gbs=self.gbs, num_chips=self.chips)
        return report.step_s if report.step_s is not None and 0 < report.step_s < math.inf else None


NO_FACTS = RunFacts()


def facts_of_plan(content: Mapping[str, Any], *, rank: int = 1, source: str = "plan") -> RunFacts:
    """Return the facts of the object that `meshwright plan --json` prints; ConfigError where it is
    none.

    Formula:  chips = tp * cp * pp * dp, or the used ones of several kinds; USD a chip and hour =
              3600 * tokens/s/GPU / tokens per dollar
    Units:    s, USD, TFLOPS.
    Source:   the contract of `plan --json`
    Checked:  tests/watch/test_status.py
    """
    try:
        request, plan = content["request"], content["plans"][rank - 1]
        layout = plan["layout"]
        chips = math.prod(layout[axis] for axis in ("tp", "cp", "pp", "dp"))
        if plan.get("chips"):
            chips = sum(kind["used"] for kind in plan["chips"])
        model = request["model"]
        rate = plan.get("provenance", {}).get("tokens_per_dollar")
        price = request.get("usd_per_hour")
        low_high = (plan.get("interval") or {}).get("step_s")
        return RunFacts(
            model=model if isinstance(model, str) else model.get("name"),
            seq_len=request["seq_len"],
            gbs=layout["gbs"],
            chips=chips,
            step_s=plan.get("step_s"),
            step_interval_s=None if not low_high else (low_high[0], low_high[1]),
            mfu=plan.get("mfu"),
            tflops_per_gpu=plan.get("tflops_per_gpu"),
            usd_per_chip_hour=(
                3600 * plan["tokens_per_s_per_gpu"] / rate if rate and price is None else price
            ),
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ConfigError(
            f"{source}: expected the object that `meshwright plan --json` prints, with a plan"
            f" #{rank}"
        ) from None
