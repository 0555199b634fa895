from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.serving.cases import clock, plain_engine, prices

from meshwright.serving.clock import Speculation
from meshwright.values.errors import ConfigError


@pytest.mark.parametrize(("batch", "context"), [(1, 100), (7, 1000), (24, 3000), (100, 5000)])
def test_the_clock_tells_what_the_prices_say(batch: int, context: int) -> None:
    priced = prices()
    assert clock(priced).running_s(batch, context) == pytest.approx(
        sum(priced.decode_terms_s(batch=batch, context=context).values()), rel=0.03
    )


def test_a_mixed_iteration_is_no_shorter_than_its_parts() -> None:
    told = clock()
    mixed = told.mixed_s(
        new=2048, attention=told.prompt_attention_s(2048, 0), heads=1, batch=16, context=2000
    )
    assert mixed > told.running_s(16, 2000)
    assert mixed < told.running_s(16, 2000) + told.mixed_s(
        new=2048, attention=told.prompt_attention_s(2048, 0), heads=1, batch=0, context=0
    )


def test_attention_of_a_chunk_is_the_price() -> None:
    priced = prices()
    exact = float(
        priced.prompts_s(batch=np.ones(()), new=np.array(1500.0), context=np.array(3000.0))
    )
    assert clock(priced).prompt_attention_s(1500, 3000) == pytest.approx(exact, rel=0.15)


def test_launches_bound_an_iteration_without_a_graph() -> None:
    slow = clock(prices(engine=plain_engine(launch_s=1e-3)))
    assert slow.mixed_s(new=1, attention=0.0, heads=1, batch=0, context=0) >= slow.launch_s
    assert slow.running_s(1, 10) < slow.launch_s


def test_right_guesses_speed_answers_up_and_wrong_ones_slow_them_down() -> None:
    plain = clock(prices("deepseek-v3", chip="h200"))
    right, wrong = (
        replace(plain, speculation=Speculation(drafted=1, accepted=accepted))
        for accepted in (1.0, 0.0)
    )
    assert right.running_s(4, 1000) < plain.running_s(4, 1000) < wrong.running_s(4, 1000)
    with pytest.raises(ConfigError, match="accepted=2"):
        Speculation(drafted=1, accepted=2)


def test_drafts_by_n_grams_cost_the_check_alone() -> None:
    """Worked: 4 tokens of each of 8 sequences are checked; EAGLE's layer is as wide as the model's
    own for multi-token prediction."""
    plain = clock()
    own, eagle, looked_up = (
        replace(plain, speculation=Speculation(drafted=3, accepted=1.0, method=method))
        for method in ("mtp", "eagle", "ngram")
    )
    each = plain.tokens_s[8] / plain.prices.model.num_layers + plain.head_s[8]
    assert own.running_s(8, 1000) == eagle.running_s(8, 1000)
    assert own.running_s(8, 1000) - looked_up.running_s(8, 1000) == pytest.approx(3 * each / 2)
    for one in (own, looked_up):
        assert one.running_column_s(1000.0)[8] == pytest.approx(one.running_s(8, 1000))
