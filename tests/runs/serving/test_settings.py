"""Settings of engines and limits on percentiles in studies of serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.platforms.given import cluster_from_flag
from meshwright.platforms.job import JobOptions
from meshwright.runs.loads.figures import (
    Answer,
    Figures,
    Limits,
    ServedPoint,
    figures_of,
)
from meshwright.runs.loads.load import Lengths, closed_loop, poisson
from meshwright.runs.serving.candidates import ServingCandidates, serving_options
from meshwright.runs.serving.record import Deployment
from meshwright.runs.serving.trial import job_of_deployment
from meshwright.runs.serving.tune import Place, PreparedServing, prepare_serving_study
from meshwright.serving.engine import Worker, find_engine
from meshwright.serving.settings import Settings
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import named_model

PINS = {"tp": (1,), "pp": (1,)}


def prepared(**changes: object) -> PreparedServing:
    lengths = Lengths(input_len=512, output_len=64)
    values: dict[str, object] = {
        "engine": "vllm",
        "model_path": "/models/8b",
        "loads": tuple(closed_loop(n, lengths, requests=2 * n) for n in (1, 32)),
        "pins": PINS,
        **changes,
    }
    cluster = cluster_from_flag("h100:8", gpus_per_node=None)
    place = Place(word="h100:8", cluster=cluster)
    return prepare_serving_study(named_model("llama3.1-8b"), place, **values)  # type: ignore[arg-type]  # by name


def by_words(found: ServingCandidates) -> dict[str, float]:
    return {one.deployment.settings.words: one.predicted.cost_s for one in found.members}


def test_every_combination_is_a_candidate_with_its_own_price_and_command() -> None:
    axes = {"sequences": (4, 64), "graphs": (True, False), "prefix_caching": (True, False)}
    study = prepared(settings=axes)
    costs = by_words(study.candidates)
    assert len(costs) == 8
    # 4 sequences at once answer 32 clients in turns; what no price follows costs the same.
    few = "sequences=4,graphs=on,prefix_caching=on"
    assert costs[few] > 1.5 * costs[few.replace("=4", "=64")]
    assert costs[few] == costs[few.replace("caching=on", "caching=off")]
    told = Settings(sequences=4, graphs=False, prefix_caching=False)
    deployment = replace(study.candidates.members[0].deployment, settings=told)
    job = job_of_deployment(
        study.trial, study.request, deployment, options=JobOptions(), seconds=60
    )
    text = next(file.text for file in job.files if file.name == "serve.json")
    for word in ("--enforce-eager", "--no-enable-prefix-caching"):
        assert f'"{word}"' in text
    assert '"--max-num-seqs",\n  "4"' in text


def test_what_no_price_follows_is_believed_to_differ_more() -> None:
    """Half of the variance between two deployments that differ in one switch alone is not each
    one's own: beyond that, shared prefixes tell less of each other than graphs do."""
    study = prepared(settings={"graphs": (True, False), "prefix_caching": (True, False)})
    place = {one.deployment.settings.words: at for at, one in enumerate(study.candidates.members)}
    shared = study.options.step.alternatives[-1].shared
    on = place["graphs=on,prefix_caching=on"]
    graphs, pages = (
        place[words] for words in ("graphs=off,prefix_caching=on", "graphs=on,prefix_caching=off")
    )

    def between(other: int) -> float:
        return float(shared[on, on] + shared[other, other] - 2.0 * shared[on, other])

    assert between(pages) > 2.0 * between(graphs) > 0.0


def test_runs_of_settings_have_names_of_their_own_and_others_keep_theirs() -> None:
    plain = Deployment(worker=Worker(tp=2), weights="bf16", cache="bf16")
    named = replace(plain, settings=Settings(graphs=False))
    assert plain.run_id == "tp2-bf16-bf16-78cb2d55"  # golden: as earlier studies have it
    assert named.run_id.startswith("tp2-bf16-bf16-graphsoff-")
    assert named.words == "tp=2,weights=bf16,cache=bf16,graphs=off"


def test_settings_have_no_effect_beside_workers_that_are_named() -> None:
    with pytest.raises(ConfigError, match="graphs: no effect beside workers that are named"):
        prepared(settings={"graphs": (True,)}, workers=(Worker(),))


def answers(times: list[float]) -> Figures:
    return figures_of(
        [
            Answer(sent_s=0.0, first_s=time, last_s=time + 1.0, prompt_tokens=8, output_tokens=11)
            for time in times
        ]
    )


def test_a_load_whose_slowest_hundredth_is_late_does_not_keep_its_limit() -> None:
    """98 first tokens after 0.1 s and two after 2 s: their mean is 0.138 s, their p99 2 s."""
    point = ServedPoint(load="concurrency=1", figures=answers([0.1] * 98 + [2.0] * 2))
    assert point.kept(Limits(ttft_s=0.2))
    assert not point.kept(Limits(ttft_s=0.2, ttft_p99_s=1.9))
    assert point.kept(Limits(ttft_p99_s=2.1, tpot_p99_s=0.11, e2e_p99_s=3.1))
    assert not point.kept(Limits(tpot_p99_s=0.09))
    assert not Limits(ttft_p99_s=1.0).any  # no single answer breaks it


def test_percentiles_are_predicted_where_they_are_limited() -> None:
    """Arrivals at random wait for one another: the slowest are slower than the mean."""
    load = poisson(8.0, Lengths(input_len=512, output_len=64), requests=120)
    plain, limited = (
        prepared(loads=(load,), limits=limits).candidates.members[0].predicted.points[0]
        for limits in (Limits(), Limits(e2e_p99_s=60.0))
    )
    assert plain.e2e_p99_s is None and np.isnan(plain.times["e2e_p99_s"])
    assert limited.e2e_p99_s is not None and limited.e2e_p99_s > limited.e2e_s
    assert limited.ttft_p99_s is not None and limited.ttft_p99_s > limited.ttft_s


def test_a_limit_that_nothing_is_predicted_to_keep_is_known_before_any_run() -> None:
    found = prepared(limits=Limits(e2e_p99_s=1e-3)).candidates
    assert not any(one.predicted.keeps for one in found.members)
    found = prepared(limits=Limits(e2e_p99_s=1e3)).candidates
    assert all(one.predicted.keeps for one in found.members)


def test_settings_have_axes_of_their_own() -> None:
    members = prepared(settings={"sequences": (8, 32)}).candidates.members
    axes = serving_options(members, engine=find_engine("vllm"), on_cores=False).axes
    apart = np.abs(axes[0] - axes[1])
    assert sorted(apart[apart > 0]) == [2.0]  # 8 to 32 is two doublings
