from __future__ import annotations

import pytest
from tests.runs.measured.examples import LLAMA, SMALL_GPT, case_of, reason_of

from meshwright.runs.measured.cells import MEASURED, read_rules
from meshwright.runs.measured.rows import Case, Unanswerable, read_row
from meshwright.search.started import recipe_span, started
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import Stack, find_stack


def stack_of(case: Case) -> Stack:
    """The stack that a row's run is started with."""
    return started(
        find_stack(case.stack_name),
        model=case.model,
        chip=case.machines.nodes[0].chip,
        precision=case.workload.precision,
        num_chips=case.machines.num_chips,
        seq_len=case.workload.seq_len,
        switches=case.switches,
    ).stack


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("bfloat16", "bf16"),
        ("Autocast:BF16+SR", "bf16"),
        ("fp16 O2", "fp16"),
        ("float16", "fp16"),
        ("fp8-cs", "fp8"),
        ("bf16+fp8", "fp8"),
        ("fp8-rowwise", "fp8-blockwise"),
        ("fp8-mx", "mxfp8"),
        ("mxfp8_cublas_rceil", "mxfp8"),
        ("mxfp4", "nvfp4"),
        ("", "bf16"),
    ],
)
def test_precision(precision: str, expected: str) -> None:
    assert case_of(LLAMA, gpu="B200-180GB", precision=precision).workload.precision == expected


def test_blank_precision_is_the_chips_half_precision() -> None:
    assert case_of(LLAMA, gpu="V100-32GB-SXM3", precision="").workload.precision == "fp16"


def test_fp8_recipe_in_the_notes() -> None:
    assert (
        case_of(LLAMA, precision="fp8", notes="fp8-recipe=blockwise").workload.precision
        == "fp8-blockwise"
    )


def test_blank_sequence_is_the_familys_usual_one() -> None:
    assert case_of(LLAMA, seq_len="").workload.seq_len == 8192
    assert (
        case_of(
            LLAMA, seq_len="", notes="seq_len not printed (default of configs/7B.py is 2048)"
        ).workload.seq_len
        == 2048
    )
    assert case_of(SMALL_GPT, seq_len="").workload.seq_len == 2048


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("torch", "unfused"),
        ("megatron_fused_softmax", "fused-softmax"),
        ("flash_attention_2", "flash"),
        ("flash/triton attention", "flash1"),
        ("", "flash"),
    ],
)
def test_attention_kernel(kernel: str, expected: str) -> None:
    assert case_of(LLAMA, attention_kernel=kernel).workload.attention == expected


def test_attention_backend_in_the_notes() -> None:
    assert (
        case_of(SMALL_GPT, notes="attention-backend=unfused").workload.attention == "fused-softmax"
    )
    assert case_of(SMALL_GPT, notes="transformer-impl=local").workload.attention == "fused-softmax"
    assert (
        case_of(SMALL_GPT, notes="transformer-impl=local; use-flash-attn=True").workload.attention
        == "flash"
    )


def test_dropout_is_on_where_a_megatron_command_leaves_its_default() -> None:
    """0.1 unless given; the commands that choose rotary positions, and context-parallel attention,
    are without."""
    assert case_of(SMALL_GPT).workload.dropout
    assert not case_of(SMALL_GPT, notes="position-embedding-type=rope").workload.dropout
    assert not case_of(SMALL_GPT, cp="2").workload.dropout
    assert not case_of(SMALL_GPT, arch="llama").workload.dropout


def test_norm_kernel() -> None:
    assert case_of(LLAMA).workload.fused_norm is True
    assert case_of(LLAMA, rmsnorm_kernel="default").workload.fused_norm is False
    assert case_of(LLAMA, rmsnorm_kernel="fused").workload.fused_norm is True


def test_adapters() -> None:
    assert case_of(LLAMA, task="pretrain").workload.lora_rank == 0
    assert case_of(LLAMA, task="lora").workload.lora_rank == 16
    assert case_of(LLAMA, task="sft").workload.lora_rank == 0
    nemo = {"framework": "NeMo / Megatron-Core + TE", "release": "2024-08-21", "task": "lora"}
    packs = case_of(LLAMA, **nemo, notes="packed sequences").workload
    assert (packs.sample_len, packs.lora_targets) == (200, ("linear_qkv",))
    assert case_of(LLAMA, **nemo).workload.sample_len is None
    assert (
        case_of(
            LLAMA, task="sft", notes="script x.sh; script flags: use-mc2, lora-r, lora-fusion; more"
        ).workload.lora_rank
        == 16
    )


