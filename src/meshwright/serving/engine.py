"""Inference engines as the cost model sees them: whose kernels run, what the host costs, how
requests are batched."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, Literal

from meshwright.errors import UnknownNameError

__all__ = ["Engine", "engine_names", "find_engine"]

Kernels = Literal["sglang", "trtllm", "vllm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One engine; `presets/engines.csv` holds them with the source of each figure."""

    name: str
    kernels: Kernels
    """Whose measured operators it runs (docs/operators.md)."""
    kernel_s: float
    """Time that every kernel of a decode iteration adds to its own: start, drain and gap inside a
    CUDA graph."""
    launch_s: float
    """Host time per kernel where no CUDA graph covers the batch (prefill); the longer of it and the
    device's time counts."""
    reduces_by: Literal["own", "nccl"]
    """Whose all-reduce it calls inside a server."""
    pass_scale: float
    """Element-wise passes over those of fused kernels."""
    graphs: bool
    """Whether CUDA graphs cover decode iterations, so that the host launches one graph."""
    host_s: float
    """Host time of one iteration that the device waits for: schedule, prepare inputs, read tokens
    back."""
    host_per_sequence_s: float
    """The same for each running sequence of an attention rank, which has a process of its own:
    sampling state, block tables."""
    request_s: float
    """Time of a request outside iterations, before its first token: HTTP, tokenizing, the queue
    between processes."""
    handover_s: float
    """The same where a request goes on to a worker for answers: the second queue, and agreeing on
    the transfer of its cache."""
    token_s: float
    """Time per token of a prompt in the server's front process (text to tokens, messages), which
    takes one request after the other."""
    cache_reserved: float
    """Share of an answer's tokens for which room in the cache is kept from the start; engines that
    take pages as they go hold half on average."""
    chunk_tokens: int
    """Tokens of prompts in one iteration at most; 0: whole prompts, as a static batch runs them."""
    whole_prompts: bool
    """Whether a prompt is never cut where an iteration holds others before it: it waits for an
    iteration that has room for all of it."""
    mixed: bool
    """Whether an iteration holds prompts and running sequences together; otherwise prompts stop the
    others."""
    overlap: bool
    """Whether the host schedules an iteration while the device runs the one before, so that a
    request joins one iteration later."""
    max_sequences: int
    """Sequences that run at once by default."""
    memory_share: float
    """Share of the usable device memory that weights, activations and cache may fill."""
    cache_follows_weights: bool
    """Whether 8- and 4-bit weights bring an fp8 cache unless told otherwise."""
    activation_elements: float
    """Working memory per token of an iteration, in 16-bit elements per hidden dimension."""
    base_gib: float
    """Context, libraries, graphs and communication buffers of a process."""
    vendors: tuple[str, ...] = ()
    """Whose chips alone it runs on; none named: any maker's, through a plugin where need be
    (vllm-ascend, vLLM's TPU backend)."""
    aliases: tuple[str, ...] = ()
    source: str = ""
    poll_steps: int = 1
    """Iterations of running sequences between two looks at what has arrived (SGLang's
    --scheduler-recv-interval)."""
    balance_steps: int = 0
    """Iterations for which a prompt waits at most until every attention rank has one
    (TensorRT-LLM's attention_dp_config with enable_balance and timeout_iters); 0: prompts begin at
    once."""
    wait_steps: int = 0
    """Iterations that prompts wait at most, while others run, until an iteration is full of them
    (TensorRT-LLM's batch_wait_timeout_iters); 0: prompts begin at once."""
    wait_share: float = 0.9
    """Of `chunk_tokens`, what counts as full (TensorRT-LLM's batch_wait_max_tokens_ratio)."""
    mxfp4_kernels: Literal["own", "trtllm"] = "own"
    """Whose kernels run experts in mxfp4 on chips with 4-bit units: TensorRT-LLM's take 8-bit
    activations (FlashInfer's in vLLM under VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8)."""


def find_engine(name: str) -> Engine:
    """Return the engine called `name`, in any case."""
    word = name.lower().replace("_", "-").split("(")[0]
    for engine in _engines():
        if word in (engine.name, *engine.aliases):
            return engine
    raise UnknownNameError(
        "engine", name, [word for engine in _engines() for word in (engine.name, *engine.aliases)]
    )


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(engine.name for engine in _engines())


@cache
def _engines() -> tuple[Engine, ...]:
    text = (
        resources.files("meshwright").joinpath("presets", "engines.csv").read_text(encoding="utf-8")
    )
    return tuple(
        Engine(
            **{
                field.name: _value(str(field.type), row[field.name])
                for field in fields(Engine)
                if field.name in row
            }
        )
        for row in _rows(text)
    )


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def _value(annotation: str, cell: str) -> Any:
    if annotation == "bool":
        return {"yes": True, "no": False}[cell]
    if annotation.startswith("tuple"):
        return tuple(cell.split())
    if annotation == "int":
        return int(cell)
    return float(cell) if annotation == "float" else cell
