"""TensorRT-LLM: the command that serves a model."""

from __future__ import annotations

from meshwright.software.folders import Software, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="tensorrt-llm", title="TensorRT-LLM", order=120, engines=parts(__name__, "serve:TRTLLM")
)
