"""The door for users of NeMo 2.0's AutoConfigurator: its Python API, with recipes in and recipes
out."""

from __future__ import annotations
