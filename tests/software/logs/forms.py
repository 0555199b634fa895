"""Lines of logs, made by the format strings of the programs that write them; each function names
the file and version it was read from."""

from __future__ import annotations


def megatron_line(
    step: int,
    ms: float,
    *,
    batch: int = 64,
    loss: float | None = 9.5,
    norm: float = 2.5,
    skipped: int = 0,
    nan: int = 0,
    tflops: float | None = 412.3,
    date: bool = True,
) -> str:
    """`training_log` of Megatron-LM core_v0.13.0, megatron/training/training.py; without date and
    throughput that of v2.5."""
    line = " [2026-03-01 10:00:00]" if date else ""
    line += f" iteration {step:8d}/{500000:8d} |"
    line += f" consumed samples: {step * batch:12d} |"
    line += f" elapsed time per iteration (ms): {ms:.1f} |"
    if tflops is not None:
        line += f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    line += f" learning rate: {1.5e-6:.6E} |"
    line += f" global batch size: {batch:5d} |"
    if loss is not None and loss > 0.0:  # a loss that is no number fails this, and is not written
        line += " {}: {:.6E} |".format("lm loss", loss)
    line += f" loss scale: {1.0:.1f} |"
    line += f" grad norm: {norm:.3f} |"
    line += f" number of skipped iterations: {skipped:3d} |"
    line += f" number of nan iterations: {nan:3d} |"
    return line + "\n"


def megatron_validation(step: int, loss: float) -> str:
    """`evaluate_and_print_results` of Megatron-LM core_v0.13.0, megatron/training/training.py,
    between lines of dashes."""
    string = f" validation loss at iteration {step} on validation set | "
    string += "{} value: {:.6E} | ".format("lm loss", loss)
    string += "{} PPL: {:.6E} | ".format("lm loss", 2.718281828**loss)
    return f"{'-' * len(string)}\n{string}\n{'-' * len(string)}\n"


def megatron_saved(step: int) -> str:
    """`save_checkpoint` of Megatron-LM core_v0.13.0, megatron/training/checkpointing.py."""
    return "  successfully saved checkpoint from iteration {:7d} to {} [ t 1/1, p 1/1 ]\n".format(
        step, "/ckpt"
    )


def megatron_saving(step: int) -> str:
    """The same function's, before it writes."""
    return "saving checkpoint at iteration {:7d} to {} in {} format\n".format(
        step, "/ckpt", "torch_dist"
    )


def megatron_memory(rank: int, step: int, *, allocated_mib: float, reserved_mib: float) -> str:
    """`report_memory` of Megatron-LM core_v0.13.0, megatron/training/utils.py."""
    string = f"(after {step} iterations)" + " memory (MB)"
    string += f" | allocated: {allocated_mib / 2}"
    string += f" | max allocated: {allocated_mib}"
    string += f" | reserved: {reserved_mib}"
    string += f" | max reserved: {reserved_mib}"
    return f"[Rank {rank}] {string}" + "\n"


def bridge_step(seconds: float, tflops: float) -> str:
    """`training_log` of Megatron-Bridge v0.3.0, training/utils/train_utils.py."""
    return f"Step Time : {seconds:.2f}s GPU utilization: {tflops:.1f}MODEL_TFLOP/s/GPU\n"


def bridge_memory(rank: int, step: int, gigabytes: dict[str, float]) -> str:
    """The same file's report of memory, in 10^9 bytes."""
    string = f"(after {step} iterations) memory (GB)"
    for metric, value in gigabytes.items():
        string += f" | {metric}: {value}"
    return f"[Rank {rank}] {string}" + "\n"


def nemo2_line(
    step: int, seconds: float, *, loss: float = 9.5, batch: int = 64, last: bool = True
) -> str:
    """`ProgressPrinter.format_string` of NeMo, nemo/lightning/pytorch/callbacks/progress_printer.py
    of September 2025; counts from 0."""
    line = f"Training epoch 0, iteration {step - 1}/{99}"
    metrics = {
        "lr": 1.499e-07,
        "global_batch_size": float(batch),
        "global_step": float(step - 1),
        "reduced_train_loss": loss,
    }
    metrics["train_step_timing in s"] = seconds
    if last:
        metrics["consumed_samples"] = float(step * batch)
    for metric, value in metrics.items():
        line += f" | {metric}: {int(value)}" if value.is_integer() else f" | {metric}: {value:.4}"
    return line + "\n"


def lightning_number(value: float) -> str:
    """`Tqdm.format_num` of Lightning 2, callbacks/progress/tqdm_progress.py, on top of tqdm's
    own."""
    short = f"{value:.3g}".replace("e+0", "e+").replace("e-0", "e-")
    text = short if len(short) < len(str(value)) else str(value)
    if "e" not in text and text not in ("nan", "inf"):
        text = text + ("." if "." not in text and len(text) < 5 else "")
        text += "0" * (5 - len(text))
    return text


def nemo1_bar(step: int, seconds: float, *, loss: float = 9.5, total: int = 100) -> str:
    """`CustomProgressBar` of NeMo v1.23.0, nlp_overrides.py: drawn behind a carriage return, the
    last form of a step is the right one."""
    postfix = {
        "v_num": 0.0,
        "reduced_train_loss": loss,
        "global_step": float(step),
        "consumed_samples": 64.0 * step,
    }
    postfix["train_step_timing in s"] = seconds
    text = ", ".join(f"{name}={lightning_number(value)}" for name, value in postfix.items())
    return (
        f"\rEpoch 0: : {100 * step / total:3.0f}%|{'#' * 5}     | {step}/{total} [00:12<03:45,"
        f" {text}]"
    )


