"""Plans as recipes of NeMo 2.0: Python for nemo_run, the same as its YAML; and such YAML read
back."""

from __future__ import annotations

from meshwright.exports.nemo2.read import NEMO2_SOURCE
from meshwright.exports.nemo2.write import NEMO2, recipe_values

__all__ = ["NEMO2", "NEMO2_SOURCE", "recipe_values"]
