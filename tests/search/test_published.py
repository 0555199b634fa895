"""The published run beside an answer: near in kind, priced as `plan` prices, with its source."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from meshwright import api
from meshwright.search.problem import resolve
from meshwright.search.published import (
    NearestRun,
    PublishedRun,
    nearest_run,
    price_run,
    published_runs,
    ran_layouts,
)
from meshwright.search.request import PlanRequest


def nearest(**asked: Any) -> NearestRun | None:
    return nearest_run(resolve(PlanRequest.of({"seq_len": 4096, "gbs": 256, **asked})))


def test_there_are_a_few_hundred_at_most_each_with_its_source_and_one_of_a_kind() -> None:
    runs = published_runs()
    assert 100 < len(runs) < 300
    assert all(run.source and run.step_s > 0 for run in runs)
    kinds = {(r.model, r.chip, r.stack.partition("@")[0], r.precision) for r in runs}
    assert len(kinds) == len(runs)
    assert sum(run.source.startswith("https://") for run in runs) > 0.8 * len(runs)


def test_what_we_say_of_them_is_found_when_asked_and_near_what_was_measured() -> None:
    found = [answer for run in published_runs()[::4] if (answer := price_run(run)) is not None]
    assert len(found) >= len(published_runs()[::4]) - 1
    errors = [abs(one.error_frac) for one in found]
    assert statistics.median(errors) < 0.15  # docs/accuracy.md: 8 % by plan's path
    assert len(set(errors)) == len(errors)


def test_it_isprice_run_as_explain_prices_it() -> None:
    run = next(one for one in published_runs() if one.chip == "h100" and one.model == "llama3-70b")
    why = api.explain(
        run.layout,
        run.model,
        f"{run.chip}:{run.num_chips}",
        seq=run.seq_len,
        gbs=run.gbs,
        stack=run.stack,
        precision=run.precision,
        gpus_per_node=run.gpus_per_node,
    )
    answer = price_run(run)
    assert answer is not None
    assert answer.predicted_s == pytest.approx(why.quote.step_s)
    assert answer.error_frac == pytest.approx(why.quote.step_s / run.step_s - 1)
    assert f"({answer.error_frac:+.0%})" in answer.words()
    assert run.source in answer.words()


def kinds_of(run: PublishedRun) -> tuple[str, str, str]:
    return run.model, run.chip, run.precision


def test_a_question_about_a_published_run_gets_that_run() -> None:
    runs = [run for run in published_runs() if run.gpus_per_node in (None, 8)][::9]
    assert len(runs) > 8
    for run in runs:
        found = nearest(
            model=run.model,
            cluster=f"{run.chip}:{run.num_chips}",
            seq_len=run.seq_len,
            gbs=run.gbs,
            precision=run.precision,
            stack=run.stack,
        )
        assert found is not None
        assert kinds_of(found.run) == kinds_of(run)


def test_what_is_of_another_kind_is_not_near() -> None:
    mixture = nearest(model="mixtral-8x7b", cluster="h100:64")
    assert mixture is None or "x" in mixture.run.model or mixture.run.layout.count("ep=")
    far = nearest(model="deepseek-v3", cluster="mi300x:256")
    assert far is None or far.run.chip.startswith("mi")
    assert nearest(model="t5-2.8b", cluster="l40s:64") is None
    assert nearest(model="llama3-8b", cluster="h100:8") is not None
    assert nearest(model="llama3-8b", cluster="h100:8", finetune="lora") is None


def test_layouts_that_ran_are_known_by_their_axes() -> None:
    problem = resolve(
        PlanRequest.of({"model": "llama3-70b", "cluster": "h100:256", "seq_len": 8192, "gbs": 512})
    )
    assert (8, 1, 4, 1, 1) in ran_layouts(problem)  # FlagPerf's 64 H100: tp 8, pp 4
