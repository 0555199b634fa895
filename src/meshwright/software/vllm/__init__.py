"""vLLM: the command that serves a model."""

from __future__ import annotations

from meshwright.software.folders import Software, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(name="vllm", title="vLLM", order=100, engines=parts(__name__, "serve:VLLM"))
