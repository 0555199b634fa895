"""Layouts over several kinds of chips in words."""

from __future__ import annotations

from itertools import groupby

from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout, StageLayout

__all__ = [
    "chunks_words",
    "inline_words",
    "layers_words",
    "mixed_words",
    "recompute_words",
    "runs_of",
]


def runs_of(layout: MixedLayout) -> list[tuple[StageLayout, ...]]:
    """Return the stages in runs that share the chip and how it is cut."""
    return [
        tuple(run)
        for _, run in groupby(
            layout.stages, key=lambda stage: (stage.pool, stage.tp, stage.dp, stage.mbs)
        )
    ]


def layers_words(run: tuple[StageLayout, ...]) -> str:
    """Write the layers of a run of stages, `13x5+12` for five stages of 13 and one of 12."""
    counts = [
        (layers, len(list(group))) for layers, group in groupby(stage.layers for stage in run)
    ]
    return "+".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in counts)


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
    words = layout.words()
    start = words.find("layers_per_stage=")
    split = words[start:]
    if start < 0 or split.count("+") < LONGEST_SPLIT:
        return words
    chunks = len(layout.layers_per_stage or ())
    return f"{words[:start]}layers_per_stage=... ({chunks} numbers, which --json has)"


def mixed_words(layout: MixedLayout) -> str:
    """Write the pipeline in a line: `h800 tp4 13x5 | a800 tp4 5x3`."""
    return " | ".join(f"{run[0].chip} tp{run[0].tp} {layers_words(run)}" for run in runs_of(layout))


def chunks_words(layout: MixedLayout) -> str:
    """Write the layers of all chunks round by round, first stage to last: `2+1 | 1+2`."""
    rounds = [
        layout.chunk_layers[start : start + layout.pp]
        for start in range(0, layout.pp * layout.vpp, layout.pp)
    ]
    return " | ".join("+".join(map(str, layers)) for layers in rounds)
