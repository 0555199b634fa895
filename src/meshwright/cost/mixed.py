"""Time and memory of one layout over several kinds of chips: each stage by its own chip, the
pipeline by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cost.collectives import message_s
from meshwright.cost.once import once_terms_s
from meshwright.cost.pipeline import pipeline_of_stages_s
from meshwright.cost.stages import Floats, mean_in_flight, place_stages
from meshwright.cost.step import TIME_TERMS, StagePrices, price_stages
from meshwright.values.hardware.cluster import Cluster
from meshwright.values.layout import SCHEDULES, Layouts
from meshwright.values.mixed_layout import MixedLayout, StageLayout
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = ["MixedPrice", "Site", "message_times_s", "price_each", "price_mixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Everything but the layout; one stack for all pools."""

    model: ModelSpec
    cluster: Cluster
    work: Workload
    stack: Stack

    def __post_init__(self) -> None:
        """Take the software as it trains in the precision of the work."""
        object.__setattr__(self, "stack", self.stack.in_precision(self.work.precision))


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPrice:
    """What one layout takes; per stage (S,)."""

    time: dict[str, float]
    """Seconds of one step by term of TIME_TERMS, the pipeline by its closed form."""
    memory: dict[str, Floats]
    """Bytes by term."""
    forward_s: Floats
    """One micro batch through all chunks."""
    backward_s: Floats
    weight_s: Floats
    forward_work_s: dict[str, Floats]
    """One micro batch's forward by term."""
    backward_work_s: dict[str, Floats]
    links_s: Floats
    """One message over each boundary; the last is the way from the last stage to the first."""

    @property
    def step_s(self) -> float:
        """The sum of the terms."""
        return sum(self.time.values())

    @property
    def used_bytes(self) -> Floats:
        """What the fullest card of each stage shows."""
        return np.asarray(np.sum(list(self.memory.values()), axis=0), dtype=np.float64)


def price_mixed(layout: MixedLayout, site: Site) -> MixedPrice:
    """Price one layout, stage by stage.

    Formula:  as `cost.step.price`, each stage on its own chip: M micro batches on the slowest stage
              + bubble + messages + what a step takes once, of the pool where that is most
    Units:    seconds, bytes.
    Source:   each term's own function.
    Valid:    layouts whose stages keep the rules; dp * mbs is the same on all.
    Checked:  tests/cost/test_mixed.py::test_one_kind_costs_what_it_costs_alone,
              ::test_two_pools_of_one_chip_are_one_pool
    """
    return price_each([layout], site)[0]


def price_each(layouts: Sequence[MixedLayout], site: Site) -> list[MixedPrice]:
    """Price some layouts, the stages of a pool all at once.

    Formula:  as `price_mixed`
    Units:    seconds, bytes.
    Source:   each term's own function.
    Valid:    as `price_mixed`.
    Checked:  tests/cost/test_mixed.py::test_layouts_cost_together_what_they_cost_alone
    """
    books = [_StagePrices(layout) for layout in layouts]
    for pool in range(len(site.cluster.pools)):
        alike = [
            (book, numbers)
            for book in books
            for numbers in book.alike
            if book.layout.stages[numbers[0]].pool == pool
        ]
        if alike:
            _price_stages(alike, site, pool)
    return [_priced(layout, book, site) for layout, book in zip(layouts, books, strict=True)]


def _priced(layout: MixedLayout, priced: _StagePrices, site: Site) -> MixedPrice:
    """Add up one layout of priced stages.

    Formula:  M * mean over stages of each term; imbalance = max(0, M * slowest stage - their sum);
              bubble and messages by `pipeline_of_stages_s`; once a step by `_once_s`
    Units:    seconds, bytes.
    Source:   as `cost/terms.py`: a step is its mean stage's work, and what comes on top.
    """
    links = _links_s(layout, priced)
    parts = pipeline_of_stages_s(
        schedule=SCHEDULES.index(layout.schedule),
        vpp=layout.vpp,
        num_microbatches=layout.num_microbatches,
        forward_s=priced.forward_s,
        backward_s=priced.backward_s,
        wgrad_s=np.minimum(priced.weight_s, priced.backward_s),
        p2p_s=links[:-1],
        p2p=site.stack.p2p,
    )
    work = {
        term: layout.num_microbatches * float((each + priced.backward_work[term]).mean())
        for term, each in priced.forward_work.items()
    }
    slowest = layout.num_microbatches * float((priced.forward_s + priced.backward_s).max())
    pipeline = {
        "imbalance": max(0.0, slowest - sum(work.values())),
        "bubble": float(parts.bubble_s),
        "pp_comm": float(parts.p2p_s),
    }
    time = work | pipeline | _once_s(layout, site, priced)
    return MixedPrice(
        time={term: time[term] for term in TIME_TERMS},
        memory=priced.memory,
        forward_s=priced.forward_s,
        backward_s=priced.backward_s,
        weight_s=priced.weight_s,
        forward_work_s=priced.forward_work,
        backward_work_s=priced.backward_work,
        links_s=links,
    )


