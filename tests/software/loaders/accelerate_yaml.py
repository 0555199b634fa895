"""Run Accelerate's launcher up to its start, and transformers' reader of models, over exported
folders; each is named with its fault."""

from __future__ import annotations

import sys
from pathlib import Path


def check(folder: Path) -> None:
    """Load one export as `accelerate launch` does, and build the plugin that the training process
    would build."""
    import os
    import runpy

    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils.launch import prepare_multi_gpu_env
    from transformers import AutoConfig

    chips, layers, hidden = (int(word) for word in (folder / "plan.txt").read_text().split()[:3])
    words = runpy.run_path(str(folder / "meshwright_accelerate.py"))["WORDS"]
    args = launch_command_parser().parse_args(
        ["--config_file", str(folder / "accelerate.yaml"), *words]
    )
    args, _, _ = _validate_launch_command(args)
    assert args.num_processes == chips
    env = prepare_multi_gpu_env(args)
    os.environ.update(
        {key: value for key, value in env.items() if key.startswith(("PARALLELISM_CONFIG", "FSDP"))}
    )
    if args.use_parallelism_config:
        mesh = ParallelismConfig()
        assert mesh.dp_replicate_size * mesh.dp_shard_size * mesh.cp_size * mesh.tp_size == chips
    model = AutoConfig.from_pretrained(str(folder))
    assert (model.num_hidden_layers, model.hidden_size) == (layers, hidden)


if __name__ == "__main__":
    faults = 0
    for case in sorted(Path(sys.argv[1]).iterdir()):
        try:
            check(case)
        except Exception as error:  # named with its case
            faults += 1
            print(f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(min(faults, 1))
