from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.search.plan import search_plans
from meshwright.search.request import PlanRequest

SMALL = {"model": "tiny-llama", "cluster": "v100-32:16", "seq_len": 512, "gbs": 16, "fastest": True}


def test_chips_that_slow_a_training_are_said_to() -> None:
    found = search_plans(PlanRequest.of(SMALL))
    eight = plan(PlanRequest.of({**SMALL, "cluster": "v100-32:8"}))
    assert found.fewer is not None
    assert (found.fewer.num_chips, found.fewer.step_s) == (8, eight.best.step_s)
    assert found.fewer.step_s < found.best.step_s
    [note] = [note for note in found.notes if "train faster" in note]
    assert note.startswith("8 of the 16 chips train faster")
    assert found.to_dict()["search"]["fewer_chips"]["num_chips"] == 8


def test_what_the_note_says_to_type_leaves_them_idle() -> None:
    found = search_plans(PlanRequest.of(SMALL))
    assert found.fewer is not None
    idle = plan(PlanRequest.of({**SMALL, "num_gpus": 16})).best
    assert idle.chips == (("v100-32", 8, 8),)
    assert idle.step_s == pytest.approx(found.fewer.step_s, rel=1e-9)


@pytest.mark.parametrize(
    "given", [{"cluster": "h100:64", "model": "llama3-8b", "gbs": 64}, {"cluster": "v100-32:8"}]
)
def test_nothing_is_said_where_all_are_of_use(given: dict[str, object]) -> None:
    assert search_plans(PlanRequest.of({**SMALL, **given})).fewer is None
