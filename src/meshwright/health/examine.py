"""Look at everything at once: programs that answer slowly are waited for together."""

from __future__ import annotations

import importlib.metadata
from concurrent.futures import ThreadPoolExecutor

from meshwright.calibration import Calibration
from meshwright.hardware.profile import Profile
from meshwright.health.finding import Finding, Health
from meshwright.health.machine import gpu_finding, kubernetes_finding, ngc_finding, slurm_finding
from meshwright.health.own import calibration_finding, profile_finding
from meshwright.health.packages import package_findings

__all__ = ["examine"]


def examine(*, calibration: Calibration | None = None, profile: Profile | None = None) -> Health:
    """Return what this installation and this machine have."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        asked = [pool.submit(look) for look in (gpu_finding, slurm_finding, _kubernetes, ngc_finding)]
        packages = package_findings(None)
        found = [future.result() for future in asked]
    return Health(findings=(*packages, *found, calibration_finding(calibration, profile), profile_finding(profile)))


def _kubernetes() -> Finding:
    try:
        version: str | None = importlib.metadata.version("kubernetes")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return kubernetes_finding(client_version=version)
