"""`python -m meshwright.runs.loads serve.json`: start an engine on this node, measure it under its
loads, and print a line for each."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from meshwright.runs.loads.load import read_serve_job
from meshwright.runs.loads.measure import measure_engine


def main(words: list[str]) -> int:
    """Return 0 where every load was measured, 1 where one was not; what was started is ended after
    SIGTERM and Ctrl-C, too."""
    if len(words) != 1:
        print("usage: python -m meshwright.runs.loads serve.json", file=sys.stderr)
        return 2
    job = read_serve_job(Path(words[0]).read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, _stop)
    return 0 if measure_engine(job, write=lambda line: print(line, flush=True)) else 1


def _stop(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
