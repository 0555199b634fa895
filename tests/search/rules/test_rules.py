from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.search.rules.check import (
    ALL_RULES,
    broken_rows,
    check_layout,
    complete_layout,
    require_valid,
)
from meshwright.search.rules.rule import RuleCase
from meshwright.search.rules.software import stack_rules
from meshwright.search.rules.split import even_split, split_by_cost
from meshwright.values.errors import LayoutError
from meshwright.values.layout import SHARDINGS, Layout, Layouts, parse_layout
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack, stack_names
from meshwright.values.workload import Workload


def broken(
    words: str,
    *,
    model: str = "llama3-70b",
    chips: int = 256,
    seq: int = 8192,
    gbs: int = 512,
    **more: Any,
) -> dict[str, str]:
    """Messages by key of the rules that a layout breaks."""
    stack, version, precision = (
        more.get(k, d)
        for k, d in (("stack", "megatron"), ("version", "0.20"), ("precision", "bf16"))
    )
    spec, work, software = (
        find_model(model),
        Workload(
            seq_len=seq,
            gbs=gbs,
            precision=precision,
            cp_comm_type=more.get("cp_comm_type"),
        ),
        find_stack(stack),
    )
    case = RuleCase(
        model=spec, work=work, num_chips=chips, stack=software, megatron_version=version
    )
    found = check_layout(complete_layout(parse_layout(words), case), case)
    return {violation.key: violation.message for violation in found}


def test_nodes_that_divide_the_batch() -> None:
    """Worked: GBS 512, mbs 1, tp 4, pp 1 on nodes of 8 leaves DP = 2 * nodes, which divides 512 for
    powers of two up to 256."""
    valid = [
        nodes
        for nodes in range(1, 1025)
        if not broken("tp=4,pp=1,mbs=1", model="gpt3-5b", chips=8 * nodes, seq=2048)
    ]
    assert valid == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_uneven_layers_are_refused_with_the_split_that_works() -> None:
    """Worked: 80 layers over 32 chunks: 2 each would train 64; 16 chunks of 3 and 16 of 2 make
    80."""
    message = broken("tp=8,pp=16,vpp=2", chips=2048)["even_split"]
    assert "64 would be trained" in message
    assert "16 chunks of 3, 16 of 2" in message
    offered = message.partition("layers_per_stage=")[2].partition(",")[0]
    assert not broken(f"tp=8,pp=16,vpp=2,layers_per_stage={offered}", chips=2048)


@pytest.mark.parametrize(
    ("version", "accepted"),
    [("0.12.0", False), ("0.15.3", False), ("0.16.1", True), ("0.20", True)],
)
def test_kv_heads_fewer_than_tp(version: str, accepted: bool) -> None:
    """Worked: chatglm3-6b has 2 KV heads; tp=8 divides its 32 heads and 13696 / 8."""
    found = broken("tp=8", model="chatglm3-6b", version=version)
    assert ("kv_heads" not in found) == accepted
    if not accepted:
        assert (
            found["kv_heads"] == "num_kv_heads=2 is not divisible by tp=8; tp may be 1, 2; "
            f"Megatron-Core {version} refuses it, from 0.16.1 on KV heads are copied"
        )


def test_windows_and_sinks_swap_tokens_for_heads() -> None:
    """Transformer Engine passes neither on a ring; gpt-oss has 8 KV heads, so that tp=2 leaves 4
    for context-parallel ranks."""
    assert "context_heads" not in broken("tp=2,cp=4", model="gpt-oss-20b")
    found = broken("tp=2,cp=8", model="gpt-oss-20b")
    assert (
        "8 KV heads are not divisible by tp * cp = 16; cp may be 1, 2, 4" in found["context_heads"]
    )
    assert "context_heads" not in broken("tp=8,cp=8", model="llama3-70b"), (
        "a ring needs no whole heads"
    )
    assert "context_heads" not in broken("cp=16", model="mistral-7b", stack="fsdp")
    said = broken("tp=8,cp=8", model="llama3-70b", cp_comm_type="a2a")["context_heads"]
    assert "as cp_comm_type=a2a says: 8 KV heads are not divisible by tp * cp = 64" in said


