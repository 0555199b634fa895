"""Run torchtitan 0.3's configuration manager, model and mesh over exported folders; each is named
with its fault."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def check(folder: Path) -> None:
    """Load one export as `torchtitan.train` does, up to the model on the meta device and the split
    of the pipeline."""
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    sys.path.insert(0, str(folder))
    sys.modules.pop("meshwright_titan", None)
    config = ConfigManager().parse_args(["--module", "meshwright_titan", "--config", "training"])
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
        world_size=chips,
    )
    model = config.model_spec.model
    model.update_from_config(config=config)
    assert (len(model.layers), model.dim) == (layers, hidden), (len(model.layers), model.dim)
    with torch.device("meta"):
        built = model.build()
    names = {"tok_embeddings", "norm", "lm_head", *(f"layers.{name}" for name in built.layers)}
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
