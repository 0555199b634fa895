"""Parts of `scripts/distil_operators.py`: reading the source, fitting surfaces, one module per kind
of operator."""

from __future__ import annotations
