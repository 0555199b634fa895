"""One layer of each segment: time by term, recompute, kernels, kept bytes, priced once per distinct
shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.attention import attention_parts
from meshwright.cost.delta import delta_parts
from meshwright.cost.feedforward import feedforward_output_bytes, mlp_parts, moe_parts
from meshwright.cost.kernels import HostPass, cold_launch_s, host_layer_s
from meshwright.cost.mamba import mamba_parts
from meshwright.cost.operators import Part, Site
from meshwright.cost.routing import capacity_of
from meshwright.cost.stages import Floats
from meshwright.values.layout import RECOMPUTE_MODULES
from meshwright.values.models.spec import Block, Segment
from meshwright.values.stack import Factors

__all__ = [
    "CHECKPOINT_LAUNCHES",
    "LAYER_TERMS",
    "LayerPrice",
    "Redo",
    "block_parts",
    "price_layer",
    "redo_of",
    "sum_terms",
]

LAYER_TERMS = (
    *("matmul", "attention", "pointwise", "launch", "tp_comm", "cp_comm", "ep_comm"),
    "offload",
)
_PARTS = {
    "attention": attention_parts,
    "cross_attention": attention_parts,
    "delta": delta_parts,
    "mamba": mamba_parts,
    "mlp": mlp_parts,
    "moe": moe_parts,
}
FORWARD_COLLECTIVES = 4.0
"""Tensor-parallel collectives of a layer's forward pass with sequence parallelism
(arXiv:2205.05198, section 4.2.2)."""
BACKWARD_COLLECTIVES = 6.0
"""The same of its backward pass, which gathers two inputs again."""
CHECKPOINT_LAUNCHES = 12.0
"""Calls that one recomputed module takes the host beside those of its kernels: the random states of
processor, GPU and tracker are read in the forward pass, and read, set and set back in the backward
pass (CheckpointFunction and _fork_rng of megatron/core/tensor_parallel/random.py). A call then
takes 0.6 ms / 12 = 50 us like any other of Megatron-Core's; Moonlight 16B with micro batches too
small to hide it (bridge_recompute) shows 0.3 to 0.9 ms a layer and module."""
OPS_KEPT = 0.43
"""Share of a layer's activations that torchtitan's selective checkpointing keeps: the layer's input
(2h), every second product's output (10.5h) and attention's (2h) of 34h bytes a token in Llama 3 8B
(torchtitan/distributed/activation_checkpoint.py)."""
OPS_REDONE = 0.37
"""Share of a layer's matrix products that it redoes: every second one, of Llama 3 8B the keys', the
output projection and the second of the feed-forward's first layers, 80 of 218 million weights."""
OPS_REDONE_SPLIT = 0.29
"""The same with sequence parallelism: what the output projection's scatter leaves is kept, so that
nothing reads the product before it and 63 of 218 million weights remain (counted on graphs of torch
2.13)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPrice:
    """Mean layer of one segment, one micro batch, one rank; arrays (U,)."""

    forward: dict[str, Floats]
    """Seconds by term of LAYER_TERMS."""
    backward: dict[str, Floats]
    weight_s: Floats
    """Of the backward, the weights' gradient."""
    kept_bytes: Floats
    """Activations kept for the backward pass without recompute."""
    input_bytes: Floats
    """What full recompute keeps of a layer: its input."""
    output_bytes: Floats
    """What its feed-forwards and experts hand back."""
    widest_bytes: Floats
    """Largest temporary of the backward pass: gradients of the widest part."""
    forward_kernels: Floats
    unread_s: Floats
    """Of the forward pass, what full recompute leaves out."""
    host_behind_s: Floats
    """Host time of the backward pass less its kernels' time: above zero the chip waits, below the
    host is ahead."""
    launch_s: float
    """Host time of one counted kernel."""
    parts: tuple[tuple[Block, float, tuple[Part, ...]], ...]

    @property
    def forward_s(self) -> Floats:
        """All terms of the forward pass."""
        return sum_terms(self.forward)

    @property
    def redo_s(self) -> Floats:
        """What full recompute runs again."""
        return self.forward_s - self.unread_s

    @property
    def backward_s(self) -> Floats:
        """All terms of the backward pass, recompute left out."""
        return sum_terms(self.backward)


@dataclass(frozen=True, kw_only=True, slots=True)
class Redo:
    """What one set of recompute modules redoes and frees in a layer; arrays (U,)."""

    redo_s: Floats
    freed_bytes: Floats


def sum_terms(terms: dict[str, Floats]) -> Floats:
    """Sum the values of some terms.

    Formula:  plain sum, in the order of the keys
    Units:    those of the terms.
    Source:   definition.
    Valid:    arrays of one shape; at least one term.
    Checked:  tests/cost/test_layer.py
    """
    first, *others = terms.values()
    return reduce(np.add, others, first)


