"""Any valid case of the cost model, for property tests: model, work, stack and layouts that keep
the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from meshwright.search.rules.check import check_layout, explicit_layers
from meshwright.search.rules.experts import usable_modules
from meshwright.search.rules.rule import RuleCase
from meshwright.search.rules.software import stack_rules
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import SHARDINGS, Layout, Recompute, Schedule
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack, find_stack
from meshwright.values.workload import AttentionKernel, Precision, Workload

MODELS: dict[str, ModelSpec] = {
    name: find_model(name)
    for name in (
        *("llama3-8b", "llama3.2-1b", "gpt3-5b", "qwen2-7b", "gemma3-4b", "mistral-7b"),
        *("mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "llama4-maverick"),
        *("nemotron-h-8b", "t5-2.8b", "bert-large", "deepseek-v3"),
    )
}
"""Dense, grouped queries, tied, windows; experts, biases and sinks, latent attention behind a dense
layer, experts in every second layer; Mamba hybrid, encoder-decoder, encoder, multi-token
prediction."""
STACKS = (
    "megatron",
    "megatron-legacy",
    "dualpipe",
    "nanotron",
    "fsdp",
    "torchtitan",
    "deepspeed",
    "maxtext",
)
CHIPS = ("a100-80", "h100", "gb200", "mi300x")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a column of layouts is priced for."""

    model: ModelSpec
    work: Workload
    pool: Pool
    stack: Stack

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Names for hypothesis, where the whole would fill pages of a falsifying example."""
        printer.text(
            f"{self.model.name} on {self.pool.node.chip.name} with {self.stack.name}, {self.work}"
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any model, work, chip and stack."""
    attentions: list[AttentionKernel] = ["flash", "flash", "flash1", "fused-softmax", "unfused"]
    precisions: list[Precision] = ["bf16", "bf16", "fp16", "fp32", "fp8"]
    chip = draw(st.sampled_from(CHIPS))
    precision = draw(st.sampled_from(precisions))
    assume(precision != "fp8" or chip != "a100-80")
    work = Workload(
        seq_len=draw(st.sampled_from([512, 2048, 4096, 32768])),
        precision=precision,
        attention=draw(st.sampled_from(attentions)),
        dropout=draw(st.booleans()),
        fused_norm=draw(st.booleans()),
        lora_rank=draw(st.sampled_from([0, 0, 0, 16])),
    )
    return Case(
        model=MODELS[draw(st.sampled_from(sorted(MODELS)))],
        work=work,
        pool=Pool(node=default_node(chip), num_chips=4096),
        stack=find_stack(draw(st.sampled_from(STACKS))),
    )


@st.composite
def layouts(draw: st.DrawFn, case: Case, *, even: bool = False) -> Layout:
    """Any layout that keeps the rules of the case's software; `even` ones give every stage as many
    layers."""
    rules = stack_rules(case.stack)
    pp = draw(st.sampled_from([1, 1, 2, 4, 8]))
    contexts = [1, 1, 2, 4] if "cp" in rules.axes else [1]
    tp, cp, dp = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 4, 8], contexts, [1, 2, 8, 16]))
    known_shardings = {*rules.shardings, *(rules.shardings_without_pp if pp == 1 else ())}
    sharding = draw(st.sampled_from([kind for kind in SHARDINGS if kind in known_shardings]))
    known = usable_modules(case.model, rules.recompute_modules)
    recomputes: list[Recompute] = ["none", "selective", "full"] if known else ["none", "full"]
    recompute = draw(st.sampled_from(recomputes))
    schedules: list[Schedule] = ["1f1b", "1f1b", "gpipe", "zero-bubble"]
    schedule = draw(st.sampled_from(schedules))
    interleaves = (
        "vpp" in rules.axes
        and pp > 1
        and schedule == "1f1b"
        and case.model.family != "encoder-decoder"
    )
    vpp = draw(st.sampled_from([1, 2])) if interleaves else 1
    block = recompute == "full" and draw(st.booleans())
    mbs = draw(st.sampled_from([1, 2]))
    experts = case.model.moe.num_experts if case.model.moe is not None else 1
    layout = Layout(
        tp=tp,
        sp=tp > 1 and (case.model.moe is not None or draw(st.booleans())),
        cp=cp,
        ep=draw(
            st.sampled_from(
                [ep for ep in (1, 2, 4, 8) if experts % ep == 0 and (ep == 1 or "ep" in rules.axes)]
            )
        ),
        etp=(
            draw(st.sampled_from([None, 1]))
            if case.model.moe is not None and "etp" in rules.axes
            else None
        ),
        pp=pp,
        vpp=vpp,
        dp=dp,
        sharding=sharding,
        shard_size=(
            draw(st.sampled_from([n for n in (1, 2, 4, 8) if dp * cp % n == 0]))
            if sharding == "hybrid"
            else None
        ),
        mbs=mbs,
        gbs=mbs * dp * pp * draw(st.integers(1, 4)),
        recompute=recompute,
        recompute_method="block" if block else "uniform",
        recompute_layers=1 if block else None,
        recompute_modules=(
            tuple(draw(st.lists(st.sampled_from(known), min_size=1, unique=True)))
            if recompute == "selective"
            else ()
        ),
        schedule=schedule,
    )
    chunks = pp * vpp
    assume(chunks <= case.model.total_layers and not (even and case.model.total_layers % chunks))
    layout = explicit_layers(layout, case.model)
    asked = RuleCase(model=case.model, work=case.work, num_chips=layout.num_chips, stack=case.stack)
    assume(not check_layout(layout, asked))
    return layout
