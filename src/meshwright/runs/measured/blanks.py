"""Layouts that a row leaves open: of those that fit a fastest is taken, as tuned runs are.

Which rule finds again what rows do tell is tried by `benchmarks/blanks.py`. Over 22 tables the
micro batch by this rule is the told one in 68 % of tuned runs (the software's usual one 61 %, one
sequence 58 %), and leaves a time error of 12 % (20 %, 23 %) where told ones leave 11 %. Of
recomputation and sharding the software's habits leave least, 13 and 14 % (the fastest that fits 15
and 16 %): those stay.

Recomputing all where a row is silent and would not fit was tried for all software: ten rows of
three tables come out 24 to 56 % too slow by it, so it is left to software whose users do so and to
rows that are silent of their axes too. A larger margin than NOTICED (3 to 15 %) finds the told
micro batch less often; leaving room up to `yes` finds it at most a point more often, with a time
error 0.1 to 0.2 points larger.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.runs.measured.cells import Cells, Rule
from meshwright.runs.measured.machines import CONFIGURED, WHERE_SHORT
from meshwright.search.rules.rule import divisors
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec

__all__ = ["Tiers", "axes_untold", "choices_of_row"]

Tiers = tuple[tuple[Layout, ...], ...]
"""Layouts that may have run. A fastest that fits of the first tier with such a one did; where none
fits anywhere, the one of the last that needs least."""
NOTICED = 0.01
"""Share of a step by which a larger micro batch must be faster: nobody tunes for less. From 0.5 to
2 % the told ones are found as often, without it and from 3 % on a little less."""
STAGES = "stages"
"""In `frameworks.csv`, in place of a micro batch: as many micro batches as stages under a pipeline
(torchtitan: the default of `pipeline_parallel_microbatches`, train configuration of 2024)."""
MOST_SEQUENCES = 64
"""Of a micro batch that is tried; no published run has more."""


def axes_untold(cells: Cells) -> bool:
    """Whether a row does not say how its layers are cut; experts and sequences aside."""
    return all(cells.text(name) is None for name in ("tp", "pp", "vpp", "dp"))


def choices_of_row(
    cells: Cells, framework: Rule, layout: Layout, *, model: ModelSpec, node_size: int
) -> Tiers:
    """Return what the row leaves open: its micro batch, and whether all is recomputed in software
    whose users do so where it would not fit; nothing where it tells them. A row that says nothing
    of its axes is uncut where that fits, else cut inside nodes and into stages, and last all
    recomputed too."""
    sizes = _micro_batches(cells, framework, layout)
    usual = tuple(replace(layout, mbs=size) for size in sizes)
    tiers = [usual]
    cut: tuple[Layout, ...] = ()
    if axes_untold(cells) and layout.num_chips > 1:
        experts = 1 if model.moe is None or cells.text("ep") else model.moe.num_experts
        groups = divisors(experts) if experts > 1 else [layout.ep]
        cut = _cut(framework, layout, model, node_size=node_size, groups=groups)
        tiers += [cut] if cut else []
    if not cells.words("recompute") and (cut or framework["recompute"] == WHERE_SHORT):
        tiers.append(tuple(replace(each, recompute="full") for each in cut or usual))
    return () if tiers == [(layout,)] else tuple(tiers)


def _cut(
    framework: Rule, layout: Layout, model: ModelSpec, *, node_size: int, groups: list[int]
) -> tuple[Layout, ...]:
    """Tensor parallel groups inside a node, stages of as many layers each and `groups` that share
    experts; micro batches of one sequence, as pipelines have."""
    chips, etp = layout.num_chips // layout.cp, layout.etp or 1
    found: list[Layout] = []
    for tp in (n for n in divisors(node_size) if model.num_heads % n == 0):
        for pp in divisors(model.total_layers):
            dp, rest = divmod(chips, tp * pp)
            if rest or layout.gbs % dp:
                continue
            cut = replace(
                layout,
                tp=tp,
                pp=pp,
                dp=dp,
                sp=tp > 1 and framework["sp"] == "tp",
                mbs=1,
                layers_per_stage=None,
                shard_size=None,
            )
            ranks = tp * dp * layout.cp
            found += [replace(cut, ep=ep) for ep in groups if ranks % (ep * etp) == 0]
    return tuple(found)


def _micro_batches(cells: Cells, framework: Rule, layout: Layout) -> tuple[int, ...]:
    """Powers of two that divide a replica's sequences; under interleaved stages such that the
    micro batches come in rounds."""
    told = cells.text("mbs") or cells.text("ga") or cells.text("gbs") is None
    if told:
        return (layout.mbs,)
    share = layout.gbs // layout.dp
    if framework["mbs_cap"].startswith(CONFIGURED):
        return (layout.mbs,)
    if framework["mbs_cap"] == STAGES and layout.pp > 1:
        return (share // layout.pp,) if share % layout.pp == 0 and share else (layout.mbs,)
    sizes = (1 << power for power in range(MOST_SEQUENCES.bit_length()))
    found = tuple(
        size
        for size in sizes
        if share % size == 0 and (layout.vpp == 1 or share // size % layout.pp == 0)
    )
    return found or (layout.mbs,)
