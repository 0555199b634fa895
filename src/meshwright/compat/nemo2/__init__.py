"""The door for users of NeMo 2.0's AutoConfigurator: its Python API, recipes in and out."""

from __future__ import annotations