class _StagePrices:
    """Stages of one layout, each priced in the layout in which all run as it does; stages that run
    alike are priced once."""

    def __init__(self, layout: MixedLayout) -> None:
        alike: dict[StageLayout, list[int]] = {}
        for number, stage in enumerate(layout.stages):
            alike.setdefault(replace(stage, layers=1), []).append(number)
        self.layout, self.alike = layout, list(alike.values())
        self.forward_s, self.backward_s, self.weight_s = (np.zeros(layout.pp) for _ in range(3))
        self.dense, self.expert = np.zeros(layout.pp), np.zeros(layout.pp)
        self.inside_s, self.across_s = np.zeros(layout.pp), np.zeros(layout.pp)
        self.memory: dict[str, Floats] = {}
        self.forward_work: dict[str, Floats] = {}
        self.backward_work: dict[str, Floats] = {}


def _price_stages(alike: Sequence[tuple[_StagePrices, list[int]]], site: Site, pool: int) -> None:
    """Fill in the prices of stages on one pool, a row for each number of stages that run alike."""
    rows = Layouts.of([book.layout.row(numbers[0]) for book, numbers in alike])
    own, stages = site.cluster.pools[pool], place_stages(rows, site.model, which="all")
    stages = replace(
        stages, in_flight=mean_in_flight(rows, stages.index)
    )  # as the search over mixed clusters counts
    found: StagePrices = price_stages(
        rows, stages, model=site.model, pool=own, work=site.work, stack=site.stack
    )
    inside_s, across_s = message_times_s(rows, found.message_bytes, pool=pool, site=site)
    for row, (book, numbers) in enumerate(alike):
        for mine, theirs in (
            (book.forward_s, found.times.forward_s),
            (book.backward_s, found.times.backward_s),
            (book.weight_s, found.times.weight_s),
            (book.dense, found.params.dense),
            (book.expert, found.params.expert),
        ):
            mine[numbers] = theirs[row, numbers]
        book.inside_s[numbers], book.across_s[numbers] = float(inside_s[row]), float(across_s[row])
        for terms, priced in (
            (book.memory, found.memory.terms),
            (book.forward_work, found.forward_work_s),
            (book.backward_work, found.backward_work_s),
        ):
            for term, each in priced.items():
                terms.setdefault(term, np.zeros(book.layout.pp))[numbers] = each[row, numbers]


def _once_s(layout: MixedLayout, site: Site, priced: _StagePrices) -> dict[str, float]:
    """Terms that a step takes once, of the pool that takes longest; they hide behind the first
    stage's work."""
    found = []
    for pool in layout.pools:
        own = [number for number, stage in enumerate(layout.stages) if stage.pool == pool]
        fullest = max(own, key=lambda number: priced.dense[number] + priced.expert[number])
        terms = once_terms_s(
            Layouts.of([layout.row(fullest)]),
            priced.dense[[fullest]],
            priced.expert[[fullest]],
            priced.forward_s[:1],
            priced.backward_s[:1],
            pool=site.cluster.pools[pool],
            work=site.work,
            stack=site.stack,
            model=site.model,
        )
        found.append({term: float(seconds[0]) for term, seconds in terms.items()})
    return max(found, key=lambda terms: sum(terms.values()))


def _links_s(layout: MixedLayout, priced: _StagePrices) -> Floats:
    """Seconds of one message from each stage to the next, and from the last to the first, (S,).

    Formula:  between pools the longer of what either side's ranks take for their part, over the
              link between pools or their own network; inside a pool the longer of both too
    Units:    seconds.
    Source:   alpha-beta model, `message_s`; both ends work at once, so the slower one counts.
    """
    if layout.pp == 1:
        return np.zeros(1)
    pools = [stage.pool for stage in layout.stages]
    pairs = [(stage, (stage + 1) % layout.pp) for stage in range(layout.pp)]
    return np.array(
        [
            max((priced.inside_s if pools[a] == pools[b] else priced.across_s)[[a, b]])
            for a, b in pairs
        ]
    )


def message_times_s(
    rows: Layouts, message_bytes: Floats, *, pool: int, site: Site
) -> tuple[Floats, Floats]:
    """One message inside a pool, and one to another pool, (N,) each.

    Formula:  across: over the link between pools, or where there is none over the pool's own
              network
    Units:    seconds.
    Source:   alpha-beta model; of two sides with unlike ranks, the one with fewer carries more in
              each, see `price_mixed`.
    Valid:    ranks of both sides are spread over their NICs.
    Checked:  tests/cost/test_mixed.py::test_the_link_between_pools_counts
    """
    own, link = site.cluster.pools[pool], site.cluster.pool_link
    apart = replace(own, node=replace(own.node, domain_size=1))
    if link is not None:
        apart = replace(apart, node=replace(apart.node, network_link=link), oversubscription=1.0)
    inside = message_s(rows, message_bytes, pool=own, stack=site.stack)
    return inside, message_s(rows, message_bytes, pool=own, stack=site.stack, way=apart)
