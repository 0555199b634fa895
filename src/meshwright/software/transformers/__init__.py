"""transformers' continuous batching: the command of our server around it."""

from __future__ import annotations

from meshwright.software.folders import Software, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="transformers",
    title="transformers",
    order=130,
    engines=parts(__name__, "serve:TRANSFORMERS"),
)
