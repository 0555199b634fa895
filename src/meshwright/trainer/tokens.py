"""Which tokens of a sequence a context-parallel rank holds."""

from __future__ import annotations

from typing import Literal

__all__ = ["ContextWord", "own_runs"]

ContextWord = Literal["all-to-all", "ring"]
"""How context-parallel ranks attend: tokens are swapped for heads, or keys and values go round."""


def own_runs(seq_len: int, *, cp: int, place: int, context: ContextWord) -> tuple[range, ...]:
    """Return the tokens of a rank as runs.

    All-to-all: one run. Ring: of 2 * cp runs the one at `place` and its mirror image, so that under
    a causal mask all ranks have the same number of pairs to attend to (zigzag; Llama 3,
    arXiv:2407.21783, section 3.3.2).
    """
    if context == "all-to-all" or cp == 1:
        length = seq_len // cp
        return (range(place * length, (place + 1) * length),)
    length = seq_len // (2 * cp)
    return tuple(range(i * length, (i + 1) * length) for i in (place, 2 * cp - 1 - place))
