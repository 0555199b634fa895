#!/usr/bin/env python3
"""Write a training software's table of recipes from a clone of its public repository.

    scripts/distil_recipes.py megatron-bridge PATH_OF_A_CLONE
    scripts/distil_recipes.py maxtext CLONE_OF_MAXTEXT CLONE_OF_TPU_RECIPES

Megatron-Bridge's holds one line per release, model, task, GPU, precision, variant and number of
GPUs; `started.csv` one line per release and configuration. The
repository's source is evaluated as text (scripts/recipes/); none of its code runs, and none is
copied. What could not be evaluated is named on stderr.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from scripts.recipes.automodel import automodel_rows  # noqa: E402
from scripts.recipes.bridge_table import bridge_rows  # noqa: E402
from scripts.recipes.maxtext import maxtext_rows  # noqa: E402
from scripts.recipes.mindspeed import mindspeed_rows  # noqa: E402
from scripts.recipes.nemo import nemo_rows  # noqa: E402
from scripts.recipes.primus import primus_rows  # noqa: E402

SOFTWARE = {
    "maxtext": ("maxtext/recipes.csv", maxtext_rows),
    "megatron-bridge": ("megatron_bridge/recipes.csv", bridge_rows),
    "mindspeed": ("mindspeed/started.csv", mindspeed_rows),
    "nemo": ("nemo2/started.csv", nemo_rows),
    "nemo-automodel": ("nemo_automodel/started.csv", automodel_rows),
    "primus": ("primus/started.csv", primus_rows),
}
"""Table and reader of each; `started.csv` is described in meshwright/values/switches.py."""


def main() -> int:
    """Read the flags and the repository, write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("software", choices=sorted(SOFTWARE))
    parser.add_argument(
        "repository", type=Path, nargs="+", help="path of a clone, bare or not; of maxtext two"
    )
    parser.add_argument("-o", "--output", type=Path, help="default: the package's own table")
    flags = parser.parse_args()
    table, read = SOFTWARE[flags.software]
    output = flags.output or ROOT / "src" / "meshwright" / "software" / table
    rows, failed = read(*flags.repository)
    for line in failed:
        print(line, file=sys.stderr)
    whole = table.endswith("started.csv")
    used = [name for name in rows[0] if whole or any(row[name] for row in rows)]
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, used, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{output}: {len(rows)} recipes, {len(failed)} left out", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
