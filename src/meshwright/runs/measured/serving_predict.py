"""Predict the serving runs that rows describe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil, log2
from typing import Any

import numpy as np

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.rows import Unanswerable
from meshwright.runs.measured.serving_answers import ServingAnswers, ServingPrediction
from meshwright.runs.measured.serving_memory import (
    cache_room,
    held_gib,
    memory_of_case,
    prices_of,
    refused,
    require_told,
)
from meshwright.runs.measured.serving_rows import Pools, ServingCase, open_experts, read_serving_row
from meshwright.runs.measured.serving_words import (
    Published,
    as_started,
    load_of,
    mean_of,
    published_pools,
    queued,
    requests_of,
)
from meshwright.serving.clock import Clock, Speculation, clock_of
from meshwright.serving.engine import Worker
from meshwright.serving.load import Workers, closed_loop_on_two_pools
from meshwright.serving.memory import cache_bytes_per_token, state_bytes, state_tokens
from meshwright.serving.prices import Prices
from meshwright.serving.simulate import Requests, closed_loop
from meshwright.serving.static import static_batch
from meshwright.serving.steady import (
    Steady,
    batched_prompt_s,
    decode_s,
    disaggregated,
    matching_workers,
    most_running,
    steady,
)
from meshwright.values.errors import ConfigError
from meshwright.values.units import GIB

__all__ = ["answer_once", "count_by_table", "loop_figures", "predict_case", "predict_serving"]


def predict_serving(tables: Sequence[TruthTable]) -> ServingAnswers:
    """Predict every row of every table."""
    once = cache(_answer)
    cases = (read_serving_row(row, source=table.name) for table in tables for row in table.rows)
    found = [answer_once(once, case) for case in cases]
    return ServingAnswers(
        predictions=tuple(p for p in found if isinstance(p, ServingPrediction)),
        unanswered=tuple(p for p in found if isinstance(p, Unanswerable)),
    )


def answer_once(
    once: Callable[[ServingCase], ServingPrediction | Unanswerable],
    case: ServingCase | Unanswerable,
) -> ServingPrediction | Unanswerable:
    """Answer a case by a function that keeps its answers, whatever the row's name: tables repeat
    runs."""
    if isinstance(case, Unanswerable):
        return case
    found = once(replace(case, source="", row_id=""))
    if isinstance(found, Unanswerable):
        return replace(found, source=case.source, row_id=case.row_id)
    return replace(found, source=case.source, row_id=case.row_id, case=case)


def _answer(case: ServingCase) -> ServingPrediction | Unanswerable:
    try:
        return predict_case(case)
    except ConfigError as error:
        return Unanswerable(source=case.source, row_id=case.row_id, reason=str(error))


def predict_case(case: ServingCase) -> ServingPrediction:
    """Predict one run; ConfigError where its model, chip and engine can't be priced."""
    if case.pools is not None:
        return _disaggregated(case)
    how = {"closed_loop": _closed_loop, "max_load": _max_load}.get(case.kind, _static)
    found = [how(case, worker) for worker in case.workers]
    require_told(case, found)
    return max(found, key=lambda one: (not one.oom, one.tokens_per_s_per_chip or 0.0))


def _static(case: ServingCase, worker: Worker) -> ServingPrediction:
    found = static_batch(
        prices_of(case, worker),
        batch=case.load,
        input_len=case.input_len,
        output_len=case.output_len,
    )
    first = ServingPrediction(
        source=case.source,
        row_id=case.row_id,
        ttft_s=found.first_token_s,
        memory_gib=found.memory_bytes / GIB,
        oom=found.memory_bytes > case.node.chip.usable_bytes,
    )
    if first.oom:
        return replace(first, ttft_s=None)
    if case.kind == "first_token":
        return first
    return replace(
        first,
        tpot_s=None if case.output_len == 1 else found.tpot_s,
        e2e_s=found.latency_s,
        tokens_per_s_per_chip=case.load * case.output_len / found.latency_s / case.chips,
    )


@lru_cache(maxsize=64)
def _clock(prices: Prices, most_context: int, speculation: Speculation | None = None) -> Clock:
    engine = prices.engine
    most = (engine.chunk_tokens or _WHOLE) + engine.max_sequences
    return clock_of(prices, most_tokens=most, most_context=most_context, speculation=speculation)


