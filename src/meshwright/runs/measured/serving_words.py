"""How a published benchmark starts its servers, and which pools:
`truth/meshwright_truth/words/serving_pools.csv`, outside the wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from typing import Any, Literal, cast

import numpy as np

from meshwright.runs.measured.serving_rows import Pools, ServingCase
from meshwright.serving.engine import Cache, Worker, check_worker
from meshwright.serving.kernels import Floats
from meshwright.serving.simulate import Requests
from meshwright.values.data import package_rows, published_rows
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "Load",
    "Published",
    "as_started",
    "load_of",
    "mean_of",
    "published_pools",
    "queued",
    "requests_of",
]

_MOST = 3000
"""Requests that tell a mean well enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How lengths spread, and how long a run lasts."""

    name: str
    """Of the benchmark; `runs/measured/serving_recipes.csv` says how it starts servers."""
    shortest: float
    """Lengths are drawn evenly from between this share of the nominal one and all of it."""
    rounds: int
    """Requests of a run per client."""
    client_gap_s: float
    """Time between the starts of two clients."""
    front: Literal["engine", "router"]
    """Who turns text into tokens: the engine's own front process, one request after the other, or a
    router with many threads before it."""


def load_of(input_len: int, output_len: int) -> Load:
    """Return the load of the benchmark that runs these lengths."""
    told = {"input_len": str(input_len), "output_len": str(output_len)}
    # The last row of serving_loads.csv matches everything.
    row = next(row for row in _rows("loads") if _is_of(row, told))
    return Load(
        name=row["name"],
        shortest=float(row["shortest"]),
        rounds=int(row["rounds"]),
        client_gap_s=float(row["client_gap_s"]),
        front=cast("Any", row["front"]),
    )


def _rows(name: str) -> tuple[dict[str, str], ...]:
    return package_rows(f"runs/measured/serving_{name}.csv")


def _is_of(row: Mapping[str, str], told: Mapping[str, str]) -> bool:
    """Whether a row is about what is told; blank cells are about all."""
    return all(not row[name] or said in row[name].split() for name, said in told.items())


def queued(input_len: int, output_len: int) -> int | None:
    """Return how many requests of these lengths a published run at maximum load queues at once;
    None where it is untold."""
    told = {"input_len": str(input_len), "output_len": str(output_len)}
    return next((int(row["requests"]) for row in _rows("queues") if _is_of(row, told)), None)


def requests_of(load: Load, *, input_len: int, output_len: int, clients: int) -> Requests:
    """Return the requests of a closed loop; of many clients fewer rounds, see `mean_of`."""
    count = clients * load.rounds
    if count > _MOST:
        count = min(count, max(_MOST, _LEAST_ROUNDS * clients))
    lengths = np.random.default_rng(_SEED)
    prompts, outputs = (
        length * lengths.uniform(load.shortest, 1.0, count) for length in (input_len, output_len)
    )
    return Requests(
        prompts=np.maximum(prompts.round(), 1).astype(int).tolist(),
        outputs=np.maximum(outputs.round(), 1).astype(int).tolist(),
    )


def mean_of(figures: Floats, load: Load, *, clients: int) -> float:
    """Return the mean over the requests of a whole run, where fewer were simulated.

    The first round, whose clients all start at once, and the last, which ends with fewer and fewer,
    count once, those between as often as the run has them. Requests without the figure are left
    out.
    """
    count = len(figures)
    weights = np.ones(count)
    between = count - 2 * clients
    if between > 0:
        weights[clients : count - clients] = (load.rounds - 2) * clients / between
    told = np.isfinite(figures)
    return float((figures[told] * weights[told]).sum() / weights[told].sum())


_LEAST_ROUNDS = 4
_SEED = 0
"""One draw for all predictions: requests that end together wait for one another, as in the
benchmark, which an even spread would hide."""


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
    for row in _rows("recipes"):
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
        _is_of(row, told)
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


_NARROW = {"nvfp4": "fp4", "mxfp4": "fp4", "fp8": "fp8", "fp8-blockwise": "fp8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The pools of one entry of a benchmark's configuration; None where it is left open."""

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
    names = (case.engine.name, case.model.name, weights, case.node.chip.name)
    key = (*names, str(case.input_len), str(case.output_len), case.load)
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
    chips, counts = (
        {side: int(row[f"{side}_{what}"]) for side in ("prefill", "decode")}
        for what in ("chips", "workers")
    )
    return (
        chips == {"prefill": pools.prefill.chips, "decode": pools.decode.chips}
        and pools.prefill_workers in (None, 0, counts["prefill"])
        and pools.decode_workers in (None, 0, counts["decode"])
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


_Key = tuple[str, str, str, str, str, str, int]


@cache
def _by_key() -> dict[_Key, list[dict[str, str]]]:
    names = ("engine", "model", "weights", "chip", "input_len", "output_len")
    found: dict[_Key, list[dict[str, str]]] = {}
    for row in published_rows("words/serving_pools.csv"):
        for clients in row["clients"].split():
            key = cast("_Key", (*(row[name] for name in names), int(clients)))
            found.setdefault(key, []).append(row)
    return found
