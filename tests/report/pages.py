"""Answers made by hand, whose pages are kept as golden text: their numbers follow from nothing but
this file."""

from __future__ import annotations

from dataclasses import replace

from meshwright.search.explain import Explanation, Rival, TimeTerm
from meshwright.search.oom import Fix, Ladder, Rung
from meshwright.search.operators import LayerTable, OperatorRow
from meshwright.search.provenance import Basis, Constant, Provenance
from meshwright.search.quote import Quote, Setting, StageQuote
from meshwright.trust.intervals import QUANTITIES, Quantity, Spread
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import Stack
from meshwright.values.units import GIB
from meshwright.values.workload import Workload

LAYOUT = Layout(tp=4, sp=True, pp=2, dp=2, sharding="zero1", mbs=2, gbs=64)
SETTING = Setting(
    model=find_model("llama3-8b"),
    pool=parse_cluster("h100:16").pools[0],
    work=Workload(seq_len=8192, gbs=64),
    stack=Stack(name="by-hand", source="a test"),
    limit_bytes=80.0 * GIB,
    headroom_bytes=2.0 * GIB,
)


def spread(quantity: Quantity) -> Spread:
    return Spread(
        quantity=quantity,
        level="model",
        kind="dense",
        p10=0.9,
        p25=0.95,
        p50=1.0,
        p75=1.1,
        p90=1.2,
        low=0.875,
        high=1.25,
        runs=40,
        models=9,
        tables=3,
    )


SPREADS = {(quantity, "dense"): spread(quantity) for quantity in QUANTITIES}
"""What is known of runs: software made by hand is of no known kind."""
BASIS = Provenance(
    formula="cost.kernels.gemm_s",
    kind="data sheet",
    constants=(
        Constant(
            name="chip.matmul_efficiency",
            value=0.75,
            kind="data sheet",
            source="a table",
            unit="1 %",
            term_change=-0.01,
            sum_change=-0.02,
        ),
    ),
)


def stage(number: int, activation_gib: float) -> StageQuote:
    memory = {
        "weights": 4.0,
        "gradients": 8.0,
        "optimizer": 6.0,
        "activations": activation_gib,
        "slack": 1.5,
        "context": 2.0,
        "logits": 0.0,
    }
    return StageQuote(
        stage=number,
        num_layers=16,
        in_flight=2.0 - number,
        memory_bytes={term: size * GIB for term, size in memory.items()},
    )


def quote(time_s: dict[str, float], *, activation_gib: float, layout: Layout = LAYOUT) -> Quote:
    stages = (stage(0, activation_gib), stage(1, activation_gib / 2))
    return Quote(
        layout=layout,
        time_s=time_s,
        stages=stages,
        limit_bytes=SETTING.limit_bytes,
        headroom_bytes=SETTING.headroom_bytes,
    )


BASE = quote({"matmul": 6.0, "tp_comm": 2.5, "bubble": 1.5, "ep_comm": 0.0}, activation_gib=40.0)
LARGE = quote({"matmul": 5.5, "tp_comm": 2.0, "bubble": 1.0, "ep_comm": 0.0}, activation_gib=70.0)


def rung(kind: str, words: str, new: Quote, *labels: str) -> Rung:
    fix = Fix(kind=kind, words=words, apply=lambda layout, setting: (layout, setting))  # type: ignore[arg-type]
    return Rung(
        fixes=(fix,),
        layout=new.layout,
        setting=SETTING,
        quote=new,
        base=LARGE,
        labels=labels,  # type: ignore[arg-type]
    )


LADDER = Ladder(
    quote=LARGE,
    rungs=(
        rung(
            "allocator",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            quote(LARGE.time_s, activation_gib=69.0),
            "execution only",
        ),
        rung(
            "mbs",
            "mbs 2 -> 1",
            quote({"matmul": 6.5, "tp_comm": 2.0}, activation_gib=35.0),
            "changes data order",
        ),
        rung(
            "tp",
            "tp 4 -> 8",
            quote({"matmul": 7.0, "tp_comm": 3.0}, activation_gib=57.0),
            "reshard the checkpoint",
            "changes data order",
        ),
    ),
    together=None,
)

EXPLANATION = Explanation(
    setting=SETTING,
    quote=BASE,
    time=(
        TimeTerm(
            term="matmul",
            title="matrix products",
            seconds=6.0,
            share=0.6,
            what="linear layers",
            bound="matrix units",
            provenance=BASIS,
        ),
        TimeTerm(
            term="tp_comm",
            title="tensor-parallel",
            seconds=2.5,
            share=0.25,
            what="sums over tp",
            bound="nvlink",
            provenance=BASIS,
        ),
        TimeTerm(
            term="bubble",
            title="pipeline bubble",
            seconds=1.5,
            share=0.15,
            what="idle stages",
            bound="schedule",
            provenance=BASIS,
        ),
    ),
    layers=(
        LayerTable(
            title="attention + mlp",
            num_layers=32,
            rows=(
                OperatorRow(
                    block="attention",
                    name="norm",
                    term="pointwise",
                    forward_s=1e-4,
                    backward_s=2e-4,
                    saved_bytes=2.0**24,
                ),
                OperatorRow(
                    block="mlp",
                    name="first layer",
                    term="matmul",
                    forward_s=1e-3,
                    backward_s=2e-3,
                    saved_bytes=2.0**26,
                ),
            ),
        ),
    ),
    memory_provenance=dict.fromkeys(BASE.fullest.memory_bytes, BASIS),
    basis=Basis(
        time=dict.fromkeys(BASE.time_s, BASIS),
        memory=dict.fromkeys(BASE.fullest.memory_bytes, BASIS),
    ),
    binding="Arithmetic: 60.0% of the step is the model's own products.",
    rivals=(
        Rival(
            axis="mbs",
            words="mbs 2 -> 1",
            layout=replace(LAYOUT, mbs=1),
            verdict="slower",
            quote=quote({"matmul": 7.0, "tp_comm": 2.5, "bubble": 1.0}, activation_gib=20.0),
            differences_s=(("matmul", 1.0), ("bubble", -0.5)),
        ),
        Rival(
            axis="pp",
            words="pp 2 -> 1",
            layout=LAYOUT,
            verdict="faster, does not fit",
            quote=LARGE,
            differences_s=(("bubble", -0.5),),
        ),
        Rival(
            axis="tp",
            words="tp 4 -> 8",
            layout=None,
            verdict="breaks a rule",
            quote=None,
            reason="16 GPUs are too few",
        ),
    ),
)
