"""Plans for transformers' Trainer: by DeepSpeed's JSON, or by Accelerate's YAML for FSDP2."""

from __future__ import annotations

from meshwright.exports.hf.accelerate import ACCELERATE
from meshwright.exports.hf.deepspeed import DEEPSPEED

__all__ = ["ACCELERATE", "DEEPSPEED"]
