"""Run DeepSpeed's own reader of configurations, and transformers' of models, over exported folders;
each is named with its fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


class Ranks:
    """What DeepSpeed asks for the number of data parallel ranks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        """Return the ranks that share a batch."""
        return self.count


def check(folder: Path) -> None:
    """Load one export: the batch must come out even over the ranks, and the model must be one of
    transformers'."""
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers import AutoConfig

    chips, layers, hidden = (int(word) for word in (folder / "plan.txt").read_text().split()[:3])
    words: dict[str, Any] = json.loads((folder / "ds_config.json").read_text())
    deepspeed.comm.get_world_size = lambda *_: chips
    deepspeed.comm.get_rank = lambda *_: 0
    config = DeepSpeedConfig(words, mpu=Ranks(chips))
    assert (
        config.train_batch_size
        == config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps * chips
    )
    assert int(config.zero_config.stage) == words["zero_optimization"]["stage"]
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
