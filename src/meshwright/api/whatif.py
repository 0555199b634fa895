"""What the what-if page may ask, put together: the rooms below, and the comparison of clusters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.problems import read_calibration
from meshwright.values.errors import ConfigError

if TYPE_CHECKING:
    from meshwright.report.whatif_page.answers import Answers
    from meshwright.report.whatif_page.state import WhatIf

__all__ = ["answers_of", "compared", "static_page"]


def answers_of(
    *, calibration: str | Path | None = None, profile: str | Path | None = None
) -> Answers:
    """Return the page's answers, under the user's own files where there are any."""
    from meshwright.platforms.given import load_profile
    from meshwright.report.whatif_page.answers import Answers
    from meshwright.search.problem import Files

    names = {"calibration": calibration, "profile": profile}
    files = Files(
        calibration=None if calibration is None else read_calibration(calibration),
        profile=None if profile is None else load_profile(Path(profile)),
    )
    given = {name: str(path) for name, path in names.items() if path is not None}
    return Answers(files, compared=compared, **given)


def static_page(
    folder: str | Path,
    /,
    *,
    pyodide: str | Path | None = None,
    calibration: str | Path | None = None,
    profile: str | Path | None = None,
) -> int:
    """Write the page into a folder as files that any host can serve; return their bytes.

    `pyodide` is a folder with Pyodide and pydantic's compiled part; without it both are fetched by
    `npm` and `pip`. ConfigError where something is missing, or the folder holds another page.
    """
    from tempfile import TemporaryDirectory

    from meshwright.report.whatif_page.fetched import fetch_core
    from meshwright.report.whatif_page.static import find_core, static_files, write_files

    if calibration is not None or profile is not None:
        raise ConfigError(
            "--calibration and --profile: a page without a server has none; leave them out"
        )
    place = Path(folder)
    with TemporaryDirectory() as held:
        core = fetch_core(Path(held)) if pyodide is None else find_core(Path(pyodide))
        return write_files(place, static_files(answers_of(), core))


def compared(state: WhatIf) -> dict[str, Any]:
    """Compare the clusters of the page for one training, as `meshwright compare` does."""
    from meshwright.api.comparing import compare, compared_record
    from meshwright.search.request import PlanRequest
    from meshwright.sizing.duration import Training
    from meshwright.sizing.estimate import Limits
    from meshwright.values.units import parse_count

    training, limits = Training(tokens=parse_count(state.tokens, name="tokens")), Limits()
    requests = [
        PlanRequest.of({"model": state.model, "cluster": cluster, "seq_len": state.seq, "top": 1})
        for cluster in state.clusters.split(",")
    ]
    rows = compare(requests, training=training, limits=limits)
    return compared_record(rows, model=state.model, training=training, limits=limits)
