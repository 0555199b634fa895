"""`meshwright ui`: a local page that answers what-if questions."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path

from meshwright import api
from meshwright.cli.options import argument, command, option
from meshwright.cli.terminal import tell

__all__ = ["ui"]


@command
def ui(
    state: str = argument(
        "", "A shared address of the page, or its part behind `?`.", metavar="[ADDRESS]"
    ),
    port: int = option(0, "Port of 127.0.0.1; 0 takes one that is free."),
    no_browser: bool = option(False, "Print the address, and open no browser."),
    calibration: Path | None = option(
        None, "What `meshwright calibrate` wrote; all plans then use it.", metavar="FILE"
    ),
    profile: Path | None = option(
        None, "What `meshwright profile` wrote on this chip; likewise.", metavar="FILE"
    ),
    json_output: bool = option(False, "Print the address as one JSON object.", "--json"),
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

    def ready(address: str) -> None:
        _say(address, json_output=json_output)
        if not no_browser:
            _open(address)

    try:
        api.ui(state, port=port, calibration=calibration, profile=profile, ready=ready)
    except KeyboardInterrupt:
        tell("stopped")


def _say(address: str, *, json_output: bool) -> None:
    if json_output:
        print(json.dumps({"address": address}), flush=True)
        return
    print(address, flush=True)
    port = address.split(":")[2].partition("/")[0]
    tell(
        f"from another machine: ssh -L {port}:127.0.0.1:{port} this-machine, then the same address;"
        " Ctrl-C ends it"
    )


def _open(address: str) -> None:
    """Open a browser where there is a screen; elsewhere a text browser would take the terminal."""
    if (
        sys.platform in ("darwin", "win32")
        or os.environ.get("DISPLAY")
        or os.environ.get("WAYLAND_DISPLAY")
    ):
        webbrowser.open(address)
