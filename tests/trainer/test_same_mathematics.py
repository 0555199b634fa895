"""Every layout gives the loss curve of one process, on real gloo processes of this machine; needs
torch."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="trains with torch: pip install 'meshwright[train]'")

from tests.trainer.curves import BF16_STEPS, MODELS, STEPS, curves

pytestmark = pytest.mark.slow

WITHIN = 1e-4
"""Of the loss in fp32, over all steps."""
NORM_STEPS, NORM_WITHIN = 5, 1e-3
"""Of gradient norms, as a share; only the first steps, as rounding grows from one step to the
next."""
ON_TWO = [
    "dense:dp=2,sharding=zero2,recompute=full",
    "dense:dp=2,sharding=zero3,recompute=full,recompute_method=block,recompute_layers=1",
    "dense:tp=2,mbs=4,recompute=selective,recompute_modules=ops",
    "dense:cp=2,mbs=4,sharding=zero1",
    "dense:pp=2,vpp=2",
    "dense:pp=2,layers=3+1,schedule=zero-bubble,recompute=full",
    "tied:pp=2,vpp=2,schedule=zero-bubble",
    "windows:cp=2,mbs=4:ring",
    "alibi:cp=2,mbs=4,recompute=selective:ring",
    "mla:tp=2,mbs=4,sp=1,recompute=selective,recompute_modules=mla_up_proj+mlp_act",
    "moe:tp=2,mbs=4,sp=1,ep=2,etp=1,recompute=selective,recompute_modules=moe_act+shared_experts",
]
ON_FOUR = [
    "dense:dp=4,mbs=1,sharding=hybrid,shard_size=2",
    "dense:dp=2,pp=2,vpp=2,sharding=zero3",
    "tied:tp=2,mbs=4,sp=1,pp=2",
    "moe:dp=2,cp=2,mbs=4,ep=4,sharding=zero3",
]
"""Each axis and each part of the trainer at least once; benchmarks/trainer_curves.py has every axis
and every pair."""
BF16 = "dense:dp=2,sharding=zero3:bf16"


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The curve of each model on one process."""
    return dict(zip(MODELS, curves(1, [f"{model}:" for model in MODELS]), strict=True))


@pytest.fixture(scope="module")
def together() -> dict[str, Any]:
    """The curve of each layout, and of the one in bf16."""
    return {
        case: curve
        for count, some in ((2, [*ON_TWO, BF16]), (4, ON_FOUR))
        for case, curve in zip(some, curves(count, some), strict=True)
    }


@pytest.mark.parametrize("case", [*ON_TWO, *ON_FOUR])
def test_every_layout_gives_the_curve_of_one_process(
    case: str, together: dict[str, Any], alone: dict[str, Any]
) -> None:
    found, expected = together[case], alone[case.partition(":")[0]]
    assert len(found) == STEPS
    pairs = list(zip(found, expected, strict=True))
    assert max(abs(ours["loss"] - theirs["loss"]) for ours, theirs in pairs) <= WITHIN
    assert (
        max(
            abs(ours["gradient_norm"] / theirs["gradient_norm"] - 1)
            for ours, theirs in pairs[:NORM_STEPS]
        )
        <= NORM_WITHIN
    )


def test_first_loss_is_that_of_an_even_guess(alone: dict[str, Any]) -> None:
    """Weights of 0.02 give logits near 0: the loss is near ln(512) over the padded vocabulary."""
    for curve in alone.values():
        assert curve[0]["loss"] == pytest.approx(math.log(512), abs=0.1)
        assert all(math.isfinite(line["gradient_norm"]) for line in curve)


def test_bf16_stays_near_fp32(together: dict[str, Any], alone: dict[str, Any]) -> None:
    """bf16 has 8 bits: losses of some units agree to about 1e-2."""
    plain = alone["dense"][:BF16_STEPS]
    assert [line["loss"] for line in together[BF16]] == pytest.approx(
        [line["loss"] for line in plain], abs=0.03
    )


@pytest.mark.parametrize(
    "name",
    [
        "ScheduleGPipe",
        "Schedule1F1B",
        "ScheduleInterleaved1F1B",
        "ScheduleInterleavedZeroBubble",
        "ScheduleZBVZeroBubble",
    ],
)
def test_a_pipeline_keeps_no_logits_of_past_micro_batches(name: str) -> None:
    """Torch's schedules gather the last stage's outputs for their caller unless told not to: 28 MiB
    of 107 on a tiny model."""
    from torch.distributed.pipelining import schedules

    from meshwright.trainer.pipeline import _kept_outputs

    assert _kept_outputs(getattr(schedules, name).step) == {"return_outputs": False}
    assert _kept_outputs(lambda tokens, target: None) == {}, "an older torch"
