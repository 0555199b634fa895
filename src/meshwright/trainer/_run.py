"""A training run: build, step, tell, save."""

from __future__ import annotations

import json
import math
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from meshwright.cost.flops import model_flops_per_token
from meshwright.trainer._batches import StepData, open_samples
from meshwright.trainer._checkpoints import Checkpoints
from meshwright.trainer._feedforward import BalanceRule
from meshwright.trainer._mesh import Meshes, make_meshes
from meshwright.trainer._model import Chunk, padded_vocab, token_loss
from meshwright.trainer._optimizer import Gradients, make_optimizer
from meshwright.trainer._phases import Phases, peak_bytes, reset_peaks
from meshwright.trainer._pipeline import Runner, Shapes, make_runner
from meshwright.trainer._recompute import apply_recompute
from meshwright.trainer._shard import shard_data
from meshwright.trainer._start import fill_weights
from meshwright.trainer._tensor import cut_tensors
from meshwright.trainer.job import TrainJob
from meshwright.trainer.parts import own_parts
from meshwright.trainer.schedule import learning_rate
from meshwright.workload import Workload

__all__ = ["StepReport", "train"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one step tells."""

    step: int
    """From 1."""
    loss: float
    """Mean cross-entropy of the step's tokens, before its update."""
    gradient_norm: float
    learning_rate: float
    step_s: float
    tokens_per_s: float
    model_flops_per_s: float
    """Of all ranks; full attention, recompute not counted."""
    phases_s: dict[str, float]
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(kw_only=True)
class _Parts:
    """What a run is made of."""

    job: TrainJob
    meshes: Meshes
    device: torch.device
    chunks: list[Chunk]
    runner: Runner
    optimizers: list[torch.optim.Optimizer]
    gradients: Gradients
    ends: dist.ProcessGroup | None
    """First and last stage, where they hold copies of one tied weight."""
    data: StepData
    phases: Phases


def train(job: TrainJob, device: torch.device, *, tell: Callable[[str], None]) -> int:
    """Train; return the steps done in all. `tell` gets a line of JSON per step on rank 0. ArithmeticError at a loss that is no number."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # of logits, which nothing changes in place
    parts = _build(job, device)
    checkpoints = None if job.save.folder is None else Checkpoints(job.save.folder, keep=job.save.keep)
    done = _resume(parts, checkpoints)
    started, asked_to_stop = perf_counter(), _watch_for_stop()
    with _metrics_file(job) as file, _trace(job) as after_step:
        while done < job.steps:
            report = _step(parts, done)
            done += 1
            _tell(report, file, tell)
            after_step()
            stop = _agree(parts, asked_to_stop() or _out_of_time(job, started))
            if checkpoints is not None and job.save.every and done % job.save.every == 0 and done < job.steps and not stop:
                checkpoints.save(done, parts.chunks, parts.optimizers, _facts(job))
            if stop:
                break
    if checkpoints is not None:
        checkpoints.save(done, parts.chunks, parts.optimizers, _facts(job))
        checkpoints.finish()
    return done


def _build(job: TrainJob, device: torch.device) -> _Parts:
    layout, model = job.layout, job.model
    meshes = make_meshes(layout, device_type=device.type, has_experts=model.moe is not None)
    balance = BalanceRule(weight=job.balance_weight if model.moe is not None else 0.0, sequences=layout.gbs)
    compute = torch.bfloat16 if job.precision == "bf16" else torch.float32
    chunks, places = [], []
    for place, part in own_parts(model, layout, meshes.place("pp")):
        with torch.device("meta"):
            chunk = Chunk(model, meshes, part, balance=balance)
        cut_tensors(chunk, meshes)
        chunk.to_empty(device=device)
        chunk.tie()
        fill_weights(chunk, model, seed=job.seed, std=job.init_std)
        apply_recompute(chunk, layout)
        if job.compile:
            for layer in chunk.layers.values():
                layer.compile()
        shard_data(chunk, meshes, compute_dtype=compute)
        chunks.append(chunk)
        places.append(place)
    tokens = layout.gbs * job.seq_len

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        if layout.tp > 1:
            logits = DTensor.from_local(logits, meshes.tp, (Shard(-1),), run_check=False)
        return token_loss(logits, targets) / tokens

    tied = _tied_copies(chunks, meshes)
    shapes = Shapes(layout=layout, seq_len=job.seq_len, hidden=model.hidden, vocab=padded_vocab(model), dtype=compute, device=device)
    return _Parts(
        job=job,
        meshes=meshes,
        device=device,
        chunks=chunks,
        runner=make_runner(chunks, places, meshes, shapes=shapes, loss=loss),
        optimizers=[make_optimizer(chunk, job.optimizer) for chunk in chunks],
        gradients=Gradients(chunks=chunks, meshes=meshes, tied_copies=tied),
        ends=_ends_group(meshes) if model.tied and layout.pp > 1 else None,
        data=StepData(open_samples(job), job, meshes, device),
        phases=Phases(device),
    )


def _tied_copies(chunks: Sequence[Chunk], meshes: Meshes) -> tuple[nn.Parameter, ...]:
    """The embedding on the first stage and the head on the last, where a model ties them and a pipeline parts them."""
    if meshes.layout.pp == 1 or not chunks[0].tied:
        return ()
    found = []
    for chunk in chunks:
        if chunk.embedding is not None:
            found.append(chunk.embedding.tokens.weight)
        if chunk.head is not None:
            found.append(chunk.head.weight)
    return tuple(found)


def _step(parts: _Parts, done: int) -> StepReport:
    job, phases = parts.job, parts.phases
    reset_peaks(parts.device)
    start = perf_counter()
    with phases.of("data"):
        tokens, targets = parts.data.of(done)
    with phases.of("forward and backward"):
        loss = parts.runner.run(tokens, targets)
    with phases.of("tied gradients"):
        _sum_tied(parts)
    with phases.of("gradient norm"):
        norm = parts.gradients.norm()
        if 0 < job.optimizer.clip_norm < norm:
            parts.gradients.scale(job.optimizer.clip_norm / (norm + 1e-6))
    total = _total_loss(parts, loss)
    if not math.isfinite(total) or not math.isfinite(norm):
        raise ArithmeticError(f"step {done + 1}: the loss is {total}, the gradient norm {norm}; nothing of this step was kept")
    rate = learning_rate(done, job.optimizer, steps=job.steps)
    with phases.of("optimizer"):
        for optimizer in parts.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return _report(parts, done + 1, loss=total, norm=norm, rate=rate, step_s=perf_counter() - start)


def _sum_tied(parts: _Parts) -> None:
    """Add the gradients that the two copies of a tied weight got on their stages."""
    for weight in parts.gradients.tied_copies:
        assert weight.grad is not None
        grad = weight.grad.to_local() if hasattr(weight.grad, "to_local") else weight.grad
        dist.all_reduce(grad, group=parts.ends)


def _ends_group(meshes: Meshes) -> dist.ProcessGroup:
    """First and last stage of this rank's pipeline; all ranks make all of these groups together."""
    stage_ranks = dist.get_world_size() // meshes.layout.pp
    groups = [dist.new_group([place, place + (meshes.layout.pp - 1) * stage_ranks]) for place in range(stage_ranks)]
    return groups[dist.get_rank() % stage_ranks]


def _total_loss(parts: _Parts, part: Tensor) -> float:
    """Sum over data and context ranks, on every rank: tensor-parallel ranks have the same part each."""
    total = part.detach().double() / parts.meshes.layout.tp
    dist.all_reduce(total)
    return float(total)


def _report(parts: _Parts, step: int, *, loss: float, norm: float, rate: float, step_s: float) -> StepReport:
    job = parts.job
    tokens = job.layout.gbs * job.seq_len
    flops = tokens * float(model_flops_per_token(job.model, Workload(seq_len=job.seq_len)))
    allocated, reserved = peak_bytes(parts.device)
    return StepReport(
        step=step,
        loss=loss,
        gradient_norm=norm,
        learning_rate=rate,
        step_s=step_s,
        tokens_per_s=tokens / step_s,
        model_flops_per_s=flops / step_s,
        phases_s=parts.phases.take(),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
    )


def _tell(report: StepReport, file: IO[str] | None, tell: Callable[[str], None]) -> None:
    line = json.dumps(report.to_dict())
    if file is not None:
        file.write(line + "\n")
        file.flush()
    if dist.get_rank() == 0:
        tell(line)


@contextmanager
def _metrics_file(job: TrainJob) -> Iterator[IO[str] | None]:
    if job.metrics is None:
        yield None
        return
    folder = Path(job.metrics)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"rank-{dist.get_rank()}.jsonl").open("a", encoding="utf-8") as file:
        yield file


