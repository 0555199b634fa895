"""SGLang: the command that serves a model."""

from __future__ import annotations

from meshwright.software.folders import Software, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="sglang", title="SGLang", order=110, engines=parts(__name__, "serve:SGLANG")
)