def test_a_projector_between_frozen_models_is_all_that_learns() -> None:
    assert (
        case_of(SMALL_GPT, model="mimo:mimo_vlm_pretrain_x", arch="mimo").workload.lora_rank == 16
    )
    assert case_of(SMALL_GPT, model="mimo:mimo_vlm_sft_x", arch="mimo").workload.lora_rank == 0


def test_fine_tuning_sees_samples_where_they_are_not_padded() -> None:
    mindspeed = {"framework": "MindSpeed-LLM", "gpu": "Ascend-910B3"}
    assert case_of(LLAMA, task="sft", **mindspeed).workload.seq_len == 400
    packed = "script examples/mcore/qwen3/tune_qwen3_8b_4K_full_pack_ptd.sh; script flags: use-mc2"
    assert (
        case_of(LLAMA, task="sft", notes=packed, seq_len="4096", **mindspeed).workload.seq_len
        == 4096
    )
    assert case_of(LLAMA, task="pretrain", **mindspeed).workload.seq_len == 8192
    assert case_of(LLAMA, task="sft", seq_len="256", **mindspeed).workload.seq_len == 256
    assert case_of(LLAMA, task="sft").workload.seq_len == 8192


@pytest.mark.parametrize(
    ("mem_def", "kind", "rank"),
    [
        ("", "allocated", "max"),
        ("torch max_memory_allocated of the last rank (last pipeline stage)", "allocated", "last"),
        ("max reserved/active GiB (max over PP ranks)", "reserved", "max"),
        ('"VRAM Usage" MB as printed', "used", "max"),
        ("parameters + optimizer + activations of the first pipeline stage", "states", "first"),
        ('max memory allocated (GB column "Mem Alloc")', "after-backward", "first"),
    ],
)
def test_memory_definition(mem_def: str, kind: str, rank: str) -> None:
    memory = case_of(LLAMA, mem_def=mem_def).memory
    assert (memory.kind, memory.rank) == (kind, rank)


def test_the_peak_of_a_first_step_by_who_logs_it() -> None:
    told = "torch max allocated, largest of the listed ranks (list in notes)"
    mindspeed = case_of(
        LLAMA, mem_def=told, framework="MindSpeed-LLM / ModelLink", gpu="Ascend-910B3"
    )
    assert (mindspeed.memory.kind, mindspeed.memory.rank) == ("first-step", "max")
    assert case_of(LLAMA, mem_def=told).memory.kind == "allocated"
    assert case_of(LLAMA, mem_def="", framework="x used").memory.kind == "allocated", (
        "the software's name says nothing of the figure"
    )


def test_network_rates() -> None:
    def gbps(text: str, **cells: str) -> float:
        return (
            case_of(LLAMA, interconnect=text, gpus_per_node="8", **cells)
            .machines.nodes[0]
            .network_link.bytes_per_s
            * 8
            / 1e9
        )

    assert gbps("InfiniBand 100 Gb/s (4X EDR) per node") == pytest.approx(12.5)
    assert gbps("NVLink in node; 4 x 100 Gb/s RoCE between nodes") == pytest.approx(50)
    assert gbps("1600 Gbps node-node RoCE") == pytest.approx(200)
    assert gbps("400 Gb/s per GPU RDMA") == pytest.approx(400)
    assert gbps("intra 150 GB/s, inter 800 Gb/s per node") == pytest.approx(100)
    assert gbps("NVLink") == gbps("")


