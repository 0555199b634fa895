"""Measure the operators of training on this machine, as a `values.hardware.profile.Profile`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from meshwright.trainer.profile.design import ProfileRequest
from meshwright.values.errors import MissingExtraError
from meshwright.values.hardware.profile import Profile

__all__ = ["ProfileRequest", "profile_device"]


def profile_device(
    request: ProfileRequest,
    /,
    *,
    earlier: Profile | None = None,
    tell: Callable[[str], None] | None = None,
    keep: Callable[[Profile], None] | None = None,
) -> Profile:
    """Measure what `request` asks for on the device that torch sees; an interrupt ends it with what
    was measured until then. `earlier` is a profile of this machine whose shapes are not measured
    again; `tell` gets a line of progress per series, `keep` the profile so far, after each.
    MissingExtraError where torch is absent, ConfigError where it does not suit the machine."""
    if find_spec("torch") is None:
        raise MissingExtraError("torch", "train")
    from meshwright.trainer.profile.run import measure_all

    return measure_all(request, earlier=earlier, tell=tell or _ignore, keep=keep or _ignore)


def _ignore(_: object) -> None:
    """Take no notice."""
