"""A chip's facts from a profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.profile import Machine, Profile, Sample, Series

__all__ = ["Rates", "measured_chip", "measured_rates", "profile_chip", "profile_words"]

FLASH_BACKWARD_PRODUCTS = 2.5
"""Products of a fused attention's backward against its forward (arXiv:2307.08691, section 3.1)."""
LONG_SEQUENCE = 1024
"""Attention shorter than this is bound by its launch, unless nothing longer was measured."""
_HALF = ("bf16", "fp16")
_TOLERANCE = 1.02
"""Rates above the peak by less are rounding of the data sheet; by more, it is another chip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """The best that a device reached; None where it was not measured."""

    matmul_flops_per_s: dict[str, float]
    """Of the forward product, by precision."""
    attention_forward_flops_per_s: dict[str, float]
    """Causal, masked half not counted, by precision."""
    attention_backward_flops_per_s: dict[str, float]
    sustained_share: dict[str, float]
    """Rate of a product after seconds without a pause over that of a burst, at most 1."""
    memory_bytes_per_s: float | None
    """Read and written by long copies."""
    launch_s: float | None
    ramp_s: float | None


def measured_rates(profile: Profile) -> Rates:
    """Return the best rates of a profile.

    Formula:  products 2 m n k / s; causal attention 2 * head_dim * heads * seq**2 / s, backward 2.5
              times that; copies 2 * bytes / s
    Units:    FLOP/s, bytes/s, seconds.
    Source:   the profile; docs/profile.md says how each is measured.
    Valid:    shapes large enough to fill the device are among those measured.
    Checked:  tests/values/hardware/test_profile.py
    """
    return Rates(
        matmul_flops_per_s=_best(profile, "gemm", lambda point: 2.0 * prod(point)),
        attention_forward_flops_per_s=_best(profile, "attention", _causal_flops),
        attention_backward_flops_per_s=_best(
            profile,
            "attention_backward",
            lambda point: FLASH_BACKWARD_PRODUCTS * _causal_flops(point),
        ),
        sustained_share=_sustained_shares(profile),
        memory_bytes_per_s=_memory_rate(profile),
        launch_s=_typical(profile, "launch/host"),
        ramp_s=_typical(profile, "launch/device"),
    )


def profile_chip(profile: Profile, base: Chip) -> Chip:
    """Return the chip with what was measured in place of the catalogue's figures; the data sheet's
    peaks stay.

    Formula:  efficiency = best measured rate / peak. The sustained share is the lesser of the
              base's and the measured one, since seconds of load say less than hours
    Units:    as in Chip.
    Source:   the profile.
    Valid:    a base of the same kind as the device; ConfigError where a rate exceeds its peak.
    Checked:  tests/values/hardware/test_profile.py
    """
    rates, machine = measured_rates(profile), profile.machine
    peak = base.bf16_flops_per_s or base.fp16_flops_per_s
    shares = {
        "matmul_efficiency": (_half(rates.matmul_flops_per_s), peak),
        "fp8_matmul_efficiency": (rates.matmul_flops_per_s.get("fp8"), base.fp8_flops_per_s),
        "attention_forward_efficiency": (_half(rates.attention_forward_flops_per_s), peak),
        "attention_backward_efficiency": (_half(rates.attention_backward_flops_per_s), peak),
        "memory_efficiency": (rates.memory_bytes_per_s, base.memory_bytes_per_s),
    }
    changes: dict[str, Any] = {
        field: _share(field, rate=rate, peak=limit, base=base, machine=machine)
        for field, (rate, limit) in shares.items()
        if rate is not None and limit is not None
    }
    if rates.launch_s is not None:
        changes["launch_s"] = rates.launch_s
    if rates.ramp_s is not None:
        changes["ramp_s"] = rates.ramp_s
    sustained = _half(rates.sustained_share)
    if sustained is not None:
        changes["sustained_share"] = min(base.sustained_share, sustained)
    words = profile_words(machine)
    changes |= {"usable_bytes": machine.usable_bytes, "source": f"{words}; else {base.source}"}
    if "matmul_efficiency" in changes:
        changes["matmul_efficiency_source"] = words
    return replace(base, **changes)


def measured_chip(profile: Profile) -> Chip:
    """Return a chip that rests on the profile alone, for a device that the catalogue lacks: its
    peaks are the best rates reached.

    Formula:  peak = best measured rate, efficiencies against that
    Units:    as in Chip.
    Source:   the profile.
    Valid:    products and copies were measured; an MFU of such a chip is against what it reached,
              not against a data sheet.
    Checked:  tests/values/hardware/test_profile.py
    """
    rates, machine = measured_rates(profile), profile.machine
    if not rates.matmul_flops_per_s or rates.memory_bytes_per_s is None:
        raise ConfigError(
            f"the profile of {machine.device_name} lacks matrix products or copies; run `meshwright"
            " profile` to its end"
        )
    reached = rates.matmul_flops_per_s
    best = _half(reached) or max(reached.values())
    attention = {
        "attention_forward_efficiency": rates.attention_forward_flops_per_s,
        "attention_backward_efficiency": rates.attention_backward_flops_per_s,
    }
    figures: dict[str, Any] = {
        field: min(1.0, (_half(found) or max(found.values())) / best)
        for field, found in attention.items()
        if found
    }
    figures |= {f"{name}_flops_per_s": rate for name, rate in reached.items()}
    return Chip(
        name=machine.device_name,
        vendor="measured",
        generation=machine.device,
        nominal_bytes=machine.total_bytes,
        usable_bytes=machine.usable_bytes,
        memory_bytes_per_s=rates.memory_bytes_per_s,
        matmul_efficiency=1.0,
        matmul_efficiency_source=profile_words(machine),
        memory_efficiency=1.0,
        **figures,
        launch_s=rates.launch_s or 0.0,
        ramp_s=rates.ramp_s or 0.0,
        source=profile_words(machine),
    )


def profile_words(machine: Machine) -> str:
    """Name a profile: device, date, version of torch."""
    return (
        f"measured by meshwright profile on {machine.device_name}, {machine.date}, torch"
        f" {machine.torch_version}"
    )


def _share(field: str, *, rate: float, peak: float, base: Chip, machine: Machine) -> float:
    share = rate / peak
    if share > _TOLERANCE:
        raise ConfigError(
            f"the profile of {machine.device_name} reaches {share:.0%} of what {base.name} can do"
            f" at most ({field}): it was measured on another chip; name that one"
        )
    return min(share, 1.0)


def _half(rates: dict[str, float]) -> float | None:
    return next((rates[precision] for precision in _HALF if precision in rates), None)


def _causal_flops(point: tuple[float, ...]) -> float:
    """Two products of 2 FLOP per multiply-add, half the scores."""
    head_dim, _, heads, sequence = point
    return 2.0 * head_dim * heads * sequence**2


def _best(
    profile: Profile, family: str, work: Callable[[tuple[float, ...]], float]
) -> dict[str, float]:
    """The best rate of each precision of a family of series."""
    best = {}
    for precision, series in _of_family(profile, family):
        samples = series.measured
        if family.startswith("attention"):
            samples = tuple(s for s in samples if s.point[3] >= LONG_SEQUENCE) or samples
        if samples:
            best[precision] = max(work(sample.point) / _seconds(sample) for sample in samples)
    return best


def _of_family(profile: Profile, family: str) -> Iterator[tuple[str, Series]]:
    for series in profile.series:
        name, _, precision = series.name.partition("/")
        if name == family:
            yield precision, series


def _seconds(sample: Sample) -> float:
    assert sample.seconds is not None
    return sample.seconds


def _memory_rate(profile: Profile) -> float | None:
    series = profile.find("copy/device")
    samples = sorted(series.measured if series else (), key=lambda sample: sample.point)
    larger = samples[len(samples) // 2 :]  # what fits into a cache says nothing of memory
    return max((2.0 * one.point[0] / _seconds(one) for one in larger), default=None)


def _sustained_shares(profile: Profile) -> dict[str, float]:
    """By precision: time of a burst over time under load, of the same product."""
    shares = {}
    for precision, series in _of_family(profile, "gemm_sustained"):
        burst = profile.find(f"gemm/{precision}")
        times = {one.point: _seconds(one) for one in (burst.measured if burst else ())}
        known = [one for one in series.measured if one.point in times]
        found = [times[one.point] / _seconds(one) for one in known]
        if found:
            shares[precision] = min(1.0, *found)
    return shares


def _typical(profile: Profile, name: str) -> float | None:
    """Time per operation."""
    series = profile.find(name)
    times = [_seconds(one) / one.point[0] for one in (series.measured if series else ())]
    return median(times) if times else None
