"""Corpora to Megatron's .bin/.idx: sharded by rank, resumable, atomic."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.data.archives import extract
    from meshwright.data.encoders import EncoderSpec
    from meshwright.data.fetching import download
    from meshwright.data.footprint import plan
    from meshwright.data.join import concat
    from meshwright.data.pairs import blend, merge, stats
    from meshwright.data.pipeline import run
    from meshwright.data.tokenize_request import TokenizeRequest, train_sentencepiece
    from meshwright.data.tokenizing import tokenize
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
    **{"EncoderSpec": "encoders", "concat": "join", "download": "fetching", "extract": "archives"},
    **{"plan": "footprint", "run": "pipeline", "tokenize": "tokenizing", "wiki": "wikipedia"},
    **dict.fromkeys(("TokenizeRequest", "train_sentencepiece"), "tokenize_request"),
    **dict.fromkeys(("blend", "merge", "stats"), "pairs"),
    **dict.fromkeys(("check", "verify"), "verifying"),
}
"""The module of each step's function, loaded when first asked for; no two share a name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'meshwright.data' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.data.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
