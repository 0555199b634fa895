from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from meshwright import serving
from meshwright.serving.candidates import workers
from meshwright.serving.clock import Speculation
from meshwright.serving.engine import Worker, find_engine
from meshwright.serving.request import ServingRequest, parse_speculation
from meshwright.serving.result import ServingOption, pareto_front
from meshwright.serving.search import plan, predict
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import find_model

CHAT = ServingRequest(
    model=find_model("llama3.1-70b"),
    cluster=parse_cluster("h100:8"),
    engine=find_engine("vllm"),
    input_len=4000,
    output_len=1000,
    ttft_s=2.0,
    tpot_s=0.03,
    fastest=True,
)
FOUND = plan(CHAT)


def test_every_listed_deployment_keeps_the_limits_and_fits() -> None:
    assert FOUND.options
    for option in FOUND.options:
        assert option.ttft_s <= 2.0
        assert option.tpot_s <= 0.03
        assert option.chips <= 8
        assert all(part.memory_bytes <= 80 * 2**30 for part in option.parts)
    rates = [option.tokens_per_s for option in FOUND.options]
    assert rates == sorted(rates, reverse=True)
    assert {option.mode for option in FOUND.options} == {"aggregated", "disaggregated"}


def test_the_figures_of_a_deployment_agree() -> None:
    for option in FOUND.options:
        assert option.e2e_s == pytest.approx(option.ttft_s + 999 * option.tpot_s)
        assert option.tokens_per_s_per_chip * option.chips == pytest.approx(
            option.requests_per_s * 1000
        )
        assert option.concurrency == pytest.approx(
            option.requests_per_s * option.e2e_s, rel=0.05, abs=1
        )
        assert option.usd_per_million_tokens is not None
        assert option.usd_per_million_tokens * option.tokens_per_s * 3600 / 1e6 == pytest.approx(
            option.usd_per_hour
        )


def test_the_load_is_the_largest_that_keeps_the_limits_to_within_a_few_percent() -> None:
    asked = replace(
        CHAT, modes=("aggregated",), weights=("fp8",), cache=("bf16",), ttft_s=None, tpot_s=0.025
    )
    best = plan(asked).options[0]
    copies, worker = best.parts[0].count, best.parts[0].worker
    more = round(1.08 * best.concurrency / copies)
    beyond = predict(asked, worker=worker, weights="fp8", cache="bf16", concurrency=more)
    assert best.tpot_s <= 0.025 < beyond.tpot_s


def test_nothing_beats_the_front() -> None:
    front = FOUND.pareto
    assert len(front) > 3
    assert all(
        one.tokens_per_s_per_user > two.tokens_per_s_per_user
        for one, two in itertools.pairwise(front)
    )
    assert all(
        one.tokens_per_s_per_chip < two.tokens_per_s_per_chip
        for one, two in itertools.pairwise(front)
    )
    assert pareto_front([*front, *FOUND.options]) == front


def test_limits_that_nothing_keeps_are_answered_with_the_nearest_on_each_axis() -> None:
    found = plan(replace(CHAT, ttft_s=0.01, tpot_s=0.001))
    assert found.options == ()
    assert set(found.nearest) == {"least excess", "ttft_s", "tpot_s"}
    assert found.nearest["ttft_s"].ttft_s == min(option.ttft_s for option in found.nearest.values())
    assert found.nearest["tpot_s"].tpot_s == min(option.tpot_s for option in found.nearest.values())


def test_a_model_that_does_not_fit_says_by_how_much() -> None:
    found = plan(replace(CHAT, model=find_model("llama3.1-405b"), weights=("bf16",)))
    assert not found.options
    assert not found.nearest
    assert any("GiB short of one request" in reason for reason in found.rejected)


def test_latency_takes_more_chips_per_copy_than_throughput() -> None:
    fast = plan(replace(CHAT, objective="latency", modes=("aggregated",))).options[0]
    much = plan(replace(CHAT, tpot_s=None, ttft_s=None, modes=("aggregated",))).options[0]
    assert fast.parts[0].worker.tp == 8
    assert much.parts[0].worker.tp < 8
    assert fast.e2e_s < much.e2e_s
    assert fast.tokens_per_s < much.tokens_per_s


def test_a_target_rate_takes_the_fewest_chips_that_carry_it() -> None:
    wide = replace(CHAT, cluster=parse_cluster("h100:64"), modes=("aggregated",))
    few, many = (plan(replace(wide, target_rate=rate)).options[0] for rate in (1.0, 12.0))
    assert few.requests_per_s >= 1.0
    assert many.requests_per_s >= 12.0
    assert few.chips < many.chips <= 64
    assert plan(replace(wide, target_rate=1e6)).options == ()


def test_a_mean_prefix_hit_saves_prompts() -> None:
    cold, warm = (
        plan(replace(CHAT, cached_share=share, modes=("aggregated",))).options[0]
        for share in (0.0, 0.8)
    )
    assert warm.tokens_per_s > cold.tokens_per_s


