from __future__ import annotations

from typing import Any

import pytest
from tests.report.answers import LAYOUT

from meshwright import api
from meshwright.report.explain_json import explanation_record
from meshwright.report.parts.explain import (
    constants_info,
    explain_answer_info,
    operators_info,
    rival_steps_info,
    rivals_info,
    roofline_info,
    stages_info,
    terms_info,
)
from meshwright.search.request import PlanRequest


def rival(change: str, step_s: float, **more: Any) -> dict[str, Any]:
    return {
        "change": change,
        "verdict": "slower",
        "reason": None,
        "step_s": step_s,
        "peak_memory_gib": 50.0,
        "over_gib": -29.0,
        **more,
    }


# A product of 1e12 FLOP over 1e10 bytes in 2 ms: 100 FLOP a byte, 500 TFLOPS, 5,000 GB/s.
PRODUCT = {
    "block": "mlp",
    "name": "first layer",
    "term": "matmul",
    "forward_s": 2e-3,
    "backward_s": 4e-3,
    "saved_bytes": 2.0**20,
}
NORM = {
    "block": "mlp",
    "name": "norm",
    "term": "pointwise",
    "forward_s": 1e-3,
    "backward_s": 1e-3,
    "saved_bytes": 0.0,
}
RECORD: dict[str, Any] = {
    "request": {"model": "llama3-8b", "cluster": "h100:16"},
    "layout": LAYOUT,
    "step_s": 2.0,
    "fits": "yes",
    "interval": {"step_s": [1.6, 3.0], "peak_memory_gib": [30, 60]},
    "peak_memory_gib": [40.0, 38.0],
    "limit_gib": 79.1,
    "fullest_stage": 0,
    "binding": "Arithmetic: 75% of the step.",
    "roof": {"chip": "h100", "precision": "bf16", "tflops": 1000.0, "gb_per_s": 4000.0},
    "time": {"matmul": 1.5, "tp_comm": 0.3, "bubble": 0.2},
    "terms": [
        {
            "term": "matmul",
            "title": "matrix products",
            "seconds": 1.5,
            "share": 0.75,
            "what": "linear layers",
            "bound": "h100",
        }
    ],
    "stages": [
        {
            "stage": stage,
            "layers": 16,
            "in_flight": 2.0 - stage,
            "used_gib": 40.0,
            "memory": {"weights": 10.0, "activations": 30.0},
        }
        for stage in (0, 1)
    ],
    "layers": [
        {
            "title": "attention + mlp",
            "operators": [
                {**PRODUCT, "flops": 1e12, "moved_bytes": 1e10},
                {**NORM, "flops": 0.0, "moved_bytes": 2e9},
            ],
        }
    ],
    "rivals": [
        rival("pp 2 -> 4", 2.5, differences_s={"bubble": 0.6, "tp_comm": -0.1}),
        rival("tp 4 -> 1", 1.9, differences_s={"tp_comm": -0.1}, over_gib=12.0),
        {
            "change": "tp 4 -> 64",
            "verdict": "breaks a rule",
            "reason": "heads=32 is not divisible by tp=64",
        },
    ],
    "provenance": {
        "time": {
            "matmul": {
                "formula": "meshwright.cost.kernels.gemm_s",
                "constants": [
                    {
                        "name": "chip.ramp_s",
                        "value": 2e-6,
                        "kind": "assumed",
                        "source": "rule",
                        "unit": "1 %",
                        "term_change": 0.0005,
                        "sum_change": 0.001,
                    }
                ],
            },
            "optimizer": {"formula": "meshwright.cost.weights.optimizer_s", "constants": []},
        },
        "memory": {
            "weights": {"formula": "meshwright.cost.memory.price_memory", "constants": []},
            "optimizer": {"formula": "meshwright.cost.memory.price_memory", "constants": []},
        },
    },
}


def test_the_answer_says_what_it_takes_whether_it_fits_and_what_binds() -> None:
    words = explain_answer_info(RECORD)
    assert words.startswith("A step of llama3-8b on h100:16 with tp=4, sp=1, pp=2")
    assert words.endswith(
        "takes 2.00 s (80 %: 1.60 to 3.00 s); 40.0 of 79.1 GiB on stage 0, fits: yes. Arithmetic:"
        " 75% of the step."
    )


