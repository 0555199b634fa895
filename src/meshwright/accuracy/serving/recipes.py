"""How published benchmarks start their servers: `presets/serving_recipes.csv`."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, cast

from meshwright.accuracy.serving.loads import Load
from meshwright.accuracy.serving.rows import ServingCase
from meshwright.serving.quantisation import Cache

__all__ = ["as_started"]

_COUNTS = ("poll_steps", "balance_steps", "wait_steps")
_SWITCHES = ("whole_prompts", "overlap")
_SPARE_TOKENS = 64
"""Beside a prompt and the clients, in the recipes whose iteration holds just these."""


def as_started(case: ServingCase, load: Load, *, tp: int) -> ServingCase:
    """Return the run with its engine, cache, prompts and drafts as the benchmark starts them.

    Every row of the preset that fits counts, a later one over an earlier. A cache whose precision
    the run tells stays.
    """
    changes: dict[str, Any] = {"token_s": 0.0} if load.front == "router" else {}
    stored, distinct, drafted = case.cache, case.distinct_prompts, case.drafted
    for row in _rows():
        if not _fits(row, case, load, tp):
            continue
        changes |= {name: int(row[name]) for name in _COUNTS if row[name]}
        if row["chunk_tokens"]:
            changes["chunk_tokens"] = _chunk(row["chunk_tokens"], case)
        if row["mxfp4_kernels"]:
            changes["mxfp4_kernels"] = row["mxfp4_kernels"]
        changes |= {name: row[name] == "yes" for name in _SWITCHES if row[name]}
        if row["cache"] and not case.cache_told:
            stored = cast("Cache", row["cache"])
        distinct = int(row["distinct_prompts"]) if row["distinct_prompts"] else distinct
        drafted = int(row["drafted"]) if row["drafted"] and case.model.mtp_layers else drafted
    engine = replace(case.engine, **changes)
    return replace(case, engine=engine, cache=stored, distinct_prompts=distinct, drafted=drafted)


def _fits(row: dict[str, str], case: ServingCase, load: Load, tp: int) -> bool:
    """Whether a row is about this run; blank cells are about all."""
    model = case.model
    told = {
        "load": load.name,
        "engine": case.engine.name,
        "pools": "1" if case.pools is None else "2",
        "narrow_chip": _word(case.node.chip.fp4_flops_per_s is not None),
        "experts": _word(model.moe is not None),
        "latent": _word(model.mla is not None),
        "weights": case.weights,
        "input_len": str(case.input_len),
        "output_len": str(case.output_len),
        "version": case.engine_version,
    }
    return (
        all(not row[name] or said in row[name].split() for name, said in told.items())
        and (not row["tp_below"] or tp < int(row["tp_below"]))
        and (not row["clients_from"] or case.load >= int(row["clients_from"]))
        and (not row["since"] or case.date >= row["since"])
        and (not row["until"] or case.date < row["until"])
    )


def _word(yes: bool) -> str:
    return "yes" if yes else "no"


def _chunk(cell: str, case: ServingCase) -> int:
    """Tokens of an iteration: a number, or made of the run's lengths."""
    if cell == "prompt + clients":
        return case.input_len + case.load + _SPARE_TOKENS
    times, _, of = cell.partition("x ")
    return int(times) * (case.input_len if of == "prompt" else 1)


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = (
        resources.files("meshwright")
        .joinpath("presets", "serving_recipes.csv")
        .read_text(encoding="utf-8")
    )
    return tuple(csv.DictReader(text.splitlines()))
