"""Run Megatron-Bridge's own merging of overrides and its validation over exported folders; each is
named with its fault."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def check(folder: Path) -> None:
    """Build the recipe, merge the YAML and the words into it, and validate as training does before
    it starts."""
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    chips, layers, hidden = (int(word) for word in (folder / "plan.txt").read_text().split()[:3])
    os.environ["WORLD_SIZE"] = str(chips)
    for way in ("python", "yaml", "words"):
        config = runpy.run_path(str(folder / "meshwright_bridge.py"))["recipe"]()
        if way == "yaml":
            config = process_config_with_overrides(
                config, config_filepath=str(folder / "overrides.yaml")
            )
        if way == "words":
            config = process_config_with_overrides(
                config, cli_overrides=(folder / "overrides.txt").read_text().splitlines()
            )
        runtime_config_update(config)
        model = config.model
        assert (model.num_layers, model.hidden_size) == (layers, hidden), (
            model.num_layers,
            model.hidden_size,
        )
        assert (
            config.train.global_batch_size
            % (config.train.micro_batch_size * config.data_parallel_size)
            == 0
        )


if __name__ == "__main__":
    faults = 0
    for case in sorted(Path(sys.argv[1]).iterdir()):
        try:
            check(case)
        except Exception as error:  # named with its case
            faults += 1
            print(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(min(faults, 1))
