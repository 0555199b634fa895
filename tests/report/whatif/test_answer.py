from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api
from meshwright.api.whatif import answers_of
from meshwright.cli import run
from meshwright.report.explain_json import explanation_record
from meshwright.report.whatif_page.answers import Answers
from meshwright.report.whatif_page.choices import STEPS, choices_record
from meshwright.report.whatif_page.state import WhatIf, read_state
from meshwright.search.axes import nearest_valid
from meshwright.search.problem import Files, Problem, ask
from meshwright.serving import search as serving
from meshwright.trust.calibration import Calibration, Fitted
from meshwright.values.layout import parse_layout

ANSWERS = Answers()
PLAN = WhatIf(model="llama3-8b", cluster="h100:16", seq=8192, gbs=64, layout="tp=2,pp=2,mbs=1")


def problem_of(state: WhatIf) -> Problem:
    return api.problem_of(state.request)


def test_figures_are_those_of_explain() -> None:
    found = ANSWERS.price(PLAN)
    same = explanation_record(api.explain(PLAN.layout, PLAN.request), PLAN.request)
    for key in (
        "step_s",
        "mfu",
        "tokens_per_s_per_gpu",
        "fits",
        "peak_memory_gib",
        "time",
        "memory",
        "interval",
        "layout",
    ):
        assert found[key] == same[key], key
    assert [term["term"] for term in found["terms"]] == [term["term"] for term in same["terms"]]
    assert sum(term["seconds"] for term in found["terms"]) == pytest.approx(found["step_s"])
    assert [sum(stage["memory"].values()) for stage in found["stages"]] == pytest.approx(
        found["peak_memory_gib"]
    )
    assert same["binding"].startswith(found["binding"])
    near = ANSWERS.near(PLAN)
    assert near["binding"] == same["binding"]
    assert [
        {key: value for key, value in rival.items() if key != "words"} for rival in near["rivals"]
    ] == same["rivals"]
    assert near["rivals"][0]["words"].startswith("tp=")


def test_cost_by_hand() -> None:
    state = WhatIf(
        model="llama3-8b", cluster="h100:16", seq=8192, gbs=64, layout="tp=2", tokens="1B", usd=3.6
    )
    found = ANSWERS.price(state)
    cost, step_s = found["cost"], found["step_s"]
    assert cost["usd_per_hour"] == pytest.approx(3.6)
    assert cost["usd_per_step"] == pytest.approx(
        0.001 * 16 * step_s
    )  # 3.6 an hour is a tenth of a cent a second
    assert cost["usd_per_billion_tokens"] == pytest.approx(0.016 * step_s / (64 * 8192) * 1e9)
    assert cost["training"]["steps"] == 1908  # 1e9 / 524288 is 1907.3
    assert cost["training"]["days"] == pytest.approx(1908 * step_s / 86400)
    assert cost["training"]["usd"] == pytest.approx(1908 * 0.016 * step_s)


def test_a_chip_without_a_price_has_no_cost() -> None:
    cost = ANSWERS.price(
        WhatIf(model="llama3-8b", cluster="h800:16", gbs=64, layout="tp=2", tokens="1B")
    )["cost"]
    assert (cost["usd_per_hour"], cost["usd_per_billion_tokens"], cost["training"]["usd"]) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("layout", "sentence", "mend"),
    [
        ("tp=3", "tp=3 * cp=1 * pp=1 = 3 does not divide 16 chips", {"axis": "tp", "value": 4}),
        (
            "pp=5,tp=1",
            "tp=1 * cp=1 * pp=5 = 5 does not divide 16 chips",
            {"axis": "pp", "value": 4},
        ),
        ("tp=2,ep=2", "ep=2: llama3-8b has no experts; ep=1", {"axis": "ep", "value": 1}),
        ("tp=2,vpp=3", "", {"axis": "vpp", "value": 1}),
    ],
)
def test_a_broken_rule_comes_with_its_sentence_and_the_nearest_value(
    layout: str, sentence: str, mend: dict[str, Any]
) -> None:
    state = WhatIf(model="llama3-8b", cluster="h100:16", gbs=64, layout=layout)
    found = ANSWERS.price(state)
    assert found["broken"].startswith(sentence)
    assert found["broken"]
    assert mend in found["mends"]
    assert "step_s" not in found