def test_a_rate_beyond_any_adapter_is_a_servers() -> None:
    """p5 instances have 3,200 Gb/s of EFA for eight GPUs and p4d 400; two kinds of instances at
    once leave the catalogue's."""

    def gbps(text: str, gpu: str) -> float:
        return (
            case_of(LLAMA, interconnect=text, gpus_per_node="8", gpu=gpu)
            .machines.nodes[0]
            .network_link.bytes_per_s
            * 8
            / 1e9
        )

    assert (
        gbps("EFA 3200 Gb/s", "H100-80GB")
        == gbps("InfiniBand 3200 Gb/s", "H100-80GB")
        == pytest.approx(400)
    )
    assert gbps("EFA 400 Gb/s", "A100-40GB") == pytest.approx(50)
    assert (
        gbps("EFA 400 Gb/s", "H100-80GB")
        == gbps("RoCE 400 Gb/s per GPU", "H100-80GB")
        == pytest.approx(400)
    )
    trainium = [
        gbps(text, "Trainium1-NeuronCore-v2")
        for text in ("EFA 800 Gb/s (trn1) or 1600 Gb/s (trn1n); page names both", "")
    ]
    assert trainium[0] == trainium[1]


def test_a_named_servers_network_is_its_own() -> None:
    """p3 servers have Ethernet, where most V100 are sold with InfiniBand; where a family has both,
    the chip's usual kind stays."""
    text = "AWS 50 Gb/s g4dn, 10 Gb/s p3.8xlarge inter-node"

    def network(gpu: str) -> str:
        return (
            case_of(LLAMA, interconnect=text, gpus_per_node="4", gpu=gpu)
            .machines.nodes[0]
            .network_link.name
        )

    assert [network(gpu) for gpu in ("T4-16GB", "V100-16GB", "A100-80GB-SXM")] == [
        "tcp-12.5",
        "tcp-2.5",
        "ib-200",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100 Gb/s TCP", "tcp-12.5"),
        ("10 GbE: 10 Gb/s Ethernet per node", "tcp-1.25"),
        ("400 Gb/s EFA per node", "efa-50"),
        ("NVLink in node; 4 x 100 Gb/s RoCE between nodes", "roce-50"),
        ("8x200Gb/s HDR IB per node", "ib-200"),
        ("50 Gb/s TCP per GPU", "tcp-50"),
    ],
)
def test_a_networks_kind_is_the_one_named(text: str, expected: str) -> None:
    """And Ethernet without RDMA is one adapter a server, where other rates without a word are a
    chip's."""
    node = case_of(LLAMA, interconnect=text, gpus_per_node="8", gpu="A100-80GB-SXM").machines.nodes[
        0
    ]
    assert node.network_link.name == expected


def test_slices_bound_the_fast_domain() -> None:
    cells = {"gpu": "TPU-v5e", "num_gpus": "512", "tp": "1", "pp": "1", "gbs": "512"}
    assert (
        case_of(LLAMA, interconnect="ICI inside a slice of 256 chips, DCN between slices", **cells)
        .machines.nodes[0]
        .domain_size
        == 256
    )
    assert (
        case_of(LLAMA, interconnect="ICI; 4 slice(s)", **cells).machines.nodes[0].domain_size == 128
    )


def test_nemos_launcher_checkpoints_nothing_and_splits_the_sequence() -> None:
    """Its configurations since 23.08, with apex's optimizer, whose buckets are counted in bytes;
    four sequences of 512 under a pipeline are the tokens of one of 2,048."""
    cells = {
        "framework": "NeMo Megatron",
        "gpu": "A100-80GB-SXM",
        "num_gpus": "32",
        "tp": "4",
        "pp": "4",
        "gbs": "64",
        "mbs": "",
    }
    short = case_of({**SMALL_GPT, "model": "bert-20b", "arch": "bert", "seq_len": "512"}, **cells)
    assert (short.layout.recompute, short.layout.sp, short.layout.mbs) == ("none", True, 4)
    assert (short.stack_name, short.workload.attention) == ("nemo1", "fused-softmax")
    assert short.workload.dropout
    stack = stack_of(short)
    assert (stack.tp_overlap, stack.dp_overlap, stack.bucket_params) == (0.0, 0.0, 0.0)
    long = case_of({**SMALL_GPT, "seq_len": "2048"}, **cells)
    stack = stack_of(long)
    assert (long.layout.mbs, stack.tp_overlap, stack.dp_overlap) == (1, 0.0, 0.8)
    assert case_of(LLAMA, framework="NeMo Megatron-Core").stack_changes == ()


