from __future__ import annotations

import pytest
from tests.runs.measured.examples import LLAMA, SMALL_GPT, case_of, reason_of

from meshwright.runs.measured.layouts import pattern_chunks, split_by_ends
from meshwright.values.models.catalogue import find_model


def test_data_parallel_ranks_fill_the_chips() -> None:
    assert case_of(LLAMA).layout.dp == 16
    assert case_of(LLAMA, cp="2").layout.dp == 8
    assert "num_gpus" in reason_of(LLAMA, tp="3")


def test_two_devices_a_chip_are_folded_to_chips() -> None:
    cells = {
        "gpu": "TPU7x",
        "framework": "MaxText (JAX/XLA)",
        "tp": "1",
        "pp": "1",
        "dp": "128",
        "mbs": "2",
        "gbs": "256",
        "zero": "fsdp",
    }
    layout = case_of(LLAMA, num_gpus="64", dp_shard="64", **cells).layout
    assert (layout.dp, layout.mbs, layout.gbs, layout.sharding, layout.shard_size) == (
        64,
        4,
        256,
        "hybrid",
        32,
    )


def test_unpublished_number_of_chips_follows_from_the_layout() -> None:
    assert case_of(LLAMA, num_gpus="", tp="8", pp="1").layout.num_chips == 128
    assert case_of(LLAMA, num_gpus="", dp="2", gbs="8").layout.num_chips == 8


def test_blank_micro_batch() -> None:
    assert case_of(LLAMA, mbs="", ga="4").layout.mbs == 2
    assert case_of(LLAMA, mbs="").layout.mbs == 1  # under a pipeline
    bridge = {"framework": "Megatron-Bridge", "pp": "1", "mbs": "", "seq_len": "4096"}
    assert case_of(LLAMA, gbs="512", **bridge).layout.mbs == 4
    assert case_of(LLAMA, gbs="96", **bridge).layout.mbs == 1
    assert case_of(LLAMA, gbs="64", **bridge).layout.mbs == 2
    assert (
        case_of(LLAMA, gbs="512", **{**bridge, "seq_len": "16384"}).layout.mbs == 1
    )  # as many tokens


def test_blank_global_batch_fills_the_pipeline() -> None:
    assert case_of(LLAMA, gbs="").layout.num_microbatches == 4
    assert case_of(LLAMA, gbs="", ga="7").layout.num_microbatches == 7
    assert case_of(LLAMA, gbs="", pp="1").layout.num_microbatches == 1


def test_a_batch_that_does_not_divide_is_a_reason() -> None:
    assert reason_of(LLAMA, gbs="100") == "gbs: not divisible by mbs*dp"


def test_sharding_words() -> None:
    assert [case_of(LLAMA, zero=z).layout.sharding for z in ("0", "1", "2", "3", "fsdp")] == [
        "none",
        "zero1",
        "zero2",
        "zero3",
        "zero3",
    ]
    assert "zero" in reason_of(LLAMA, zero="9")


def test_sharding_groups() -> None:
    assert case_of(LLAMA, zero="3", dp_shard="8").layout.sharding == "hybrid"
    assert case_of(LLAMA, zero="3", dp_shard="16").layout.shard_size is None
    assert case_of(LLAMA, zero="3", dp_shard="1").layout.sharding == "none"
    assert case_of(LLAMA, zero="1", dp_shard="8").layout.shard_size == 8


def test_instances_of_the_optimizer_shard_among_themselves() -> None:
    layout = case_of(SMALL_GPT, zero="1", model="gpt:tp1_multi_dist_optimizer_instances").layout
    assert (layout.dp, layout.sharding, layout.shard_size) == (8, "zero1", 4)


def test_blanks_follow_the_software_and_its_time() -> None:
    bridge = case_of(LLAMA, framework="Megatron-Bridge / Megatron-Core + TE")
    assert (
        bridge.layout.sharding,
        bridge.layout.sp,
        bridge.layout.recompute,
        bridge.workload.attention,
    ) == (
        "zero1",
        True,
        "none",
        "flash",
    )
    old = case_of(LLAMA, framework="Megatron-LM", gpu="A100-80GB-SXM", precision="fp16")
    assert (old.layout.sharding, old.layout.sp, old.layout.recompute, old.workload.attention) == (
        "none",
        False,
        "full",
        "fused-softmax",
    )
    unknown = case_of(LLAMA, framework="Trainer of Nobody")
    assert (unknown.stack_name, unknown.layout.sharding) == ("megatron", "zero1")


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    assert case_of(LLAMA, tp="1", sp="1").layout.sp is False
    assert case_of(LLAMA, sp="0").layout.sp is False
    assert "sp" in reason_of(LLAMA, sp="maybe")


