#!/usr/bin/env python3
"""Write the pictures of the documentation, docs/pictures.

Charts are drawn from the code and from docs/accuracy.md; scripts/docs writes them too. Photographs
of pages need Playwright and Chromium.

`scripts/pictures.py --charts` leaves the photographs as they are.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PLAN = ("llama3-70b", "--cluster", "h100:256", "--seq", "8192", "--gbs", "512")
"""The README's first plan."""
WINDOW = {"width": 1280, "height": 860}
QUALITY = 62
"""Of a JPEG: text stays sharp, and both photographs stay under 300 kB."""


def charts() -> dict[Path, str]:
    """Return every chart that is drawn from numbers."""
    return {PICTURES / "lost.svg": lost_svg(), PICTURES / "accuracy.svg": accuracy_svg()}


def _quietly(words: list[str]) -> str:
    from meshwright.cli import run

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert run(words) == 0, words
    return out.getvalue()


def _plan_file(folder: Path) -> Path:
    path = folder / "plan.json"
    path.write_text(_quietly(["plan", *PLAN, "--json"]), encoding="utf-8")
    return path


def lost_svg() -> str:
    """Where the time of the README's best plan goes."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "lost.svg"
        _quietly(
            [
                "report",
                str(_plan_file(Path(folder))),
                "--format",
                "svg",
                "--chart",
                "lost",
                "-o",
                str(chart),
            ]
        )
        return chart.read_text(encoding="utf-8")


def accuracy_rows(text: str) -> list[tuple[str, float, int]]:
    """Return of each table of docs/accuracy.md its name, its mean error in percent as `plan`
    prices it, and how many runs it has."""
    table = text[text.index("## All tables") :].split("\n\n")[1]
    found = []
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if (
            cells[1].endswith("%")
            and (runs := re.fullmatch(r"\d+ of (\d+)", cells[3]))
            and not cells[0].startswith("mean")
        ):
            found.append((cells[0], float(cells[1].removesuffix("%")), int(runs[1])))
    return found


def accuracy_svg() -> str:
    """Mean error of step times of each published table, over how many runs it has."""
    from meshwright.report.charts.draw import alone
    from meshwright.report.charts.forms import Axis, Group, Point, Points
    from meshwright.report.charts.svg import SEQUENCE

    rows = accuracy_rows((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"))
    runs = sum(number for _, _, number in rows)
    points = tuple(
        Point(x=number, y=error, label=name, named=True)
        for name, error, number in sorted(rows, key=lambda row: -row[2])
    )
    return alone(
        Points(
            key="accuracy",
            title=f"How far predicted step times are from {runs:,} published runs, by table",
            sentence="Each mark is a table of published runs, priced as plan prices their layouts.",
            x=Axis(key="runs", title="runs of the table", log=True, whole=True),
            y=Axis(key="error", title="mean error of the step time, %", from_zero=True),
            groups=(Group(title="a table of published runs", colour=SEQUENCE[0], points=points),),
        )
    )


def photographs() -> None:
    """Photograph a report and the what-if page."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        raise SystemExit(
            "scripts/pictures.py: needs chromium: apt-get install chromium; --charts does without"
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as driver,
        whatif(Path(folder)) as address,
    ):
        page_file = Path(folder) / "report.html"
        _quietly(["report", str(_plan_file(Path(folder))), "-o", str(page_file)])
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, place in (("report", page_file.as_uri()), ("ui", address)):
            page = browser.new_context(viewport=WINDOW, color_scheme="light").new_page()
            page.goto(place, wait_until="networkidle")
            page.screenshot(path=PICTURES / f"{name}.jpg", type="jpeg", quality=QUALITY)
        browser.close()


@contextlib.contextmanager
def whatif(folder: Path) -> Iterator[str]:
    """Serve the what-if page of the same plan, and give its address."""
    log = folder / "ui.log"
    model, _, cluster, _, seq, _, gbs = PLAN
    asked = f"model={model}&cluster={cluster}&seq={seq}&gbs={gbs}"
    words = [sys.executable, "-m", "meshwright", "ui", asked, "--no-browser"]
    with log.open("w") as said, subprocess.Popen(words, stdout=said, stderr=said) as server:
        try:
            for _ in range(120):
                if found := re.search(r"http://127\.0\.0\.1:\d+/\S*", log.read_text()):
                    urllib.request.urlopen(found[0], timeout=60).read()
                    yield found[0]
                    return
                time.sleep(0.5)
            raise SystemExit(
                f"scripts/pictures.py: the what-if page did not start: {log.read_text()}"
            )
        finally:
            server.terminate()


def main() -> None:
    """Write them all."""
    PICTURES.mkdir(exist_ok=True)
    for path, text in charts().items():
        path.write_text(text, encoding="utf-8")
    if "--charts" not in sys.argv:
        photographs()
    for path in sorted(PICTURES.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    main()