def block_parts(site: Site, block: Block) -> tuple[Part, ...]:
    """Return the parts of any block.

    Formula:  the parts of its kind: attention, delta attention, feed-forward, experts or mixer,
              with the heads that this block has
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   as each kind's own function.
    Valid:    every kind of Block.
    Checked:  tests/cost/test_layer.py
    """
    model = site.model.at(block)
    at = site if model is site.model else replace(site, model=model)
    return tuple(_PARTS[block.kind](at, block))


@makes("memory.activations")
def price_layer(site: Site, segment: Segment) -> LayerPrice:
    """Price the mean layer of a segment.

    Formula:  sum over blocks of count * parts, of times and of the bytes kept for the backward
              pass (saved_bytes); a term `launch` fills up to kernels * launch time where the host
              is slower than the chip
    Units:    seconds, bytes; (U,).
    Source:   parts as documented; launch: the host queues kernels ahead, so the slower of host and
              chip counts.
    Valid:    mean over the segment's layers (patterns such as 5 local : 1 global attention are
              spread evenly).
    Checked:  tests/cost/test_layer.py
    """
    parts = tuple(
        (block, count, _scaled(block_parts(site, block), site.stack.factors))
        for block, count in segment.blocks
    )
    flat = [(count, part) for _, count, group in parts for part in group]
    forward = {term: _total(site, flat, term, "forward_s") for term in LAYER_TERMS}
    backward = {term: _total(site, flat, term, "backward_s") for term in LAYER_TERMS}
    forward["ep_comm"], backward["ep_comm"] = (
        _exposed_exchange_s(site, forward),
        _exposed_exchange_s(site, backward),
    )
    kernels = _count(site, flat, "kernels_forward"), _count(site, flat, "kernels_backward")
    host = _measured_host_s(site, segment) or _host_s(site, *kernels)
    behind = _host_behind_s(site, host[1], kernels[1], backward)
    forward["launch"], backward["launch"] = (
        _exposed_host_s(site, seconds, count, terms)
        for seconds, count, terms in zip(host, kernels, (forward, backward), strict=True)
    )
    forward["launch"] = np.maximum(forward["launch"], _drained_host_s(site, parts))
    block = segment.blocks[0][0]
    kept = _weighted(site, flat, lambda part: part.saved_bytes)
    return LayerPrice(
        forward=forward,
        backward=backward,
        weight_s=_weighted(site, flat, lambda part: part.weight_s),
        kept_bytes=kept,
        input_bytes=site.split_tokens(block) * site.model.hidden * site.activation_bytes,
        output_bytes=np.asarray(
            sum(count * feedforward_output_bytes(site, block) for block, count in segment.blocks)
        ),
        widest_bytes=_widest(site, parts),
        forward_kernels=kernels[0],
        unread_s=_weighted(site, flat, lambda part: part.unread_s),
        host_behind_s=behind,
        launch_s=0.0 if site.pool.node.chip.is_processor else _launch_s(site),
        parts=parts,
    )


_FACTOR_OF = {"tp_comm": "tensor", "cp_comm": "context", "ep_comm": "expert"}
"""The calibration's factor that scales a term; all others are the chip's own work."""


def _scaled(parts: tuple[Part, ...], factors: Factors) -> tuple[Part, ...]:
    """Multiply the times of parts by what a calibration found."""
    return tuple(
        _times(part, getattr(factors, _FACTOR_OF.get(part.term, "compute"))) for part in parts
    )


def _times(part: Part, factor: float) -> Part:
    if factor == 1.0:
        return part
    return replace(
        part,
        **{
            name: factor * getattr(part, name)
            for name in ("forward_s", "backward_s", "weight_s", "unread_s", "gather_s")
        },
    )


@makes("ep_comm")
def _exposed_exchange_s(site: Site, terms: dict[str, Floats]) -> Floats:
    """Part of a layer's expert exchange that another micro batch's work does not hide.

    Formula:  max((1 - overlap) exchange, exchange - overlap * the layer's other terms); nothing is
              hidden in hybrid models, nor by the megatron family in a pipeline whose stages are one
              piece
    Units:    seconds per micro batch, (U,).
    Source:   Megatron-Core's overlap_moe_expert_parallel_comm, whose schedule of layer parts knows
              models of attention layers only: it runs one micro batch's exchange beside another's
              compute, so never more is hidden than is computed; with pp > 1 it needs virtual stages
              (Megatron-Bridge documentation, MoE communication overlap, prerequisites).
    """
    exchange = terms["ep_comm"]
    most = site.stack.ep_overlap if site.model.hybrid is None else 0.0
    overlap = most * (1.0 - site.shapes.unchunked * (site.stack.family == "megatron"))
    return np.maximum(
        (1.0 - overlap) * exchange, exchange - overlap * (sum_terms(terms) - exchange)
    )


