"""Find the fastest way to train or serve a large language model on a given cluster."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
