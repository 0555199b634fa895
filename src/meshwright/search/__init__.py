"""Search: the space of layouts, the ranked plans, and what explains them."""

from __future__ import annotations
