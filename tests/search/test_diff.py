from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.search.diff import LABEL_ROWS, LABELS, Comparison, comparable_fields, compare
from meshwright.search.request import PlanRequest
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.workload import Workload

NOT_COMPARED = {
    *(
        "calibration",
        "profile",
        "gpus_per_node",
        "pins",
        "same",
        "unlike_batch",
        "objective",
        "fastest",
        "racks",
        "max_memory_gib",
        "headroom",
        "min_tokens_per_s",
        "num_gpus",
        "usd_per_hour",
        "host_memory_gib",
        "nvme_gib",
        "finetune",
        "top",
        "max_gbs",
        "megatron_version",
    ),
}
"""Fields of a request that say how to search, or are seen in the cluster and the layout."""


def values(layout: Layout) -> dict[str, Any]:
    return {field.name: getattr(layout, field.name) for field in fields(layout)}


def of_words(a: str, b: str, **more: Any) -> Comparison:
    return compare(parse_layout(a), parse_layout(b), **more)


def labels(a: str, b: str, **more: Any) -> dict[str, list[str]]:
    return {d.field: [m.label for m in d.meanings] for d in of_words(a, b, **more).differences}


@pytest.mark.parametrize("kind", [Layout, Workload])
def test_every_field_has_a_label(kind: type[Any]) -> None:
    """A new field of a layout or a workload needs rows in search/diff.py."""
    assert {field.name for field in fields(kind)} <= set(comparable_fields())


def test_every_field_of_a_request_is_labelled_or_left_out_by_name() -> None:
    assert set(PlanRequest.model_fields) <= set(comparable_fields()) | NOT_COMPARED


def test_every_row_has_a_known_label_and_a_reason() -> None:
    assert all(row.label in LABELS and row.reason for row in LABEL_ROWS)
    assert len({(row.field, row.label, row.when) for row in LABEL_ROWS}) == len(LABEL_ROWS)


sizes = st.sampled_from([1, 2, 4, 8])
layouts = st.builds(
    Layout,
    **dict.fromkeys(("tp", "cp", "ep", "pp", "vpp", "dp", "mbs", "gbs"), sizes),
    sp=st.booleans(),
    sharding=st.sampled_from(["none", "zero1", "zero3"]),
    recompute=st.sampled_from(["none", "full"]),
)


@given(layouts)
def test_a_layout_does_not_differ_from_itself(layout: Layout) -> None:
    found = compare(values(layout), values(layout))
    assert found.differences == ()
    assert found.notes == ()


@given(layouts, layouts)
def test_differences_are_the_fields_that_differ_and_each_has_a_meaning(
    a: Layout, b: Layout
) -> None:
    found = compare(values(a), values(b))
    assert {d.field for d in found.differences} == {
        f.name for f in fields(Layout) if getattr(a, f.name) != getattr(b, f.name)
    }
    assert all(d.meanings for d in found.differences)
    assert [(d.field, d.b, d.a) for d in found.differences] == [
        (d.field, d.a, d.b) for d in compare(values(b), values(a)).differences
    ]


@pytest.mark.parametrize("field", [f.name for f in fields(Layout)])
def test_every_field_makes_a_difference(field: str) -> None:
    changed: dict[str, Any] = {
        "sp": True,
        "sharding": "zero1",
        "recompute": "full",
        "recompute_method": "block",
        "schedule": "gpipe",
        "offload": "weights",
        "optimizer": "adam-8bit",
    }
    changed |= {"recompute_modules": ("mlp",), "layers_per_stage": (2, 2)}
    other = replace(Layout(), **{field: changed.get(field, 2)})
    assert [d.field for d in compare(values(Layout()), values(other)).differences] == [field]


def test_recompute_is_execution_only() -> None:
    assert labels("tp=8,dp=4,recompute=full", "tp=8,dp=4") == {"recompute": ["execution only"]}


def test_tensor_parallelism_reshards_and_dp_follows() -> None:
    found = of_words("tp=8,pp=4", "tp=4,pp=4")
    assert found.labels == ("reshard the checkpoint",)
    assert found.notes == (
        (
            "tp * cp * pp goes from 32 to 16: on the same chips dp of B is 2 times A's, which"
            " changes data order"
        ),
    )


def test_dp_with_sharded_states_reshards_too() -> None:
    assert labels("dp=4,sharding=zero1", "dp=8,sharding=zero1") == {
        "dp": ["changes data order", "reshard the checkpoint"]
    }
    assert labels("dp=4", "dp=8") == {"dp": ["changes data order"]}


def test_cp_for_dp_leaves_the_shards_as_they_are() -> None:
    found = labels("dp=8,sharding=zero1", "dp=4,cp=2,sharding=zero1")
    assert found == {"cp": ["execution only"], "dp": ["changes data order"]}


def test_micro_batches_change_the_training_of_experts_only() -> None:
    assert labels("mbs=1", "mbs=2") == {"mbs": ["changes data order"]}
    assert labels("mbs=1", "mbs=2", has_experts=True) == {
        "mbs": ["changes data order", "changes training"]
    }


def test_another_batch_is_another_training() -> None:
    assert of_words("gbs=8", "gbs=16").labels[-1] == "changes training"


def test_a_field_without_default_is_compared_where_both_say_it() -> None:
    found = of_words("tp=8,dp=4", "tp=8")
    assert found.differences == ()
    assert found.notes == ("dp is said on one side only (A: 4)",)


def test_requests_are_compared_too() -> None:
    found = compare(
        {"tp": 8, "seq_len": 8192, "precision": "bf16"},
        {"tp": 8, "seq_len": 4096, "precision": "fp8"},
    )
    trained = {
        d.field
        for d in found.differences
        if "changes training" in {meaning.label for meaning in d.meanings}
    }
    assert trained == {"seq_len", "precision"}
