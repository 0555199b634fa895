"""Build the model configuration and the strategy of exported NeMo 2.0 recipes; each is named with
its fault."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def check(folder: Path) -> None:
    """Build the recipe as nemo_run's configuration, which checks every argument's name, and its
    parts that need no GPU."""
    import fiddle
    import yaml

    chips, layers, hidden = (int(word) for word in (folder / "plan.txt").read_text().split()[:3])
    recipe = runpy.run_path(str(folder / "meshwright_nemo.py"))["recipe"]()
    model = fiddle.build(recipe.model.config)
    assert (model.num_layers, model.hidden_size) == (layers, hidden), (
        model.num_layers,
        model.hidden_size,
    )
    assert recipe.trainer.devices * recipe.trainer.num_nodes == chips
    strategy = fiddle.build(recipe.trainer.strategy)
    written = yaml.safe_load((folder / "recipe.yaml").read_text())
    for name in (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "virtual_pipeline_model_parallel_size",
    ):
        assert getattr(strategy, name) == written["trainer"]["strategy"].get(name), name
    fiddle.build(recipe.optim.config)
    fiddle.build(recipe.data)


if __name__ == "__main__":
    faults = 0
    for case in sorted(Path(sys.argv[1]).iterdir()):
        try:
            check(case)
        except Exception as error:  # named with its case
            faults += 1
            print(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(min(faults, 1))
