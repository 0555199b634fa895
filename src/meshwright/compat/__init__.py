"""Ways in for users of other tools: a door translates their words into ours and back, and decides
nothing."""

from __future__ import annotations
