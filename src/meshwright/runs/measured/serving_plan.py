"""Published serving runs as `meshwright serving plan` prices them: with nothing of the benchmark
that ran them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from meshwright.runs.measured.cells import TruthTable, UnansweredError
from meshwright.runs.measured.rows import Unanswerable
from meshwright.runs.measured.serving_answers import ServingAnswers, ServingPrediction
from meshwright.runs.measured.serving_predict import answer_once, loop_figures
from meshwright.runs.measured.serving_rows import ServingCase, read_serving_row
from meshwright.serving.candidates import Candidate, candidate_of
from meshwright.serving.engine import Worker
from meshwright.serving.pools import pools_at_load
from meshwright.serving.request import ServingRequest
from meshwright.serving.search import predict
from meshwright.serving.steady import Steady
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Cluster, Pool

__all__ = ["predict_as_planned"]


def predict_as_planned(tables: Sequence[TruthTable]) -> ServingAnswers:
    """Predict every row of every table by what a user of `serving plan` can say of it.

    Static batches are left out: the plan's own default has none, and they need nothing of a
    benchmark. Runs at maximum load take as many requests as the cache holds; runs on two pools
    need their workers counted, since the plan is asked for these very workers.
    """
    once = cache(_answer)

    def plainly(case: ServingCase) -> ServingPrediction | Unanswerable:
        """Neither day nor version moves a price."""
        return once(replace(case, date="", engine_version=""))

    rows = ((table.name, row) for table in tables for row in table.rows)
    found = [answer_once(plainly, read_serving_row(row, source=name)) for name, row in rows]
    return ServingAnswers(
        predictions=tuple(p for p in found if isinstance(p, ServingPrediction)),
        unanswered=tuple(p for p in found if isinstance(p, Unanswerable)),
    )


def _answer(case: ServingCase) -> ServingPrediction | Unanswerable:
    try:
        return _price(case)
    except ConfigError as error:
        return Unanswerable(source=case.source, row_id=case.row_id, reason=str(error))


def _price(case: ServingCase) -> ServingPrediction:
    if case.kind not in ("closed_loop", "max_load"):
        raise UnansweredError("static batches: nothing of a benchmark is told of them")
    pools = case.pools
    if pools is not None and not (pools.prefill_workers and pools.decode_workers):
        raise UnansweredError("workers of each pool: not told")
    if pools is not None:
        return _of_two_pools(case)
    found = [_of_one_pool(case, worker) for worker in case.workers]
    return max(found, key=lambda one: one.tokens_per_s_per_chip or 0.0)


def _request(case: ServingCase) -> ServingRequest:
    pool = Pool(node=case.node, num_chips=case.chips)
    return ServingRequest(
        model=case.model,
        cluster=Cluster(pools=(pool,)),
        engine=case.engine,
        input_len=case.input_len,
        output_len=case.output_len,
    )


def _candidate(case: ServingCase, request: ServingRequest, worker: Worker) -> Candidate:
    return candidate_of(request, request.cluster.pools[0], worker, case.weights, case.cache)


def _of_one_pool(case: ServingCase, worker: Worker) -> ServingPrediction:
    request = _request(case)
    clients = case.load
    if case.kind == "max_load":
        one = _candidate(case, request, worker)
        clients = one.most_running(request) * worker.attention_dp
    found = predict(
        request, worker=worker, weights=case.weights, cache=case.cache, concurrency=clients
    )
    rate = found.requests_per_s
    if case.kind == "max_load":
        each = rate * case.output_len / case.chips
        return ServingPrediction(source="", row_id="", tokens_per_s_per_chip=each)
    return loop_figures(case, found.ttft_s, found.tpot_s)


def _of_two_pools(case: ServingCase) -> ServingPrediction:
    """The load on the answers' workers whose requests under way are the clients, by halving."""
    pools = case.pools
    assert pools is not None and pools.prefill_workers and pools.decode_workers
    request = _request(case)
    prompts = (_candidate(case, request, pools.prefill), pools.prefill_workers)
    answers = (_candidate(case, request, pools.decode), pools.decode_workers)
    low, high = 0.0, case.load / (pools.decode_workers * pools.decode.attention_dp)
    found: Steady | None = None
    for _ in range(_HALVINGS):
        load = 0.5 * (low + high)
        found = pools_at_load(request, prompts, answers, load=load)
        if found.requests_per_s * found.e2e_s < case.load:
            low = load
        else:
            high = load
    assert found is not None
    return loop_figures(case, found.ttft_s, found.tpot_s)


_HALVINGS = 30
