"""Which checkpoints stay: the rule that `meshwright ckpt plan` simulates and the embedded trainer
keeps.

Every rule is asked of what lies on disk, so that a run that was killed and started again decides
the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwright.errors import ConfigError

__all__ = ["Choice", "Moment", "Retention", "Saved", "choose", "peak_checkpoints", "simulate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """What stays of the checkpoints of a run; one that any of the rules keeps stays."""

    best: int = 10
    """As many with the least validation loss; of equal ones the newer. One without a loss, or whose
    loss is no number, is never best."""
    last: int = 1
    """The newest with optimizer states, from which a run goes on."""
    keep_every: int | None = None
    """And each whose step is a multiple of this, for ever; None keeps none for that."""
    drop_states: bool = False
    """Whether those that are not among the newest lose their optimizer states."""

    def __post_init__(self) -> None:
        if self.best < 0:
            raise ConfigError(f"best={self.best}: expected 0 or more checkpoints")
        if self.last < 1:
            raise ConfigError(
                f"last={self.last}: expected 1 or more; a run goes on from the newest checkpoint"
            )
        if self.keep_every is not None and self.keep_every < 1:
            raise ConfigError(f"keep_every={self.keep_every}: expected a number of steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One whole checkpoint on disk."""

    step: int
    loss: float | None = None
    """Of validation at that step; None where nobody evaluated."""
    has_states: bool = True
    """Whether its optimizer states are still there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is done when a checkpoint has become whole; steps, ascending."""

    delete: tuple[int, ...]
    strip: tuple[int, ...]
    """Those that lose their optimizer states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The disk behind one save of a simulated run."""

    saved: Saved
    choice: Choice
    kept: tuple[Saved, ...]
    """Behind the choice."""
    peak_bytes: float
    """While it was written: all that were there, and itself."""
    bytes: float
    """Behind the choice."""


def choose(saved: Iterable[Saved], rule: Retention) -> Choice:
    """Return what goes of the checkpoints on disk."""
    found = sorted(saved, key=lambda one: one.step)
    newest = {one.step for one in [one for one in found if one.has_states][-rule.last :]}
    rated = [one for one in found if one.loss is not None and math.isfinite(one.loss)]
    best = {one.step for one in sorted(rated, key=lambda one: (one.loss, -one.step))[: rule.best]}
    marked = {
        one.step for one in found if rule.keep_every is not None and one.step % rule.keep_every == 0
    }
    stays = newest | best | marked
    return Choice(
        delete=tuple(one.step for one in found if one.step not in stays),
        strip=tuple(
            one.step
            for one in found
            if rule.drop_states and one.has_states and one.step in stays - newest
        ),
    )


def simulate(
    losses: Sequence[Saved], rule: Retention, *, full_bytes: float, stripped_bytes: float
) -> list[Moment]:
    """Return the disk behind each save of a run, in the order in which the checkpoints are
    written."""
    kept: tuple[Saved, ...] = ()
    moments = []
    for one in losses:
        before = kept
        choice = choose([*before, one], rule)
        kept = tuple(
            replace(old, has_states=old.has_states and old.step not in choice.strip)
            for old in [*before, one]
            if old.step not in choice.delete
        )
        used = [
            sum(full_bytes if old.has_states else stripped_bytes for old in olds)
            for olds in (before, kept)
        ]
        moments.append(
            Moment(
                saved=one, choice=choice, kept=kept, peak_bytes=used[0] + full_bytes, bytes=used[1]
            )
        )
    return moments


def peak_checkpoints(rule: Retention, *, saves: int | None, marked: int) -> tuple[int, int]:
    """Most checkpoints on disk at once, whatever the losses: those with optimizer states, and those
    that lost them.

    Formula:  best + last + 1 that is being written, and each that `keep_every` keeps (`marked`); at
              most all `saves`. Where old ones lose their states, last + 1 have them and the others
              have not
    Units:    checkpoints.
    Source:   the rules of `choose`; the new one is whole before an old one goes
    Valid:    an upper end: a checkpoint that two rules keep is counted twice
    Checked:  tests/checkpoints/test_retention.py: against `simulate`
    """
    whole = rule.last + 1 + (0 if rule.drop_states else rule.best + marked)
    stripped = rule.best + marked if rule.drop_states else 0
    if saves is None:
        return whole, stripped
    whole = min(whole, saves)
    return whole, min(stripped, saves - whole)