def _launch_s(site: Site) -> float:
    """Host time of one counted kernel.

    Formula:  chip.launch_s * (1 - launch_hidden) * kernels_per_layer_scale
    Units:    seconds.
    Source:   `Chip.launch_s` with its `launch_source` in `values/hardware/chips.csv`; the shares
              are the stack's own (`software/*/stack.toml`).
    """
    return (
        site.pool.node.chip.launch_s
        * (1.0 - site.stack.launch_hidden)
        * site.stack.kernels_per_layer_scale
    )


def _host_s(site: Site, forward_kernels: Floats, backward_kernels: Floats) -> tuple[Floats, Floats]:
    """Host time of a layer's forward and backward: its launches, and what its collectives cost the
    host where their members compare them first.

    Formula:  c = stack.collective_check_s * tp, 0 for tp = 1; forward kernels * launch time +
              FORWARD_COLLECTIVES * c; backward max(kernels * launch time, BACKWARD_COLLECTIVES * c)
    Units:    seconds per micro batch, (U,).
    Source:   counting; torch's ProcessGroupWrapper holds the thread that launches. That the
              backward pass hides its launches behind that was kept as it comes nearest to
              nanotron_ultrascale: docs/decisions/0035.
    """
    launch_s = _launch_s(site)
    check_s = site.stack.collective_check_s * site.shapes.tp * (site.shapes.tp > 1)
    return (
        forward_kernels * launch_s + FORWARD_COLLECTIVES * check_s,
        np.maximum(backward_kernels * launch_s, BACKWARD_COLLECTIVES * check_s),
    )


def _measured_host_s(site: Site, segment: Segment) -> tuple[Floats, Floats] | None:
    """Host time of a layer of the embedded trainer, forward and backward, as profiled; None for
    others, and without a profile of it."""
    if not site.stack.embedded:
        return None
    routes, moe = any(block.kind == "moe" for block, _ in segment.blocks), site.model.moe
    experts = (
        np.maximum(moe.num_experts / site.shapes.ep, 1.0) if routes and moe is not None else None
    )
    forward, backward = (
        host_layer_s(site.pool.node.chip, site.shapes, experts=experts, way=way) for way in _WAYS
    )
    return None if forward is None or backward is None else (forward, backward)


_WAYS: tuple[HostPass, HostPass] = ("", "_backward")


@makes("launch")
def _exposed_host_s(
    site: Site, host_s: Floats, kernels: Floats, terms: dict[str, Floats]
) -> Floats:
    """Host time that a layer shows.

    Formula:  max(0, host_s - sum(terms of the layer, launch left out)): the host queues kernels
              ahead, so the slower of host and chip counts
    Source:   `_host_s` for `host_s`: counted kernels times the time of one.
    """
    return np.maximum(0.0, _host_behind_s(site, host_s, kernels, terms))


@makes("launch")
def _drained_host_s(site: Site, parts: tuple[tuple[Block, float, tuple[Part, ...]], ...]) -> Floats:
    """Host time that the forward pass of a layer with experts shows, as it cannot run ahead from
    one block into the next.

    Formula:  sum over blocks of count * max(0, kernels * launch time - the block's other terms); 0
              without experts, and where they are padded to a capacity
    Units:    seconds per micro batch, (U,).
    Source:   each mixture's counts of tokens come back to the host before it can launch what
              follows, so that the queue is empty there (`cuda_sync_point` of Megatron-Core's
              token_dispatcher.py, none with `drop_and_pad`; DeepEP's `Buffer.dispatch` waits
              too); the backward pass knows them.
    """
    nothing = np.zeros_like(site.shapes.tp)
    routed = any(block.kind == "moe" for block, _, _ in parts)
    if not routed or site.stack.embedded or capacity_of(site):
        return nothing
    total = nothing
    for _, count, group in parts:
        own = [(1.0, part) for part in group]
        terms = {term: _total(site, own, term, "forward_s") for term in LAYER_TERMS}
        terms["ep_comm"] = _exposed_exchange_s(site, terms)
        host_s = _count(site, own, "kernels_forward") * _launch_s(site)
        total = total + count * np.maximum(0.0, host_s - sum_terms(terms))
    return total


