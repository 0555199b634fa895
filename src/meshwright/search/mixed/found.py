"""What a search over several kinds of chips brings."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.search.mixed.blocks import Block, Case, Solved

__all__ = ["SAME", "Found", "Outcome"]

SAME = 1e-9
"""Relative difference below which two plans are equally good."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One plan by the closed form."""

    score: float
    """Smaller is better, see Score."""
    step_s: float
    common: int
    cuts: tuple[tuple[int, int], ...]
    """Pool and option of each block."""
    blocks: tuple[Block, ...]
    case: Case
    solved: Solved

    @property
    def stages(self) -> tuple[object, ...]:
        """What tells plans apart: cuts, chunks, and layers and recomputation of each stage."""
        return (
            self.cuts,
            self.case.vpp,
            tuple((stage.layers, stage.way, stage.redone) for stage in self.solved.stages),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search brought."""

    best: tuple[Found, ...]
    """Best first, one of each group of plans that share their cuts, with one chunk per stage and
    with several."""
    near: tuple[Found, ...] = ()
    """Interleaved plans that the closed form takes for nearly as good, and the simulation for
    better than others; best first."""
    bound: float
    """No plan of the space scores less."""
    ways: int
    """Ways to cut, of which each stands for all its stages, orders and layers."""
    boxes: int
    solved: int

    @property
    def gap(self) -> float:
        """How much better than the best found a plan might be, as a share of it; 0 where none
        can."""
        if not self.best:
            return 0.0
        left = 1.0 - self.bound / self.best[0].score
        return left if left > SAME else 0.0
