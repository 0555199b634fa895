"""What a command on tables says of the user's own measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from meshwright.accuracy.run import Own
    from meshwright.accuracy.tables import TruthTable

__all__ = ["tell_own"]


def tell_own(own: Own, tables: Sequence[TruthTable]) -> None:
    """Say on stderr what was read, and for how many rows it holds."""
    from meshwright.accuracy.run import NOTHING, own_rows

    if own == NOTHING:
        return
    calibrated, profiled = own_rows(tables, own)
    if own.calibration is not None:
        typer.echo(f"{own.calibration.words()}; holds for {calibrated} rows", err=True)
    if own.profile is not None:
        machine = own.profile.machine
        typer.echo(f"profile of {machine.device_name}, {machine.date}; holds for {profiled} rows", err=True)