def test_mixers_share_heads_and_groups_among_context_parallel_ranks() -> None:
    """Nemotron-H 8B has 128 heads in 8 groups: tp=8 leaves 16 heads of one group, which 32 ranks
    cannot share."""
    assert "context_mixers" not in broken("tp=8,cp=16", model="nemotron-h-8b", seq=32768)
    assert (
        broken("tp=8,cp=32", model="nemotron-h-8b", seq=32768)["context_mixers"]
        == "cp=32 cuts 16 heads of mixers in 1 group a tensor-parallel rank; cp may be 1, 2, 4,"
        " 8, 16"
    )


def test_stacks_without_copies_refuse_fewer_kv_heads() -> None:
    assert "kv_heads" in broken("tp=16", stack="fsdp")
    assert "kv_heads" in broken("tp=16", stack="nanotron")


GOLDEN = {
    "tp=32": "heads=40 is not divisible by tp=32; tp may be 1, 2, 4, 5, 8, 10, 20, 40",
    "tp=8,dp=7": (
        "tp=8 * cp=1 * pp=1 = 8, * dp=7 = 56 chips, but the cluster has 256; dp=32 uses them all"
    ),
    "tp=1,sp=1": (
        "sp=1 with tp=1: there is no tensor-parallel group to split the sequence over; sp=0, or"
        " tp=2 and more"
    ),
    "sharding=zero3,pp=2": (
        "sharding=zero3 with pp=2: stack megatron has it with pp=1 only; sharding may be none,"
        " zero1"
    ),
    "sharding=hybrid,shard_size=3": (
        "shard_size=3 does not divide dp * cp = 256; shard_size may be 1, 2, 4, 8, 16, 32, 64,"
        " 128, 256"
    ),
    "ep=2": "ep=2: llama2-13b has no experts; ep=1",
    "mbs=3": (
        "gbs=512 is not divisible by mbs * dp = 3 * 256 = 768; nearest that work: gbs=768, or"
        " mbs=1, 2"
    ),
    "vpp=2": "vpp=2 with pp=1: there is no pipeline to interleave; vpp=1, or pp=2 and more",
    "tp=4,pp=4,vpp=2,mbs=32": (
        "vpp=2 needs micro batches in rounds of pp=4, but gbs / (mbs * dp) = 512 / 512 = 1; nearest"
        " that work: gbs=2048, or vpp=1"
    ),
    "recompute=full,recompute_layers=50": (
        "recompute_layers=50: a chunk has 40 layers; expected 1 to 40"
    ),
    "recompute=selective,recompute_modules=moe": (
        "recompute_modules=moe: llama2-13b on stack megatron has core_attn, layernorm, mlp"
    ),
    "recompute=full,recompute_modules=mlp": (
        "recompute_modules=mlp with recompute=full: modules belong to recompute=selective"
    ),
    "pp=4,layers_per_stage=10+10+10+9": (
        "layers_per_stage=10+10+10+9 sums to 39; the model has 40 layers"
    ),
    "pp=4,layers_per_stage=20+20": "layers_per_stage=20+20 has 2 entries; expected pp=4",
    "pp=64": "pp=64 * vpp=1 = 64 chunks for 40 layers; at most 40 chunks have a layer each",
    "schedule=gpipe,pp=4,vpp=2": (
        "schedule=gpipe with vpp=2: it has vpp=1; interleaving belongs to schedule=1f1b"
    ),
}


@pytest.mark.parametrize("words", GOLDEN)
def test_messages(words: str) -> None:
    assert GOLDEN[words] in broken(words, model="llama2-13b").values()


def test_messages_of_sequence_and_experts() -> None:
    assert (
        broken("cp=4", seq=8190)["context"] == "seq_len=8190 is not divisible by 2 * cp = 8; "
        "cp may be 1, 3, 5, 7, 9, 13, 15, 21, 35, 39, 45, 63, ..., or take seq_len=8184 or 8192"
    )
    assert "seq_len=8190 is not divisible by tp * cp = 4" in broken("tp=4", seq=8190)["sequence"]
    assert (
        broken("ep=3", model="mixtral-8x7b")["experts"]
        == "num_experts=8 is not divisible by ep=3; ep may be 1, 2, 4, 8"
    )
    assert (
        "ep may be 1, 2, 4"
        in broken("tp=2,etp=1,ep=8,pp=8", model="mixtral-8x7b", chips=32)["folding"]
    )
    assert "expert_sequence" in broken("tp=2,sp=0", model="mixtral-8x7b")


