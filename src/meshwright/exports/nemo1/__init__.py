"""Plans as `training/*.yaml` of the NeMo 1.x launcher or as configurations of its scripts, and such
YAML read back."""

from __future__ import annotations

from meshwright.exports.nemo1.read import NEMO1_SOURCE
from meshwright.exports.nemo1.script import NEMO1_SCRIPT
from meshwright.exports.nemo1.write import NEMO1

__all__ = ["NEMO1", "NEMO1_SCRIPT", "NEMO1_SOURCE"]
