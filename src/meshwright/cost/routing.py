"""Tokens on their way to experts and back: router, permutation, one-hot masks, exchange."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.collectives import all_gather_s, all_to_all_s, dispatch_s, group_of
from meshwright.cost.kernels import gemm_s, streaming_s
from meshwright.cost.linear import linear
from meshwright.cost.operators import Part, Site, passes
from meshwright.cost.stages import Floats

__all__ = ["Rows", "busiest_share", "capacity_of", "routed_rows", "routing_parts"]

MOE = frozenset({"moe"})
ROUTING_KERNELS = 36.0
"""Kernels of routing, forward or backward: softmax, top-k, loss, masks, counts and their copy to
the host, sort, permute, unpermute (counted in Megatron-Core 0.12's router and all-to-all
dispatcher, without its fusions)."""
ROUTING_LAUNCHES = {False: 115.0, True: 66.0}
"""Launches that routing takes the host as long as, forward or backward, without and with fused
router and permutation: its kernels are launched from Python, and counts come back to the host. Set
by layers that wait for the host: Qwen3 235B on H800 (Megatron-Core 0.12, 11.5 ms forward and
backward with 16 local experts) and Qwen3 30B on B200 (Megatron-Bridge 25.11, 9.2 ms)."""
ROUTING_SPREAD = 0.3
"""Standard deviation of one expert's load in a micro batch over its mean, in typical routing.
Assumed: a balancing loss or biases hold the loads of a global batch alike, those of one micro batch
still follow its text."""
PERMUTE_PASSES = {"alltoall": 4.0, "flex": 2.0}
"""Passes over routed rows on either side of the exchange. alltoall: sort by rank, sort by expert,
each read and written, and back; flex: one sort on arrival, one sum on the way back (Megatron-Core's
token dispatchers)."""
COUNT_BYTES = 8.0
"""Of one count of rows, which the embedded trainer's ranks exchange before the rows themselves
(trainer/model.py)."""


MASK_BYTES = (34.0, 14.0)
"""Bytes that one-hot masks take per token and place of an expert, forward and backward, beside the
products that read them: two choices' weights in fp32 written, read and summed (4 + 4 + 12), the
mask made of them (5), both cast to half precision (3 + 6); backward the cast gradient (6), read for
either choice (8). Counted in `top2gating` of mindspeed/moe/gate.py (1.0.RC1)."""


def capacity_of(site: Site) -> float:
    """Capacity factor that experts are padded to; 0 where they are not.

    Formula:  the model's own, else the stack's; 0 with flexible kernels, which drop without padding
    Units:    places of an expert over its mean tokens.
    Source:   Megatron-Core's flex dispatcher refuses moe_pad_expert_input_to_capacity
              (transformer_config.py).
    Valid:    models with experts.
    Checked:  tests/cost/test_routing.py
    """
    moe = site.model.moe
    assert moe is not None
    if site.stack.dispatcher == "flex":
        return 0.0
    return moe.capacity_factor or site.stack.expert_capacity


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Tokens of one micro batch and rank on their way, counted once per expert that they go to;
    arrays (U,)."""

    own: Floats
    """Tokens that the rank routes."""
    sent: Floats
    """Rows that it sends."""
    received: Floats
    """Rows that its experts work on, on the busiest rank."""


def routed_rows(site: Site, tokens: Floats) -> Rows:
    """Return the rows that a rank sends to experts, and those that its own experts see.

    Formula:  own = tokens / tp; sent = own * top_k, times the capacity factor where experts are
              padded; received = sent * etp * busiest_share
    Units:    rows per micro batch and rank, (U,).
    Source:   `permute` of Megatron-Core's alltoall dispatcher pads to capacity before the
              exchange.
    Valid:    a rank routes its own tokens, under sequence parallelism.
    Checked:  tests/cost/test_routing.py
    """
    moe, shapes = site.model.moe, site.shapes
    assert moe is not None
    own, capacity = tokens / shapes.tp, capacity_of(site) or 1.0
    padded = own * moe.top_k * capacity
    return Rows(
        own=own,
        sent=padded,
        received=padded * shapes.etp * busiest_share(site),
    )


def busiest_share(site: Site) -> Floats:
    """Rows of the busiest expert-parallel rank against the mean, which every rank of an exchange
    waits for.

    Formula:  balanced, in turn: 1; typical: 1 + ROUTING_SPREAD / sqrt(experts per rank) * sqrt(2 ln
              ep), the largest of ep normal draws; worst: ep * min(top_k, experts per rank) / top_k;
              padded to a capacity: 1, as every expert gets its capacity; never more than a capacity
              beyond which tokens are dropped
    Units:    a factor of 1 or more, (U,).
    Source:   extreme value of independent loads (Cramer 1946); worst: definition.
    Valid:    models with experts; one rank holds every expert where ep = 1, and its rows are what
              they are.
    Checked:  tests/cost/test_feedforward.py
    """
    moe, ep = site.model.moe, site.shapes.ep
    assert moe is not None
    held = np.maximum(moe.num_experts / ep, 1.0)
    if site.work.routing in ("balanced", "in-turn") or capacity_of(site):
        return np.ones_like(ep)
    share = 1.0 + ROUTING_SPREAD / np.sqrt(held) * np.sqrt(2.0 * np.log(ep))
    if site.work.routing == "worst":
        share = np.maximum(1.0, ep * np.minimum(moe.top_k, held) / moe.top_k)
    return np.minimum(share, max(1.0, moe.capacity_factor or np.inf))