def test_chips_without_flash_attention_keep_the_scores() -> None:
    """Under Megatron's software, which has no other kernel for Volta and Turing, where torch has;
    what a row names is taken at its word."""

    def kernel(gpu: str, **cells: str) -> str:
        return case_of(
            LLAMA, **{"gpu": gpu, "framework": "Megatron-Core", "precision": "fp16", **cells}
        ).workload.attention

    assert [kernel(gpu) for gpu in ("T4", "Titan-RTX", "Tesla V100-SXM2-32GB", "A100-80GB")] == [
        *["fused-softmax"] * 3,
        "flash",
    ]
    assert (
        kernel("T4", framework="PyTorch FSDP") == kernel("T4", attention_kernel="flash") == "flash"
    )
    assert (
        case_of(LLAMA, gpu="Tesla V100-SXM2-32GB", framework="Megatron-LM", precision="").stack_name
        == "megatron-legacy"
    )


def test_kernels_by_the_software_and_the_sequence() -> None:
    """NeuronX Distributed's scripts take flash attention of sequences of 8,192 tokens;
    optimum-habana keeps scores in fp32."""

    def kernel(framework: str, **cells: str) -> str:
        return case_of(LLAMA, framework=framework, **cells).workload.attention

    assert (
        kernel("NeuronX Distributed", seq_len="4096", gpu="Trainium1-NeuronCore-v2")
        == "fused-softmax"
    )
    assert kernel("NeuronX Distributed", seq_len="8192", gpu="Trainium1-NeuronCore-v2") == "flash"
    assert kernel("optimum-habana + DeepSpeed", seq_len="8192", gpu="Gaudi2") == "unfused"


def test_deepspeeds_example_in_3d_reduces_in_fp32_and_fuses_nothing() -> None:
    """AMP's scripts of it: no checkpointing, no fusion options, and gradients that are reduced in
    fp32."""
    case = case_of(
        SMALL_GPT, framework="DeepSpeed Megatron 3D", gpu="T4-16GB", num_gpus="1", precision="fp16"
    )
    assert (case.layout.recompute, case.workload.attention) == ("none", "unfused")
    assert dict(case.stack_changes) == {"reduce_bytes": 4.0}
    assert (case.stack_name, stack_of(case).pointwise_fused) == ("megatron-deepspeed-3d", False)


def test_a_job_tells_whether_its_collectives_were_compared() -> None:
    """64 ranks: 0.28 ms each is 18 ms a collective. 20 ms for 1 GiB is one that was compared, 6 ms
    for a gathering is not. 16 ranks do not tell: pipelines over several servers were compared."""

    def stack(rates: str, **cells: str) -> str:
        notes = f"NCCL bench GB/s at job start AR/AG/RS={rates} intra AR=425.0" if rates else ""
        shape = {"num_gpus": "64", "tp": "8", "pp": "1", "dp": "8", "gpus_per_node": "8"}
        return case_of(
            LLAMA, **{**shape, "framework": "nanotron", "notes": notes, **cells}
        ).stack_name

    assert stack("97.1/54.8/53.4") == "nanotron-checked"
    assert stack("97.1/170.0/53.4") == stack("185.0/170.0/172.0") == "nanotron"
    assert stack("") == stack("330.0/165.0/165.0", num_gpus="16", dp="2") == "nanotron"
    assert stack("", pp="2", dp="4") == "nanotron-checked"
    assert stack("430.0/225.0/225.0", num_gpus="16", pp="2", dp="1") == "nanotron-checked"
    assert stack("", num_gpus="8", tp="2", pp="2", dp="2") == "nanotron"


def test_mixed_chips_take_the_stages_in_order() -> None:
    cells = {
        "gpu": "V100-16GBx4+T4x4",
        "num_gpus": "8",
        "pp": "4",
        "gpus_per_node": "4",
        "framework": "DeepSpeed Megatron 3D",
    }
    case = case_of(SMALL_GPT, **cells)
    assert case.machines.pools == (("v100-16", 4), ("t4", 4))
    assert case.placement == ((("v100-16", 2),), (("v100-16", 2),), (("t4", 2),), (("t4", 2),))
    assert "num_gpus" in reason_of(SMALL_GPT, **{**cells, "gpu": "V100-16GBx12+T4x4"})


def test_mixed_chips_placed_by_the_row() -> None:
    placement = 'stage placement=[[[["RTX-3090",2]]],[[["Titan-RTX",1]],[["RTX-3090",1]]]]'
    case = case_of(SMALL_GPT, gpu="RTX-3090x3+Titan-RTXx1", num_gpus="4", pp="2", notes=placement)
    assert case.placement == ((("rtx-3090", 2),), (("titan-rtx", 1), ("rtx-3090", 1)))


