"""From a row of a table of serving runs to what can be priced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal, cast, get_args

from meshwright.runs.measured.cells import (
    Cells,
    TruthTable,
    UnansweredError,
    missing_columns,
    read_cells,
    require_rows,
)
from meshwright.runs.measured.machines import machines_of_row
from meshwright.runs.measured.rows import Unanswerable
from meshwright.serving.engine import (
    Cache,
    Engine,
    Weights,
    Worker,
    check_worker,
    find_engine,
    published_fp8,
)
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.cluster import Node
from meshwright.values.models.catalogue import find_model, model_from_dims
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "MEASURED",
    "Pools",
    "ServingCase",
    "open_experts",
    "read_serving_row",
    "read_serving_table",
]

MEASURED = (
    "ttft_ms",
    "tpot_ms",
    "e2e_latency_ms",
    "throughput_out_tok_s",
    "throughput_out_tok_s_per_gpu",
    "memory_gb",
    "oom",
)
"""Columns that a prediction must not look at."""
_UNREAD = (*MEASURED, "provenance", "note")
_REQUIRED = ("row_id", "model", "gpu", "engine", "measure_kind", "input_len", "output_len")
Kind = Literal["static", "first_token", "closed_loop", "max_load"]
_KINDS: Mapping[str, Kind] = {
    "static_batch_e2e": "static",
    "static_batch_throughput": "static",
    "static_batch_first_token": "first_token",
    "serving_closed_loop": "closed_loop",
    "max_load_inflight_throughput": "max_load",
    "mlperf_offline": "max_load",
}
_WEIGHTS: Mapping[str, Weights] = {
    "fp32": "fp32",
    **dict.fromkeys(("bf16", "auto", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    "fp8": "fp8",
    **dict.fromkeys(("fp8-block", "fp8-blockwise"), "fp8-blockwise"),
    **dict.fromkeys(("int8", "w8a8"), "int8"),
    **dict.fromkeys(("int4", "awq", "gptq", "w4a16"), "int4"),
    **dict.fromkeys(("fp4", "nvfp4"), "nvfp4"),
    "mxfp4": "mxfp4",
}
"""Words of tables and of engines' options (`auto`: as the checkpoint, which is bf16 where nothing
else is said)."""
_ENGINE_WORDS = ("tensorrt-llm", "trtllm", "trt-llm", "sglang", "vllm", "transformers")
"""Names that stand within others: `dynamo-vllm`, `vllm-ascend`, `HF transformers`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pools:
    """Workers for prompts and for answers; counts are None where only all chips are told."""

    prefill: Worker
    decode: Worker
    prefill_workers: int | None
    decode_workers: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingCase:
    """One run to predict."""

    source: str
    row_id: str
    kind: Kind
    model: ModelSpec
    node: Node
    engine: Engine
    weights: Weights
    cache: Cache
    cache_told: bool
    """Whether the row gives the cache's precision, or it is a habit."""
    workers: tuple[Worker, ...]
    """Several where the row leaves the experts' axes open: the fastest ran."""
    pools: Pools | None
    chips: int
    """Chips that throughput is divided by."""
    load: int
    """Sequences of a static batch, or requests under way at once; 0 where as many as fit."""
    input_len: int
    output_len: int
    date: str
    """Of the run, as YYYY-MM-DD; blank where it is not told."""
    engine_version: str = ""
    distinct_prompts: int | None = None
    """Prompts after which the load repeats itself, into a prefix cache; None: all differ, or there
    is no such cache."""
    drafted: int = 0
    """Tokens drafted ahead per iteration, where the benchmark's habit is known and the table does
    not tell."""
    assumed: tuple[str, ...] = ()
    """What was not told and what was taken for it, lines for people."""


def read_serving_table(path: Path) -> TruthTable:
    """Read a table of serving runs; ConfigError in one line where it is none."""
    columns, rows = read_cells(path)
    if missing := missing_columns(_REQUIRED, columns, of="serving"):
        raise ConfigError(f"{path}: {missing}")
    return TruthTable(name=path.stem, rows=require_rows(rows, path))


