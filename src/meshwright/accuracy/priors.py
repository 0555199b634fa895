"""How far factors usually lie from 1: the pull of a calibration towards the stack's constants."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["Priors", "read_priors"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Priors:
    """Standard deviations of logarithms."""

    widths: Mapping[str, float]
    """By factor, between studies."""
    step_time_noise: float
    """Of one run about its study."""
    peak_memory_noise: float


@cache
def read_priors() -> Priors:
    """Read `presets/calibration_priors.csv`, which scripts/fit_calibration_priors writes."""
    text = (
        resources.files("meshwright")
        .joinpath("presets", "calibration_priors.csv")
        .read_text(encoding="utf-8")
    )
    found = {line["name"]: float(line["width"]) for line in csv.DictReader(text.splitlines())}
    noise = {name: found.pop(name) for name in ("step_time_noise", "peak_memory_noise")}
    return Priors(widths=found, **noise)
