#!/usr/bin/env python3
"""Write `trust/serving_ties.csv`: what predictions of serving throughput are off by alone, which
other runs of the same set do not share.

    scripts/fit_serving_ties.py [TRUTH.csv...]

Without tables it reads those named inference_*.csv of the folder MESHWRIGHT_TRUTH, else of truth. A
set is what was measured of one model, chip, engine, precision and lengths. Run it again whenever a
formula or a constant of serving has moved.
"""

from __future__ import annotations

import math
import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.runs.measured.cells import TruthTable  # noqa: E402
from meshwright.runs.measured.serving_predict import predict_serving  # noqa: E402
from meshwright.runs.measured.serving_rows import read_serving_table  # noqa: E402

PRESET = ROOT / "src" / "meshwright" / "trust" / "serving_ties.csv"
SET = ("model", "gpu", "engine", "precision", "input_len", "output_len")
FEWEST, FEWEST_OF_EACH = 4, 3
"""Runs of a set that tell its median: alone, and where it has both ways."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution in the median of its sizes."""

Sets = dict[tuple[str, ...], dict[str, list[float]]]


def residuals(tables: list[TruthTable]) -> Sets:
    """Return ln(measured / predicted) of throughput by set and way."""
    made = {(p.source, p.row_id): p for p in predict_serving(tables).predictions}
    found: Sets = defaultdict(lambda: defaultdict(list))
    for table in tables:
        for row in table.rows:
            prediction = made.get((table.name, row["row_id"]))
            measured = row["throughput_out_tok_s_per_gpu"]
            if row["measure_kind"] != "serving_closed_loop" or prediction is None or not measured:
                continue
            if predicted := prediction.tokens_per_s_per_chip:
                way = "two pools" if row["mode"] == "disagg" else "one pool"
                key = tuple(row[name] for name in SET)
                found[key][way].append(math.log(float(measured) / predicted))
    return found


def main() -> None:
    """Write the preset."""
    folder = Path(os.environ.get("MESHWRIGHT_TRUTH") or ROOT / "truth")
    paths = [Path(word) for word in sys.argv[1:]] or sorted(folder.glob("inference_*.csv"))
    sets = residuals([read_serving_table(path) for path in paths])
    lines = ["what,own,runs,sets"]
    for way in ("one pool", "two pools"):
        known = [ways[way] for ways in sets.values() if len(ways.get(way, ())) >= FEWEST]
        away = [abs(one - median(runs)) for runs in known for one in runs]
        lines.append(f"{way},{NORMAL * median(away):.4f},{len(away)},{len(known)}")
    both = [
        ways
        for ways in sets.values()
        if len(ways) == 2 and min(map(len, ways.values())) >= FEWEST_OF_EACH
    ]
    apart = [median(ways["one pool"]) - median(ways["two pools"]) for ways in both]
    width = math.sqrt(fmean(one * one for one in apart))
    runs = sum(len(one) for ways in both for one in ways.values())
    lines.append(f"one pool and two pools,{width:.4f},{runs},{len(both)}")
    PRESET.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