def test_drafted_tokens_speed_answers_up() -> None:
    asked = ServingRequest(
        model=find_model("deepseek-v3"),
        cluster=parse_cluster("b200:8"),
        engine=find_engine("sglang"),
        input_len=1000,
        output_len=500,
        concurrency=8,
        modes=("aggregated",),
        objective="latency",
    )
    plain, drafting = (
        plan(replace(asked, speculation=guess)).options[0]
        for guess in (None, Speculation(drafted=1, accepted=0.8))
    )
    assert drafting.tpot_s < plain.tpot_s
    with pytest.raises(ConfigError, match="no layers for multi-token prediction"):
        replace(CHAT, speculation=Speculation(drafted=1, accepted=0.8))


def test_pools_of_two_kinds_serve_prompts_on_one_and_answers_on_the_other() -> None:
    found = plan(
        replace(
            CHAT,
            cluster=parse_cluster("h100:4,h200:4"),
            modes=("disaggregated",),
            tpot_s=None,
            ttft_s=None,
        )
    )
    assert any({part.chip for part in option.parts} == {"h100", "h200"} for option in found.options)
    assert all(
        sum(part.chips for part in option.parts if part.chip == "h100") <= 4
        for option in found.options
    )


def test_static_batches_report_the_whole_batch() -> None:
    asked = ServingRequest(
        model=find_model("gpt3-20b"),
        cluster=parse_cluster("a100-80:8"),
        engine=find_engine("fastertransformer"),
        input_len=60,
        output_len=20,
        modes=("static",),
    )
    best = plan(asked).options[0]
    assert best.mode == "static"
    assert best.requests_per_s == pytest.approx(best.concurrency / best.e2e_s)


def test_a_batch_that_the_user_set_is_kept() -> None:
    found = plan(replace(CHAT, concurrency=5, modes=("aggregated",), ttft_s=None, tpot_s=None))
    assert found.options
    assert all(option.concurrency == 5 * option.parts[0].count for option in found.options)


def test_workers_of_experts_share_or_spread_attention() -> None:
    names = {
        worker.name
        for worker in workers(find_model("qwen3-235b-a22b"), parse_cluster("h100:4").pools[0])
    }
    assert {"tp=4", "tp=4,ep=4", "ep=4,attention_dp=4", "tp=2,pp=2", "pp=4"} <= names
    assert {
        worker.chips
        for worker in workers(find_model("llama3.1-8b"), parse_cluster("h100:8").pools[0])
    } == {1, 2, 4, 8}


def test_one_deployment_is_priced_as_in_the_search() -> None:
    best: ServingOption = plan(replace(CHAT, modes=("aggregated",))).options[0]
    part = best.parts[0]
    one = predict(
        CHAT,
        worker=part.worker,
        weights=best.weights,
        cache=best.cache,
        concurrency=best.concurrency // part.count,
    )
    assert one.tpot_s == pytest.approx(best.tpot_s)
    assert one.requests_per_s * part.count == pytest.approx(best.requests_per_s)
    with pytest.raises(ConfigError, match="the cache has room for"):
        predict(CHAT, worker=part.worker, weights=best.weights, cache=best.cache, concurrency=10**6)
    with pytest.raises(ConfigError, match="GiB short of one request"):
        predict(CHAT, worker=Worker(tp=1), weights="bf16", cache="bf16", concurrency=1)