@pytest.mark.parametrize(
    ("recompute", "detail", "expected"),
    [
        ("none", "cuda graph transformer_engine:['attn']", ("none", "uniform", None, ())),
        ("full", "full/block/6", ("full", "block", 6, ())),
        ("full", "full/uniform/1", ("full", "uniform", 1, ())),
        ("full", "", ("full", "uniform", None, ())),
        (
            "selective",
            "full/block/1; (full recompute of only part of the layers)",
            ("full", "block", 1, ()),
        ),
        ("selective", "", ("selective", "uniform", None, ("core_attn",))),
        ("selective", "mla_up_proj,mlp", ("selective", "uniform", None, ("mlp", "mla_up_proj"))),
        (
            "selective",
            "modules layernorm,moe_act [tag x]",
            ("selective", "uniform", None, ("layernorm", "moe_act")),
        ),
        (
            "selective",
            "modules mla_up_proj; cuda graph transformer_engine:['mlp']; moe a2a overlap",
            ("selective", "uniform", None, ("mla_up_proj",)),
        ),
        (
            "selective",
            "recompute-granularity=selective recompute-modules=[moe_act]",
            ("selective", "uniform", None, ("moe_act",)),
        ),
        (
            "selective",
            "--recompute-activation-function; --recompute-norm",
            ("selective", "uniform", None, ("layernorm", "mlp_act")),
        ),
        (
            "selective",
            "MaxText remat_policy=custom; decoder_layer_input=offload",
            ("full", "uniform", None, ()),
        ),
        (
            "selective",
            "MaxText remat_policy=custom; query_proj=offload",
            ("selective", "uniform", None, ("layernorm", "mlp", "moe")),
        ),
        ("full", "layers 0,1,20", ("full", "block", 2, ())),
        ("full", "layers 0-9", ("full", "block", 10, ())),
    ],
)
def test_recompute(recompute: str, detail: str, expected: tuple[object, ...]) -> None:
    layout = case_of(LLAMA, recompute=recompute, recompute_detail=detail).layout
    assert (
        layout.recompute,
        layout.recompute_method,
        layout.recompute_layers,
        layout.recompute_modules,
    ) == expected


def test_recompute_mode_in_the_notes() -> None:
    layout = case_of(
        LLAMA,
        framework="torchtitan FSDP2",
        recompute="selective",
        notes="FSDP; op-level selective AC",
        pp="1",
    ).layout
    assert layout.recompute_modules == ("ops",)
    layers = case_of(
        LLAMA,
        framework="torchtitan FSDP2",
        recompute="selective",
        notes="selective layer; WPS",
        pp="1",
    ).layout
    assert (layers.recompute, layers.recompute_method, layers.recompute_layers) == (
        "full",
        "block",
        16,
    )


def test_a_partition_that_counts_more_than_layers() -> None:
    gpt2 = {
        "layers": "24",
        "hidden": "1024",
        "heads": "16",
        "num_gpus": "4",
        "pp": "4",
        "framework": "DeepSpeed Megatron 3D",
    }
    assert case_of(
        SMALL_GPT, notes="layer partition [0, 9, 15, 21, 30]; cost 1", **gpt2
    ).layout.layers_per_stage == (6, 6, 6, 6)
    assert case_of(
        SMALL_GPT, notes="layer partition [0, 3, 15, 21, 30]", **gpt2
    ).layout.layers_per_stage == (0, 12, 6, 6)
    assert case_of(
        SMALL_GPT, notes="layers_per_stage=[5, 7, 7, 7]", **gpt2
    ).layout.layers_per_stage == (4, 7, 7, 6)
    assert (
        case_of(SMALL_GPT, notes="layers_per_stage=[5, 7, 7]", **gpt2).layout.layers_per_stage
        is None
    )


def test_pipeline_patterns() -> None:
    assert pattern_chunks("Et*3|(tt|)*6L") == (3, 2, 2, 2, 2, 2, 2, 0)
    assert pattern_chunks("Et*7|t*7mL") == (7, 7)
    assert pattern_chunks("Et*7|t*8x6|t*7,L") == (7, 8, 8, 8, 8, 8, 8, 7)
    assert pattern_chunks("nonsense") is None


def test_a_pattern_gives_chunks_and_their_layers() -> None:
    notes = "pipeline-model-parallel-layout=Et*3|(tt|)*4t|L"
    layout = case_of(SMALL_GPT, pp="2", notes=notes).layout
    assert layout.vpp == 1 and layout.layers_per_stage is None  # 7 chunks are no multiple of pp
    fitting = case_of(
        SMALL_GPT, pp="2", notes="pipeline-model-parallel-layout=Et*3|(tt|)*4t"
    ).layout
    assert (fitting.vpp, fitting.layers_per_stage) == (3, (3, 2, 2, 2, 2, 1))