_WHOLE = 8192
"""Tokens of prompts in an iteration of an engine without chunks."""


def _cache_tokens(clock: Clock) -> int:
    return memory_of_case(clock.prices).cache_tokens


def _closed_loop(case: ServingCase, worker: Worker) -> ServingPrediction:
    """Requests spread evenly over attention ranks; those that the cache has no room for wait."""
    load = load_of(case.input_len, case.output_len)
    case = as_started(case, load, tp=worker.tp)
    if (without := refused(case, worker)) is not None:
        return without
    clock = _clock(
        prices_of(case, worker), case.input_len + case.output_len, drafting(case.drafted)
    )
    clients = max(1, round(case.load / worker.attention_dp))
    lengths = {"input_len": case.input_len, "output_len": case.output_len}
    requests = replace(
        requests_of(load, **lengths, clients=clients), distinct=case.distinct_prompts
    )
    each = case.input_len + case.output_len + ceil(state_tokens(clock.prices))
    needed = (clients + 1) * each
    room = _cache_tokens(clock)
    found = closed_loop(
        clock,
        requests,
        concurrency=clients,
        slots=case.engine.max_sequences,
        cache_tokens=room if room > _LEAST_ROOM * needed else needed,
        gap_s=load.client_gap_s,
    )
    ttft_s = mean_of(found.ttft_s, load, clients=clients)
    several = case.output_len > 1
    tpot_s = mean_of(found.tpot_s, load, clients=clients) if several else 0.0
    return replace(
        loop_figures(case, ttft_s, tpot_s),
        memory_gib=held_gib(case, clock.prices, clients),
        oom=False,
        room=cache_room(case, clock.prices),
    )


_LEAST_ROOM = 0.1
"""Share of a published load that the cache holds at least; where our memory says less, the run
shows that it is our memory that is wrong. Errors are the same from 0.1 to 0.5."""


def loop_figures(case: ServingCase, ttft_s: float, tpot_s: float) -> ServingPrediction:
    """Return a closed loop's figures by the tables' definitions.

    Formula:  e2e = ttft + (output - 1) * tpot; throughput = concurrency * output / e2e / chips
    """
    e2e = ttft_s + (case.output_len - 1) * tpot_s
    return ServingPrediction(
        source=case.source,
        row_id=case.row_id,
        ttft_s=ttft_s,
        tpot_s=tpot_s or None,
        e2e_s=e2e,
        tokens_per_s_per_chip=case.load * case.output_len / e2e / case.chips,
    )


def _max_load(case: ServingCase, worker: Worker) -> ServingPrediction:
    """As many requests as fit until the queue is empty; all the time where its length is untold or
    stages overlap."""
    clock = _clock(prices_of(case, worker), case.input_len + case.output_len)
    room = _cache_tokens(clock)
    lengths = {"input_len": case.input_len, "output_len": case.output_len}
    most = most_running(clock, **lengths, cache_tokens=room)
    if (without := refused(case, worker)) is not None:
        return without
    found = ServingPrediction(
        source=case.source,
        row_id=case.row_id,
        memory_gib=held_gib(case, clock.prices, max(most, 1)),
        oom=most == 0,
    )
    if most == 0:
        return found
    count = queued(case.input_len, case.output_len)
    if count is None or worker.pp > 1:
        each = most / steady(clock, concurrency=float(most), **lengths).tpot_s
    else:
        share = max(1, round(count / worker.attention_dp))
        requests = Requests(prompts=[case.input_len] * share, outputs=[case.output_len] * share)
        ran = closed_loop(clock, requests, concurrency=share, slots=most, cache_tokens=room)
        each = ran.tokens_per_s
    return replace(found, tokens_per_s_per_chip=each * worker.attention_dp / case.chips)


def _disaggregated(case: ServingCase) -> ServingPrediction:
    """The row's pools; where it gives the chips alone, the fastest split that they allow."""
    assert case.pools is not None
    if published := published_pools(case):
        return _mean([_as_published(case, one) for one in published])
    if (without := _refused_pools(case, case.pools)) is not None:
        return without
    options = _options(case)
    found = [_network(case, *option) for option in options]
    at = max(range(len(found)), key=lambda index: found[index].requests_per_s)
    pools = replace(case.pools, decode=options[at][2])
    running = case.load / (options[at][3] * pools.decode.attention_dp)
    return replace(
        loop_figures(case, found[at].ttft_s, found[at].tpot_s),
        **_pools_memory(case, pools, running),
    )