def test_a_roofline_has_intensity_and_rate_under_the_two_roofs() -> None:
    chart = roofline_info(RECORD)
    assert chart is not None
    [group] = chart.groups
    [point] = group.points
    assert (point.x, point.y, group.title) == (100.0, 500.0, "matrix products")
    memory, peak = chart.guides
    assert (
        memory.points[-1] == peak.points[0] == (250.0, 1000.0)
    )  # the ridge: 1000 TFLOPS over 4 TB/s
    assert "50 % of the h100's dense peak" in chart.sentence


def test_answers_of_older_versions_have_no_roofline() -> None:
    assert roofline_info({**RECORD, "layers": [{"title": "mlp", "operators": [PRODUCT]}]}) is None


def test_operators_have_their_rates() -> None:
    product, norm = operators_info(RECORD).rows
    assert product[2:7] == ("matrix products", 2.0, 4.0, 500.0, 5000.0)
    assert norm[5:7] == (None, 2000.0)


def test_rivals_are_stacked_with_their_own_terms_and_those_that_do_not_fit_are_in_the_table_alone() -> (  # noqa: E501
    None
):
    stack = rival_steps_info(RECORD)
    assert [bar.label for bar in stack.bars] == ["as it is", "pp 2 -> 4"]
    assert stack.bars[1].values == pytest.approx((1.5, 0.2, 0.8))
    rows = rivals_info(RECORD).rows
    assert rows[0][:4] == ("pp 2 -> 4", "slower", 2.5, 25.0)
    assert (
        stack.sentence
        == "No single change of an axis makes it faster and leaves the headroom free. All have"
        " 1.90 s alike; to its right is what tells them apart."
    )
    assert rows[0][-1] == "pipeline bubble +600 ms, tensor-parallel -100 ms"
    assert rows[2] == (
        "tp 4 -> 64",
        "breaks a rule",
        None,
        None,
        None,
        "",
        "heads=32 is not divisible by tp=64",
    )


def test_a_faster_rival_that_needs_the_headroom_is_said_to_be_at_risk() -> None:
    changed = rival(
        "pp 2 -> 1",
        1.8,
        differences_s={"bubble": -0.2},
        verdict="faster",
        fits="at risk",
        peak_memory_gib=78.0,
    )
    record = {
        **RECORD,
        "rivals": [
            changed,
            rival("vpp 1 -> 2", 1.9, differences_s={"bubble": -0.1}, verdict="faster", fits="yes"),
        ],
    }
    assert (
        rival_steps_info(record).sentence
        == "Faster: vpp 1 -> 2. Faster, but at risk of running out of memory: pp 2 -> 1. All have"
        " 1.80 s alike; to its right is what tells them apart."
    )
    assert rivals_info(record).rows[0][5] == "at risk"


def test_stages_terms_and_constants_are_told_in_full() -> None:
    assert [bar.total for bar in stages_info(RECORD).bars] == [40.0, 40.0]
    assert "in flight by stage: 2, 1." in stages_info(RECORD).sentence
    assert terms_info(RECORD).rows == (("matrix products", 1.5, 75.0, "linear layers", "h100"),)
    assert constants_info(RECORD).rows[0] == (
        "time: matrix products",
        "cost.kernels.gemm_s",
        "chip.ramp_s",
        2e-6,
        "+0.5 ms for 1 %",
        "assumed",
        "rule",
    )
    names = [row[:2] for row in constants_info(RECORD).rows[1:]]
    assert names == [
        ("time: optimizer", "cost.weights.optimizer_s"),
        ("memory: weights", "cost.memory.price_memory"),
        ("memory: optimizer", "cost.memory.price_memory"),
    ]


def test_a_real_explanation_sums_to_its_step_in_every_bar() -> None:
    request = PlanRequest(model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64)
    record = explanation_record(api.explain("tp=2,pp=2", request), request)
    steps = {
        rival["change"]: rival["step_s"] for rival in record["rivals"] if "step_s" in rival
    } | {"as it is": record["step_s"]}
    for bar in rival_steps_info(record).bars:
        assert bar.total == pytest.approx(steps[bar.label], rel=1e-6)
    chart = roofline_info(record)
    assert chart is not None
    assert all(
        0 < point.y < record["roof"]["tflops"] for group in chart.groups for point in group.points
    )