def test_memory_and_remarks_beside_the_chips_name() -> None:
    def chip(**cells: str) -> str:
        return case_of(LLAMA, **cells).machines.pools[0][0]

    assert chip(gpu="A100", gpu_mem_gb="40") == "a100-40"
    assert chip(gpu="A100", gpu_mem_gb="80") == chip(gpu="A100") == "a100-80"
    assert chip(gpu="V100", gpu_mem_gb="32") == "v100-32"
    assert chip(gpu="H100-80GB-SXM (borrowed)", gpu_mem_gb="80") == "h100"
    assert chip(gpu="TPU7x", gpu_mem_gb="192") == "tpu-v7x"


def test_an_unknown_chip_is_a_reason_with_near_names() -> None:
    assert "h100" in reason_of(LLAMA, gpu="H1000").lower()
    assert "gpu" in reason_of(LLAMA, gpu="")


def test_measured_columns_and_provenance_are_never_seen() -> None:
    plain = read_row(LLAMA, source="t")
    for column in (*MEASURED, "provenance"):
        assert read_row({**LLAMA, column: "1"}, source="t") == plain
        assert read_row({**LLAMA, column: "OOM at tp=2, 3.5 s"}, source="t") == plain


def test_reinforcement_learning_is_not_predicted() -> None:
    assert (
        reason_of(LLAMA, model="gpt:gpt_grpo_tp1_583m")
        == "model: reinforcement learning, which is not predicted"
    )


def test_a_bad_number_names_its_column() -> None:
    assert reason_of(LLAMA, tp="two") == "tp: not a number that fits ('two')"
    assert reason_of(LLAMA, mbs="1.5").startswith("mbs: expected a whole number")
    assert isinstance(read_row({}, source="t"), Unanswerable)


def test_features_of_the_software() -> None:
    def changes(**cells: str) -> dict[str, float | str]:
        return dict(case_of(LLAMA, **cells).stack_changes)

    assert changes() == {}
    graph = "cuda graph transformer_engine:['attn', 'moe_router']; moe a2a overlap [tag moe]"
    assert changes(recompute_detail=graph, recompute="none") == {
        "launch_hidden": 0.5,
        "ep_overlap": 0.8,
    }
    assert changes(notes="DeepEP dispatcher") == {"dispatcher": "flex"}
    ladder = {
        step: changes(notes=f"feature: +{step} (cumulative, vpp of intermediate bars)")
        for step in ("loss fusion", "launch opt", "VPP3", "sync-free stage 1", "VPP5")
    }
    assert [step for step, said in ladder.items() if said.get("dispatcher") == "flex"] == [
        "launch opt",
        "VPP3",
        "sync-free stage 1",
        "VPP5",
    ]
    assert [step for step, said in ladder.items() if "routing_fused" in said] == [
        "sync-free stage 1",
        "VPP5",
    ]
    assert changes(recompute_detail="x [tag cuda graph full_iteration]", recompute="none") == {}
    assert changes(framework="torchtitan FSDP2", notes="FSDP; op-level")["pointwise_fused"] == 0
    assert "pointwise_fused" not in changes(
        framework="torchtitan FSDP2", notes="FSDP + torch.compile"
    )
    assert changes(framework="torchtitan", notes="async TP, torch.compile")["tp_overlap"] == 0.5
    assert changes(framework="torchtitan", notes="vanilla TP, torch.compile")["tp_overlap"] == 0
    dev = changes(
        framework="Megatron-LM dev", notes="overlap-grad-reduce=True; moe-grouped-gemm=True"
    )
    assert dev == {"cross_entropy_fused": 0, "logits_bytes": 4, "tp_overlap": 0}


def test_what_maxtext_keeps_on_the_host() -> None:
    def on_host(detail: str) -> set[str]:
        changes = dict(
            case_of(
                LLAMA, framework="MaxText", recompute="selective", recompute_detail=detail
            ).stack_changes
        )
        return {name for name, value in changes.items() if name.startswith("offloads") and value}

    assert on_host("MaxText remat_policy=custom; decoder_layer_input=offload") == {
        "offloads_inputs",
        "offloads_kept",
    }
    assert on_host(
        "MaxText remat_policy=custom; decoder_layer_input=device, query_proj=offload"
    ) == {"offloads_kept"}
    assert on_host("MaxText remat_policy=qkv_proj_offloaded") == {"offloads_kept"}
    assert on_host("MaxText remat_policy=minimal; decoder_layer_input=device") == set()