def test_the_functions_are_exported() -> None:
    assert serving.plan is plan
    assert serving.predict is predict
    assert "plan" in dir(serving)
    with pytest.raises(AttributeError):
        serving.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_len": 0}, "input_len=0: expected 1 to"),
        ({"tpot_s": -1.0}, "tpot_s=-1.0: expected a positive number"),
        ({"cached_share": 1.0}, "prefix hit share 1.0"),
        ({"weights": ("fp7",)}, "'fp7' is no known quantisation"),
        ({"cache": ("fp7",)}, "'fp7' is no known type of cache"),
        ({"modes": ("magic",)}, "'magic' is no known mode"),
        (
            {"modes": ("static",), "cached_share": 0.5},
            "prefix hit share 0.5 has no effect on static batches",
        ),
        (
            {
                "model": find_model("deepseek-v3"),
                "modes": ("aggregated", "static"),
                "speculation": Speculation(drafted=1, accepted=0.8),
            },
            "speculation has no effect on static batches",
        ),
        ({"model": find_model("t5-11b")}, "static batches alone"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CHAT, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("chip", ["h100", "b200", "a100-80"])
def test_gpt_oss_is_served_in_the_weights_that_it_is_published_in(chip: str) -> None:
    """OpenAI's gpt-oss-120b comes in mxfp4, 61 GiB of them: one card of 80 GB holds it."""
    request = replace(
        CHAT,
        model=find_model("gpt-oss-120b"),
        cluster=parse_cluster(f"{chip}:1"),
        ttft_s=None,
        tpot_s=None,
    )
    assert {option.weights for option in plan(request).options} == {"mxfp4"}


def test_a_target_rate_that_no_chips_carry_is_answered_with_the_most_that_they_do() -> None:
    request = replace(
        CHAT,
        model=find_model("llama3.1-8b"),
        cluster=parse_cluster("h100:2"),
        ttft_s=None,
        target_rate=10000.0,
    )
    found = plan(request)
    assert not found.options
    most = found.nearest["requests_per_s"]
    assert 0 < most.requests_per_s < 10000.0
    assert most.tpot_s <= 0.03
    without = plan(replace(request, target_rate=None))
    assert most.requests_per_s == max(option.requests_per_s for option in without.options)


@pytest.mark.parametrize("cluster", ["mi300x:8", "tpu-v5p:4", "ascend-910b:8", "h100:8,mi300x:8"])
def test_an_engine_is_not_planned_for_chips_that_it_does_not_run_on(cluster: str) -> None:
    with pytest.raises(
        ConfigError, match=r"trtllm runs on chips of NVIDIA alone.*engines that do: vllm, sglang"
    ):
        replace(CHAT, cluster=parse_cluster(cluster), engine=find_engine("trtllm"))
    assert replace(CHAT, cluster=parse_cluster(cluster)).engine.name == "vllm"


@pytest.mark.parametrize(
    ("model", "cluster", "weights"),
    [
        ("llama3.1-8b", "h100:2", "bf16"),
        ("llama3.1-8b", "v100:8", "fp16"),
        ("qwen3-30b-a3b", "h100:2", "bf16"),
        ("gpt-oss-20b", "h100:2", "mxfp4"),
        ("deepseek-v3", "h200:8", "fp8-blockwise"),
        ("minimax-m2", "a100-80:16", "bf16"),  # its checkpoint is fp8, which an A100 lacks
        ("layers=8,hidden=1024,heads=8,vocab=32000", "h100:2", "bf16"),
    ],
)
def test_weights_are_those_of_the_checkpoint(model: str, cluster: str, weights: str) -> None:
    found = plan(model=model, cluster=cluster, input_len=1000, output_len=100)
    assert {option.weights for option in found.options} == {weights}
    assert any(f"weights: {weights}, " in note for note in found.notes)


def test_a_request_beyond_the_context_is_refused_with_what_fits() -> None:
    words: dict[str, Any] = {"model": "llama3.1-8b", "cluster": "h100:8", "output_len": 100}
    with pytest.raises(ConfigError, match=r"1,001,100 .* 131,072 .*--input-len 130972"):
        ServingRequest.of(**words, input_len=1_001_000)
    assert ServingRequest.of(**words, input_len=130_972).input_len == 130_972
    with pytest.raises(ConfigError, match="2,048 of gpt3-126m"):
        ServingRequest.of(model="gpt3-126m", cluster="h100:8", input_len=2048, output_len=1)
    by_hand = "layers=8,hidden=1024,heads=8,vocab=32000"
    ServingRequest.of(model=by_hand, cluster="h100:8", input_len=10**6, output_len=1)


@pytest.mark.parametrize(
    ("model", "cluster", "weights"),
    [
        ("llama3.1-405b", "h100:1", ("bf16",)),
        ("deepseek-r1", "gb200:1", None),
        ("kimi-k3", "b200:8", None),
    ],
)
def test_what_no_chip_holds_is_refused_in_words(
    model: str, cluster: str, weights: tuple[Any, ...] | None
) -> None:
    words: dict[str, Any] = {
        "model": model,
        "cluster": cluster,
        "input_len": 1000,
        "output_len": 100,
    }
    found = plan(**words, weights=weights)
    assert not found.options
    assert not found.pareto
    assert all("GiB short of one request" in reason for reason in found.rejected)


def test_drafts_are_by_what_is_named() -> None:
    assert parse_speculation("3,1.4") == Speculation(drafted=3, accepted=1.4)
    found = parse_speculation("3, 1.4, eagle")
    assert (found.drafted, found.accepted, found.method) == (3, 1.4, "eagle")
    with pytest.raises(ConfigError, match="way of drafting"):
        parse_speculation("3,1.4,medusa")
    with pytest.raises(ConfigError, match=r"such as 3,1\.4"):
        parse_speculation("3")
    with pytest.raises(ConfigError, match=r"--speculate 3,1\.4,eagle"):
        replace(CHAT, speculation=parse_speculation("3,1.4"))
    asked = replace(CHAT, speculation=parse_speculation("3,1.4,ngram"), modes=("aggregated",))
    assert asked.to_dict()["drafted_by"] == "ngram"
    assert plan(asked).options[0].tpot_s > 0
