"""Ways in for users of other tools: a door translates their words into ours and back."""

from __future__ import annotations