def read_serving_row(row: Mapping[str, str], *, source: str) -> ServingCase | Unanswerable:
    """Return the run that a row describes, or why it can't be told, measured columns aside."""
    cells = Cells({k: v.strip() for k, v in row.items() if k not in _UNREAD})
    row_id = cells.text("row_id") or ""
    try:
        return _case(cells, source=source, row_id=row_id)
    except ConfigError as error:
        return Unanswerable(source=source, row_id=row_id, reason=str(error))


def _case(cells: Cells, *, source: str, row_id: str) -> ServingCase:
    kind = _KINDS.get(cells.words("measure_kind"))
    if kind is None:
        raise UnansweredError(f"measure_kind: {cells.text('measure_kind')!r} is not modelled")
    model, engine = _model(cells), _engine(cells)
    weights = _weights(cells, model)
    pools = _pools(cells, model) if cells.words("mode") == "disagg" else None
    workers = (pools.decode,) if pools is not None else _workers(cells, model)
    chips = cells.count("n_gpus") or workers[0].chips
    cache, load = _cache(cells, engine, weights), _load(cells, kind, chips)
    blanks = {
        "precision": (cells.text("precision"), weights),
        "precision of the cache": (cells.text("kv_precision"), cache),
        "number of chips": (cells.text("n_gpus"), chips),
        "batch": (cells.text("batch_size") or kind in ("closed_loop", "max_load"), load),
        "spread of experts": (len(workers) == 1, "the fastest"),
        "workers of each pool": (
            pools is None or pools.prefill_workers is not None,
            "the fastest split",
        ),
    }
    return ServingCase(
        source=source,
        row_id=row_id,
        kind=kind,
        model=model,
        node=machines_of_row(cells, num_chips=chips).nodes[0],
        engine=engine,
        weights=weights,
        cache=cache,
        cache_told=bool(cells.words("kv_precision")),
        workers=workers,
        pools=pools,
        chips=chips,
        load=load,
        input_len=_needed(cells, "input_len"),
        output_len=_needed(cells, "output_len"),
        date=_day(cells),
        engine_version=cells.text("engine_version") or "",
        assumed=tuple(
            f"{what} not told: {taken} taken" for what, (told, taken) in blanks.items() if not told
        ),
    )


def _day(cells: Cells) -> str:
    """The run's day, or the first of a month or year told alone; blank where there is no date."""
    found = re.match(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?!\d)", cells.text("date") or "")
    if found is None:
        return ""
    try:
        return date(*(int(part or 1) for part in found.groups())).isoformat()
    except ValueError:
        return ""


def _load(cells: Cells, kind: Kind, chips: int) -> int:
    """Requests under way; 0 is as many as fit. Of closed loops `batch_size` is what one attention
    rank runs: where the clients are as many times that as no chips of the row could be ranks, they
    are those of several copies, and the load is one copy's.
    """
    if kind == "max_load":
        return 0
    if kind == "closed_loop":
        clients, each = _needed(cells, "concurrency"), cells.count("batch_size")
        return each if each and clients % each == 0 and clients // each > chips else clients
    return cells.count("batch_size") or 1


def _needed(cells: Cells, column: str) -> int:
    value = cells.count(column)
    if value is None:
        raise UnansweredError(f"{column}: blank")
    return value


def _model(cells: Cells) -> ModelSpec:
    """The named model; dims of the row where the name is not known."""
    name = cells.text("model") or ""
    try:
        return find_model(name)
    except UnknownNameError:
        if not cells.text("n_layers"):
            raise
    experts = cells.count("n_experts")
    return model_from_dims(
        name=name,
        num_layers=_needed(cells, "n_layers"),
        hidden=_needed(cells, "hidden"),
        num_heads=_needed(cells, "n_heads"),
        num_kv_heads=cells.count("n_kv_heads"),
        ffn=cells.count("ffn_hidden"),
        vocab=_needed(cells, "vocab"),
        num_experts=experts,
        top_k=cells.count("experts_per_token") if experts else None,
        expert_ffn=cells.count("ffn_hidden") if experts else None,
    )