def routing_parts(site: Site, rows: Rows, width: Floats) -> list[Part]:
    """Return router, permutation or one-hot products, and exchange.

    Formula:  linear(hidden, num_experts) on own tokens; `_permutation`, or `_one_hot` where tokens
              are picked by masks; `_exchange`
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   Megatron-Core's router and dispatchers (arXiv:2504.14960).
    Valid:    models with experts.
    Checked:  tests/cost/test_routing.py
    """
    moe = site.model.moe
    assert moe is not None
    router = linear(
        site,
        "router",
        into=np.full_like(width, float(site.model.hidden)),
        out=np.full_like(width, float(moe.num_experts)),
        tokens=rows.own,
        redone_by=MOE,
    )
    picked = [_permutation(site, rows, width)]
    if site.stack.token_picking == "one-hot":
        picked.append(_one_hot(site, rows, width))
    return [router, *picked, _exchange(site, rows, width)]


@makes("pointwise")
def _permutation(site: Site, rows: Rows, width: Floats) -> Part:
    """Rows sorted by rank and expert, and back; with one-hot masks, which products apply, their
    order in the exchange alone.

    Formula:  PERMUTE_PASSES * (sent + received) * width * bytes each way; keeps received * width *
              kept input bytes + own * num_experts * 4 bytes
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   counted at PERMUTE_PASSES, ROUTING_KERNELS and ROUTING_LAUNCHES.
    """
    moe = site.model.moe
    assert moe is not None
    moved = (rows.sent + rows.received) * width * site.activation_bytes
    crossings = PERMUTE_PASSES[site.stack.dispatcher] * moved
    if site.stack.token_picking == "one-hot":
        crossings = crossings / 2.0
    launches = ROUTING_LAUNCHES[site.stack.routing_fused]
    permute = passes(
        site,
        "permute and unpermute",
        forward_bytes=crossings,
        backward_bytes=crossings,
        kernels=ROUTING_KERNELS,
        saved=rows.received * width * site.kept_input_bytes("linear_fc1")
        + rows.own * moe.num_experts * 4.0,
        redone_by=MOE,
        freed_by=MOE,
    )
    return replace(permute, kernels_forward=launches, kernels_backward=launches)


@makes("matmul")
def _one_hot(site: Site, rows: Rows, width: Floats) -> Part:
    """Tokens brought to their places, and results back, by products with masks over every place of
    every expert.

    Formula:  forward gemm(sent, width, own) + gemm(own, width, sent); backward gemm(own, width,
              sent) + gemm(own, sent, width) + gemm(sent, width, own); masks own * sent * MASK_BYTES
              / memory rate; keeps own * sent * (2 + 2 + 1) bytes
    Units:    seconds and bytes per micro batch and rank, (U,).
    Source:   GShard (arXiv:2006.16668), algorithm 2, whose einsums `sec,sm->ecm` and `sec,ecm->sm`
              are; the mask takes no gradient, the weights do. Kept: both masks in half precision
              and the boolean one.
    """
    chip, precision = site.pool.node.chip, site.work.precision
    own, sent = rows.own, rows.sent

    def product(m: Floats, n: Floats, k: Floats) -> Floats:
        return gemm_s(chip, m=m, n=n, k=k, precision=precision)

    there, back = product(sent, width, own), product(own, width, sent)
    masks = own * sent
    forward, backward = (streaming_s(chip, masks * each) for each in MASK_BYTES)
    return Part(
        name="one-hot dispatch",
        term="matmul",
        forward_s=there + back + forward,
        backward_s=back + product(own, sent, width) + there + backward,
        kernels_forward=2.0,
        kernels_backward=3.0,
        saved_bytes=masks * (2.0 * site.activation_bytes + 1.0),
        redone_by=MOE,
        freed_by=MOE,
        flops=4.0 * masks * width,
        moved_bytes=masks * (MASK_BYTES[0] + 2.0 * site.activation_bytes),
    )


@makes("ep_comm")
def _exchange(site: Site, rows: Rows, width: Floats) -> Part:
    """The all-to-alls over ep and gathers over etp.

    Formula:  2 * (dispatch * busiest_share + all_gather(received rows over etp)) each way, dispatch
              all_to_all(sent rows), or of own tokens by flexible kernels
    Units:    seconds per micro batch and rank, (U,).
    Source:   Megatron-Core's dispatchers (arXiv:2504.14960); counts: trainer/model.py.
    """
    moe, size, shapes = site.model.moe, site.activation_bytes, site.shapes
    assert moe is not None
    group = group_of(shapes.ep, shapes.etp, site.pool)
    if site.stack.dispatcher == "flex":
        held = (
            np.maximum(moe.num_experts / shapes.ep, 1.0) if site.work.routing == "in-turn" else None
        )
        sent = rows.own * width * size
        dispatch = dispatch_s(group, sent, float(moe.top_k), neighbours=held)
    else:
        sent = rows.sent * width * size
        dispatch = all_to_all_s(group, sent)
    gather = all_gather_s(
        group_of(shapes.etp, np.ones_like(shapes.etp), site.pool), rows.received * width * size
    )
    both_ways = 2 * (dispatch * busiest_share(site) + gather)
    counts = (
        all_to_all_s(group, np.full_like(rows.own, COUNT_BYTES * moe.num_experts))
        if site.stack.embedded
        else 0.0
    )
    return Part(
        name="expert exchange",
        term="ep_comm",
        forward_s=both_ways + counts,
        backward_s=both_ways,
        kernels_forward=4,
        kernels_backward=4,
        redone_by=MOE,
        sent_bytes=2 * (sent * (shapes.ep > 1) + rows.received * width * size * (shapes.etp > 1)),
    )