def test_how_primus_starts() -> None:
    """Allocator as it comes, loss not fused unless it says so, and then Transformer Engine's."""

    def changes(notes: str) -> dict[str, float | str]:
        return dict(case_of(LLAMA, framework="Primus Megatron-LM", notes=notes).stack_changes)

    plain = {"cross_entropy_fused": 0, "logits_bytes": 4, "fragmentation_frac": 0.25}
    assert changes("feature: baseline (cumulative); x") == plain
    fused = plain | {"cross_entropy_fused": 1, "logits_bytes": 0}
    assert changes("feature: +loss fusion (cumulative)") == fused
    assert changes("feature: +DeepEP (cumulative)") == fused | {"dispatcher": "flex"}


def test_attention_that_waits_on_the_host() -> None:
    detail = "--recompute-activation-function; --swap-attention"
    case = case_of(LLAMA, framework="MindSpeed-LLM", recompute="selective", recompute_detail=detail)
    assert case.switches == ("swap-attention",) and stack_of(case).offloads_attention


def test_layers_whose_activations_wait_on_the_host() -> None:
    changes = case_of(
        LLAMA, recompute_detail="cpu activation offload of 12 layers [joined from recipe x]"
    ).stack_changes
    assert dict(changes)["offloaded_layers"] == 12


def test_the_loss_of_torchtitan_by_the_month_of_its_release() -> None:
    def loss_bytes(notes: str = "torch.compile", **columns: str) -> float | str | None:
        return dict(
            case_of(LLAMA, framework="torchtitan FSDP2", notes=notes, **columns).stack_changes
        ).get("logits_bytes")

    assert loss_bytes() is None
    assert loss_bytes(release="2024-11") == 14.0
    assert (
        loss_bytes(
            provenance="pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md@b5bcd76c6"
        )
        == 14.0
    )
    assert loss_bytes(provenance="pytorch/torchtitan docs/performance.md@202412ab7") is None, (
        "a commit's name"
    )
    assert loss_bytes(provenance="benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md") is None
    assert loss_bytes(notes="") == 14.0, "not compiled at all"


def test_features_of_a_megatron_test() -> None:
    changes = dict(
        case_of(
            SMALL_GPT, notes="deterministic-mode=True", model="gpt:some_cross_entropy_loss_fusion"
        ).stack_changes
    )
    assert changes["thread_workspace_bytes"] == 32 * 2**20
    assert changes["logits_bytes"] == 8.0
    assert dict(case_of(SMALL_GPT).stack_changes)["logits_bytes"] == 4.0, (
        "the plain loss works in place on one fp32 copy"
    )
    assert dict(case_of(SMALL_GPT).stack_changes)["grouped_workspaces"] == 0.0
    assert "grouped_workspaces" not in dict(
        case_of(SMALL_GPT, notes="moe-grouped-gemm=True").stack_changes
    )
    reused = case_of(LLAMA, framework="MindSpeed-LLM", notes="script flags: reuse-fp32-param, x")
    assert stack_of(reused).master_bytes == 2.0


@pytest.mark.parametrize(
    ("gpu", "release", "stack"),
    [
        ("GB300-NVL72", "NeMo container 26.08", "megatron-bridge@26.08"),
        ("GB200-NVL72", "NeMo container 26.06.01", "megatron-bridge@26.06.01"),
        ("GB200-NVL72", "NeMo container 26.04.01", "megatron-bridge@26.04.01"),
        ("GB200-NVL72", "NeMo container 25.11", "megatron-bridge@25.11"),
        ("B200-180GB", "NeMo container 26.04", "megatron-bridge@26.04"),
        ("H100-80GB-SXM", "NeMo container 25.09", "megatron-bridge@25.09"),
        ("A100-80GB-SXM", "NeMo container 25.09", "nemo"),
        ("H100-80GB-SXM", "", "nemo"),
    ],
)
def test_a_release_names_its_generation(gpu: str, release: str, stack: str) -> None:
    assert (
        case_of(
            LLAMA, framework="Megatron-Bridge / Megatron-Core + TE", gpu=gpu, release=release
        ).stack_name
        == stack
    )


