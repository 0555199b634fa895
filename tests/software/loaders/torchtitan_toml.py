"""Run torchtitan 0.2's configuration manager, model and mesh over exported folders; each is named
with its fault."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch


def check(folder: Path) -> None:
    """Load one export as `torchtitan.train` does, up to the model on the meta device and the split
    of the pipeline."""
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims
    from torchtitan.protocols.train_spec import get_train_spec

    config = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    sys.path.insert(0, str(folder))
    sys.modules.pop(config.experimental.custom_import, None)
    importlib.import_module(config.experimental.custom_import)
    sys.path.pop(0)
    chips, layers, hidden = (int(word) for word in (folder / "plan.txt").read_text().split()[:3])
    parallel = config.parallelism
    dims = ParallelDims(
        dp_replicate=parallel.data_parallel_replicate_degree,
        dp_shard=parallel.data_parallel_shard_degree,
        cp=parallel.context_parallel_degree,
        tp=parallel.tensor_parallel_degree,
        pp=parallel.pipeline_parallel_degree,
        ep=parallel.expert_parallel_degree,
        etp=parallel.expert_tensor_parallel_degree,
        world_size=chips,
    )
    spec = get_train_spec(config.model.name)
    args = spec.model_args[config.model.flavor]
    args.update_from_config(config)
    assert (args.n_layers, args.dim) == (layers, hidden), (args.n_layers, args.dim)
    with torch.device("meta"):
        model = spec.model_cls(args)
    names = {"tok_embeddings", "norm", "output", *(f"layers.{name}" for name in model.layers)}
    parts = parallel.module_fqns_per_model_part
    if parts is not None:
        listed = [name for part in parts for name in part]
        assert len(listed) == len(names) and set(listed) == names, (
            "modules of the chunks are not those of the model"
        )
        assert len(parts) % dims.pp == 0, len(parts)
    batch = dims.dp_replicate * dims.dp_shard
    assert config.training.global_batch_size % (config.training.local_batch_size * batch) == 0


if __name__ == "__main__":
    faults = 0
    for case in sorted(Path(sys.argv[1]).iterdir()):
        try:
            check(case)
        except Exception as error:  # named with its case
            faults += 1
            print(f"{case.name}: {type(error).__name__}: {error}")
    sys.exit(min(faults, 1))
