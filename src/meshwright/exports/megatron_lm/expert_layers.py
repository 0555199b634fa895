"""Which layers have experts, as Megatron-LM's --moe-layer-freq says it."""

from __future__ import annotations

import ast
from typing import Any

from meshwright.errors import ConfigError
from meshwright.units import counted

__all__ = ["expert_layers"]

_MOST_LAYERS = 10_000


def expert_layers(text: str, layers: int) -> tuple[int, int]:
    """Return leading dense layers and one-in-how-many of the others, from `([0]*3+[1]*58)` or a
    number; ConfigError for what is neither."""
    try:
        kinds = _evaluated(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"--moe-layer-freq {text[:60]!r}: expected a number or a list such as ([0]*3+[1]*58)"
        ) from None
    if isinstance(kinds, int):
        kinds = [int(layer % max(kinds, 1) == 0) for layer in range(layers)]
    if len(kinds) != layers or set(kinds) - {0, 1}:
        raise ConfigError(
            f"--moe-layer-freq {text[:60]!r}: {counted(len(kinds), 'layer')} of {layers}; expected"
            " 0 or 1 for each"
        )
    for first in range(layers):
        for every in range(1, 9):
            rest = layers - first
            if (
                sum(kinds[:first]) == 0
                and sum(kinds) == rest // every
                and _spread(kinds[first:], every)
            ):
                return first, every
    raise ConfigError(
        f"--moe-layer-freq {text[:60]!r}: a plan knows leading dense layers and one layer in so"
        " many with experts"
    )


def _spread(kinds: list[int], every: int) -> bool:
    """Whether each whole round of `every` layers has one with experts."""
    rounds = len(kinds) // every
    return all(sum(kinds[i * every : (i + 1) * every]) == 1 for i in range(rounds))


def _evaluated(node: ast.expr) -> Any:
    """Evaluate numbers, lists, + and * of a bounded length."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int)
        and 0 <= node.value <= _MOST_LAYERS
    ):
        return node.value
    if isinstance(node, ast.List):
        return [_evaluated(entry) for entry in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if (
            isinstance(node.op, ast.Mult)
            and isinstance(left, list)
            and isinstance(right, int)
            and len(left) * right <= _MOST_LAYERS
        ):
            return left * right
    raise ValueError
