"""What a study may cost: hours of one chip, dollars, or runs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.values.errors import ConfigError

__all__ = ["BUDGET_FORMS", "Budget", "read_budget"]

BUDGET_FORMS = "50gpuh|$200|6runs"
Unit = Literal["gpuh", "usd", "runs"]
_WORDS: dict[str, Unit] = {
    **dict.fromkeys(("gpuh", "gpuhour", "gpuhours"), "gpuh"),
    **dict.fromkeys(("$", "usd", "dollar", "dollars"), "usd"),
    **dict.fromkeys(("run", "runs"), "runs"),
}
_FORM = re.compile(r"(?P<before>\$)?(?P<amount>[0-9][0-9_,]*\.?[0-9]*|\.[0-9]+)(?P<after>.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """An amount that a study never passes."""

    amount: float
    unit: Unit

    def __post_init__(self) -> None:
        """Check both."""
        if self.unit not in get_args(Unit):
            raise ConfigError(f"budget in {self.unit}: expected {', '.join(get_args(Unit))}")
        if not 0 < self.amount < math.inf:
            raise ConfigError(f"budget={self}: expected a positive amount")
        if self.unit == "runs" and self.amount != int(self.amount):
            raise ConfigError(f"budget={self}: expected a whole number of runs")

    def gpu_hours(self, usd_per_hour: float | None) -> float:
        """Return the hours of one chip that it pays, at a chip's price; infinite for runs,
        ConfigError for dollars without a price."""
        if self.unit == "runs":
            return math.inf
        if self.unit == "gpuh":
            return self.amount
        if not usd_per_hour:
            raise ConfigError(
                f"budget={self}: no price of these chips is known; give --usd-per-hour, or a"
                " budget in GPU-hours such as 50gpuh"
            )
        return self.amount / usd_per_hour

    def __str__(self) -> str:
        if self.unit == "usd":
            return f"${self.amount:g}"
        return f"{self.amount:g}{self.unit}"


def read_budget(text: str) -> Budget:
    """Read `50gpuh`, `$200` or `6runs`; ConfigError for anything else."""
    found = _FORM.fullmatch(text.strip())
    if found is not None:
        after = re.sub(r"[\s-]", "", found["after"].lower())
        unit = _WORDS.get(after or (found["before"] or ""))
        if unit is not None and (found["before"] is None or unit == "usd"):
            amount = float(re.sub("[_,]", "", found["amount"]))
            return Budget(amount=amount, unit=unit)
    raise ConfigError(
        f"budget={text}: expected GPU-hours, dollars or runs, as {BUDGET_FORMS.replace('|', ', ')}"
        " (in a shell '$200' needs its quotes)"
    )