def test_low_precision_wants_multiples_of_16() -> None:
    """Worked: a feed-forward of 11008 over tp=32 is 344 wide, which is no multiple of 16."""
    assert (
        broken("tp=32", model="llama2-7b", precision="fp8")["precision"]
        == "precision=fp8 needs dims that are multiples of 16: ffn / tp = 344; take a smaller tp or"
        " bf16"
    )
    assert "precision" not in broken("tp=32", model="llama2-7b")


@pytest.mark.parametrize(
    ("stack", "words", "message"),
    [
        (
            "nanotron",
            "pp=2,vpp=2",
            "vpp=2: stack nanotron does not have it, so vpp=1; stacks with it: megatron",
        ),
        ("deepspeed", "pp=2,vpp=2", "vpp=2: stack deepspeed does not have it, so vpp=1"),
        ("megatron-legacy", "cp=2", "cp=2: stack megatron-legacy does not have it, so cp=1"),
        ("eager", "tp=2,pp=2", ""),
    ],
)
def test_software_has_its_kinds_of_parallelism(stack: str, words: str, message: str) -> None:
    found = broken(words, stack=stack).get("software_axis", "")
    assert found.startswith(message)
    assert bool(found) == bool(message)


def test_software_without_selective_recompute_says_so() -> None:
    found = broken("recompute=selective", stack="nanotron", model="llama2-7b")["recompute_modules"]
    assert (
        found
        == "recompute=selective: stack nanotron recomputes every layer or none; recompute=full or"
        " none"
    )


def test_half_precision_that_comes_with_sharding_has_ranks_to_shard_over() -> None:
    assert (
        "casts in sharded data parallelism"
        in broken("tp=4,pp=16,dp=1", stack="torchtitan", chips=64)["half_precision"]
    )
    assert "half_precision" not in broken(
        "tp=4,pp=16,dp=1", stack="torchtitan", chips=64, precision="fp32"
    )
    assert "half_precision" not in broken("tp=4,pp=8,dp=2", stack="torchtitan", chips=64)
    assert "half_precision" not in broken("tp=4,pp=16,dp=1", chips=64)


def test_shard_groups_hold_whole_context_parallel_groups() -> None:
    assert (
        broken("cp=4,sharding=hybrid,shard_size=2", stack="fsdp", chips=64)["shard_size"]
        == "shard_size=2 holds no whole context-parallel groups; shard_size may be 4, 8, 16, 32, 64"
    )
    assert "shard_size" not in broken("cp=4,sharding=hybrid,shard_size=8", stack="fsdp", chips=64)


def test_nanotron_cuts_by_cost_alone() -> None:
    # llama3-8b: a layer 4 * 4096^2 + 3 * 14336 * 4096 = 243 M, the head 128256 * 4096 = 525 M =
    # 2.16 layers; of 34.16 layers half is 17.08,
    # which layer 18 is the first to pass: 18 and 14
    assert (
        "layers_per_stage=18+14"
        in broken("pp=2,layers_per_stage=16+16", stack="nanotron", model="llama3-8b")["own_cut"]
    )
    assert "own_cut" not in broken("pp=2", stack="nanotron", model="llama3-8b")
    assert "own_cut" not in broken("pp=2,layers_per_stage=16+16", model="llama3-8b")


def test_compiled_layers_of_the_embedded_trainer_are_whole() -> None:
    for words in ("tp=2", "recompute=selective,recompute_modules=mlp"):
        assert "recompute=none or full" in broken(words, stack="embedded-compiled")["compiled"]
        assert "compiled" not in broken(words, stack="embedded")
    assert "software_schedule" in broken("schedule=zero-bubble,pp=2", stack="embedded-compiled")
    assert "compiled" not in broken("pp=2,recompute=full", stack="embedded-compiled")


def test_schedules_belong_to_softwares_and_pipelines() -> None:
    assert (
        broken("pp=4,schedule=zero-bubble")["software_schedule"]
        == "schedule=zero-bubble: stack megatron has 1f1b; stacks with it: dualpipe, fsdp,"
        " nemo-automodel, kempnerforge, internevo, maxtext, embedded"
    )
    assert (
        "stack torchtitan has 1f1b, gpipe"
        in broken("pp=4,schedule=zero-bubble", stack="torchtitan")["software_schedule"]
    )
    assert "software_schedule" not in broken("pp=4,schedule=zero-bubble,vpp=2", stack="fsdp")
    assert "no pipeline" in broken("schedule=gpipe", stack="fsdp")["no_schedule"]


