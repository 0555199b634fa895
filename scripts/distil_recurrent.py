"""Write what the kernels of the chunked delta rule reach on prompts, by engine and chip.

Usage: scripts/distil_recurrent.py AICONFIGURATOR_DIR

AICONFIGURATOR_DIR is the unpacked package that requirements-tables.txt names. A rate is the median
over the points of 8,192 to 131,072 tokens with 8 value heads or more of a rank, counted as
`serving/recurrent.py` counts the rule's FLOPs; smaller points are bound by launches.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

import pyarrow.parquet

from meshwright.serving.recurrent import delta_rule_flops

TABLE = Path(__file__).resolve().parents[1] / "src/meshwright/serving/delta_rates.csv"
_CHIPS = {"rtx_pro_6000_server": "rtx-pro-6000"}
_TOKENS, _HEADS = (8192, 131072), 8


def main() -> None:
    """Rewrite the table."""
    rows = []
    for path in sorted(Path(sys.argv[1]).rglob("linear_attention/*/*/gdn_perf.parquet")):
        engine, version, chip = path.parts[-3], path.parts[-2], path.parts[-5]
        points = pyarrow.parquet.read_table(path).to_pylist()
        rates = [
            point["num_tokens"]
            * point["num_v_heads"]
            * delta_rule_flops(key_dim=point["head_k_dim"], value_dim=point["head_v_dim"])
            / (point["latency"] * 1e-3)
            for point in points
            if point["kernel_source"].startswith("chunk_gated_delta_rule")
            and _TOKENS[0] <= point["num_tokens"] <= _TOKENS[1]
            and point["num_v_heads"] >= _HEADS
        ]
        if rates:
            name = _CHIPS.get(chip, chip.removesuffix("_sxm"))
            rate = f"{statistics.median(rates) / 1e12:.1f}"
            rows.append((engine, name, rate, len(rates), f"{engine} {version}"))
    with TABLE.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["kernels", "chip", "tflops", "points", "source"])
        writer.writerows(sorted(rows))


if __name__ == "__main__":
    main()