def _engine(cells: Cells) -> Engine:
    """The engine of this name, or the one whose name stands within it."""
    name = cells.text("engine") or ""
    try:
        return find_engine(name)
    except UnknownNameError:
        words = name.lower().replace("_", "-")
        within = next((word for word in _ENGINE_WORDS if word in words), None)
        if within is None:
            raise
        return find_engine(within)


def _weights(cells: Cells, model: ModelSpec) -> Weights:
    """What the precision column means for this make of model: models with experts are published
    with block scales in fp8, and those with biases in their experts (gpt-oss) in mxfp4."""
    word = cells.words("precision").replace("_", "-")
    weights = _WEIGHTS.get(word) if word else "bf16"
    if weights is None:
        raise UnansweredError(f"precision: {word!r} is not known")
    if model.moe is not None and model.moe.expert_bias and weights in ("nvfp4", "fp8"):
        return "mxfp4"
    return published_fp8(model) if weights == "fp8" else weights


def _cache(cells: Cells, engine: Engine, weights: Weights) -> Cache:
    word = cells.words("kv_precision")
    if word and word not in get_args(Cache):
        raise UnansweredError(f"kv_precision: {word!r} is not known")
    if word:
        return cast("Cache", word)
    narrow = weights not in ("fp32", "bf16", "fp16")
    if narrow and engine.cache_follows_weights:
        return "fp8"
    if weights == "fp16":
        return "fp16"
    return "bf16"


def _axis(cells: Cells, column: str) -> int:
    """Blank and 0 are 1."""
    value = cells.number(column)
    return max(1, int(value)) if value is not None else 1


def _workers(cells: Cells, model: ModelSpec) -> tuple[Worker, ...]:
    worker = _worker(cells, model, "")
    untold = cells.text("ep") is None and cells.text("attention_dp") is None
    copied = model.mla is not None and worker.tp > _SERVER_CHIPS
    return open_experts(worker, model) if untold or copied else (worker,)


_SERVER_CHIPS = 8
"""A latent that every rank keeps whole is not cut over more chips than a server has: such a `tp`
counts the chips of attention ranks."""


def open_experts(worker: Worker, model: ModelSpec) -> tuple[Worker, ...]:
    """Each expert over all chips or on one; an attention on every chip where key heads (or the
    latent) would be kept several times."""
    size = worker.stage_chips
    if model.moe is None or size == 1 or model.moe.num_experts % size:
        return (worker,)
    found = (worker, replace(worker, ep=size))
    copied = model.mla is not None or model.num_kv_heads < size
    return (*found, Worker(tp=1, pp=worker.pp, ep=size, attention_dp=size)) if copied else found


def _worker(cells: Cells, model: ModelSpec, pool: str) -> Worker:
    """Axes of the row, with two slips of the published tables put right: axes counted twice.

    `tp` and `attention_dp` both at the worker's size, and, beyond a server's chips, `ep` times
    `expert tp` at its square, name the same chips twice. Within a server tp=4,ep=2 is a layout that
    engines take: each expert on two chips.
    """
    tp, ep, dp = (_axis(cells, f"{pool}{name}") for name in ("tp", "ep", "attention_dp"))
    if model.moe is None:
        ep, dp = 1, 1
    elif tp > 1 and dp == tp:
        tp, ep = 1, dp
    elif ep > 1 and tp * dp == ep * ep > _SERVER_CHIPS:
        tp, dp = max(1, tp // ep), max(1, dp // ep)
    ep = 1 if (tp * dp) % ep else ep
    worker = Worker(tp=tp, pp=_axis(cells, "pp") if not pool else 1, ep=ep, attention_dp=dp)
    check_worker(worker, model)
    return worker


def _pools(cells: Cells, model: ModelSpec) -> Pools:
    return Pools(
        prefill=_worker(cells, model, "prefill_"),
        decode=_worker(cells, model, "decode_"),
        prefill_workers=cells.count("prefill_workers"),
        decode_workers=cells.count("decode_workers"),
    )