def test_every_change_names_a_field_of_the_stack() -> None:
    for rule in read_rules("stack_words").rules:
        for word in rule["changes"].split():
            assert hasattr(find_stack("megatron"), word.partition("=")[0])


def test_every_framework_names_a_stack_and_every_family_a_model() -> None:
    for rule in read_rules("frameworks").rules:
        assert find_stack(rule["stack"]).name == rule["stack"]
        assert rule["reason"]
    for rule in read_rules("families").rules:
        assert rule["reason"] and int(rule["seq_len"] or 1) > 0
        if rule["base"]:
            assert find_model(rule["base"]).hidden > 0


@pytest.mark.parametrize(
    ("gpu", "precision", "stack"),
    [
        ("A100-80GB-SXM", "fp16", "megatron-legacy"),
        (
            "A100-80GB-SXM",
            "bf16",
            "megatron-no-overlap",
        ),  # before Transformer Engine's overlap, which came with Hopper
        ("H100-80GB-SXM", "bf16", "megatron"),
    ],
)
def test_megatron_lm_by_generation(gpu: str, precision: str, stack: str) -> None:
    assert case_of(LLAMA, framework="Megatron-LM", gpu=gpu, precision=precision).stack_name == stack


@pytest.mark.parametrize(
    ("framework", "stack", "sharding", "recompute"),
    [
        ("axolotl", "accelerate", "zero3", "full"),
        ("axolotl + DeepSpeed", "deepspeed", "zero3", "full"),
        ("HF Transformers Trainer", "accelerate", "none", "full"),
        ("Hugging Face accelerate FSDP", "accelerate", "zero3", "none"),
        ("PyTorch FSDP", "fsdp", "zero3", "none"),
        ("torchtune", "fsdp", "zero3", "full"),
        ("Lightning", "fsdp", "none", "full"),
        ("GPT-NeoX 2.0", "megatron-deepspeed", "zero1", "full"),
        ("OLMo-core", "torchtitan", "zero3", "none"),
        ("Levanter", "maxtext", "zero3", "full"),
    ],
)
def test_programs_by_what_they_stand_on(
    framework: str, stack: str, sharding: str, recompute: str
) -> None:
    case = case_of(LLAMA, framework=framework, tp="1", pp="1", gbs="64")
    assert (case.stack_name, case.layout.sharding, case.layout.recompute) == (
        stack,
        sharding,
        recompute,
    )


@pytest.mark.parametrize("gpu", ["GH200-96GB", "V100-32GB-SXM3"])
def test_software_that_asks_for_no_half_precision_trains_in_fp32(gpu: str) -> None:
    """Sailor's scripts name none, so its rows leave the precision blank; a row that names one is
    taken at its word."""
    work = case_of(LLAMA, framework="Megatron-DeepSpeed (Sailor)", gpu=gpu, precision="").workload
    assert (work.precision, work.attention, work.dropout) == ("tf32", "unfused", False)
    assert (
        case_of(
            LLAMA, framework="Megatron-DeepSpeed (Sailor)", gpu=gpu, precision="fp16"
        ).workload.precision
        == "fp16"
    )
    assert (
        case_of(
            LLAMA, framework="Megatron-LM", gpu="A100-80GB-SXM", precision=""
        ).workload.precision
        == "bf16"
    )


@pytest.mark.parametrize(
    ("framework", "notes", "changes"),
    [
        ("megatron-core 0.6.0", "", {"tp_overlap": 0.0}),
        ("megatron-core 0.6.0", "flags: tp-comm-overlap", {}),
    ],
)
def test_overlaps_are_those_that_a_row_names(
    framework: str, notes: str, changes: dict[str, float]
) -> None:
    found = case_of(LLAMA, framework=framework, notes=notes).stack_changes
    assert {name: value for name, value in found if name.endswith("_overlap")} == changes


