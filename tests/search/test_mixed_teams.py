"""Sets of pools that work together: more chips never hurt, and slower ones never help."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.problem import Files
from meshwright.search.request import PlanRequest
from meshwright.search.result import PlanResult
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Cluster
from meshwright.values.hardware.parse import parse_cluster

LLAMA: dict[str, Any] = {"model": "llama3-8b", "seq_len": 4096, "gbs": 256, "top": 1}
ALONE = search_mixed_plans(PlanRequest.of({**LLAMA, "cluster": "h100:64", "num_gpus": 64}))
CHIPS = ("a100-40", "a800", "h100", "h800", "l40s", "mi300x", "v100-32")
ROUNDING = 1 + 1e-9


def planned(cluster: Cluster, **fields: Any) -> PlanResult:
    asked = {"seq_len": 2048, "headroom": 0, "top": 1, **fields}
    request = PlanRequest.of({**asked, "cluster": cluster.name, "min_tokens_per_s": 1e-3})
    return search_mixed_plans(request, files=Files(cluster=cluster))


def test_an_old_pool_does_not_choose_the_number_format_of_the_others() -> None:
    """Volta has neither bf16 nor flash attention: it stays idle, and what that spares is said."""
    both = search_mixed_plans(PlanRequest.of({**LLAMA, "cluster": "v100-32:8,h100:64"}))
    assert both.request.precision == "bf16" and both.request.attention == "flash"
    assert both.best.step_s == pytest.approx(ALONE.best.step_s, rel=1e-12)
    assert both.best.chips == (("v100-32", 0, 8), ("h100", 64, 0))
    assert any("v100-32 stay idle: with them all" in note for note in both.notes)
    assert any(note.startswith("not searched: unlike tp within a pool") for note in both.notes)


def test_chips_that_lack_what_is_asked_for_are_left_out() -> None:
    asked = PlanRequest.of({**LLAMA, "cluster": "h100:64,v100-32:8", "precision": "bf16"})
    assert resolve_mixed(asked).team == (0,)
    result = search_mixed_plans(asked)
    assert result.best.step_s == pytest.approx(ALONE.best.step_s, rel=1e-12)
    assert any(note.startswith("v100-32 is left out: ") for note in result.notes)
    fp16 = asked.model_copy(update={"precision": "fp16"})
    assert resolve_mixed(fp16).team == (0, 1)
    with pytest.raises(ConfigError, match="v100"):
        resolve_mixed(asked.model_copy(update={"cluster": "v100-32:8"}))


def test_each_maker_has_its_software_where_the_others_stay_idle() -> None:
    fields = {**LLAMA, "gbs": 64}
    alone = search_mixed_plans(PlanRequest.of({**fields, "cluster": "h100:64", "num_gpus": 64}))
    both = search_mixed_plans(PlanRequest.of({**fields, "cluster": "h100:64,mi300x:1"}))
    assert both.best.step_s <= alone.best.step_s * ROUNDING
    assert both.request.stack == alone.request.stack == "megatron-bridge"


@pytest.mark.parametrize("seed", range(8))
def test_more_chips_never_lengthen_a_step_and_slower_ones_never_shorten_it(seed: int) -> None:
    draw = Random(seed)
    kinds = draw.sample(CHIPS, draw.choice((2, 2, 3)))
    counts = [draw.choice((1, 2, 2, 3, 4)) for _ in kinds]
    model = f"layers={draw.randint(2, 5)},hidden=2048,heads=16,ffn=8192,vocab=32000"
    fields = {"model": model, "gbs": draw.choice((4, 8, 12, 16))}
    words = [f"{kind}:{count}" for kind, count in zip(kinds, counts, strict=True)]
    whole = parse_cluster(",".join(words), gpus_per_node=4)
    step_s = planned(whole, **fields).best.step_s

    part = planned(parse_cluster(",".join(words[:-1]), gpus_per_node=4), **fields)
    assert not part.plans or step_s <= part.best.step_s * ROUNDING

    first, *rest = whole.pools
    more = replace(whole, pools=(replace(first, num_chips=first.num_chips + 2), *rest))
    assert planned(more, **fields).best.step_s <= step_s * ROUNDING

    link = first.node.network_link
    slow = replace(first.node, network_link=replace(link, bytes_per_s=link.bytes_per_s / 2))
    chip = first.node.chip
    cold = replace(first.node, chip=replace(chip, memory_bytes_per_s=chip.memory_bytes_per_s / 2))
    for node in (slow, cold):
        slower = replace(whole, pools=(replace(first, node=node), *rest))
        assert planned(slower, **fields).best.step_s >= step_s / ROUNDING