def test_thin_ends() -> None:
    layout = case_of(
        SMALL_GPT,
        layers="6",
        pp="4",
        vpp="2",
        model="gpt:x_account_for_embedding_loss_in_pipeline_split",
    ).layout
    assert layout.layers_per_stage == (0, 1, 1, 1, 1, 1, 1, 0)
    layout = case_of(
        SMALL_GPT, layers="14", pp="4", notes="14 layers, one fewer layer in first and last stage"
    ).layout
    assert layout.layers_per_stage == (3, 4, 4, 3)


def test_expert_tensor_parallelism() -> None:
    moe = {"arch": "moe", "model": "moe:x", "experts": "8", "topk": "2", "tp": "2", "ep": "2"}
    assert case_of(SMALL_GPT, **moe).layout.etp == 2
    assert case_of(SMALL_GPT, notes="expert-tensor-parallel-size=1", **moe).layout.etp == 1
    assert case_of(SMALL_GPT, **{**moe, "framework": "Megatron-Bridge"}).layout.etp == 1
    assert case_of(SMALL_GPT).layout.etp is None


def test_schedules() -> None:
    zero_bubble = case_of(LLAMA, framework="Primus-pipeline Megatron-LM schedule=zbv-formatted")
    assert (zero_bubble.layout.schedule, zero_bubble.schedule_name) == (
        "zero-bubble",
        "zbv-formatted",
    )
    interleaved = case_of(
        LLAMA, framework="Primus-pipeline Megatron-LM schedule=1f1b-interleaved vpp3"
    )
    assert (interleaved.layout.schedule, interleaved.layout.vpp) == ("1f1b", 3)


def test_nanotron_cuts_by_cost() -> None:
    """16 layers of 4 * 2048^2 + 3 * 2048 * 8192 weights cost a unit each, the head 131072 * 2048
    four: 20 units over 4 stages are 5 each, and a stage ends behind the layer that crosses them: 6,
    5, 5 and the head."""
    shape = {
        "layers": "16",
        "hidden": "2048",
        "ffn": "8192",
        "heads": "32",
        "kv_heads": "32",
        "vocab": "131072",
    }
    run = {"pp": "4", "tp": "1", "dp": "2", "num_gpus": "8", "gbs": "64", "mbs": "1", **shape}
    case = case_of(LLAMA, framework="nanotron (1F1B)", **run)
    assert case.layout.layers_per_stage == (6, 5, 5, 0)
    mended = case_of(LLAMA, framework="nanotron", notes="pp engine after fix; x", **run)
    assert mended.layout.layers_per_stage == (5, 5, 5, 1)


def test_bridge_counts_loss_and_predicted_tokens_as_layers() -> None:
    """Megatron-Bridge's recipe for DeepSeek-V3, 61 layers and one more: on 4 stages of 4 chunks
    `Et*4|(t*4|)*14tmL`."""
    deepseek = find_model("deepseek-v3")
    assert split_by_ends(deepseek, pp=4, vpp=4) == (4,) * 15 + (1,)
    assert split_by_ends(deepseek, pp=8, vpp=1) == (8,) * 7 + (5,)
    assert split_by_ends(deepseek, pp=16, vpp=1) == (4,) * 15 + (1,)
    assert split_by_ends(deepseek, pp=8, vpp=4) == (1, *(2,) * 30, 0)
    assert split_by_ends(find_model("qwen3-235b-a22b"), pp=8, vpp=4) == (
        2,
        *(3,) * 30,
        2,
    )  # 94 layers
    assert split_by_ends(find_model("llama3-70b"), pp=4, vpp=5) is None  # 80 layers: even
    assert split_by_ends(deepseek, pp=1, vpp=1) is None


def test_nemo_interleaves_one_layer_a_chunk() -> None:
    """Llama 2 13B on 4 stages of 10 layers; not where the row says otherwise, and not where rounds
    of micro batches come out uneven."""
    cells = {
        "framework": "NeMo / Megatron-Core + TE",
        "model": "llama2-13b",
        "layers": "40",
        "pp": "4",
        "tp": "1",
        "num_gpus": "8",
        "dp": "2",
    }
    row = {**cells, "vpp": "", "gbs": "32", "mbs": "1"}
    assert case_of(LLAMA, **row).layout.vpp == 10
    assert case_of(LLAMA, **{**row, "vpp": "2"}).layout.vpp == 2
    assert case_of(LLAMA, **{**row, "gbs": "36"}).layout.vpp == 1
    assert case_of(LLAMA, **{**row, "framework": "Megatron-LM"}).layout.vpp == 1
    assert (
        case_of(
            LLAMA,
            **{**row, "framework": "Megatron-LM", "notes": "comm overlap for DP/TP/PP enabled"},
        ).layout.vpp
        == 10
    )
    assert (
        case_of(
            LLAMA, **{**row, "framework": "Megatron-LM", "notes": "comm overlap for DP/TP enabled"}
        ).layout.vpp
        == 1
    )
