"""How layers are split over the chunks of a pipeline when they do not divide."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

from meshwright.cost.chunks import even_chunks
from meshwright.values.models.spec import ModelSpec

__all__ = ["even_split", "own_split", "split_by_cost", "split_words"]

_LONGEST = 4096
"""Layers beyond any model: a slip in what is read."""


def even_split(layers: int, *, pp: int, vpp: int) -> tuple[int, ...]:
    """Return the layers of each chunk in model order, as even as can be.

    Formula:  layers // (pp * vpp) each; one more in the first chunks of whole rounds over the
              stages; what is then left goes, in the round behind them, to the last stages but one,
              because the last holds the head and early stages hold more micro batches
    Units:    layers, one entry per stage (vpp = 1) or chunk; chunk v of stage s is entry v * pp +
              s.
    Source:   `cost/stages.py` gives the same sums per stage on columns.
    Valid:    pp * vpp <= layers.
    Checked:  tests/search/rules/test_rules.py::test_split_agrees_with_the_columns
    """
    return even_chunks(layers, pp, vpp)


def split_by_cost(
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    pp: int,
    ends: Literal["passed", "reached"] = "passed",
) -> tuple[int, ...]:
    """Return the layers of each stage as nanotron cuts a model, which no setting of it changes.

    Formula:  the next stage begins behind the block that passes a stage's share of the cost, or
              that reaches it; a layer costs 4 * heads * (hidden // heads) * hidden + 3 * ffn *
              hidden (KV heads are not looked at), the head vocab * hidden
    Units:    layers, one entry per stage; the head may lie on a stage of its own.
    Source:   nanotron models/base.py build_model, models/llama.py get_block_compute_costs
              (2411b022).
    Valid:    pp <= layers.
    Checked:  tests/search/rules/test_rules.py::test_stages_of_nanotron_by_hand
    """
    layer = 4 * heads * (hidden // heads) * hidden + 3 * ffn * hidden
    total = layer * layers + vocab * hidden
    sizes, stage = [0] * pp, 0
    for number in range(1, layers + 1):
        sizes[stage] += 1
        beyond = number * layer - total * (stage + 1) / pp
        if (beyond > 0 or (beyond == 0 and ends == "reached")) and stage < pp - 1:
            stage += 1
    return tuple(sizes)


def own_split(
    model: ModelSpec, *, pp: int, ends: Literal["passed", "reached"] = "passed"
) -> tuple[int, ...] | None:
    """Return `split_by_cost` of a model that nanotron trains in stages; None where it has no such
    model, or no pipeline of it."""
    if (
        not 1 < pp <= model.num_layers <= _LONGEST
        or model.family != "decoder"
        or model.moe is not None
    ):
        return None
    return split_by_cost(
        layers=model.num_layers,
        hidden=model.hidden,
        heads=model.num_heads,
        ffn=model.ffn,
        vocab=model.vocab,
        pp=pp,
        ends=ends,
    )


def split_words(split: tuple[int, ...]) -> str:
    """Write a split for people, `16 chunks of 3, 16 of 2`."""
    counts = [(size, len(list(run))) for size, run in groupby(sorted(split, reverse=True))]
    return ", ".join(
        f"{count}{' chunks' if i == 0 else ''} of {size}" for i, (size, count) in enumerate(counts)
    )