def test_pytorchs_pipelines_are_filled() -> None:
    """Worked: a batch of 64 on dp=16 with mbs=2 is 2 micro batches, fewer than 4 stages."""
    few = "pp=4,dp=16,mbs=2"
    assert (
        broken(few, stack="torchtitan", chips=64, gbs=64)["torch_fill"]
        == "pp=4 needs 4 micro batches or more, but gbs / (mbs * dp) = 2; lower mbs or dp"
    )
    assert "torch_fill" not in broken(few, chips=64, gbs=64)
    assert "torch_fill" not in broken("pp=4,dp=16,mbs=1", stack="torchtitan", chips=64, gbs=64)


def test_a_zero_bubble_schedule_of_the_embedded_trainer() -> None:
    """Worked: 10 micro batches on 4 stages are 2 rounds of 5; 11 are no two equal ones."""

    def broken_by(words: str, gbs: int) -> dict[str, str]:
        return broken(
            f"pp=4,dp=1,mbs=1,schedule=zero-bubble,{words}", stack="embedded", chips=4, gbs=gbs
        )

    assert "dropped them" in broken_by("sharding=zero3", 12)["split_backward"]
    assert "split_backward" not in broken_by("sharding=zero1", 10)
    assert "11 // pp = 2 equal rounds" in broken_by("sharding=zero1", 11)["split_backward"]
    assert "split_backward" not in broken_by("sharding=zero1,vpp=2", 11)


def test_experts_need_no_chips_of_their_own() -> None:
    """Worked: 32 chips with tp=1, pp=4 leave 8 for data parallelism; ep=8 shares them."""
    assert not broken("pp=4,ep=8", model="mixtral-8x7b", chips=32)


def test_complete_layout_fills_the_defaults_of_the_software() -> None:
    spec = find_model("llama3-8b")

    def filled(words: str, stack: str) -> Layout:
        work = Workload(seq_len=4096, gbs=64)
        case = RuleCase(model=spec, work=work, num_chips=64, stack=find_stack(stack))
        return complete_layout(parse_layout(words), case)

    assert filled("tp=2,pp=2", "megatron") == Layout(
        tp=2, sp=True, pp=2, dp=16, sharding="zero1", gbs=64
    )
    assert filled("", "fsdp") == Layout(dp=64, sharding="zero3", gbs=64)
    assert filled("shard_size=8", "fsdp").sharding == "hybrid"
    assert filled("recompute=selective", "megatron").recompute_modules == ("core_attn",)
    assert filled("recompute=selective", "fsdp").recompute_modules == ("ops",)
    with pytest.raises(LayoutError, match=r"tp=3 .* does not divide 64 chips; take 63 or 66 chips"):
        filled("tp=3", "megatron")


def test_require_valid_names_all_faults_in_one_line() -> None:
    case = RuleCase(
        model=find_model("llama3-70b"),
        work=Workload(seq_len=8192),
        num_chips=8,
        stack=find_stack("megatron"),
    )
    with pytest.raises(
        LayoutError, match=r"does not divide 8 chips.*; also: heads=64.*; also: "
    ) as error:
        require_valid(Layout(tp=3, dp=5, gbs=7), case)
    assert "\n" not in str(error.value)


def test_every_rule_has_its_words() -> None:
    keys = [rule.key for rule in ALL_RULES]
    assert len(keys) == len(set(keys))
    assert all(rule.sentence and rule.columns for rule in ALL_RULES)


def test_every_stack_has_rules_with_known_words() -> None:
    for name in stack_names():
        rules = stack_rules(find_stack(name))
        assert set(rules.shardings + rules.shardings_without_pp) <= set(SHARDINGS)
        assert set(rules.searched_shardings) <= set(rules.shardings + rules.shardings_without_pp)
        assert {module for modules in rules.searched_modules for module in modules} <= set(
            rules.recompute_modules
        )


