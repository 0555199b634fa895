from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.serving.cases import plain_engine, prices

from meshwright.serving.engine import Worker


def test_a_decode_step_takes_at_least_the_reading_of_its_weights() -> None:
    terms = prices(weights="bf16", engine=plain_engine()).decode_terms_s(batch=1, context=1024)
    least = 70.55e9 * 2 / 4 / 3.35e12
    assert least < sum(terms.values()) < 1.6 * least


def test_more_chips_share_the_products() -> None:
    two, eight = (
        prices(worker=Worker(tp=tp)).decode_terms_s(batch=16, context=1024) for tp in (2, 8)
    )
    assert eight["linear"] < 0.4 * two["linear"]
    assert eight["exchange"] > two["exchange"] > 0
    assert (
        prices("llama3.1-8b", worker=Worker(tp=1)).decode_terms_s(batch=1, context=10)["exchange"]
        == 0
    )


def test_a_norm_over_all_heads_is_summed_over_ranks() -> None:
    """MiniMax M2 sums one statistic per layer and token over its ranks; one chip has nothing to
    sum."""
    for tp, sums in ((1, False), (4, True)):
        priced = prices("minimax-m2", weights="fp8-blockwise", chip="b200", worker=Worker(tp=tp))
        assert priced.model.qk_norm and priced.model.qk_norm_all_heads
        per_head = replace(priced, model=replace(priced.model, qk_norm_all_heads=False))
        whole, parts = (one.decode_terms_s(batch=4, context=1000) for one in (priced, per_head))
        assert bool(whole["exchange"] > 1.2 * parts["exchange"]) is sums
        assert bool(whole["pointwise"] > parts["pointwise"]) is sums


@pytest.mark.parametrize(
    "model", ["llama3.1-70b", "deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b"]
)
def test_time_rises_with_tokens_and_context(model: str) -> None:
    priced = prices(model, weights="bf16", chip="b200", worker=Worker(tp=8))
    tokens = np.array([1.0, 8.0, 64.0, 512.0, 4096.0])
    for seconds in priced.by_tokens_s(tokens).values():
        assert (np.diff(seconds) >= -1e-7).all()
    assert (np.diff(priced.running_s(batch=np.array(16.0), context=tokens)) >= -1e-7).all()
    assert (
        np.diff(priced.prompts_s(batch=np.ones(()), new=tokens, context=np.zeros(()))) >= -1e-7
    ).all()
    assert (np.diff(priced.head_s(tokens)) >= -1e-7).all()


def test_a_column_is_its_scalars() -> None:
    priced = prices("deepseek-v3", worker=Worker(tp=8))
    tokens = np.array([1.0, 30.0, 700.0])
    for name, seconds in priced.by_tokens_s(tokens).items():
        assert seconds.tolist() == pytest.approx(
            [float(priced.by_tokens_s(one)[name]) for one in tokens]
        )


def test_attention_on_every_chip_sends_tokens_to_experts() -> None:
    shared = prices("deepseek-v3", worker=Worker(tp=8, ep=8)).decode_terms_s(batch=64, context=1024)
    spread = prices("deepseek-v3", worker=Worker(ep=8, attention_dp=8)).decode_terms_s(
        batch=8, context=1024
    )
    assert spread["attention"] < shared["attention"]
    assert spread["experts"] == pytest.approx(shared["experts"])
    assert spread["exchange"] != shared["exchange"]


def test_messages_between_stages_count_the_borders() -> None:
    one, three = (
        float(prices(worker=Worker(tp=2, pp=pp)).messages_s(np.array(64.0))) for pp in (1, 4)
    )
    assert one == 0
    assert three > 0


def test_eager_kernels_are_counted_per_layer() -> None:
    dense, experts = (
        prices("llama3.1-8b", worker=Worker()),
        prices("qwen3-30b-a3b", worker=Worker(), weights="bf16"),
    )
    assert dense.kernel_count() == 32 * (6 + 4 + 2 * 2)
    assert experts.kernel_count() == 48 * (6 + 16)
