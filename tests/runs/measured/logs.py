"""Logs as training software and nccl-tests write them, of runs that never were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ARGUMENTS = {
    "add_bias_linear": "False",
    "attention_backend": "AttnBackend.auto",
    "bf16": "True",
    "context_parallel_size": "1",
    "cross_entropy_loss_fusion": "True",
    "data_parallel_size": "4",
    "expert_model_parallel_size": "1",
    "expert_tensor_parallel_size": "2",
    "ffn_hidden_size": "14336",
    "fp16": "False",
    "fp8": "None",
    "global_batch_size": "128",
    "group_query_attention": "True",
    "hidden_dropout": "0.0",
    "hidden_size": "4096",
    "kv_channels": "128",
    "micro_batch_size": "1",
    "normalization": "RMSNorm",
    "num_attention_heads": "32",
    "num_experts": "None",
    "num_layers": "32",
    "num_query_groups": "8",
    "overlap_grad_reduce": "True",
    "padded_vocab_size": "None",
    "pipeline_model_parallel_size": "2",
    "position_embedding_type": "rope",
    "recompute_granularity": "None",
    "recompute_modules": "None",
    "recompute_num_layers": "None",
    "seq_length": "8192",
    "sequence_parallel": "True",
    "swiglu": "True",
    "tensor_model_parallel_size": "2",
    "tp_comm_overlap": "True",
    "transformer_impl": "transformer_engine",
    "untie_embeddings_and_output_weights": "True",
    "use_distributed_optimizer": "True",
    "virtual_pipeline_model_parallel_size": "None",
    "vocab_size": "None",
    "world_size": "16",
}
"""Of Llama 3 8B on 16 chips, tp=2, pp=2."""


def megatron_log(
    times_ms: Sequence[float],
    changes: Mapping[str, str] | None = None,
    /,
    *,
    max_allocated_mb: Sequence[float] = (51234.5, 40123.25),
) -> str:
    """A log with `--log-interval 1 --log-throughput`; the first report is of the first iteration,
    compilation included."""
    arguments = {**ARGUMENTS, **(changes or {})}
    lines = [
        "using world size: 16, data-parallel size: 4, context-parallel size: 1, hierarchical"
        " context-parallel sizes: None, "
    ]
    lines += ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    lines += ["-------------------- end of arguments ---------------------"]
    lines += [
        " > padded vocab (size: 128256) with 0 dummy tokens (new size: 128256)",
        "training ...",
        "[before the start of training step]",
    ]
    batch = int(arguments["global_batch_size"])
    for iteration, ms in enumerate(times_ms, start=1):
        lines.append(
            f" [2026-03-01 10:00:{iteration:02d}.123456] iteration {iteration:8d}/  500000 |"
            f" consumed samples: {iteration * batch:12d} | elapsed time per iteration (ms):"
            f" {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-06 |"
            f" global batch size: {batch:5d} | lm loss: 1.171875E+01 | loss scale: 1.0 | grad norm:"
            " 3.142 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        if iteration <= 2:
            lines += [
                f"[Rank {rank}] (after {iteration} iterations) memory (MB) | allocated: 30000.12 | "
                f"max allocated: {mb - 100 * (2 - iteration):.2f} | "
                f"reserved: 55000.00 | max reserved: {mb + 4000:.2f}"
                for rank, mb in zip((0, 8), max_allocated_mb, strict=False)
            ]
    return "\n".join(lines) + "\n"


def nemo_log(times_s: Sequence[float], *, gbs: int = 128) -> str:
    """NeMo 2's progress printer."""
    lines = [
        "[NeMo I 2026-03-01 10:00:00 nemo_logging:393] Padded vocab_size: 128256, original"
        " vocab_size: 128256, dummy tokens: 0."
    ]
    for step, seconds in enumerate(times_s):
        lines.append(
            f"Training epoch 0, iteration {step}/{len(times_s) - 1} | lr: 1.499e-07 |"
            f" global_batch_size: {gbs} | global_step: {step} | reduced_train_loss: 11.03 |"
            f" train_step_timing in s: {seconds:.3f}"
            + (f" | consumed_samples: {(step + 1) * gbs}" if step else "")
        )
    return "\n".join(lines) + "\n"


