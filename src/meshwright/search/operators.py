"""Operators of one layer of each kind, from the same parts that the step is priced with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cost.layer import LayerPrice, price_layer
from meshwright.cost.operators import Part, Site
from meshwright.cost.stages import distinct_shapes
from meshwright.search.quote import Setting
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import Block

__all__ = ["LayerTable", "OperatorRow", "layer_tables"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRow:
    """One operator of one block, on one rank, for one micro batch, weighted with how often a mean
    layer has the block."""

    block: str
    name: str
    term: str
    forward_s: float
    backward_s: float
    saved_bytes: float
    """Kept from forward to backward when nothing is recomputed."""
    flops: float = 0.0
    """Of the forward pass, on matrix units."""
    moved_bytes: float = 0.0
    """Of device memory, by the forward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTable:
    """The mean layer of one segment of the model."""

    title: str
    num_layers: int
    rows: tuple[OperatorRow, ...]

    @property
    def forward_s(self) -> float:
        """The sum of the rows."""
        return sum(row.forward_s for row in self.rows)

    @property
    def backward_s(self) -> float:
        """The sum of the rows."""
        return sum(row.backward_s for row in self.rows)

    @property
    def saved_bytes(self) -> float:
        """The sum of the rows."""
        return sum(row.saved_bytes for row in self.rows)


def layer_tables(layout: Layout, setting: Setting) -> tuple[LayerTable, ...]:
    """Return one table per segment of the model, for one micro batch."""
    shapes, _ = distinct_shapes(Layouts.of([layout]))
    site = Site(
        model=setting.model,
        work=setting.work,
        stack=setting.stack,
        pool=setting.pool,
        shapes=shapes,
    )
    segments = setting.model.segments
    return tuple(
        LayerTable(
            title=_title(segment.blocks),
            num_layers=segment.num_layers,
            rows=_rows(price_layer(site, segment)),
        )
        for segment in segments
    )


def _title(blocks: tuple[tuple[Block, float], ...]) -> str:
    return " + ".join(_block_words(block, count) for block, count in blocks)


def _block_words(block: Block, count: float) -> str:
    name = block.kind.replace("_", " ")
    if block.stream == "decoder":
        name = f"decoder {name}"
    if block.window is not None:
        name = f"{name} (window {block.window})"
    return name if count == 1 else f"{count:.3g} {name}"


def _rows(price: LayerPrice) -> tuple[OperatorRow, ...]:
    rows = [
        _row(_block_words(block, 1), part, count)
        for block, count, parts in price.parts
        for part in parts
    ]
    launch = [
        float(direction.get("launch", np.zeros(1))[0])
        for direction in (price.forward, price.backward)
    ]
    if any(launch):
        rows.append(
            OperatorRow(
                block="",
                name="waiting for kernel launches",
                term="launch",
                forward_s=launch[0],
                backward_s=launch[1],
                saved_bytes=0.0,
            )
        )
    return tuple(row for row in rows if row.forward_s or row.backward_s or row.saved_bytes)


def _row(block: str, part: Part, count: float) -> OperatorRow:
    return OperatorRow(
        block=block,
        name=part.name,
        term=part.term,
        forward_s=count * _number(part.forward_s),
        backward_s=count * _number(part.backward_s),
        saved_bytes=count * _number(part.saved_bytes),
        flops=count * _number(part.flops),
        moved_bytes=count * _number(part.moved_bytes),
    )


def _number(value: Any) -> float:
    return float(np.ravel(value)[0])