def _refused_pools(case: ServingCase, pools: Pools) -> ServingPrediction | None:
    """The worker that is out of memory, if one of both is."""
    load = load_of(case.input_len, case.output_len)
    case = as_started(case, load, tp=pools.decode.tp)
    both = (refused(case, worker) for worker in (pools.prefill, pools.decode))
    found = next((one for one in both if one is not None), None)
    if found is not None:
        require_told(case, [found])
    return found


def _pools_memory(case: ServingCase, pools: Pools, running: float) -> dict[str, Any]:
    """Memory of the fullest chip, of prompts one, of answers so many on a rank; and the least room
    that a worker has."""
    case = as_started(case, load_of(case.input_len, case.output_len), tp=pools.decode.tp)
    first, second = (prices_of(case, worker) for worker in (pools.prefill, pools.decode))
    return {
        "memory_gib": max(held_gib(case, first, 1.0), held_gib(case, second, running)),
        "oom": False,
        "room": min(cache_room(case, first), cache_room(case, second)),
    }


def _mean(found: Sequence[ServingPrediction]) -> ServingPrediction:
    """The geometric mean of what several entries of a benchmark's configuration, of which one ran,
    would have done."""
    names = ("ttft_s", "tpot_s", "e2e_s", "tokens_per_s_per_chip")
    means: dict[str, Any] = {
        name: _geometric(getattr(one, name) for one in found) for name in names
    }
    return replace(found[0], **means)


def _geometric(values: Iterable[float | None]) -> float:
    return float(np.exp(np.mean([np.log(value) for value in values if value])))


def _as_published(case: ServingCase, entry: Published) -> ServingPrediction:
    """One entry of the benchmark's configuration, request by request."""
    pools = entry.pools
    assert pools.prefill_workers is not None and pools.decode_workers is not None
    load = load_of(case.input_len, case.output_len)
    case = as_started(case, load, tp=pools.decode.tp)
    context = case.input_len + case.output_len
    first = case
    if entry.prefill_tokens is not None:
        first = replace(case, engine=replace(case.engine, chunk_tokens=entry.prefill_tokens))
    prompts = _clock(prices_of(first, pools.prefill), context)
    draft = drafting(_COMMON_DRAFT if entry.drafted is None else entry.drafted)
    answers = _clock(prices_of(case, pools.decode), context, draft)
    most = case.engine.max_sequences * pools.decode.attention_dp
    batch = (entry.prefill_batch or most) * pools.prefill.attention_dp
    found = closed_loop_on_two_pools(
        Workers(clock=prompts, count=pools.prefill_workers, sequences=batch),
        Workers(
            clock=answers, count=pools.decode_workers, sequences=entry.decode_sequences or most
        ),
        requests_of(load, input_len=case.input_len, output_len=case.output_len, clients=case.load),
        concurrency=case.load,
        transfer_s=_transfer_s(case, answers, pools),
    )
    both = (found.ttft_s, found.tpot_s)
    running = case.load / (pools.decode_workers * pools.decode.attention_dp)
    return replace(
        loop_figures(case, *(mean_of(figures, load, clients=case.load) for figures in both)),
        **_pools_memory(case, pools, running),
    )


_COMMON_DRAFT = 2
"""Tokens drafted where an entry drafts and does not say how many: what srt-slurm's recipes for
SGLang set most often on two pools."""


def _transfer_s(case: ServingCase, answers: Clock, pools: Pools) -> float:
    link, width = case.node.network_link, min(pools.prefill.tp, pools.decode.tp)
    each = case.input_len * cache_bytes_per_token(answers.prices) + state_bytes(answers.prices)
    sent = each * pools.decode.tp
    return link.latency_s + sent / (width * link.bytes_per_s * link.efficiency)