@pytest.mark.parametrize(
    ("notes", "told", "tp_overlap", "dp_overlap"),
    [
        ("script flags: use-mc2, num-layer-list", ("use-mc2",), 0.8, 0.0),
        (
            "script flags: overlap-grad-reduce; README: measured with the mc2 feature on",
            ("overlap-grad-reduce",),
            *(0.0, 0.8),
        ),
        ("layout from examples/mcore/x/pretrain_x.sh at the same tag", (), 0.0, 0.0),
        ("script flags: no-use-mc2", (), 0.0, 0.0),
    ],
)
def test_a_script_of_mindspeed_is_told_what_its_row_names(
    notes: str, told: tuple[str, ...], tp_overlap: float, dp_overlap: float
) -> None:
    case = case_of(LLAMA, framework="MindSpeed-LLM", notes=notes)
    stack = stack_of(case)
    assert case.switches == told
    assert (stack.tp_overlap, stack.dp_overlap) == (tp_overlap, dp_overlap)


def test_a_row_without_a_script_is_started_as_its_release_does() -> None:
    case = case_of(LLAMA, framework="MindSpeed-LLM", release="1.0.RC3.0")
    assert (case.stack_name, case.switches) == ("mindspeed@1.0.rc3.0", None)
    newest = case_of(LLAMA, framework="MindSpeed-LLM", release="99.0").stack_name
    assert newest == f"mindspeed@{recipe_span('mindspeed')[-1]}"


def test_benchmarks_that_leave_allocator_and_exchanges_as_they_come() -> None:
    changes = case_of(LLAMA, framework="megatron-core 0.6.0").stack_changes
    assert {("in_switch_reductions", 1.0), ("fragmentation_frac", 0.25)} <= set(changes)
    assert (
        dict(case_of(LLAMA, task="lora", notes="script tune_qlora.sh; lora-r=16").stack_changes)[
            "frozen_weight_bytes"
        ]
        == 0.516
    )


def test_oneflow_reduces_gradients_in_the_backward_pass_and_plans_memory_ahead() -> None:
    changes = dict(case_of(LLAMA, framework="OneFlow").stack_changes)
    assert changes == {"dp_overlap": 0.8, "gradient_bytes": 2.0, "fragmentation_frac": 0.0}


@pytest.mark.parametrize(
    ("framework", "precision", "halves"),
    [
        ("Megatron-LM dev", "fp16", True),
        ("Megatron-LM dev", "bf16", False),
        ("PaddleNLP", "fp16 O2", False),
    ],
)
def test_megatron_core_sums_halves_in_halves(framework: str, precision: str, halves: bool) -> None:
    """With fp16 alone: of bf16 its arguments.py makes fp32 sums."""
    changes = dict(case_of(LLAMA, framework=framework, precision=precision).stack_changes)
    assert {
        name: changes.get(name) for name in ("gradient_bytes", "reduce_bytes", "step_bytes")
    } == (
        {"gradient_bytes": 2.0, "reduce_bytes": 2.0, "step_bytes": 4.0}
        if halves
        else dict.fromkeys(("gradient_bytes", "reduce_bytes", "step_bytes"))
    )
    assert dict(case_of(LLAMA, framework="Megatron-LM").stack_changes) == {}
    mindspeed = stack_of(case_of(LLAMA, framework="MindSpeed-LLM / ModelLink", precision="fp16"))
    assert (mindspeed.gradient_bytes, mindspeed.reduce_bytes, mindspeed.step_bytes) == (2, 2, 4)


def test_adapters_train_on_whole_models_where_a_chip_holds_one() -> None:
    """Llama 3 8B has 16 GB of weights: an L4 holds them, a T4 does not; who names a sharding has
    it."""

    def sharding(gpu: str, framework: str = "axolotl LoRA", **cells: str) -> str:
        return case_of(LLAMA, gpu=gpu, framework=framework, task="lora", **cells).layout.sharding

    assert [sharding("L4-24GB"), sharding("T4-16GB", precision="fp16")] == ["none", "zero3"]
    assert [sharding("L4-24GB", zero="3"), sharding("L4-24GB", "axolotl with FSDP")] == [
        "zero3",
        "zero3",
    ]


def test_plain_data_parallel_runs_checkpoint_where_they_must() -> None:
    case = case_of(SMALL_GPT, framework="PyTorch DDP", recompute="")
    assert (case.layout.sharding, case.layout.recompute) == ("none", "none")
    assert {layout.recompute for layout in case.choices[-1]} == {"full"}
