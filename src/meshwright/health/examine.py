"""Look at everything at once: programs that answer slowly are waited for together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from meshwright.calibration import Calibration
from meshwright.hardware.profile import Profile
from meshwright.health.finding import Finding, Health
from meshwright.health.machine import (
    gpu_finding,
    kubernetes_finding,
    ngc_finding,
    slurm_finding,
    torch_finding,
)
from meshwright.health.own import calibration_finding, profile_finding
from meshwright.health.packages import installed_version, package_findings

__all__ = ["examine"]


def examine(*, calibration: Calibration | None = None, profile: Profile | None = None) -> Health:
    """Return what this installation and this machine have."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        asked = [
            pool.submit(look) for look in (gpu_finding, slurm_finding, _kubernetes, ngc_finding)
        ]
        packages = package_findings(None)
        found = [future.result() for future in asked]
    torch = torch_finding(installed_version("torch"), gpus=found[0])
    machine = [found[0], *([torch] if torch is not None else []), *found[1:]]
    return Health(
        findings=(
            *packages,
            *machine,
            calibration_finding(calibration, profile),
            profile_finding(profile),
        )
    )


def _kubernetes() -> Finding:
    return kubernetes_finding(client_version=installed_version("kubernetes"))
