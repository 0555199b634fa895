"""`meshwright doctor`: what this installation and this machine have."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright import api
from meshwright.cli.options import command, option
from meshwright.cli.terminal import JsonFlag, print_json

__all__ = ["doctor"]


@command
def doctor(
    calibration: Path | None = option(None, "A calibration that plans are to use.", metavar="FILE"),
    profile: Path | None = option(None, "A profile that plans are to use.", metavar="FILE"),
    json_output: JsonFlag = False,
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
    found = api.doctor(calibration=calibration, profile=profile)
    if json_output:
        print_json(found.to_dict())
    else:
        from meshwright.cli.terminal import print_page
        from meshwright.report.doctor import INDENT, health_lines

        print_page(health_lines(found), indent=INDENT)
    if found.broken:
        raise typer.Exit(1)