def titan_line(
    step: int,
    rate: float,
    *,
    loss: float = 9.5,
    gib: float = 70.5,
    form: str = "2025",
    colour: bool = False,
) -> str:
    """torchtitan: train.py at e62573d4c (2024), components/metrics.py at v0.1.0 (2025) and of
    August 2026, each behind tools/logging.py."""
    red, blue, end = ("\x1b[31m", "\x1b[34m", "\x1b[39m") if colour else ("", "", "")
    memory = f"memory: {gib:5.2f}GiB({gib / 0.791:.2f}%)  "
    head = "[titan] 2026-03-01 10:00:00,123 - root - INFO - "
    if form == "2024":
        words = (
            f"{red}step: {step:2}  loss: {loss:7.4f}  {memory}{blue}wps: {round(rate):,}  mfu:"
            f" {40.25:.2f}%{end}"
        )
    elif form == "2025":
        words = (
            f"{red}step: {step:2}  loss: {loss:7.4f}  {memory}{blue}tps: {round(rate):,}  tflops:"
            f" {1398.12:,.2f}  mfu: {40.25:.2f}%{end}"
        )
    else:
        words = (
            f"{red}step: {step:2}  loss: {loss:8.5f}  grad_norm: {3.1416:7.4f}  {memory}{blue}tps:"
            f" {round(rate):,}  "
        )
        words += f"tflops: {398.12:,.2f}  mfu: N/A{end}"
    return head + words + "\n"


def human_format(number: float) -> str:
    """nanotron's, src/nanotron/logging/base.py of April 2026."""
    if abs(number) < 1:
        return f"{number:.3g}"
    number, size = float(f"{number:.3g}"), 0
    while abs(number) >= 1000 and size < 6:
        number, size = number / 1000.0, size + 1
    return "{}{}".format(
        f"{number:f}".rstrip("0").rstrip("."), ["", "K", "M", "B", "T", "P", "E"][size]
    )


def nanotron_line(
    step: int,
    ms: float,
    *,
    tokens: int = 64 * 1024,
    gpus: int = 16,
    loss: float = 9.5,
    old: bool = False,
) -> str:
    """`train_step_logs` and `LoggerWriter` of nanotron: src/nanotron/trainer.py of April 2026, and
    at v0.4."""
    rate = tokens / ms * 1e3
    items = {
        "consumed_tokens": human_format(step * tokens),
        "elapsed_time_per_iteration_ms" if old else "time_per_iteration_ms": human_format(ms),
        "tokens_per_sec": human_format(rate),
        "tokens_per_sec_per_gpu": human_format(rate / gpus),
        "global_batch_size": human_format(64 if old else tokens),
        "grad_norm": human_format(2.5),
        "lm_loss": human_format(loss),
        "lr": human_format(0.0003),
        "model_tflops_per_gpu": human_format(412.34),
        **({"hardware_tflops_per_gpu": human_format(500.0)} if old else {"eta": "1 day, 2:03:04"}),
    }
    head = "\x1b[2;3m03/01 10:00:00 [INFO|DP=0|PP=0|TP=0]\x1b[0m: "
    return (
        head
        + " | ".join(
            [f"iteration: {step} / 100", *(f"{tag}: {value}" for tag, value in items.items())]
        )
        + "\n"
    )


def nanotron_memory(allocated_mib: float, reserved_mib: float) -> str:
    """`log_memory` of nanotron, src/nanotron/logging/base.py of April 2026."""
    words = (
        f" Memory usage: {allocated_mib / 2:.2f}MiB. Peak allocated {allocated_mib:.2f}MiB. Peak"
        f" reserved: {reserved_mib:.2f}MiB"
    )
    return f"03/01 10:00:00 [INFO|DP=0]: {words}\n"


def deepspeed_pipe(step: int, seconds: float, *, loss: float = 9.5, batch: int = 64) -> str:
    """The pipeline engine of DeepSpeed, runtime/pipe/engine.py of August 2026."""
    return (
        f"steps: {step} loss: {loss:0.4f} iter time (s): {seconds:0.3f} samples/sec:"
        f" {batch / seconds:0.3f}\n"
    )


def deepspeed_timer(step: int, seconds: float, *, batch: int = 64) -> str:
    """`ThroughputTimer` of DeepSpeed, utils/timer.py of August 2026, behind utils/logging.py's
    head."""
    words = (
        f"epoch={0}/micro_step={4 * step}/global_step={step},"
        f" RunningAvgSamplesPerSec={batch / seconds * 0.9}, "
    )
    words += (
        f"CurrSamplesPerSec={batch / (seconds + 1e-6)}, MemAllocated={12.5}GB,"
        f" MaxMemAllocated={31.25}GB"
    )
    return f"[2026-03-01 10:00:00,123] [INFO] [timer.py:260:stop] {words}\n"


def deepspeed_old_timer(step: int, seconds: float, *, batch: int = 64, memory: bool = False) -> str:
    """`ThroughputTimer` of DeepSpeed v0.3.0 and, with memory, v0.6.0."""
    tail = f", MemAllocated={12.5}GB, MaxMemAllocated={31.25}GB" if memory else ""
    return f"[INFO] [timer.py:154:stop] {0}/{step}, SamplesPerSec={batch / seconds}" + tail + "\n"


def deepspeed_memory(allocated_gib: float, reserved_gib: int) -> str:
    """`see_memory_usage` of DeepSpeed, runtime/utils.py of August 2026."""
    return (
        f"MA {1.5} GB         Max_MA {allocated_gib} GB         CA {2.0} GB         Max_CA"
        f" {reserved_gib} GB \n"
    )
