"""What predictions stand on here: the package's figures, a calibration, a profile."""

from __future__ import annotations

from meshwright.calibration import Calibration, check_profile
from meshwright.errors import ConfigError
from meshwright.hardware.profile import Profile
from meshwright.hardware.profile_chip import profile_words
from meshwright.health.finding import Finding
from meshwright.units import counted

__all__ = ["calibration_finding", "profile_finding"]

_NO_CALIBRATION = (
    "none given: predictions stand on the package's figures; --calibration FILE takes what"
    " `meshwright calibrate` wrote"
)
_NO_PROFILE = (
    "none given: operators stand on the package's tables; --profile FILE takes what `meshwright"
    " profile` wrote"
)


def calibration_finding(fitted: Calibration | None, measured: Profile | None) -> Finding:
    """Return what a calibration was fitted on, and whether it goes with the profile."""
    if fitted is None:
        return Finding(
            room="own figures", name="calibration", state="absent", words=_NO_CALIBRATION
        )
    from meshwright import __version__

    fit = f"{counted(len(fitted.runs), 'run')}, {counted(len(fitted.factors), 'factor')}"
    words = f"{fitted.chip}, stack {fitted.stack}, {fit}, by meshwright {fitted.version}"
    try:
        check_profile(fitted, profile="" if measured is None else profile_words(measured.machine))
    except ConfigError as error:
        return Finding(room="own figures", name="calibration", state="broken", words=str(error))
    if fitted.version not in ("", __version__):
        remedy = (
            f"its factors multiply the constants of {fitted.version}, and this is {__version__}:"
            " fit it again with meshwright calibrate"
        )
        return Finding(
            room="own figures", name="calibration", state="broken", words=words, remedy=remedy
        )
    return Finding(room="own figures", name="calibration", state="ok", words=words)


def profile_finding(measured: Profile | None) -> Finding:
    """Return what a profile was measured on, and whether it is complete."""
    if measured is None:
        return Finding(room="own figures", name="profile", state="absent", words=_NO_PROFILE)
    words = f"{profile_words(measured.machine)}, {measured.num_measured} shapes"
    if not measured.complete:
        remedy = "the same `meshwright profile` again measures the rest"
        return Finding(
            room="own figures",
            name="profile",
            state="broken",
            words=f"{words}; partial",
            remedy=remedy,
        )
    return Finding(room="own figures", name="profile", state="ok", words=words)
