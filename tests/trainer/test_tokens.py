"""Which tokens context-parallel ranks hold; needs no torch."""

from __future__ import annotations

import pytest

from meshwright.trainer.job import ContextWord, own_runs


def test_runs_of_a_ring_are_a_zigzag() -> None:
    """16 tokens on 2 ranks: runs of 4, the outer two on rank 0, the inner two on rank 1."""
    assert own_runs(16, cp=2, place=0, context="ring") == (range(4), range(12, 16))
    assert own_runs(16, cp=2, place=1, context="ring") == (range(4, 8), range(8, 12))
    assert own_runs(16, cp=2, place=1, context="all-to-all") == (range(8, 16),)
    assert own_runs(16, cp=1, place=0, context="ring") == (range(16),)


@pytest.mark.parametrize("context", ["ring", "all-to-all"])
@pytest.mark.parametrize("cp", [1, 2, 3, 4])
def test_every_token_is_on_one_rank(cp: int, context: ContextWord) -> None:
    held = [
        token
        for place in range(cp)
        for run in own_runs(48, cp=cp, place=place, context=context)
        for token in run
    ]
    assert sorted(held) == list(range(48))


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_under_a_causal_mask_ranks_of_a_ring_have_the_same_work(cp: int) -> None:
    """A token at place p attends to p + 1 tokens."""
    work = {
        sum(token + 1 for run in own_runs(48, cp=cp, place=place, context="ring") for token in run)
        for place in range(cp)
    }
    assert work == {48 * 49 // 2 // cp}
