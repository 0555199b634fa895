#!/usr/bin/env python3
"""Write the keys of Primus's configurations and what its presets of models have.

    scripts/distil_primus_keys.py RELEASE CLONE_OF_PRIMUS CLONE_OF_MEGATRON-LM

`software/primus/keys.csv` has one line a key: the flag of Megatron-LM that sets it, and the values
of Primus's presets and of Megatron-LM's parser at the commit that the release names. `models.csv`
has what each preset of a model says. The repositories are read as text; none of their code runs.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from scripts.recipes.primus_keys import key_rows, model_rows  # noqa: E402

FOLDER = ROOT / "src" / "meshwright" / "software" / "primus"


def write(name: str, rows: Iterable[dict[str, str]]) -> None:
    """Write a table of the package."""
    listed = list(rows)
    with (FOLDER / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, listed[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
    print(f"{name}: {len(listed)} lines", file=sys.stderr)


def main(release: str, primus: Path, megatron: Path) -> None:
    """Write both tables."""
    write("keys.csv", key_rows(primus, megatron, release))
    write("models.csv", model_rows(primus, release))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
