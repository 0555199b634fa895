"""`meshwright ui`: a local page that answers what-if questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ui"]


def ui(
    state: Annotated[
        str,
        typer.Argument(
            metavar="[ADDRESS]",
            help="A shared address of the page, or its part behind `?`.",
            show_default=False,
        ),
    ] = "",
    port: Annotated[int, typer.Option(help="Port of 127.0.0.1; 0 takes one that is free.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and open no browser.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What `meshwright calibrate` wrote; all plans then use it."
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What `meshwright profile` wrote on this chip; likewise."
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON object.")
    ] = False,
) -> None:
    """Open a page where a plan is changed by hand, and every change is priced at once.

    Sliders move model, cluster, batch, sequence, parallel degrees, recomputation and precision;
    step time, memory of each stage, MFU, cost and what binds them follow, by the same formulas and
    simulation as `meshwright explain`. A layout that breaks a rule of the training software shows
    the rule and the nearest values that keep it. Plans are pinned, compared, exported, and shared
    by their address.

    Prints the address. It is served on 127.0.0.1 alone, asks no other machine, and writes nothing.
    Ctrl-C ends it, with exit code 0. Needs a web framework: pip install 'meshwright[ui]'.

    Examples:

      meshwright ui

      meshwright ui --port 8080 --no-browser

      meshwright ui 'model=mixtral-8x7b&cluster=h100:64&gbs=256&layout=tp=2,ep=8,mbs=1' --calibration calibration.yaml
    """  # noqa: E501
    from meshwright import api

    def ready(address: str) -> None:
        _say(address, json_output=json_output)
        if not no_browser:
            _open(address)

    try:
        api.ui(state, port=port, calibration=calibration, profile=profile, ready=ready)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)


def _say(address: str, *, json_output: bool) -> None:
    if json_output:
        import json

        print(json.dumps({"address": address}), flush=True)
        return
    print(address, flush=True)
    port = address.split(":")[2].partition("/")[0]
    typer.echo(
        f"from another machine: ssh -L {port}:127.0.0.1:{port} this-machine, then the same address;"
        " Ctrl-C ends it",
        err=True,
    )


def _open(address: str) -> None:
    """Open a browser where there is a screen; elsewhere a text browser would take the terminal."""
    import os
    import sys
    import webbrowser

    if (
        sys.platform in ("darwin", "win32")
        or os.environ.get("DISPLAY")
        or os.environ.get("WAYLAND_DISPLAY")
    ):
        webbrowser.open(address)
