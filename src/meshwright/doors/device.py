"""What the strategy search of another tool knows of its GPUs: the device of this machine, or its
memory from the environment."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.hardware.catalogue import find_chip
from meshwright.units import GIB, MIB

__all__ = ["ASSUMED_CHIP", "Device", "device_of", "device_of_listing"]

MEMORY_VARIABLE = "DEVICE_MEMORY_GB"
ASSUMED_CHIP = "a100-80"
"""Where only a memory is known. Speed needs a chip; the tool with this variable was for PAI's A100
and A800 of that time."""
_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
_SECONDS = 20.0
"""nvidia-smi answers within a second; one that hangs is a broken driver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A chip by its name in the catalogue, and what one process may use of its memory."""

    chip: str
    max_memory_gib: float | None = None
    """None: all that the chip gives a process."""
    assumed: bool = False
    """Whether the chip was guessed."""


def device_of(*, chip: str | None, environment: Mapping[str, str]) -> Device:
    """Return the chip that is named, else this machine's, else an assumed one with the memory that
    the environment gives."""
    memory_gib = _memory_of(environment)
    if chip is not None:
        return _limited(chip, memory_gib, assumed=False)
    listing = _listing()
    if listing is not None:
        return device_of_listing(listing)
    if memory_gib is None:
        raise ConfigError(
            "no GPU was found here; name one by --chip, such as --chip h100, or set"
            f" {MEMORY_VARIABLE}"
        )
    return _limited(ASSUMED_CHIP, memory_gib, assumed=True)


def device_of_listing(listing: str) -> Device:
    """Read nvidia-smi's answer, one GPU a line: its name and its memory in MiB."""
    lines = {line.strip() for line in listing.splitlines() if line.strip()}
    if len(lines) != 1:
        raise ConfigError(f"nvidia-smi lists {len(lines)} kinds of GPU; name one by --chip")
    name, _, memory_mib = next(iter(lines)).rpartition(",")
    if not memory_mib.strip().isdecimal():
        raise ConfigError(f"nvidia-smi answered {listing.strip()!r}; name the GPU by --chip")
    try:
        return _limited(name.strip(), float(memory_mib) * MIB / GIB, assumed=False)
    except UnknownNameError as error:
        raise ConfigError(f"{error}; name one by --chip") from None


def _limited(name: str, memory_gib: float | None, *, assumed: bool) -> Device:
    """Return a chip with less memory than it has, where that is said; a process sees a little less
    than the size it is sold by."""
    chip = find_chip(name)
    if memory_gib is None:
        return Device(chip=chip.name)
    if memory_gib * GIB > chip.nominal_bytes * 1.01:
        guess = ", which is assumed," if assumed else ""
        size = f"{chip.nominal_bytes / GIB:g} GiB"
        raise ConfigError(
            f"{MEMORY_VARIABLE}={memory_gib:g}: the {chip.name}{guess} has {size}; name the chip by"
            " --chip"
        )
    limit = None if memory_gib * GIB >= chip.usable_bytes else memory_gib
    return Device(chip=chip.name, max_memory_gib=limit, assumed=assumed)


def _memory_of(environment: Mapping[str, str]) -> float | None:
    text = environment.get(MEMORY_VARIABLE)
    if text is None:
        return None
    try:
        memory_gib = float(text)
    except ValueError:
        memory_gib = 0.0
    if not 0 < memory_gib < float("inf"):
        raise ConfigError(f"{MEMORY_VARIABLE}={text}: expected GiB of one GPU, such as 80")
    return memory_gib


def _listing() -> str | None:
    """Return nvidia-smi's answer, or None where there is none."""
    try:
        answer = subprocess.run(
            _QUERY,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.stdout.strip() else None
