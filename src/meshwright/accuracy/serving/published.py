"""Which pools a published benchmark starts: `presets/serving_pools.csv`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources

from meshwright.accuracy.serving.rows import Pools, ServingCase
from meshwright.errors import ConfigError
from meshwright.models.spec import ModelSpec
from meshwright.serving.deployment import Worker, check_worker

__all__ = ["Published", "published_pools"]

_NARROW = {"nvfp4": "fp4", "mxfp4": "fp4", "fp8": "fp8", "fp8-blockwise": "fp8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The pools of one entry of a benchmark's configuration; None where the entry leaves it
    open."""

    pools: Pools
    prefill_tokens: int | None
    """Of an iteration of prompts."""
    prefill_batch: int | None
    """Prompts in an iteration of one attention rank."""
    decode_sequences: int | None
    """Answers that one worker runs at once."""
    drafted: int | None


def published_pools(case: ServingCase) -> tuple[Published, ...]:
    """Return the entries that fit a run on two pools: its engine, model, weights, chip, lengths,
    clients, chips of a worker, and the numbers of workers where it tells them; of those the ones
    that stood on its day, else on the nearest. Runs that tell their workers draft nothing, as far
    as an entry without drafts fits them."""
    weights = _NARROW.get(case.weights)
    if case.pools is None or weights is None:
        return ()
    key = (
        case.engine.name,
        case.model.name,
        weights,
        case.node.chip.name,
        str(case.input_len),
        str(case.output_len),
        case.load,
    )
    fits = [row for row in _by_key().get(key, ()) if _told(row, case.pools)]
    away = [_days(row, case.date) for row in fits]
    near = [_entry(row) for row, days in zip(fits, away, strict=True) if days == min(away)]
    near = [entry for entry in near if _priced(entry, case.model)]
    plain = [entry for entry in near if not entry.drafted] if case.pools.decode_workers else []
    return tuple(dict.fromkeys(plain or near))


def _priced(entry: Published, model: ModelSpec) -> bool:
    """Copies of experts, which spread 256 of them over 48 chips, are not modelled."""
    try:
        for worker in (entry.pools.prefill, entry.pools.decode):
            check_worker(worker, model)
    except ConfigError:
        return False
    return True


def _told(row: dict[str, str], pools: Pools) -> bool:
    sides = (
        ("prefill", pools.prefill, pools.prefill_workers),
        ("decode", pools.decode, pools.decode_workers),
    )
    return all(
        int(row[f"{side}_chips"]) == worker.chips
        and (not count or count == int(row[f"{side}_workers"]))
        for side, worker, count in sides
    )


def _days(row: dict[str, str], day: str) -> int:
    """Between the entry's time and a day; 0 within it, or where the day is not told."""
    if not day:
        return 0
    when, since, until = (date.fromisoformat(word) for word in (day, row["since"], row["until"]))
    return max((since - when).days, (when - until).days, 0)


def _entry(row: dict[str, str]) -> Published:
    return Published(
        pools=Pools(
            prefill=_worker(row, "prefill"),
            decode=_worker(row, "decode"),
            prefill_workers=int(row["prefill_workers"]),
            decode_workers=int(row["decode_workers"]),
        ),
        prefill_tokens=_tokens(row),
        prefill_batch=_count(row["prefill_batch"]),
        decode_sequences=_count(row["decode_sequences"]),
        drafted=_count(row["drafted"]),
    )


def _worker(row: dict[str, str], side: str) -> Worker:
    chips, ranks, ep = (int(row[f"{side}_{name}"]) for name in ("chips", "ranks", "ep"))
    return Worker(tp=chips // ranks, ep=ep if chips % ep == 0 else 1, attention_dp=ranks)


def _tokens(row: dict[str, str]) -> int | None:
    """SGLang splits its chunk among the attention ranks of a worker; others give it to each."""
    found = _count(row["prefill_tokens"])
    return found // int(row["prefill_ranks"]) if found and row["engine"] == "sglang" else found


def _count(cell: str) -> int | None:
    return int(cell) if cell else None


@cache
def _by_key() -> dict[tuple[str, str, str, str, str, str, int], list[dict[str, str]]]:
    found: dict[tuple[str, str, str, str, str, str, int], list[dict[str, str]]] = {}
    for row in _rows():
        for clients in row["clients"].split():
            key = (
                row["engine"],
                row["model"],
                row["weights"],
                row["chip"],
                row["input_len"],
                row["output_len"],
                int(clients),
            )
            found.setdefault(key, []).append(row)
    return found


def _rows() -> Iterator[dict[str, str]]:
    text = (
        resources.files("meshwright")
        .joinpath("presets", "serving_pools.csv")
        .read_text(encoding="utf-8")
    )
    return csv.DictReader(text.splitlines())
