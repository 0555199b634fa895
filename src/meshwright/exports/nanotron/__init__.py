"""Plans as nanotron's YAML, and such YAML read back."""

from __future__ import annotations

from meshwright.exports.nanotron.read import NANOTRON_SOURCE
from meshwright.exports.nanotron.write import NANOTRON

__all__ = ["NANOTRON", "NANOTRON_SOURCE"]
