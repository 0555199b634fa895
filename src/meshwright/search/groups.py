"""What the groups of a layout exchange: over which link, how many bytes, and what a step waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.cost.layer import price_layer
from meshwright.cost.once import exchanged_bytes, gathered_bytes
from meshwright.cost.operators import Site
from meshwright.cost.stages import distinct_shapes, place_stages
from meshwright.cost.step import price_stages
from meshwright.cost.weights import layer_params
from meshwright.search.quote import Setting
from meshwright.search.titles import TIME_READINGS, Bound, link_words
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.adapters import trainable_share
from meshwright.values.ranks import RankAxis

__all__ = ["EXCHANGE_TERMS", "Exchange", "exchanges_of"]

EXCHANGE_TERMS: Mapping[str, RankAxis] = {
    "tp_comm": "tp",
    "cp_comm": "cp",
    "ep_comm": "ep",
    "fsdp_comm": "dp",
    "dp_comm": "dp",
    "pp_comm": "pp",
}
"""Terms of a step that are exchanges, and the axis whose groups run them."""
_BOUNDS: Mapping[RankAxis, Bound] = {
    "tp": "tp link",
    "cp": "cp link",
    "ep": "ep link",
    "dp": "dp link",
    "pp": "pp link",
}
_PER_LAYER = "a layer and micro batch, forward"
_PER_MESSAGE = "a message"
_PER_STEP = "a step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """One kind of exchange of a layout."""

    term: str
    """Its name among the terms of a step."""
    axis: RankAxis
    title: str
    link: str
    """The link, its ranks, and how far apart they are, in words."""
    sent_bytes: float
    """Sizes of its collectives or messages on one rank, hidden or not."""
    per: str
    """What the bytes are for."""
    step_s: float
    """What a step waits for it: the plan's own term."""


def exchanges_of(
    layout: Layout, setting: Setting, time_s: Mapping[str, float]
) -> tuple[Exchange, ...]:
    """Return the exchanges of a layout whose terms are `time_s`; axes of one rank have none."""
    sent = {**_layer_bytes(layout, setting), **_step_bytes(layout, setting)}
    return tuple(
        Exchange(
            term=term,
            axis=axis,
            title=TIME_READINGS[term].title,
            link=link_words(_BOUNDS[axis], layout, setting.pool),
            sent_bytes=sent[term][0],
            per=sent[term][1],
            step_s=time_s.get(term, 0.0),
        )
        for term, axis in EXCHANGE_TERMS.items()
        if sent[term][0] > 0 or time_s.get(term, 0.0) > 0
    )


def _layer_bytes(layout: Layout, setting: Setting) -> dict[str, tuple[float, str]]:
    """Of the mean layer's forward pass, what is hidden too."""
    model = setting.model
    shapes, _ = distinct_shapes(Layouts.of([layout]))
    site = Site(
        model=model, work=setting.work, stack=setting.stack, pool=setting.pool, shapes=shapes
    )
    sums = dict.fromkeys(("tp_comm", "cp_comm", "ep_comm"), 0.0)
    for segment in model.segments:
        for _, count, parts in price_layer(site, segment).parts:
            for part in parts:
                if part.term in sums:
                    size = float(np.ravel(part.sent_bytes)[0])
                    sums[part.term] += segment.num_layers * count * size
    return {term: (size / model.total_layers, _PER_LAYER) for term, size in sums.items()}


def _step_bytes(layout: Layout, setting: Setting) -> dict[str, tuple[float, str]]:
    """Of sharded weights, of replicas, and of neighbouring stages."""
    model, work, stack = setting.model, setting.work, setting.stack
    rows = Layouts.of([layout])
    stages = place_stages(rows, model, which="representative")
    prices = price_stages(rows, stages, model=model, pool=setting.pool, work=work, stack=stack)
    fullest = int(np.argmax(prices.params.total[0]))
    learning = trainable_share(model, work)
    dense, expert = (
        learning * held[:, fullest] for held in (prices.params.dense, prices.params.expert)
    )
    reduced, gathered = exchanged_bytes(rows, dense, expert, stack=stack, precision=work.precision)
    weights = sum(
        segment.num_layers * float(each[0])
        for segment in model.segments
        for each in layer_params(model, segment, rows)
    )
    shared = layout.sharding in ("zero3", "hybrid") and (layout.shard_size or 2) > 1
    a_layer = weights / model.total_layers * gathered_bytes(work.precision)
    return {
        "fsdp_comm": (a_layer * shared * (layout.dp * layout.cp > 1), _PER_LAYER),
        "dp_comm": (float(reduced[0] + gathered[0]), _PER_STEP),
        "pp_comm": (float(prices.message_bytes[0]) * (layout.pp > 1), _PER_MESSAGE),
    }
