"""Layouts over several kinds of chips in words."""

from __future__ import annotations

from itertools import groupby

from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout, StageLayout

__all__ = [
    "chunks_words",
    "inline_words",
    "recompute_words",
]


def recompute_words(run: tuple[StageLayout, ...]) -> str:
    """Write how a run of stages recomputes."""
    counts = [
        (words, len(list(group))) for words, group in groupby(_recompute(stage) for stage in run)
    ]
    return (
        counts[0][0]
        if len(counts) == 1
        else ", ".join(f"{words} x{count}" if count > 1 else words for words, count in counts)
    )


def _recompute(stage: StageLayout) -> str:
    if stage.recompute == "selective":
        return "+".join(stage.recompute_modules)
    if stage.recompute_layers is not None:
        return f"{stage.recompute} {stage.recompute_layers}"
    return stage.recompute


LONGEST_SPLIT = 24
"""Numbers of a split that a line can hold."""


def inline_words(layout: Layout) -> str:
    """Write a layout as `--layout` takes it; a split of many unlike numbers is told, not listed."""
    parts = layout.words().split(",")
    for place, part in enumerate(parts):
        if part.startswith("layers_per_stage=") and part.count("+") >= LONGEST_SPLIT:
            numbers = len(layout.layers_per_stage or ())
            parts[place] = f"layers_per_stage=({numbers} numbers, which --json has)"
    return ",".join(parts)


def chunks_words(layout: MixedLayout) -> str:
    """Write the layers of all chunks round by round, first stage to last: `2+1 | 1+2`."""
    rounds = [
        layout.chunk_layers[start : start + layout.pp]
        for start in range(0, layout.pp * layout.vpp, layout.pp)
    ]
    return " | ".join("+".join(map(str, layers)) for layers in rounds)
