"""How containers ask for the chips of a vendor."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from meshwright.errors import ConfigError

__all__ = ["DevicePlugin", "device_plugin"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlugin:
    """The words of one vendor; `presets/device_plugins.csv` holds them with their sources."""

    vendor: str
    kubernetes_resource: str
    """The resource that a pod counts its chips by."""
    apptainer_flag: str
    """The option that brings the vendor's driver libraries into an Apptainer container."""


def device_plugin(vendor: str) -> DevicePlugin:
    """Return the words of a vendor; ConfigError where none are known."""
    known = _plugins()
    if vendor not in known:
        raise ConfigError(
            f"no words are known by which a container asks for chips of {vendor}; known:"
            f" {', '.join(known)}"
        )
    return known[vendor]


@cache
def _plugins() -> dict[str, DevicePlugin]:
    with (resources.files("meshwright") / "presets" / "device_plugins.csv").open(
        encoding="utf-8"
    ) as handle:
        return {
            row["vendor"]: DevicePlugin(
                vendor=row["vendor"],
                kubernetes_resource=row["kubernetes_resource"],
                apptainer_flag=row["apptainer_flag"],
            )
            for row in csv.DictReader(handle)
        }
