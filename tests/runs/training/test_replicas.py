from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.runs.training.prepare import divide
from meshwright.values.layout import Layout

PLAN = Layout(tp=8, pp=4, dp=2, mbs=1, gbs=512)


def test_a_plan_on_other_numbers_of_gpus() -> None:
    """tp 8 * pp 4 = 32 GPUs a replica."""
    found = divide(PLAN, gpus=256, gpus_per_node=8)
    assert (found.dp, found.micro_batches) == (8, 64)
    assert (
        found.words(PLAN)
        == "256 GPUs / (tp 8 * cp 1 * pp 4) = dp 8; gbs 512 / (mbs 1 * dp 8) = 64 micro batches"
    )


def test_gpus_that_are_no_whole_replicas() -> None:
    found = divide(PLAN, gpus=60, gpus_per_node=8)
    assert not found.divides
    assert found.nearest_gpus == (32, 64, 128)
    assert (
        found.words(PLAN)
        == "60 GPUs are no multiple of tp 8 * cp 1 * pp 4 = 32; 32, 64, 128 GPUs would do"
    )


def test_a_batch_that_does_not_divide() -> None:
    """96 GPUs are 3 replicas, and 512 sequences are not divisible by 3."""
    found = divide(PLAN, gpus=96, gpus_per_node=8)
    assert (found.dp, found.micro_batches) == (3, None)
    assert found.nearest_gbs == (510, 513)
    assert found.words(PLAN).startswith(
        "96 GPUs / (tp 8 * cp 1 * pp 4) = dp 3, but gbs 512 is no multiple of mbs 1 * dp 3; 32, 64,"
        " 128 GPUs or"
    )


def test_context_ranks_count() -> None:
    """Older documents divide by tp * pp alone: 8 GPUs would seem to hold two replicas of tp 2, pp
    2, cp 2."""
    assert divide(Layout(tp=2, pp=2, cp=2, mbs=1, gbs=8), gpus=8, gpus_per_node=8).dp == 1


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 200),
    st.integers(1, 300),
)
def test_remedies_divide(tp: int, pp: int, cp: int, mbs: int, batches: int, gpus: int) -> None:
    layout = Layout(tp=tp, pp=pp, cp=cp, mbs=mbs, gbs=mbs * batches)
    found = divide(layout, gpus=gpus, gpus_per_node=8)
    for count in found.nearest_gpus:
        assert divide(layout, gpus=count, gpus_per_node=8).divides
    for gbs in found.nearest_gbs:
        assert gbs % (mbs * (found.dp or 1)) == 0
    assert found.divides == (
        gpus % (tp * pp * cp) == 0 and layout.gbs % (mbs * (gpus // (tp * pp * cp))) == 0
    )
