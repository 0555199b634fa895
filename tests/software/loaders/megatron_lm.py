"""Run Megatron-LM's parser, validation and configuration over exported folders on a CPU; each is
named with its fault.

MESHWRIGHT_MEGATRON_LM_SOURCE is a checkout. Blackwell GPUs, Transformer Engine's version and fused
kernels are faked: nothing is run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import typing
from pathlib import Path
from typing import Any

import torch
import typing_extensions
from packaging.version import Version

TRANSFORMER_ENGINE = Version("2.9.0")


class Blackwell:
    """What Megatron-LM asks of a GPU."""

    major, minor = 10, 0
    multi_processor_count = 148
    total_memory = 180 << 30
    name = "B200"


def fake() -> None:
    """Stand in for what a CPU machine lacks."""
    if not hasattr(typing, "override"):
        vars(typing)["override"] = typing_extensions.override
    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda *args, **kwargs: Blackwell
    cuda.get_device_capability = lambda *args, **kwargs: (Blackwell.major, 0)
    cuda.is_available = lambda: False
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
    for name in [name for name in vars(moe_utils) if name.startswith("fused_")]:
        setattr(moe_utils, name, lambda *args: None)


def check(folder: Path) -> None:
    """Parse and validate one export, and build its configuration."""
    from megatron.core.transformer import transformer_config
    from megatron.training import arguments

    arguments.is_te_min_version = transformer_config.is_te_min_version = (
        lambda version, check_equality=True: Version(version) <= TRANSFORMER_ENGINE
    )
    plan, command = (folder / "plan.txt").read_text().splitlines()[:2]
    exported = re.findall(
        r"^export (\w+)=(.*)$", (folder / "train.sh").read_text(), flags=re.MULTILINE
    )
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF"):
        os.environ.pop(name, None)
    os.environ |= {**dict(exported), "WORLD_SIZE": plan.split()[0], "RANK": "0"}
    sys.argv = command.split()
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    arguments.core_transformer_config_from_args(args)
    layout = dict(word.split("=") for word in plan.split()[3].split(","))
    assert (args.tensor_model_parallel_size, args.data_parallel_size) == (
        int(layout["tp"]),
        int(layout["dp"]),
    )
    assert (args.virtual_pipeline_model_parallel_size or 1) == int(layout.get("vpp", 1))


def main() -> None:
    """Check every folder; exit with 1 where one fails."""
    sys.path.insert(0, os.environ["MESHWRIGHT_MEGATRON_LM_SOURCE"])
    fake()
    faults = []
    for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
        told = io.StringIO()
        try:
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                check(folder)
        except (Exception, SystemExit) as error:
            faults.append(
                f"{folder.name}: {type(error).__name__}: {error} {told.getvalue()[-200:]}"
            )
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


main()
