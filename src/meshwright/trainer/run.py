"""A training run: step, tell, save."""

from __future__ import annotations

import json
import math
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshwright.trainer.build import Parts, build, held
from meshwright.trainer.checkpoints import Checkpoints
from meshwright.trainer.job import TrainJob, keep_freed_memory
from meshwright.trainer.optimizer import drop_gathered
from meshwright.trainer.pipeline import learning_rate
from meshwright.trainer.reports import (
    ENDINGS,
    Ending,
    Rates,
    StepReport,
    Summary,
    Tally,
    ValidationReport,
    memory_history,
    peak_bytes,
    profiled_step,
    reset_peaks,
)
from meshwright.values.errors import ConfigError
from meshwright.values.units import MINUTE_S

__all__ = ["total_loss", "train", "validate"]


def validate(parts: Parts, done: int) -> ValidationReport:
    """Mean cross-entropy of the held-out batches, on every rank; no state changes."""
    assert parts.held_out is not None
    began, batches = perf_counter(), parts.job.valid.batches
    loss = torch.zeros((), device=parts.device)
    with torch.no_grad():
        for batch in range(batches):
            loss += parts.runner.evaluate(*parts.held_out.of(batch))
    for chunk in parts.chunks:
        drop_gathered(chunk)
    total = total_loss(parts, loss) / batches
    return ValidationReport(
        step=done,
        loss=total,
        tokens=batches * parts.job.layout.gbs * parts.job.seq_len,
        seconds=perf_counter() - began,
    )


def total_loss(parts: Parts, part: Tensor) -> float:
    """Sum over data and context ranks, on every rank; tensor-parallel ranks agree."""
    total = part.detach().double() / parts.meshes.layout.tp
    dist.all_reduce(total)
    return float(total)


def train(
    job: TrainJob, device: torch.device, *, tell: Callable[[str], None], started: float
) -> Summary:
    """Train to the end; `tell` gets a line of JSON per step and the summary, on rank 0. `started`
    is when the process began, of `perf_counter`. ArithmeticError at a loss that is no number."""
    # of logits, which nothing changes in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
    if device.type == "cpu":
        keep_freed_memory()
    with (
        memory_history(job.memory_snapshot) as dump_memory,
        _lines(job, tell) as say,
        ExitStack() as stack,
    ):
        parts = build(job, device)
        saves = job.save.folder is not None
        checkpoints = Checkpoints(job.save, device_type=device.type) if saves else None
        if checkpoints is not None and dist.get_rank() == 0:
            stack.enter_context(held(checkpoints.folder))
        done = _resume(parts, checkpoints)
        name, began = _device_name(device), perf_counter()
        tally = Tally(rates=Rates(job=job, processes=dist.get_world_size(), device_name=name))
        done, ended_by = _steps(
            parts, checkpoints, tally, done=done, started=started, say=say, dump_memory=dump_memory
        )
        words = {"device": name or "cpu", "torch_version": str(torch.__version__)}
        summary = tally.summary(done=done, start_s=began - started, ended_by=ended_by, **words)
        say(summary.to_dict())
    return summary


def _steps(
    parts: Parts,
    checkpoints: Checkpoints | None,
    tally: Tally,
    *,
    done: int,
    started: float,
    say: Callable[[dict[str, Any]], None],
    dump_memory: Callable[[], None],
) -> tuple[int, Ending]:
    """Step until the end, evaluate and save; return the steps done, and what ended them."""
    job, asked_to_stop = parts.job, _watch_for_stop()
    ending: Ending = "steps"
    while done < job.steps and ending == "steps":
        report = _reported_step(parts, done, tally)
        done += 1
        late = job.minutes is not None and perf_counter() - started > MINUTE_S * job.minutes
        is_written = checkpoints is not None and checkpoints.is_written()
        ending = "signal" if asked_to_stop() else "minutes" if late else "steps"
        report, ending, is_written = _shared(parts, report, ending=ending, is_written=is_written)
        tally.add(report)
        say(report.to_dict())
        if tally.num_steps == job.profile_step:
            dump_memory()
        is_last = ending != "steps" or done == job.steps
        is_due = job.save.every > 0 and done % job.save.every == 0
        is_saved = checkpoints is not None and (is_last or is_due)
        loss = None
        if ending != "signal" and _is_evaluated(job, done, at=is_last or is_saved):
            loss = _validation_loss(parts, done, say)
        if checkpoints is not None and (is_written or is_saved):
            _tell_checkpoint(checkpoints, say)
        if checkpoints is not None and is_saved:
            checkpoints.save(done, parts.chunks, parts.optimizers, _facts(job), loss=loss)
            if is_last or not checkpoints.behind:
                _tell_checkpoint(checkpoints, say)
    return done, ending


def _is_evaluated(job: TrainJob, done: int, *, at: bool) -> bool:
    """Whether validation is due: every so many steps, at each checkpoint, and at the end."""
    return job.valid.every > 0 and (at or done % job.valid.every == 0)