TITAN_CONFIG = """{
  "model": {"name": "llama3", "flavor": "8B", "converters": []},
  "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 8192, "steps": 100},
  "parallelism": {"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "tensor_parallel_degree": 1,
    "pipeline_parallel_degree": 1, "pipeline_parallel_schedule": "1F1B", "enable_async_tensor_parallel": false,
    "context_parallel_degree": 1, "expert_parallel_degree": 1},
  "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
  "compile": {"enable": true, "components": ["model", "loss"]}
}"""  # noqa: E501


def titan_log(
    rates: Sequence[float],
    *,
    config: str | None = TITAN_CONFIG,
    mesh: str = "",
    gib: float = 70.5,
    colour: bool = False,
) -> str:
    """A log of torchtitan with `debug.print_config`, on rank 0 of 8."""
    head = "[rank0]:[titan] 2026-03-01 10:00:00,123 - root - INFO - "
    lines = [f"{head}Running with configs: {config}"] if config is not None else []
    lines += [
        head
        + (
            mesh
            or "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1"  # noqa: E501
        ),
        f"{head}CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        f"{head}Peak FLOPS used for computing MFU: 9.890e+14",
        f"{head}Training starts at step 1",
    ]
    red, green, blue, end = (
        ("\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[39m") if colour else ("", "", "", "")
    )
    for index, rate in enumerate(rates):
        step = 10 * index or 1
        lines.append(
            f"{head}{red}step: {step:2}  {green}loss: 12.25432  grad_norm:  3.1416  memory:"
            f" {gib:5.2f}GiB({gib / 79.1:.2%})  {blue}tps: {round(rate):,}  tflops: 398.12  mfu:"
            f" 40.25%{end}"
        )
    return "\n".join(lines) + "\n"


def nccl_output(
    times_us: dict[int, float],
    *,
    hosts: int = 1,
    name: str = "all_reduce_perf",
    factor: float = 1.75,
) -> str:
    """What nccl-tests 2.13 and later print; `factor` is bus over algorithm rate."""
    lines = [
        f"# Collective test starting: {name}",
        (
            "# nThread 1 nGpus 1 minBytes 8388608 maxBytes 8589934592 step: 2(factor) warmup iters:"
            " 5 iters: 20 agg iters: 1 validation: 1 graph: 0"
        ),
        "#",
        "# Using devices",
    ]
    for rank in range(8 * hosts):
        lines.append(
            f"#  Rank {rank:2d} Group  0 Pid  {31300 + rank:5d} on    node-{rank // 8} device"
            f" {rank % 8:2d} [0000:18:00] NVIDIA H100 80GB HBM3"
        )
    blank, side = " " * 10, "time   algbw   busbw  #wrong"
    units = "(us)  (GB/s)  (GB/s)        "
    lines += [
        "#",
        (
            f"# {blank}  {'':>12}  {'':>8}  {'':>6}  {'':>6}           out-of-place                "
            "       in-place          "
        ),
        (
            f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}     {side}    "
            f" {side}"
        ),
        f"# {'(B)':>10}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}     {units}     {units}",
    ]
    for size, us in times_us.items():
        alg = size / us / 1e3
        row = f"  {us:7.2f}  {alg:6.2f}  {alg * factor:6.2f}       0"
        lines.append(f"  {size:>10}  {size // 4:>12}  {'float':>8}  {'sum':>6}  {-1:>6}{row}{row}")
    lines += [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 401.2",
        "#",
        f"# Collective test concluded: {name}",
    ]
    return "\n".join(lines) + "\n"
