"""The door for users of AutoConfigurator for NeMo 1.x: its Hydra words in, its folders out."""

from __future__ import annotations