LAYOUTS = st.builds(
    Layout,
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    sp=st.booleans(),
    cp=st.sampled_from([1, 2, 3]),
    ep=st.sampled_from([1, 2, 8]),
    etp=st.sampled_from([None, 1, 2]),
    pp=st.sampled_from([1, 2, 3, 5]),
    vpp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4, 6]),
    sharding=st.sampled_from(SHARDINGS),
    shard_size=st.sampled_from([None, 2]),
    mbs=st.sampled_from([1, 2]),
    gbs=st.sampled_from([8, 12, 96]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_layers=st.sampled_from([None, 0, 2, 40]),
    recompute_method=st.sampled_from(["uniform", "block"]),
    recompute_modules=st.sampled_from([(), ("mlp",), ("moe_act", "layernorm"), ("ops",)]),
    schedule=st.sampled_from(["1f1b", "zero-bubble", "gpipe"]),
    layers_per_stage=st.sampled_from([None, (16, 16), (10, 11, 11), (32,)]),
)


@given(rows=st.lists(LAYOUTS, min_size=1, max_size=20), stack=st.sampled_from(["megatron", "fsdp"]))
def test_one_layout_is_judged_as_its_column(rows: list[Layout], stack: str) -> None:
    """The search and a single layout use the same code, and every broken rule has a message."""
    case = RuleCase(
        model=find_model("mixtral-8x7b"),
        work=Workload(seq_len=4096),
        num_chips=48,
        stack=find_stack(stack),
    )
    columns = {rule.key: bad for rule, bad in broken_rows(Layouts.of(rows), case)}
    for index, layout in enumerate(rows):
        for rule, bad in broken_rows(Layouts.of([layout]), case):
            assert bad[0] == columns[rule.key][index]
            if bad[0]:
                message = rule.message(layout, case)
                assert message and "\n" not in message


@given(st.integers(1, 126), st.integers(1, 20), st.integers(1, 8))
def test_split_agrees_with_the_columns(layers: int, pp: int, vpp: int) -> None:
    from meshwright.cost.stages import even_stage_layers

    if pp * vpp > layers:
        return
    split = np.array(even_split(layers, pp=pp, vpp=vpp))
    sums = split.reshape(vpp, pp).sum(axis=0)
    columns = even_stage_layers(np.arange(pp), total=layers, pp=np.array(pp), vpp=np.array(vpp))
    assert split.sum() == layers
    assert split.max() - split.min() <= 1
    assert list(sums) == list(columns)


def test_replacing_an_uneven_split_by_words_is_valid() -> None:
    layout = Layout(
        tp=8, sp=True, pp=3, dp=4, sharding="zero1", gbs=64, layers_per_stage=(27, 27, 26)
    )
    case = RuleCase(
        model=find_model("llama3-70b"),
        work=Workload(seq_len=8192),
        num_chips=96,
        stack=find_stack("megatron"),
    )
    assert check_layout(layout, case) == []
    assert [v.key for v in check_layout(replace(layout, layers_per_stage=None), case)] == [
        "even_split"
    ]


def test_stages_of_nanotron_by_hand() -> None:
    # layer: 4 * 2 * 2 * 4 + 3 * 8 * 4 = 160; head: 40 * 4 = 160; 7 layers and the head: 1280, 640 a
    # stage.
    # Behind layer 4 the sum is 640, which does not pass 640; behind layer 5 it does: 5 layers, then
    # 2 and the head.
    assert split_by_cost(layers=7, hidden=4, heads=2, ffn=8, vocab=40, pp=2) == (5, 2)
    # where the layer that reaches 640 ends the stage, 4 do
    reached = split_by_cost(layers=7, hidden=4, heads=2, ffn=8, vocab=40, pp=2, ends="reached")
    assert reached == (4, 3)
    # a head of 1600: 2720 in all, 1360 a stage; 7 layers are 1120: all lie on the first stage
    assert split_by_cost(layers=7, hidden=4, heads=2, ffn=8, vocab=400, pp=2) == (7, 0)


def test_multi_token_prediction_may_have_a_chunk_of_its_own() -> None:
    split = "+".join(["3", *["2"] * 29, "0", "0"])
    assert "split" not in broken(
        f"tp=2,pp=16,vpp=2,layers_per_stage={split}", model="deepseek-v3", chips=512
    )
    llama = "+".join(["3", *["2"] * 38, "1", "0", "0"])
    assert (
        "but for the first and the last"
        in broken(f"pp=21,vpp=2,layers_per_stage={llama}", chips=252)["split"]
    )
