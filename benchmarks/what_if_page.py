"""Time from a moved slider to the page that shows the answer, at 4,096 GPUs, in a real headless
Chromium.

    python benchmarks/what_if_page.py

Each case moves its sliders to and fro; every change is one request and one redraw. The limit is 100
ms; the last column is the share of it that the median takes. Needs the dev group and Debian's
chromium.

21 November 2026, x86-64, two cores, load 2.7, median (95 % within): llama3-70b 35 ms (78), with
pp=16 and vpp=5 44 ms (87), mixtral-8x22b 65 ms (77), deepseek-v3 65 ms (101).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import psutil

CASES = {
    "llama3-70b": "model=llama3-70b&cluster=h100:4096&seq=8192&gbs=2048&layout=tp=8,pp=4,mbs=1",
    "llama3-70b, pp=16, vpp=5": (
        "model=llama3-70b&cluster=h100:4096&seq=8192&gbs=2048&layout=tp=8,pp=16,vpp=5,mbs=1"
    ),
    "mixtral-8x22b": (
        "model=mixtral-8x22b&cluster=h100:4096&seq=4096&gbs=4096&layout=tp=4,pp=8,ep=8,mbs=1"
    ),
    "deepseek-v3, 7,680 micro batches": (
        "model=deepseek-v3&cluster=h100:4096&seq=4096&gbs=15360"
        "&layout=tp=2,pp=16,ep=32,mbs=1,recompute=full,layers_per_stage=3%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B4%2B2"
    ),
}
MOVES = (("cp", "2"), ("cp", "1"), ("seq", "16384"), ("seq", "4096"), ("tp", "4"), ("tp", "8"))
ROUNDS = 4
LIMIT_MS = 100.0


def main() -> None:
    """Print a line per case."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    command = [sys.executable, "-m", "meshwright", "ui", "--json", "--no-browser"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as driver,
    ):
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"].partition("?")[0]
        browser = driver.chromium.launch(
            executable_path=program, headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        print(
            f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, load"
            f" {os.getloadavg()[0]:.1f}"
        )
        for name, query in CASES.items():
            page = browser.new_page()
            spent = psutil.Process(server.pid)
            took = _took(page, f"{address}?{query}", spent)
            page.close()
            print(_line(name, took))
        browser.close()
        server.send_signal(signal.SIGINT)


def _took(page: Any, address: str, server: psutil.Process) -> list[tuple[float, float]]:
    """Milliseconds from each change to its drawing, and the server's CPU time; a change that breaks
    a rule is answered too."""
    page.goto(address)
    page.wait_for_selector('body[data-answered="1"]')
    took, change = [], 1
    for name, value in MOVES * ROUNDS:
        before = sum(server.cpu_times()[:2])
        page.fill(f"#{name}", value)
        change += 1
        page.wait_for_selector(f'body[data-answered="{change}"]')
        took.append(
            (
                float(page.get_attribute("body", "data-took")),
                1e3 * (sum(server.cpu_times()[:2]) - before),
            )
        )
    return took


def _line(name: str, took: list[tuple[float, float]]) -> str:
    shown = sorted(wall for wall, _ in took)
    median, worst, cpu = (
        statistics.median(shown),
        shown[int(0.95 * len(shown))],
        statistics.mean(cpu for _, cpu in took),
    )
    figures = f"median {median:4.0f} ms, 95 % within {worst:4.0f} ms, server's CPU {cpu:4.0f} ms"
    return f"{name:33} {figures}, {len(took)} changes, {median / LIMIT_MS:.0%} of the limit"


if __name__ == "__main__":
    main()