def _options(case: ServingCase) -> list[tuple[Worker, int | None, Worker, int]]:
    """Workers for prompts, their count (None: as needed), workers for answers, their count."""
    pools = case.pools
    assert pools is not None
    if pools.prefill_workers and pools.decode_workers:
        return [(pools.prefill, pools.prefill_workers, pools.decode, pools.decode_workers)]
    rest = max(case.chips - pools.prefill.chips, pools.decode.chips)
    told = pools.decode.attention_dp > 1
    answers = (pools.decode,) if told else open_experts(pools.decode, case.model)
    return [(pools.prefill, None, worker, max(1, rest // worker.chips)) for worker in answers]


def _network(
    case: ServingCase, first: Worker, first_count: int | None, second: Worker, second_count: int
) -> Steady:
    pools = case.pools
    assert pools is not None
    context = case.input_len + case.output_len
    load = load_of(case.input_len, case.output_len)
    case = as_started(case, load, tp=second.tp)
    mean = 0.5 * (1.0 + load.shortest)
    input_len = max(1, round(mean * case.input_len))
    output_len = max(2, round(mean * case.output_len))
    prompts = _clock(prices_of(case, first), context)
    priced = prices_of(case, second)
    running = case.load / (second_count * second.attention_dp * second.pp)
    clocks = [_clock(priced, context, drafting(count)) for count in _drafts(case)]
    answers = min(
        clocks,
        key=lambda one: decode_s(one, min(running, one.most_tokens), input_len + 0.5 * output_len),
    )
    work: dict[str, Any] = {
        "decode_workers": second_count,
        "concurrency": float(case.load),
        "input_len": input_len,
        "output_len": output_len,
    }
    if first_count is None:
        first_count = matching_workers(prompts, answers, **work)
    found = disaggregated(
        prompts,
        answers,
        prefill_workers=first_count,
        transfer_s=_transfer_s(case, answers, replace(pools, prefill=first, decode=second)),
        slots=_slots(case),
        **work,
    )
    ranks = first_count * first.attention_dp * first.pp
    return _with_first_wave(case, found, batched_prompt_s(prompts, new=input_len) / ranks)


def _with_first_wave(case: ServingCase, found: Steady, each_s: float) -> Steady:
    """All clients start at once: a round of each waits for half of all prompts."""
    rounds = load_of(case.input_len, case.output_len).rounds
    wait = 0.5 * case.load * each_s / rounds
    return replace(found, ttft_s=found.ttft_s + wait, e2e_s=found.e2e_s + wait)


def _slots(case: ServingCase) -> int | None:
    """Answers that run at once, where the clients are a few more.

    Recipes of TensorRT-LLM on two pools give every worker for answers room for a power of two of
    sequences, and send up to half as many clients more: 1229 for 1024, 563 for 512, 27 for 3
    workers of 8. Where the row doesn't count the workers, one or three are taken; clients in round
    tens are no such numbers.
    """
    assert case.pools is not None
    if case.engine.name != "trtllm" or case.load % 10 == 0:
        return None
    workers = (case.pools.decode_workers,) if case.pools.decode_workers else (1, 3)
    least = max(
        (count << int(log2(case.load / count)) for count in workers if count <= case.load),
        default=case.load,
    )
    return least if least < case.load < _MOST_CLIENTS_PER_SLOT * least else None


_MOST_CLIENTS_PER_SLOT = 1.5


def _drafts(case: ServingCase) -> range:
    """Numbers of tokens that may be drafted, of which the fastest is taken.

    Published runs on two pools draft tokens wherever the model has layers for it, more at small
    loads than at large ones, and tables don't say so; runs whose pools are told in full, workers
    counted, draft none.
    """
    told = case.pools is not None and case.pools.decode_workers is not None
    return range(1) if told or not case.model.mtp_layers else range(_MOST_DRAFTED + 1)


_MOST_DRAFTED = 3
"""As NVIDIA's and SGLang's recipes run DeepSeek R1 under few requests."""


def drafting(count: int) -> Speculation | None:
    """So many tokens drafted, each right as often as the one before it was: accepted = share +
    share^2 + ..."""
    if count:
        return Speculation(
            drafted=count, accepted=sum(_RIGHT**place for place in range(1, count + 1))
        )
    return None


_RIGHT = 0.664
"""With it three drafted tokens give 2.4 an iteration, as in TensorRT-LLM's blog on R1's latency."""


def count_by_table(
    answers: ServingAnswers, tables: Iterable[TruthTable]
) -> dict[str, tuple[int, int]]:
    """Return (answered, rows) by table."""
    answered = Counter(prediction.source for prediction in answers.predictions)
    return {table.name: (answered[table.name], len(table.rows)) for table in tables}
