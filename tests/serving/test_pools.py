from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from tests.serving.cases import clock, prices

from meshwright.serving.candidates import Candidate, Rejected, candidates, transfer_s
from meshwright.serving.engine import find_engine
from meshwright.serving.options import loads_of
from meshwright.serving.pools import two_pools
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import best_of_each, excess, order, pareto_front
from meshwright.serving.steady import (
    BUSY,
    MATCHED,
    at_rate,
    at_rates,
    batched_prompt_s,
    decode_s,
    decodes_s,
    prompt_s,
)
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import find_model

ASKED = ServingRequest(
    model=find_model("llama3.1-70b"),
    cluster=parse_cluster("h100:16"),
    engine=find_engine("vllm"),
    input_len=2000,
    output_len=300,
    weights=("fp8",),
    cache=("bf16",),
    modes=("disaggregated",),
)


def quietly(done: int, of: int) -> None:
    assert 0 <= done < of


def one_by_one(
    request: ServingRequest, first: Candidate, second: Candidate, load: int
) -> Iterator[tuple[float, ...]]:
    """(tokens/s, tokens/s per chip, tokens/s per user, e2e, ttft) of every group of a load, without
    a column."""
    new, out = request.input_len, request.output_len
    a, b, there = first.prices.worker, second.prices.worker, second.pool.num_chips
    context = new + 0.5 * out
    tpot = decode_s(second.clock, load / b.pp, context)
    rate = load * b.attention_dp / ((out - 1) * tpot)
    each, servers = batched_prompt_s(first.clock, new=new), a.attention_dp * a.pp
    for answers in range(1, 5):
        wanted = answers * rate * MATCHED * each / (servers * BUSY)
        for count in {max(1, ceil(wanted)), max(1, int(wanted))}:
            chips = answers * b.chips + count * a.chips
            if chips > there:
                continue
            copies = there // chips
            seen = at_rate(
                min(answers * rate * MATCHED, count * servers / each * BUSY),
                prompt=prompt_s(first.clock, new=new),
                each=each,
                servers=count * servers,
                ranks=answers * b.attention_dp,
                decode=second.clock,
                context=context,
                output_len=out,
                transfer_s=transfer_s(request, second),
            )
            speed = seen.requests_per_s * copies * out
            yield speed, speed / (copies * chips), 1 / seen.tpot_s, seen.e2e_s, seen.ttft_s


def test_what_is_kept_is_the_best_of_every_pair_and_the_front_of_all() -> None:
    """Against every pair, load and group one after the other."""
    found = candidates(ASKED, Rejected())
    priced = two_pools(ASKED, found, quietly)
    figures, best, full = [], {}, set()
    for first, second in itertools.product(found, found):
        if first.prices.worker.chips + second.prices.worker.chips > 16:
            continue
        by_load = [list(one_by_one(ASKED, first, second, load)) for load in loads_of(ASKED, second)]
        of_pair = list(itertools.chain(*by_load))
        figures += of_pair
        pair = (first.prices.worker, second.prices.worker)
        best[pair] = max(speed for speed, *_ in of_pair)
        full |= {pair} if by_load[-1] else set()
    kept = {
        (one.parts[0].worker, one.parts[1].worker): one.tokens_per_s
        for one in best_of_each(ASKED, priced.options)
    }
    # Beyond the last load that the chips have room for, loads between it and the next are tried.
    assert priced.count >= len(figures)
    assert {pair: kept[pair] for pair in full} == {pair: pytest.approx(best[pair]) for pair in full}
    assert all(kept[pair] >= speed * (1 - 1e-9) for pair, speed in best.items())
    front = [
        (one.tokens_per_s_per_user, one.tokens_per_s_per_chip)
        for one in pareto_front(priced.options)
    ]
    beaten = [
        point
        for point in front
        if any(
            user > point[0] * (1 + 1e-9) and chip > point[1] * (1 + 1e-9)
            for _, chip, user, *_ in figures
        )
    ]
    assert not beaten


@pytest.mark.parametrize(
    "limits", [{"ttft_s": 0.3}, {"tpot_s": 0.02}, {"e2e_s": 5.0, "objective": "latency"}]
)
def test_with_limits_no_load_of_the_ladder_that_keeps_them_is_better(
    limits: dict[str, Any],
) -> None:
    request = replace(ASKED, **limits)
    found = candidates(request, Rejected())
    options = two_pools(request, found, quietly).options
    fitting = [one for one in options if excess(request, one) <= 1.0]
    first = min(fitting, key=lambda one: order(request, one))
    one_of = {one.prices.worker: one for one in found}
    a, b = (one_of[part.worker] for part in first.parts)
    ladder = [
        figures for load in loads_of(request, b) for figures in one_by_one(request, a, b, load)
    ]
    most = {"ttft_s": 4, "e2e_s": 3}
    kept = [
        figures
        for figures in ladder
        if all(
            (figures[most[name]] if name in most else 1 / figures[2]) <= limit
            for name, limit in limits.items()
            if name != "objective"
        )
    ]
    assert kept
    if request.objective == "latency":
        assert first.e2e_s <= min(figures[3] for figures in kept) * (1 + 1e-9)
    else:
        assert first.tokens_per_s >= max(figures[0] for figures in kept) * (1 - 1e-9)


def test_a_target_rate_is_carried_by_every_deployment_that_is_kept() -> None:
    request = replace(ASKED, target_rate=6.0)
    options = two_pools(request, candidates(request, Rejected()), quietly).options
    assert options
    for one in options:
        assert one.requests_per_s >= 6.0 * (1 - 1e-9)
        assert one.chips <= 16


def test_a_column_of_rates_is_every_rate_alone() -> None:
    told = clock(prices("llama3.1-8b"))
    words = {"decode": told, "context": 1500.0, "output_len": 200, "transfer_s": 0.01}
    rates, servers = np.array([0.1, 3.0, 40.0, 3.0]), np.array([1.0, 2.0, 8.0, 4.0])
    rest = {"prompt": 0.05, "each": 0.04}
    columns = {name: np.full(4, value) for name, value in rest.items()}
    found = at_rates(rates, servers=servers, ranks=np.full(4, 2.0), **columns, **words)  # type: ignore[arg-type]
    for n, rate in enumerate(rates):
        one = at_rate(float(rate), servers=float(servers[n]), ranks=2.0, **rest, **words)  # type: ignore[arg-type]
        assert (found.ttft_s[n], found.tpot_s[n], found.e2e_s[n], found.running[n]) == (
            pytest.approx((one.ttft_s, one.tpot_s, one.e2e_s, one.running))
        )


def test_a_column_of_running_sequences_is_every_number_alone() -> None:
    told = clock()
    many = np.array([0.5, 1.0, 1.25, 17.0, 300.75, float(told.most_tokens)])
    assert decodes_s(told, many, 2000.0).tolist() == pytest.approx(
        [decode_s(told, float(one), 2000.0) for one in many]
    )
    assert told.running_column_s(2000.0)[17] == pytest.approx(told.running_s(17, 2000.0))
