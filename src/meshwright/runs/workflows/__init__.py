"""Work flows: every job from a corpus to a trained model, from one description."""

from __future__ import annotations
