"""Write the catalogue's columns of what models are published as: the longest sequence, and the type
of the weights.

Usage: scripts/distil_checkpoints.py CONFIGS_DIR

CONFIGS_DIR is the folder `aiconfigurator_core/model_configs` of the package that
requirements-tables.txt names; a file's name is matched as the catalogue matches names. Files of
weights that others made of a model are left out. Of several files of one row the longest sequence
counts, and a type that all of them have. `contexts.csv` beside this script has models without a
file.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_preset
from meshwright.values.models.hf_checkpoint import checkpoint_of, context_of

TABLE = Path(__file__).resolve().parents[1] / "src/meshwright/values/models/models.csv"
COLUMNS = ("context_tokens", "checkpoint")
_MADE_OF_OTHERS = re.compile(r".*-(FP8|NVFP4|FP8-.*)$")


def found(folder: Path) -> dict[str, dict[str, str]]:
    """Return the cells of every row that a file or a line is about."""
    cells: dict[str, dict[str, str]] = {}
    types: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*_config.json")):
        name = path.name.removesuffix("_config.json")
        if _MADE_OF_OTHERS.match(name) or name.endswith("_hf_quant"):
            continue
        try:
            row = find_preset(name.replace("--", "/")).spec.name
        except ConfigError:
            continue
        config = json.loads(path.read_text(encoding="utf-8"))
        longest = max(context_of(config) or 0, int(cells.get(row, {}).get("context_tokens", 0)))
        types.setdefault(row, set()).add(checkpoint_of(config) or "")
        cells[row] = {"context_tokens": str(longest or "")}
    for row, several in types.items():
        cells[row]["checkpoint"] = several.pop() if len(several) == 1 else ""
    with Path(__file__).with_name("contexts.csv").open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            cells.setdefault(line["name"], {})["context_tokens"] = line["context_tokens"]
    return cells


def main() -> None:
    """Rewrite the table's two columns."""
    cells = found(Path(sys.argv[1]))
    with TABLE.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        rows, columns = list(reader), list(reader.fieldnames or [])
    for name in COLUMNS:
        if name not in columns:
            columns.insert(columns.index("vocab") + 1, name)
    with TABLE.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(row | dict.fromkeys(COLUMNS, "") | cells.get(row["name"], {}))


if __name__ == "__main__":
    main()
