"""`meshwright doctor`: what this installation and this machine have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["doctor"]


def doctor(
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A calibration that plans are to use.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A profile that plans are to use.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for programs.")
    ] = False,
) -> None:
    """Say what is installed here, which GPUs and schedulers are seen, and which figures predictions
    stand on.

    Versions come from the installation's own records, GPUs from nvidia-smi, Slurm from `scontrol
    ping`, Kubernetes from the client's configuration, NGC CLI from its version. Programs are asked
    at the same time and given five seconds; no network is used but theirs.

    Prints a line per part: ok, - for what is not here, BROKEN for what is here and does not work,
    each with the line that mends it. Exit code 1 where something is broken; a part that is absent
    is no fault.

    Examples:

      meshwright doctor

      meshwright doctor --json

      meshwright doctor --calibration calibration.yaml --profile here.npz
    """
    from meshwright import api

    found = api.doctor(calibration=calibration, profile=profile)
    if json_output:
        import json

        print(json.dumps(found.to_dict(), indent=2))
    else:
        from meshwright.cli.terminal import print_page
        from meshwright.report.doctor import INDENT, health_lines

        print_page(health_lines(found), indent=INDENT)
    if found.broken:
        raise typer.Exit(1)
