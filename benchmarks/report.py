#!/usr/bin/env python3
"""Time the report of a large search: from its JSON to the page, and the page's opening in headless
Chromium.

    benchmarks/report.py                # searches about 800,000 layouts of DeepSeek-V3 on 16,384
                                        H100 first (20 s)
    benchmarks/report.py PLANS.json

Limits: the page is made in 3 s and opens in 1.5 s on two cores. Prints wall and CPU seconds; on a
        machine that is busy with other work the
CPU seconds tell more. Opening is left out, and said to be, without Playwright and Chromium.

21 November 2026, x86-64, two cores shared with other work (load 8 to 16): 832,134 layouts, 100
plans: made in 1.2 to 1.4 s of CPU time, 4.8 to 5.5 s of wall time at that load; 0.46 MB; opens in
0.45 to 0.73 s. At load 2 the whole command takes 1.9 s of wall time for 482,463 layouts and 100
plans.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright import api  # noqa: E402
from meshwright.api.report import page_bytes, report_parts  # noqa: E402

LIMIT_S, OPENS_IN_S = 3.0, 1.5
SEARCH = {
    **{
        "model": "deepseek-v3",
        "cluster": "h100:16384",
        "seq_len": 4096,
        "max_gbs": 16384,
        "top": 100,
    },
    "pins": {"sp": [0, 1], "sharding": ["none", "zero1", "zero2"]},
}


def main() -> None:
    """Measure, and print each figure beside its limit."""
    record = (
        json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        if len(sys.argv) > 1
        else api.plan(**SEARCH).to_dict()
    )
    wall, cpu = time.perf_counter(), time.process_time()
    page = page_bytes(report_parts([record]))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{record['search']['layouts']:,} layouts, {len(record['plans'])} plans: {wall:.2f} s wall,"
        f" {cpu:.2f} s CPU (limit {LIMIT_S} s)"
    )
    print(f"page: {len(page) / 1e6:.2f} MB (limit 6)")
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        print("opening: not measured, Playwright or Chromium is not installed")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        path = Path(folder) / "report.html"
        path.write_bytes(page)
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        times = []
        for _ in range(5):
            tab = browser.new_page()
            start = time.perf_counter()
            tab.goto(path.as_uri())
            tab.evaluate(
                "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            times.append(time.perf_counter() - start)
            tab.close()
        browser.close()
    print(
        f"opening: {', '.join(f'{seconds:.2f}' for seconds in sorted(times))} s (limit"
        f" {OPENS_IN_S} s)"
    )


if __name__ == "__main__":
    main()