@settings(max_examples=40)
@given(
    st.fixed_dictionaries(
        {
            "tp": st.integers(1, 20),
            "pp": st.integers(1, 20),
            "cp": st.integers(1, 6),
            "ep": st.integers(1, 9),
            "mbs": st.integers(1, 9),
        },
        optional={
            "vpp": st.integers(1, 5),
            "recompute": st.sampled_from(["none", "full"]),
            "sharding": st.sampled_from(["none", "zero3"]),
        },
    )
)
def test_every_nearest_value_keeps_every_rule(given_fields: dict[str, Any]) -> None:
    problem = problem_of(
        WhatIf(model="mixtral-8x7b", cluster="h100:48", seq=4096, gbs=96, layout="tp=1")
    )
    for mend in nearest_valid(given_fields, problem):
        mended = {**given_fields, mend.axis: mend.value}
        ask(
            {key: value for key, value in mended.items() if value is not None}, problem
        )  # raises where a rule is broken


def test_the_nearest_of_two_is_by_ratio() -> None:
    problem = problem_of(WhatIf(model="llama3-8b", cluster="h100:64", gbs=64, layout="tp=1"))
    found = {mend.axis: mend.value for mend in nearest_valid(parse_layout("tp=1,pp=12"), problem)}
    assert found["pp"] == 16  # 12/8 is 1.5, 16/12 is 1.33


def test_layers_that_are_none_are_left_out() -> None:
    problem = problem_of(WhatIf(model="llama3-8b", cluster="h100:64", gbs=64, layout="tp=1"))
    found = nearest_valid(parse_layout("pp=2,layers_per_stage=3+4"), problem)
    assert ("layers_per_stage", None) in [(mend.axis, mend.value) for mend in found]


def test_export_and_search_and_difference() -> None:
    files = ANSWERS.export(PLAN, to="megatron-lm")["files"]
    assert "--tensor-model-parallel-size 2" in " ".join(file["text"] for file in files)
    found = ANSWERS.plan(
        WhatIf(model="tiny-llama", cluster="h100:8", seq=512, gbs=8, layout="tp=1")
    )
    assert len(found["words"]) == len(found["plans"]) > 0
    other = WhatIf(model="llama3-8b", cluster="h100:16", seq=8192, gbs=64, layout="tp=4,pp=2,mbs=1")
    rows = {
        row["field"]: (row["a"], row["b"]) for row in ANSWERS.difference(PLAN, other)["differences"]
    }
    assert rows["tp"] == ("2", "4")
    assert rows["dp"] == ("4", "2")


def test_choices_name_every_chip_model_and_term() -> None:
    found = choices_record()
    assert {"llama3-70b", "mixtral-8x7b"} <= {row["name"] for row in found["models"]}
    assert next(row for row in found["chips"] if row["name"] == "a100-80")["precisions"] == [
        "fp32",
        "tf32",
        "bf16",
        "fp16",
    ]
    assert all(list(steps) == sorted(set(steps)) for steps in found["steps"].values())
    assert set(ANSWERS.price(PLAN)["time"]) <= set(found["time_terms"])
    assert set(ANSWERS.price(PLAN)["memory"]) <= set(found["memory_terms"])


def test_answers_stand_on_a_calibration() -> None:
    fitted = Calibration(
        chip="h100",
        stack="megatron",
        factors=(Fitted(name="compute", value=2.0, prior_width=0.2, width=0.1),),
    )
    answers = Answers(Files(calibration=fitted), calibration="calibration.yaml")
    assert answers.price(PLAN)["time"]["matmul"] > 1.5 * ANSWERS.price(PLAN)["time"]["matmul"]


def moved(state: WhatIf, name: str, was: int | None = None) -> dict[str, Any]:
    """What the page gets when a slider has moved; it keeps every rule."""
    found = ANSWERS.price(state, moved=name, was=was)
    assert found["broken"] is None
    words = dict(parse_qsl(found["query"]))
    assert ANSWERS.price(read_state(words))["step_s"] == found["step_s"]
    return found


