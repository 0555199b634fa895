"""Run Primus's own reader of configurations, and Megatron-LM's validation behind it, over exported
folders on a CPU; each is named with its fault.

MESHWRIGHT_PRIMUS_SOURCE is a checkout of Primus, MESHWRIGHT_PRIMUS_MEGATRON one of the Megatron-LM
that it names. GPUs, Transformer Engine's version and compilation are faked: nothing is run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from packaging.version import Version

TRANSFORMER_ENGINE = Version("2.9.0")
KERNELS = "megatron.core.transformer.custom_layers.batch_invariant_kernels"


class Instinct:
    """What Megatron-LM asks of a GPU."""

    major, minor = 9, 4
    multi_processor_count = 304
    total_memory = 192 << 30
    name = "MI300X"


def unchanged(function: Any = None, **named: Any) -> Any:
    """Stand in for a compiler."""
    del named
    return function if function is not None else unchanged


def fake() -> None:
    """Stand in for what a CPU machine lacks."""
    vars(torch)["compile"] = unchanged
    vars(torch.jit)["script"] = lambda function, *rest, **named: function
    sys.modules[KERNELS] = MagicMock()
    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda *args, **kwargs: Instinct
    cuda.get_device_capability = lambda *args, **kwargs: (Instinct.major, 4)
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 8
    from megatron.core import utils

    utils.get_te_version = lambda: TRANSFORMER_ENGINE
    utils.is_te_min_version = lambda version, check_equality=True: (
        Version(version) <= TRANSFORMER_ENGINE
    )
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils

    rope_utils.fused_apply_rotary_pos_emb = lambda *args: None
    for name in ("permute", "permute_with_probs", "sort_chunks_by_index", "unpermute"):
        setattr(moe_utils, f"fused_{name}", lambda *args: None)
    moe_utils.fused_sort_chunks_by_index_with_probs = lambda *args: None


def arguments(path: Path, chips: int) -> Any:
    """Return Megatron-LM's arguments as Primus makes them of a configuration."""
    os.environ |= {"WORLD_SIZE": str(chips), "RANK": "0", "LOCAL_RANK": "0"}
    from primus.backends.megatron.argument_builder import MegatronArgBuilder
    from primus.core.config.primus_config import get_module_config, load_primus_config

    module = get_module_config(load_primus_config(path), "pre_trainer")
    assert module is not None
    args = MegatronArgBuilder().update(module.params).finalize()
    for name, value in vars(module.params).items():  # as merge_namespace of its runtime does
        if not hasattr(args, name):
            setattr(args, name, value)
    if args.tensor_model_parallel_size == 1:
        args.sequence_parallel = False
    if isinstance(args.moe_layer_freq, str):
        args.moe_layer_freq = eval(args.moe_layer_freq, {}, {})  # as Primus's patch does
    # as its env_patches.py sets it
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if args.use_megatron_fsdp else "1"
    args.iterations_to_skip = args.iterations_to_skip or []
    if args.use_turbo_deepep:
        args.moe_token_dispatcher_type = "flex"
        args.moe_enable_deepep = True
    return args


def check(folder: Path) -> None:
    """Read and validate one export, and build its configuration."""
    first, command = (folder / "plan.txt").read_text(encoding="utf-8").splitlines()
    assert command == "bash train.sh", command
    chips, layers, hidden, words = first.split(" ", 3)
    args = arguments(folder / "primus.yaml", int(chips))
    from megatron.training.arguments import core_transformer_config_from_args, validate_args

    validate_args(args)
    config = core_transformer_config_from_args(args)
    assert args.finetune is False
    total = config.num_layers
    assert (total, config.hidden_size) == (int(layers), int(hidden)), (total, config.hidden_size)
    axes = {
        "tp": args.tensor_model_parallel_size,
        "cp": args.context_parallel_size,
        "pp": args.pipeline_model_parallel_size,
        "ep": args.expert_model_parallel_size,
        "dp": args.data_parallel_size,
        "mbs": args.micro_batch_size,
        "gbs": args.global_batch_size,
    }
    for name, value in axes.items():
        wanted = re.search(rf"\b{name}=(\d+)", words)
        assert value == (int(wanted[1]) if wanted else 1), f"{name}={value}, not {words}"


def main(root: Path) -> int:
    """Check each folder; return 1 where one is wrong."""
    names = ("MESHWRIGHT_PRIMUS_MEGATRON", "MESHWRIGHT_PRIMUS_SOURCE")
    sys.path[:0] = [os.environ[name] for name in names]
    os.chdir(tempfile.mkdtemp())
    fake()
    failed = 0
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                check(folder)
        except (Exception, SystemExit) as error:
            failed += 1
            print(f"{folder.name}: {type(error).__name__}: {str(error)[:400]}")
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