@contextmanager
def _trace(job: TrainJob) -> Iterator[Callable[[], None]]:
    """Record one step after the first ones, and write it as a Chrome trace."""
    if job.trace is None:
        yield lambda: None
        return
    from torch.profiler import profile, schedule

    def write(recorded: Any) -> None:
        folder = Path(str(job.trace))
        folder.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.json"))

    with profile(schedule=schedule(wait=1, warmup=1, active=1, repeat=1), on_trace_ready=write) as recorder:
        yield recorder.step


def _watch_for_stop() -> Callable[[], bool]:
    """SIGTERM and SIGINT end the run after the step at hand."""
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(True))
    return lambda: bool(asked)


def _agree(parts: _Parts, stop: bool) -> bool:
    """Whether any rank wants to stop: then all do."""
    flag = torch.tensor(float(stop), device=parts.device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def _out_of_time(job: TrainJob, started: float) -> bool:
    return job.minutes is not None and perf_counter() - started > 60 * job.minutes


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
    }


def _resume(parts: _Parts, checkpoints: Checkpoints | None) -> int:
    job = parts.job
    if checkpoints is None or not job.save.resume:
        return 0
    newest = checkpoints.newest()
    if newest is None:
        return 0
    checkpoints.load(newest, parts.chunks, parts.optimizers, _facts(job))
    return newest
