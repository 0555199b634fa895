"""Run nanotron's own reader of configurations over exported folders; each is named with its
fault."""

from __future__ import annotations

import sys
from pathlib import Path

import nanotron.logging  # before nanotron.config, which imports it in a circle


def check(folder: Path) -> None:
    """Load one export as run_train.py does, with the checks across sections."""
    from nanotron.config import get_config_from_file

    assert nanotron.logging is not None
    chips, layers, hidden = (int(word) for word in (folder / "plan.txt").read_text().split()[:3])
    config = get_config_from_file(str(folder / "nanotron.yaml"))
    model, parallel = config.model.model_config, config.parallelism
    assert (model.num_hidden_layers, model.hidden_size) == (layers, hidden)
    assert parallel.dp * parallel.tp * parallel.pp * parallel.context_parallel_size == chips


if __name__ == "__main__":
    faults = 0
    for case in sorted(Path(sys.argv[1]).iterdir()):
        try:
            check(case)
        except Exception as error:  # named with its case
            faults += 1
            print(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(min(faults, 1))