def _host_behind_s(site: Site, host_s: Floats, kernels: Floats, terms: dict[str, Floats]) -> Floats:
    """How far the host is behind: on a GPU, which works while the host launches, its time less the
    kernels'. A processor is its own host: everything but the calls of the kernels, which their
    measured times hold."""
    chip = site.pool.node.chip
    if chip.is_processor and site.stack.embedded:
        return host_s - kernels * cold_launch_s(chip)
    return host_s - sum_terms(
        {name: seconds for name, seconds in terms.items() if name != "launch"}
    )


def _total(site: Site, flat: list[tuple[float, Part]], term: str, field: str) -> Floats:
    return _weighted(
        site,
        [(count, part) for count, part in flat if part.term == term],
        lambda part: getattr(part, field),
    )


def _count(site: Site, flat: list[tuple[float, Part]], field: str) -> Floats:
    return _weighted(site, flat, lambda part: getattr(part, field))


def _weighted(
    site: Site, flat: list[tuple[float, Part]], value: Callable[[Part], Floats | float]
) -> Floats:
    total = np.zeros_like(site.shapes.tp)
    for count, part in flat:
        total = total + count * value(part)
    return total


def _widest(site: Site, parts: tuple[tuple[Block, float, tuple[Part, ...]], ...]) -> Floats:
    """Temporaries of a block's backward pass: gradients at both sides of its widest part, its
    gathered input and that one's gradient.

    Formula:  max over blocks of 2 * most saved_bytes of a part + 2 * tokens * hidden *
              activation_bytes
    Units:    bytes, (U,).
    Source:   counting; that a part's gradients are as large as what it keeps is assumed.
    """
    widest = np.zeros_like(site.shapes.tp)
    for block, _, group in parts:
        gathered = site.tokens(block) * site.model.hidden * site.activation_bytes
        largest = np.max(
            [np.broadcast_to(part.saved_bytes, gathered.shape) for part in group], axis=0
        )
        widest = np.maximum(widest, 2.0 * largest + 2.0 * gathered)
    return widest


@makes("recompute")
def redo_of(price: LayerPrice, modules: int) -> Redo:
    """What recomputing a set of modules (bit mask) costs and frees.

    Formula:  a part is redone, or what it keeps is freed, where one of its modules is in the set;
              `ops` redoes OPS_REDONE of the matrix products (OPS_REDONE_SPLIT where a part
              gathers), the gathers of sequence parallelism (what they scatter is kept) and all
              memory-bound work, and keeps OPS_KEPT. The host launches what is redone, and
              CHECKPOINT_LAUNCHES a module and block; what its lead does not cover is added
    Units:    seconds, bytes; (U,).
    Source:   Megatron-Core `--recompute-modules`; Korthikanti et al. (arXiv:2205.05198);
              torchtitan's selective checkpointing.
    Valid:    selective recompute.
    Checked:  tests/cost/test_layer.py
    """
    chosen = {name for bit, name in enumerate(RECOMPUTE_MODULES) if modules >> bit & 1}
    redo, freed, kernels = (np.zeros_like(price.kept_bytes) for _ in range(3))
    products = _products_redone(price, redo) if "ops" in chosen else redo
    for _, count, group in price.parts:
        checkpoints = {module for part in group for module in part.redone_by & chosen}
        kernels = kernels + count * CHECKPOINT_LAUNCHES * len(checkpoints)
        for part in group:
            share = _redo_share(part, chosen, products)
            redo = redo + count * (
                (part.forward_s - part.unread_s) * share + ("ops" in chosen) * part.gather_s
            )
            kernels = kernels + count * part.kernels_forward * share
            if part.freed_by & chosen:
                freed = freed + count * part.saved_bytes
    if "ops" in chosen:
        freed = np.maximum(freed, price.kept_bytes * (1.0 - OPS_KEPT))
    behind = price.host_behind_s + kernels * price.launch_s - redo
    waits = np.maximum(0.0, behind) - np.maximum(0.0, price.host_behind_s)
    return Redo(redo_s=redo + waits, freed_bytes=freed)


def _products_redone(price: LayerPrice, like: Floats) -> Floats:
    """Share of the products that checkpointing by operator runs again: less where a part
    gathers."""
    split = np.any(
        [
            np.asarray(part.gather_s) * np.ones_like(like) > 0
            for _, _, group in price.parts
            for part in group
        ],
        axis=0,
    )
    return np.where(split, OPS_REDONE_SPLIT, OPS_REDONE)


def _redo_share(part: Part, chosen: set[str], products: Floats) -> Floats | float:
    if part.redone_by & chosen:
        return 1.0
    shares: dict[str, Floats | float] = {"matmul": products, "pointwise": 1.0}
    return shares.get(part.term, 0.0) if "ops" in chosen else 0.0
