"""Plans as configurations of torchtitan: the TOML of 0.2 and the Python form of 0.3, and TOML read
back."""

from __future__ import annotations

from meshwright.exports.titan.python import TORCHTITAN
from meshwright.exports.titan.read import TORCHTITAN_SOURCE
from meshwright.exports.titan.toml import TORCHTITAN_TOML

__all__ = ["TORCHTITAN", "TORCHTITAN_SOURCE", "TORCHTITAN_TOML"]
