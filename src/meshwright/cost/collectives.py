"""Time of collectives over groups of ranks that lie `stride` apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.kernels import own_s
from meshwright.cost.stages import Floats
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Link, Pool
from meshwright.values.layout import Layouts
from meshwright.values.stack import Stack

__all__ = [
    "Group",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "beside_compute_s",
    "dispatch_s",
    "group_of",
    "message_s",
    "point_to_point_s",
    "reduce_scatter_s",
]

OWN_COPY_BYTES_PER_S = 200e9
"""Rate at which a collective's kernel copies at least: two RTX PRO 6000 gather at 32 GB/s and
reduce at 38 (shipped tables of 256 MiB and more), which a copy of half the buffer at 200 GB/s
explains."""
OWN_COPY_SPEED = 2.0
"""Rate of that copy against a fast link's: with it gathers and reductions of 128 MiB and more among
2 and 4 A100, H100, H200, B200, GB200 and GB300 come out at 0.88 to 1.12 of the shipped tables;
without it two chips would be a third too fast."""


OVERLAP_SLOWDOWN = 0.189
"""Share of a hidden exchange's time by which it slows the compute beside it, as both want
multiprocessors, memory and power: the mean over GPT and Llama models on A100, H100, MI210 and MI250
(arXiv:2507.03114, abstract)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """What one step of a collective over a link takes beyond its bytes at full rate."""

    latency_s: float
    half_message_bytes: float
    bytes_per_s: float

    def step_s(self, share_bytes: Floats) -> Floats:
        """Latency, and a message's ramp: as long as it takes itself up to half a message, and no
        longer beyond."""
        return np.asarray(
            self.latency_s + np.minimum(share_bytes, self.half_message_bytes) / self.bytes_per_s
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks r, r + stride, ... of one collective, and the links between them; arrays of one
    shape."""

    size: Floats
    ring_bytes_per_s: Floats
    """Rate at which data passes each member in a ring over the group."""
    local_bytes_per_s: Floats
    """Rate of one chip inside the domain."""
    remote_bytes_per_s: Floats
    """Rate of one chip's NIC."""
    own_bytes_per_s: Floats
    """Rate at which a member copies its own share, which crosses no link."""
    setup_s: Floats
    """Of one collective, before its first step."""
    local_hops: Floats
    """Steps of a ring inside domains."""
    remote_hops: Floats
    """Steps of a ring between domains."""
    local: Floats
    """Members inside one fast domain."""
    local_wait: Wait
    remote_wait: Wait
    processor: Chip | None = None
    """The chip, where it is a processor: there a profile's times of the collectives themselves
    count, as gloo runs no rings."""

    def ring_latency_s(self, share_bytes: Floats) -> Floats:
        """Time beyond the bytes' own for shares of that size to pass all members but one.

        Formula:  setup_s + local_hops * local step + remote_hops * remote step
        Units:    seconds.
        Source:   Thakur et al. 2005, ring: size - 1 steps, each with its latency.
        """
        inside, outside = self.local_wait.step_s(share_bytes), self.remote_wait.step_s(share_bytes)
        return self.setup_s + self.local_hops * inside + self.remote_hops * outside

    def tree_latency_s(self, share_bytes: Floats) -> Floats:
        """The same up a tree over the domains, or down it; never more than round the ring.

        Formula:  min(ring, setup_s + min(local_hops, local - 1) * local step + ceil(log2(domains))
                  * remote step)
        Units:    seconds.
        Source:   double binary trees between domains (Sanders et al. 2009), as NCCL builds them.
        """
        inside, outside = self.local_wait.step_s(share_bytes), self.remote_wait.step_s(share_bytes)
        tree = (
            self.setup_s
            + np.minimum(self.local_hops, self.local - 1) * inside
            + np.ceil(np.log2(self.domains)) * outside
        )
        return np.minimum(self.ring_latency_s(share_bytes), tree)

    def exchange_latency_s(self, share_bytes: Floats) -> Floats:
        """The same where every member sends to every other at once: one step inside, a tree's
        between domains.

        Formula:  setup_s + local step where a domain has two members + ceil(log2(domains)) * remote
                  step
        Units:    seconds.
        Source:   the shipped tables: an exchange of 64 KiB takes 2, 4 and 8 H100 the same 10 us.
                  The tree between domains is assumed.
        """
        inside, outside = self.local_wait.step_s(share_bytes), self.remote_wait.step_s(share_bytes)
        return self.setup_s + (self.local > 1) * inside + np.ceil(np.log2(self.domains)) * outside

    @property
    def domains(self) -> Floats:
        """Fast domains that the members lie in."""
        return np.asarray(np.ceil(self.size / self.local))


def group_of(size: Any, stride: Any, pool: Pool) -> Group:
    """Describe a group under Megatron's rank order (tp fastest, then cp, ep, dp, pp).

    Formula:  local = min(size, domain // stride) members share a domain; a ring crosses its border
              over local NICs at once, so its rate is min(domain link, local * NIC); each step costs
              latency + the smaller of share and half message / rate, and each collective its
              set-up. The domain link's rate is rate * efficiency (the pair's where two members are
              local), less where the server holds more chips than reach it at once, as all of them
              exchange at the same time
    Units:    bytes/s, seconds; arrays of the shape of `size` and `stride`.
    Source:   NCCL's ring and tree algorithms (Thakur et al. 2005; NVIDIA NCCL tests, PERFORMANCE.md
              for bus bandwidth).
    Valid:    contiguous placement of ranks on nodes; oversubscription slows only traffic that
              leaves the domain.
    Checked:  tests/cost/test_collectives.py
    """
    node = pool.node
    size, stride = np.asarray(size, dtype=np.float64), np.asarray(stride, dtype=np.float64)
    local = np.clip(np.floor(node.domain_size / stride), 1, size)
    link, network = node.domain_link, node.network_link
    peers = np.maximum(local - 1, 1)
    local_rate = (
        link.bytes_per_s
        * _reached_share(link, local, pool)
        * np.minimum(1.0, link.pairwise_share * peers)
    )
    remote_rate = np.broadcast_to(
        network.bytes_per_s * network.efficiency / pool.oversubscription, size.shape
    ).astype(np.float64)
    inside = local >= size
    crossing = np.where(local > 1, np.minimum(local_rate, local * remote_rate), remote_rate)
    domains = np.ceil(size / local)
    full_rate = link.bytes_per_s * link.efficiency
    return Group(
        size=size,
        local=local,
        ring_bytes_per_s=np.where(inside, local_rate, crossing),
        local_bytes_per_s=local_rate,
        remote_bytes_per_s=remote_rate,
        own_bytes_per_s=np.full(size.shape, max(OWN_COPY_SPEED * full_rate, OWN_COPY_BYTES_PER_S)),
        setup_s=np.where(inside, link.setup_s, np.maximum(link.setup_s, network.setup_s)),
        local_hops=np.where(inside, size - 1, size - domains),
        remote_hops=np.where(inside, 0.0, domains - 1),
        local_wait=Wait(
            latency_s=link.latency_s,
            half_message_bytes=link.half_message_bytes,
            bytes_per_s=full_rate,
        ),
        remote_wait=Wait(
            latency_s=network.latency_s,
            half_message_bytes=network.half_message_bytes,
            bytes_per_s=network.bytes_per_s * network.efficiency,
        ),
        processor=node.chip if node.chip.is_processor else None,
    )


def _reached_share(link: Link, local: Floats, pool: Pool) -> Floats:
    """Share of a domain link's peak that each of so many members reaches while the server's other
    chips do the same.

    Formula:  efficiency / max(1, senders / full_rate_chips), senders = min(domain's chips, the
              pool's); of two members `pair_efficiency` where known: cards that copy to each other
              directly are in nobody's way
    Units:    a share of the peak, the shape of `local`.
    Source:   the link's own figures in `values/hardware/links.csv`; the rest is counting: who
              shares a host's memory gets an equal part.
    """
    senders = min(pool.node.domain_size, pool.num_chips)
    crowd = 1.0 if link.full_rate_chips is None else max(1.0, senders / link.full_rate_chips)
    share = link.efficiency / crowd
    return np.where(
        local == 2, share if link.pair_efficiency is None else link.pair_efficiency, share
    )


def _measured_or(formula: Floats, group: Group, operation: str, size_bytes: Floats) -> Floats:
    """The profile's time of a collective where ranks are processors of one host, and the profile
    has it; else the formula's."""
    if group.processor is None:
        return formula
    found = own_s(
        group.processor,
        f"collective/{operation}",
        np.maximum(group.size, 2.0),
        np.maximum(size_bytes, LEAST_BYTES),
    )
    return (
        formula
        if found is None
        else np.where((group.size > 1) & (group.local >= group.size), found, formula)
    )


LEAST_BYTES = 4.0
"""Of a collective: one number."""


def all_gather_s(group: Group, total_bytes: Floats) -> Floats:
    """Time until every member has all `total_bytes`, of which each brought its share.

    Formula:  (size - 1) / size * bytes / ring rate + bytes / size / copy rate + latency; 0 for a
              group of one
    Units:    seconds.
    Source:   Thakur et al. 2005, ring all-gather.
    Valid:    equal shares.
    Checked:  tests/cost/test_collectives.py
    """
    return _measured_or(_ring_s(group, total_bytes), group, "all_gather", total_bytes)


def _ring_s(group: Group, total_bytes: Floats) -> Floats:
    """Time of a ring over the group: an all-gather, or a reduce-scatter the other way round.

    Formula:  (size - 1) * share / ring_bytes_per_s + share / own_bytes_per_s + ring latency, where
              share = bytes / size; 0 for a group of one
    Units:    seconds.
    Source:   Thakur et al. 2005, ring algorithm; a member's copy of its own share:
              OWN_COPY_BYTES_PER_S.
    """
    share = total_bytes / group.size
    time = (
        (group.size - 1) * share / group.ring_bytes_per_s
        + share / group.own_bytes_per_s
        + group.ring_latency_s(share)
    )
    return np.where(group.size > 1, time, 0.0)


def reduce_scatter_s(group: Group, total_bytes: Floats) -> Floats:
    """Time until each member has its share of the sum of everybody's `total_bytes`.

    Formula:  as all_gather_s: the same bytes pass each link the other way round
    Units:    seconds.
    Source:   Thakur et al. 2005, ring reduce-scatter.
    Valid:    equal shares; the additions are hidden behind the transfers.
    Checked:  tests/cost/test_collectives.py
    """
    return _measured_or(_ring_s(group, total_bytes), group, "reduce_scatter", total_bytes)


def all_reduce_s(group: Group, total_bytes: Floats) -> Floats:
    """Time until every member has the sum of everybody's `total_bytes`.

    Formula:  2 (size - 1) / size * bytes / ring rate + bytes / size / copy rate + twice the latency
              of a tree over the domains, set-up once
    Units:    seconds.
    Source:   Thakur et al. 2005; NCCL chooses rings in the domain and double binary trees across
              (Sanders et al. 2009).
    Valid:    any size; 0 for a group of one.
    Checked:  tests/cost/test_collectives.py
    """
    share = total_bytes / group.size
    both_ways = 2.0 * group.tree_latency_s(share) - group.setup_s
    time = (
        2.0 * (group.size - 1) * share / group.ring_bytes_per_s
        + share / group.own_bytes_per_s
        + both_ways
    )
    return _measured_or(np.where(group.size > 1, time, 0.0), group, "all_reduce", total_bytes)


PAIRWISE_NETWORK_SHARE = 0.7
"""Share of a ring's rate over the network that NCCL's all-to-all reaches: many messages to many
peers at once, through proxies of the host. Fitted on Qwen3 235B with experts over four servers:
23.1 ms a layer through NCCL and 16.8 through DeepEP (cn_gpu_training), and 13 where compute hides
behind it (megatron_bridge)."""


def all_to_all_s(group: Group, sent_bytes: Floats) -> Floats:
    """Time until each member has sent an equal part of `sent_bytes` to every member.

    Formula:  max(bytes to members in the domain / domain link + own bytes / copy rate, bytes to the
              others / (NIC * PAIRWISE_NETWORK_SHARE)) + latency of one step inside and of a tree
              between domains
    Units:    seconds.
    Source:   NCCL's pairwise exchange, both links at work at once.
    Valid:    balanced routing.
    Checked:  tests/cost/test_collectives.py
    """
    share = sent_bytes / group.size
    inside = share * (group.local - 1) / group.local_bytes_per_s + share / group.own_bytes_per_s
    outside = (
        share * (group.size - group.local) / (group.remote_bytes_per_s * PAIRWISE_NETWORK_SHARE)
    )
    formula = np.where(
        group.size > 1, np.maximum(inside, outside) + group.exchange_latency_s(share), 0.0
    )
    return _measured_or(formula, group, "all_to_all", sent_bytes)


def dispatch_s(
    group: Group, token_bytes: Floats, copies: float, *, neighbours: Floats | None = None
) -> Floats:
    """Time until each member has sent every token of its `token_bytes` to the members that `copies`
    choices fell on, once each: random choices, or neighbouring ones of which a member holds as many
    as `neighbours` says.

    Formula:  a token reaches size * (1 - (1 - 1 / size)^copies) members and domains * (1 - (1 - 1 /
              domains)^copies) domains, by neighbouring choices copies / neighbours members and
              copies / (neighbours * local) domains, 1 at least; each domain's NIC carries it once,
              the fast links spread it; max of both + latency of a tree over the domains, with a
              step for each peer inside, as a kernel serves one after another
    Units:    seconds.
    Source:   DeepEP (github.com/deepseek-ai/DeepEP) and HybridEP: tokens cross the network once per
              domain and are forwarded inside it; the way back adds up inside the domain first.
              Distinct draws: the occupancy problem.
    Valid:    balanced routing without limits on groups; never more than one copy per choice.
    Checked:  tests/cost/test_collectives.py
    """
    domains = np.ceil(group.size / group.local)
    if neighbours is None:
        members = group.size * (1.0 - (1.0 - 1.0 / group.size) ** copies)
        visited = domains * (1.0 - (1.0 - 1.0 / domains) ** copies)
    else:
        members = np.clip(copies / neighbours, 1.0, group.size)
        visited = np.clip(copies / (neighbours * group.local), 1.0, domains)
    inside = token_bytes * members * (group.local - 1) / group.local / group.local_bytes_per_s
    outside = token_bytes * visited * (domains - 1) / domains / group.remote_bytes_per_s
    return np.where(
        group.size > 1,
        np.maximum(inside, outside) + group.tree_latency_s(token_bytes * copies / group.size),
        0.0,
    )


def beside_compute_s(seconds: Floats, hidden_s: Floats) -> Floats:
    """What an exchange adds to compute that can hide so much of it.

    Formula:  max(0, e - h) + OVERLAP_SLOWDOWN * min(e, h)
    Units:    seconds.
    Source:   arXiv:2507.03114 for the slowdown.
    Valid:    exchanges between GPUs; taken for every chip.
    Checked:  tests/cost/test_collectives.py::test_a_hidden_exchange_slows_compute
    """
    return np.asarray(
        np.maximum(0.0, seconds - hidden_s)
        + OVERLAP_SLOWDOWN * np.minimum(seconds, np.maximum(0.0, hidden_s))
    )


def point_to_point_s(
    pool: Pool, *, message_bytes: Floats, distance: Floats, span: Floats
) -> Floats:
    """Time of one message between ranks `distance` apart, within a set of `span` ranks.

    Formula:  latency + bytes / rate, over the domain link where the whole span lies in one domain,
              else over the NIC; of a server's one adapter `distance` ranks share what its chips
              have together
    Units:    seconds.
    Source:   alpha-beta model.
    Valid:    one message at a time per chip and direction.
    Checked:  tests/cost/test_collectives.py
    """
    node = pool.node
    inside = (span <= node.domain_size) & (distance < node.domain_size)
    link, network = node.domain_link, node.network_link
    fast = link.latency_s + message_bytes / (
        link.bytes_per_s * link.efficiency * link.pairwise_share
    )
    alone = np.maximum(1.0, node.chips_per_node / distance) if network.shared_adapter else 1.0
    slow = network.latency_s + message_bytes / (
        network.bytes_per_s * network.efficiency / pool.oversubscription * alone
    )
    if node.chip.is_processor:
        measured = own_s(
            node.chip, "collective/point_to_point", 2.0, np.maximum(message_bytes, LEAST_BYTES)
        )
        fast = fast if measured is None else measured
    return np.where(inside, fast, slow)


@makes("pp_comm")
def message_s(
    layouts: Layouts, message_bytes: Floats, *, pool: Pool, stack: Stack, way: Pool | None = None
) -> Floats:
    """Time of one pipeline message, mean of both ways, (N,); 0 without a pipeline.

    `way` has the links over which the message goes, where they are not the pool's own.

    Formula:  whole messages: latency + bytes / rate; scattered ones: that of bytes / tp, and an
              all-gather over tp at the receiver; with sequence parallelism each rank has its part
              alone. Where several stages lie in one domain and others outside it, the mean of a
              message inside and one across: a stage at the border has a neighbour of either kind
    Units:    seconds.
    Source:   scatter-gather optimisation (arXiv:2104.04473, section 4.1).
    Valid:    neighbouring stages are dp * cp * tp ranks apart.
    Checked:  tests/cost/test_step.py::test_a_message_between_stages,
              ::test_a_message_sent_in_parts_is_gathered
    """
    distance = (layouts.tp * layouts.cp * layouts.dp).astype(np.float64)
    span = distance * layouts.pp
    way = way or pool
    whole = _hop_s(way, message_bytes, distance, span)
    if not stack.p2p_scattered:
        return np.where(layouts.pp > 1, stack.factors.pipeline * whole, 0.0)
    part = _hop_s(way, message_bytes / layouts.tp, distance, span)
    part = part + all_gather_s(group_of(layouts.tp, np.ones_like(layouts.tp), pool), message_bytes)
    scattered = stack.p2p_scattered * (layouts.tp > 1) * (layouts.sp == 0)
    return np.where(
        layouts.pp > 1, stack.factors.pipeline * (whole + scattered * (part - whole)), 0.0
    )


def _hop_s(way: Pool, message_bytes: Floats, distance: Floats, span: Floats) -> Floats:
    """Time of one message from a stage to the next, mean over the pipeline.

    Formula:  point_to_point_s; (inside + across) / 2 where some neighbours share a domain and
              others do not
    Units:    seconds, (N,).
    Source:   counting: a stage at a domain's border has a neighbour of either kind.
    """
    across = point_to_point_s(way, message_bytes=message_bytes, distance=distance, span=span)
    border = (distance < way.node.domain_size) & (span > way.node.domain_size)
    if not border.any():
        return across
    inside = point_to_point_s(way, message_bytes=message_bytes, distance=distance, span=distance)
    return np.where(border, (inside + across) / 2.0, across)
