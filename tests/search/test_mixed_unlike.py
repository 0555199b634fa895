"""Kinds of chips with unlike dp and mbs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.search.mixed.grid import make_grid
from meshwright.search.mixed.near import with_unlike_batches
from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.problem import resolve
from meshwright.search.request import PlanRequest
from meshwright.search.space import Rejections
from meshwright.values.errors import ConfigError

STACK = "megatron-no-overlap"
PINS = {"cp": [1], "vpp": [4], "mbs": [1, 2], "tp": [1, 2, 4], "dp": [16, 32]}
ASKED: dict[str, Any] = {
    "model": "llama2-13b",
    "seq_len": 4096,
    "cluster": "l40s:48,a800:96",
    "gbs": 128,
    "pins": PINS,
    "stack": STACK,
}


def test_unlike_batches_are_found_where_they_are_faster() -> None:
    """A stage of less tp and smaller micro batches on more replicas; dp * mbs and the number of
    micro batches stay common."""
    shared, unlike = (
        search_mixed_plans(PlanRequest.of({**ASKED, "unlike_batch": wanted}))
        for wanted in (False, True)
    )
    best = unlike.plans[0]
    assert best.step_s < shared.plans[0].step_s and best.mixed is not None
    assert len({stage.dp for stage in best.mixed.stages}) == 2
    assert len({stage.dp * stage.mbs for stage in best.mixed.stages}) == 1
    assert unlike.proof == shared.proof
    assert best.to_dict()["layout"]["dp"] is None and "around the best plans alone" in " ".join(
        unlike.notes
    )
    steps = {plan.step_s for plan in unlike.plans}
    assert any(plan.step_s in steps for plan in shared.plans), (
        "plans that share both stay beside them"
    )


def test_options_of_the_second_phase_share_all_but_dp_and_mbs() -> None:
    grid = make_grid(resolve_mixed(PlanRequest.of(ASKED)), Rejections())
    wide = with_unlike_batches(grid, {0, 1})
    for options in wide.options:
        rows = options.layouts
        assert (rows.dp * rows.mbs == (wide.commons.dp * wide.commons.mbs)[options.common]).all()
        assert (rows.num_microbatches == wide.num_microbatches[options.common]).all()
        assert (options.stages * options.chips <= 96).all()
    assert len(np.unique(wide.options[0].layouts.dp)) > 1


def test_one_kind_of_chip_is_refused() -> None:
    for fields in ({"cluster": "h100:16"}, {"cluster": "h100:16", "num_gpus": 8}):
        request = PlanRequest.of({**ASKED, **fields, "unlike_batch": True})
        with pytest.raises(ConfigError, match="unlike_batch: of plans over several kinds of chips"):
            (resolve_mixed if "num_gpus" in fields else resolve)(request)
