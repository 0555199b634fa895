"""Corpora to Megatron's .bin/.idx: sharded by rank, resumable, atomic."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.data.blending import blend
    from meshwright.data.counting import stats
    from meshwright.data.encoders.encoder import EncoderSpec
    from meshwright.data.fetching import download
    from meshwright.data.footprint import plan
    from meshwright.data.join import concat
    from meshwright.data.merging import merge
    from meshwright.data.pipeline import run
    from meshwright.data.tokenize_request import TokenizeRequest
    from meshwright.data.tokenizing import tokenize
    from meshwright.data.training import train_sentencepiece
    from meshwright.data.unpack import extract
    from meshwright.data.verifying import check, verify
    from meshwright.data.wikipedia import wiki

__all__ = [
    "EncoderSpec",
    "TokenizeRequest",
    "blend",
    "check",
    "concat",
    "download",
    "extract",
    "merge",
    "plan",
    "run",
    "stats",
    "tokenize",
    "train_sentencepiece",
    "verify",
    "wiki",
]

_HOMES = {
    "EncoderSpec": "encoders.encoder",
    "TokenizeRequest": "tokenizing",
    "blend": "blending",
    "check": "verifying",
    "concat": "join",
    "download": "fetching",
    "extract": "unpack",
    "merge": "merging",
    "plan": "footprint",
    "run": "pipeline",
    "stats": "counting",
    "tokenize": "tokenizing",
    "train_sentencepiece": "training",
    "verify": "verifying",
    "wiki": "wikipedia",
}
"""The step's function by the module of this package that holds it; loaded when first asked for. No
module has the name of a function."""


def __getattr__(name: str) -> Any:
    """Return a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright.data' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.data.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
