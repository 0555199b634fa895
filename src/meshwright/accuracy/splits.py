"""How many layers each stage or chunk of a pipeline holds, where a row says it."""

from __future__ import annotations

import re

from meshwright.accuracy.notes import Notes
from meshwright.models.spec import ModelSpec

__all__ = ["split_by_ends", "split_of_row"]

_LONGEST = 4096


def split_of_row(
    notes: Notes, *, model_name: str, total_layers: int, pp: int, vpp: int
) -> tuple[int, ...] | None:
    """Return layers per stage or per chunk in model order; None where the split is even or can't be
    told."""
    ways = (
        notes.partition and _without_ends(notes.partition, total_layers),
        notes.pipeline_pattern and pattern_chunks(notes.pipeline_pattern),
        notes.thin_ends and _thin_ends(total_layers, pp=pp, vpp=vpp),
        "account_for_embedding" in model_name and _thin_ends(total_layers, pp=pp, vpp=vpp),
    )
    for split in ways:
        if split and sum(split) == total_layers and len(split) in (pp, pp * vpp):
            return split
    return None


def split_by_ends(model: ModelSpec, *, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return layers per chunk as Megatron-Bridge's recipes cut a model: loss and each layer that
    predicts further tokens count as layers.

    All chunks are as large as the largest must be, and the last holds what is left: DeepSeek-V3's
    61 layers and one more on 4 stages of 4 chunks are 15 chunks of 4 and one of 1. Without such
    layers embedding and loss thin the ends where that comes out even. None: evenly.
    """
    chunks = pp * vpp
    if pp < 2 or chunks > model.total_layers or model.total_layers > _LONGEST:
        return None
    if not model.mtp_layers:
        return (
            _thin_ends(model.total_layers, pp=pp, vpp=vpp) if model.total_layers % chunks else None
        )
    ends = model.mtp_layers + 1
    each = -(-(model.total_layers + ends) // chunks)
    last = model.total_layers - each * (chunks - 1)
    return (
        (each, *([each] * (chunks - 2)), last)
        if last >= 0
        else (each + last, *([each] * (chunks - 2)), 0)
    )


def _without_ends(sizes: tuple[int, ...], total_layers: int) -> tuple[int, ...] | None:
    """Take away entries that are no layers: half of the surplus lies before the first layer, half
    behind the last.

    DeepSpeed's pipeline of GPT-2 has six: cast, embedding, transpose; transpose, norm, head.
    Planners often count one at either end.
    """
    surplus = sum(sizes) - total_layers
    if surplus < 0:
        return None
    first, last = surplus // 2, sum(sizes) - (surplus - surplus // 2)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        max(0, min(end, last) - max(end - size, first))
        for size, end in zip(sizes, ends, strict=True)
    )


def _thin_ends(total_layers: int, *, pp: int, vpp: int) -> tuple[int, ...] | None:
    """One layer less in the first and the last chunk, where that comes out even."""
    chunks = pp * vpp
    if chunks < 2 or chunks > _LONGEST or (total_layers + 2) % chunks:
        return None
    each = (total_layers + 2) // chunks
    return (each - 1, *([each] * (chunks - 2)), each - 1)


def pattern_chunks(pattern: str) -> tuple[int, ...] | None:
    """Layers per chunk of a pipeline written as Megatron does, `Et*3|(tt|)*6L`, or with repeats,
    `Et*7|t*8x6|t*7,L`.

    E is the embedding, t a layer, m a layer that predicts further tokens, L the loss; | begins the
    next chunk.
    """
    text = _repeat_groups(pattern.replace(",", "").replace(" ", ""))
    text = re.sub(r"t\*(\d{1,3})x(\d{1,3})\|?", lambda m: ("t" * int(m[1]) + "|") * int(m[2]), text)
    text = re.sub(r"([EtmL])\*(\d{1,3})", lambda m: m[1] * int(m[2]), text)
    if len(text) > _LONGEST or not re.fullmatch(r"[EtmL|]+", text):
        return None
    return tuple(chunk.count("t") for chunk in text.split("|"))


def _repeat_groups(text: str) -> str:
    return re.sub(r"\(([EtmL|*\d]{1,50})\)\*(\d{1,3})", lambda m: m[1] * int(m[2]), text)