def _validation_loss(parts: Parts, done: int, say: Callable[[dict[str, Any]], None]) -> float:
    report = validate(parts, done)
    say(report.to_dict())
    return report.loss


def _tell_checkpoint(checkpoints: Checkpoints, say: Callable[[dict[str, Any]], None]) -> None:
    report = checkpoints.finish()
    if report is not None:
        say(report.to_dict())


def _shared(
    parts: Parts, report: StepReport, *, ending: Ending, is_written: bool
) -> tuple[StepReport, Ending, bool]:
    """The report with every rank's peaks of memory; what ends the run, as soon as one rank says so;
    and whether all ranks have written their part of a checkpoint."""
    peaks = (*report.peak_allocated_bytes, *report.peak_reserved_bytes)
    own = [ENDINGS.index(ending), int(is_written), *peaks]
    mine = torch.tensor(own, device=parts.device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    endings, written, allocated, reserved = torch.stack(every).T.tolist()
    report = replace(report, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved)
    return report, ENDINGS[max(endings)], all(written)


def _device_name(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _reported_step(parts: Parts, done: int, tally: Tally) -> StepReport:
    step = partial(_step, parts, done, tally.rates)
    if tally.num_steps + 1 != parts.job.profile_step:
        return step()
    return profiled_step(step, device=parts.device, trace=parts.job.trace)


def _step(parts: Parts, done: int, rates: Rates) -> StepReport:
    job, phases = parts.job, parts.phases
    reset_peaks(parts.device)
    phases.start()
    with phases.of("data"):
        tokens, targets = parts.data.of(done)
    loss = parts.runner.run(tokens, targets)
    if parts.gradients.tied_copies:
        with phases.of("tied_gradients"):
            _sum_tied(parts)
    with phases.of("gradient_norm"):
        norm = parts.gradients.norm()
        if 0 < job.optimizer.clip_norm < norm:
            parts.gradients.scale(job.optimizer.clip_norm / (norm + 1e-6))
        total = total_loss(parts, loss)
    if not math.isfinite(total) or not math.isfinite(norm):
        raise ArithmeticError(
            f"step {done + 1}: the loss is {total}, the gradient norm {norm}; nothing of this step"
            " was kept"
        )
    rate = learning_rate(done, job.optimizer, steps=job.steps)
    with phases.of("optimizer"):
        for optimizer in parts.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    seconds = phases.take()
    step_s = sum(seconds.values())
    allocated, reserved = peak_bytes(parts.device)
    return StepReport(
        step=done + 1,
        loss=total,
        gradient_norm=norm,
        learning_rate=rate,
        step_s=step_s,
        **rates.of(step_s),
        phases_s=seconds,
        collectives_s=None,
        peak_allocated_bytes=[allocated],
        peak_reserved_bytes=[reserved],
    )


def _sum_tied(parts: Parts) -> None:
    """Add the gradients of the two copies of a tied weight, on two stages or one of a V."""
    grads = [_local_gradient(weight) for weight in parts.gradients.tied_copies]
    if parts.ends is None:
        first, last = grads
        last.copy_(first.add_(last))
    else:
        for grad in grads:
            dist.all_reduce(grad, group=parts.ends)


def _local_gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad


@contextmanager
def _lines(
    job: TrainJob, tell: Callable[[str], None]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What takes a line: it goes to the rank's file if the job names a folder, and to `tell`."""
    with _metrics_file(job) as file:

        def say(values: dict[str, Any]) -> None:
            line = json.dumps(values)
            if file is not None:
                file.write(line + "\n")
                file.flush()
            if dist.get_rank() == 0:
                tell(line)

        yield say


@contextmanager
def _metrics_file(job: TrainJob) -> Iterator[IO[str] | None]:
    if job.metrics is None:
        yield None
        return
    folder = Path(job.metrics)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"rank-{dist.get_rank()}.jsonl").open("a", encoding="utf-8") as file:
        yield file


def _watch_for_stop() -> Callable[[], bool]:
    """SIGTERM and SIGINT end the run after the step at hand."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(True))
    return lambda: bool(asked)


def _facts(job: TrainJob) -> dict[str, Any]:
    """What a checkpoint must share with the run that goes on from it."""
    model = job.model
    return {
        "hidden": model.hidden,
        "num_layers": model.num_layers,
        "vocab": model.vocab,
        "seq_len": job.seq_len,
        "gbs": job.layout.gbs,
        "seed": job.seed,
        "valid_share": job.valid.share,
    }


def _resume(parts: Parts, checkpoints: Checkpoints | None) -> int:
    job, newest = parts.job, None if checkpoints is None else checkpoints.newest()
    if checkpoints is None or newest is None:
        return 0
    if not job.save.resume:
        raise ConfigError(
            f"save.resume=false: {checkpoints.folder} holds checkpoints up to step {newest}; give"
            " another save.folder"
        )
    checkpoints.load(newest, parts.chunks, parts.optimizers, _facts(job))
    return newest
