"""A chip with what `meshwright profile` measured in place of shipped figures and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import chips, find_device
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Link
from meshwright.values.hardware.profile import Profile
from meshwright.values.hardware.profile_chip import measured_chip, profile_chip
from meshwright.values.hardware.profile_tables import (
    merged_tables,
    profile_tables,
    shipped_tables,
    times_of_origin,
)
from meshwright.values.hardware.tables import Origin

__all__ = ["profiled_chip", "same_chip", "stretched_chip", "stretched_link", "with_measured_link"]

_FIGURES = (
    "matmul_efficiency fp8_matmul_efficiency attention_forward_efficiency"
    " attention_backward_efficiency memory_efficiency launch_s ramp_s"
)
"""Fields of a chip that time hangs on and that a profile may give; `sustained_share` scales
measured times and is no time itself."""


def same_chip(profile: Profile, chip: Chip) -> bool:
    """Whether a profile was measured on this chip, by its name; a cluster file's own may be any."""
    found = _known(profile)
    its_own = all(chip.name != known.name for known in chips())
    return its_own or (found is not None and chip.name == found.name)


def _known(profile: Profile) -> Chip | None:
    """The catalogue's chip that a profile was measured on."""
    machine = profile.machine
    return find_device(machine.device_name) if machine.device != "cpu" else None


def profiled_chip(profile: Profile, base: Chip | None) -> Chip:
    """Return the chip with the profile's figures and tables; without a base, a chip that rests on
    the profile alone. ConfigError for a profile of another chip, or of more than it can do."""
    if base is not None and not same_chip(profile, base):
        raise ConfigError(
            f"profile of {_device_words(profile)}, cluster of {base.name}: {_remedy(profile)}"
        )
    plain = _known(profile) if base is None else base
    chip = measured_chip(profile) if plain is None else profile_chip(profile, plain)
    before = plain or Chip(
        name="", vendor="", nominal_bytes=1.0, usable_bytes=1.0, memory_bytes_per_s=1.0
    )
    figures = _FIGURES.split()
    moved = frozenset(name for name in figures if getattr(chip, name) != getattr(before, name))
    return replace(
        chip, tables=merged_tables(profile_tables(profile), plain or chip, measured=moved)
    )


def _device_words(profile: Profile) -> str:
    name, found = profile.machine.device_name, _known(profile)
    return name if found is None or found.name in name.lower() else f"{name} ({found.name})"


def _remedy(profile: Profile) -> str:
    found = _known(profile)
    if found is None:
        return (
            "the catalogue has no such chip; --cluster local plans for the one of the profile,"
            " local:16 for 16 of them"
        )
    return f"name that chip (--cluster {found.name}:COUNT), or measure there"


def with_measured_link(chip: Chip, link: str) -> Chip:
    """Return the chip with a link of its node (`domain_link`, ...) noted as measured."""
    assert chip.tables is not None
    return replace(chip, tables=replace(chip.tables, measured=chip.tables.measured | {link}))


def stretched_chip(chip: Chip, origin: Origin, factor: float, *, beyond: float = 1.0) -> Chip:
    """Return the chip with every time of one origin multiplied: tables, and for `profile` the
    figures that were measured with them. `beyond` does so once more outside the shapes."""
    tables = shipped_tables(chip) if chip.tables is None else chip.tables
    if tables is None:
        return chip
    figures = tables.measured & set(_FIGURES.split()) if origin == "profile" else frozenset()
    changes: dict[str, Any] = {name: _slower(name, getattr(chip, name), factor) for name in figures}
    return replace(chip, tables=times_of_origin(tables, origin, factor, beyond=beyond), **changes)


def _slower(name: str, value: float, factor: float) -> float:
    return value * factor if name.endswith("_s") else value / factor


def stretched_link(link: Link, factor: float) -> Link:
    """Return the link with every time multiplied."""
    return replace(
        link,
        efficiency=link.efficiency / factor,
        latency_s=link.latency_s * factor,
        setup_s=link.setup_s * factor,
    )