def test_the_batch_follows_the_chips() -> None:
    found = moved(WhatIf(cluster="h100:384"), "gpus", 256)
    assert found["layout"]["dp"] == 12  # 384 / (tp 8 * pp 4)
    assert found["layout"]["gbs"] == 516  # 43 * 12; 512 lies between 42 and 43 of 12
    assert found["followed"] == ["gbs 512 → 516"]


@pytest.mark.parametrize("name", ["gpus", "seq", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep"])
@pytest.mark.parametrize("model", ["llama3-70b", "mixtral-8x7b"])
def test_no_stop_of_a_slider_is_a_dead_end(name: str, model: str) -> None:
    was = {"gpus": 256, "seq": 8192, "gbs": 512, "tp": 8, "pp": 4}.get(name, 1)
    for stop in STEPS[name][:14]:
        layout = {"tp": 8, "pp": 4, "mbs": 1}
        fields: dict[str, Any] = {}
        if name == "gpus":
            fields["cluster"] = f"h100:{stop}"
        elif name in ("seq", "gbs"):
            fields[name] = stop
        else:
            layout[name] = stop
        words = ",".join(f"{key}={value}" for key, value in layout.items())
        moved(WhatIf(model=model, layout=words, **fields), name, was)


def test_where_a_stop_does_not_work_the_slider_goes_on_to_the_next_that_does() -> None:
    found = moved(WhatIf(layout="tp=8,pp=4,vpp=3,mbs=1"), "vpp", 1)
    assert found["layout"]["vpp"] == 4  # 80 layers over 4 stages are 20, which 3 does not divide


def test_a_name_that_is_chosen_takes_the_rest_along() -> None:
    found = moved(WhatIf(model="mixtral-8x7b", layout="tp=8,pp=4,vpp=5,mbs=1"), "model")
    assert found["layout"]["vpp"] == 1  # 32 layers over 4 stages are 8, which 5 does not divide
    assert found["followed"] == ["vpp 5 → 1"]
    tuned = WhatIf(model="llama3-8b", cluster="h100:8", gbs=64, stack="trl", finetune="lora")
    assert moved(tuned, "finetune")["fits"] == "yes"


def test_what_keeps_every_rule_is_not_touched() -> None:
    found = ANSWERS.price(PLAN, moved="tp", was=1)
    assert (found["followed"], found["step_s"]) == ([], ANSWERS.price(PLAN)["step_s"])


def test_several_kinds_of_chips_have_the_figures_of_plan() -> None:
    state = WhatIf(model="llama3-8b", cluster="a800:16,h800:16", seq=4096, gbs=128)
    found, same = ANSWERS.price(state), api.plan(state.request).to_dict()["plans"][0]
    for key in ("step_s", "mfu", "fits", "peak_memory_gib", "time", "interval"):
        assert found[key] == same[key], key
    assert {stage["chip"] for stage in found["stages"]} == {"a800", "h800"}
    assert sum(term["seconds"] for term in found["terms"]) == pytest.approx(found["step_s"])
    drawn = ANSWERS.pictures(state, wide=900)
    assert "data-machine" in drawn["machine"]
    assert "stage 1" in drawn["pipeline"]


def test_serving_and_comparing_have_the_figures_of_their_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = WhatIf(model="llama3-8b", cluster="h100:8", clusters="h100:8,h200:8", tokens="100B")
    served = serving.plan(model="llama3-8b", cluster="h100:8", input_len=1000, output_len=500)
    assert ANSWERS.serve(state) == served.to_dict()
    words = ["compare", "llama3-8b", "--tokens", "100B", "--clusters", "h100:8,h200:8"]
    assert run([*words, "--seq", "8192", "--json"]) == 0
    assert answers_of().compare(state) == json.loads(capsys.readouterr().out)


def test_pictures_are_of_the_plan_that_is_shown() -> None:
    drawn = ANSWERS.pictures(PLAN, wide=600)
    assert "tensor parallel" in drawn["machine"]
    assert drawn["pipeline"].startswith("<svg")
    alone = WhatIf(model="llama3-8b", cluster="h100:16", gbs=64, layout="tp=2,mbs=1")
    assert "no pipeline" in ANSWERS.pictures(alone, wide=600)["pipeline"]
