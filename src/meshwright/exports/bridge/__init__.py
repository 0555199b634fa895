"""Plans as recipes of Megatron-Bridge: Python, a YAML of overrides, words; and such YAML read
back."""

from __future__ import annotations

from meshwright.exports.bridge.read import BRIDGE_SOURCE
from meshwright.exports.bridge.write import MEGATRON_BRIDGE

__all__ = ["BRIDGE_SOURCE", "MEGATRON_BRIDGE"]
