"""A plan in the names of Megatron-Core's configuration classes, which Megatron-Bridge and NeMo 2.0
share, written and read."""

from __future__ import annotations
