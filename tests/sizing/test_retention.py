"""Which checkpoints stay, by hand and for any losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.sizing.checkpoints import (
    Choice,
    Retention,
    Saved,
    choose,
    peak_checkpoints,
    simulate,
)
from meshwright.values.errors import ConfigError


def saves(*losses: float | None) -> list[Saved]:
    return [Saved(step=100 * place, loss=loss) for place, loss in enumerate(losses, 1)]


RULES = st.builds(
    Retention,
    best=st.integers(0, 3),
    last=st.integers(1, 3),
    keep_every=st.sampled_from([None, 200, 300]),
    drop_states=st.booleans(),
)
LOSSES = st.lists(
    st.one_of(st.none(), st.sampled_from([1.0, 2.0, 2.5, 3.0, float("nan")])), max_size=12
)


def test_a_run_by_hand() -> None:
    """The best two and the newest: of 3.0 2.0 2.5 2.0 none 2.2 stay 200 and 400 (equal, both best)
    and 600."""
    found = simulate(
        saves(3.0, 2.0, 2.5, 2.0, None, 2.2), Retention(best=2), full_bytes=10, stripped_bytes=2
    )
    kept = [[one.step for one in moment.kept] for moment in found]
    assert kept == [[100], [100, 200], [200, 300], [200, 400], [200, 400, 500], [200, 400, 600]]
    assert [moment.peak_bytes for moment in found] == [10, 20, 30, 30, 30, 40]
    assert [moment.bytes for moment in found] == [10, 20, 20, 20, 30, 30]


def test_of_equal_losses_the_newer_is_better_and_no_number_is_never_best() -> None:
    assert choose(saves(2.0, 2.0, float("nan"), None), Retention(best=1)).delete == (100, 300)


def test_marked_ones_stay_and_old_ones_lose_their_states_once() -> None:
    rule = Retention(best=1, last=1, keep_every=200, drop_states=True)
    found = simulate(saves(1.0, 2.0, 3.0, 4.0), rule, full_bytes=10, stripped_bytes=2)
    assert [moment.choice for moment in found] == [
        Choice(delete=(), strip=()),
        Choice(delete=(), strip=(100,)),
        Choice(delete=(), strip=(200,)),
        Choice(delete=(300,), strip=()),
    ]
    assert [moment.bytes for moment in found] == [10, 12, 14, 14]


def test_what_a_run_can_not_go_on_from_is_not_the_newest() -> None:
    """Somebody took the optimizer states of step 900 away: it goes, and step 500 stays."""
    found = [Saved(step=500), Saved(step=900, has_states=False)]
    assert choose(found, Retention(best=0)) == Choice(delete=(900,), strip=())


@given(RULES, LOSSES)
def test_the_newest_always_stays_whole_and_the_disk_keeps_its_bound(
    rule: Retention, losses: list[float | None]
) -> None:
    given_saves = saves(*losses)
    found = simulate(given_saves, rule, full_bytes=10, stripped_bytes=2)
    marked = sum(1 for one in given_saves if rule.keep_every and one.step % rule.keep_every == 0)
    full, stripped = peak_checkpoints(rule, saves=len(given_saves), marked=marked)
    for moment in found:
        assert moment.kept[-1].step == moment.saved.step
        assert moment.saved.has_states
        assert moment.peak_bytes <= full * 10 + stripped * 2
        assert choose(moment.kept, rule) == Choice(
            delete=(), strip=()
        )  # a second look changes nothing


@given(RULES, LOSSES)
def test_the_best_of_all_losses_is_kept(rule: Retention, losses: list[float | None]) -> None:
    found = simulate(saves(*losses), rule, full_bytes=10, stripped_bytes=2)
    rated = [one.loss for one in saves(*losses) if one.loss is not None and one.loss == one.loss]
    if rated and rule.best:
        assert min(
            one.loss for one in found[-1].kept if one.loss is not None and one.loss == one.loss
        ) == min(rated)


def test_rules_that_keep_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="last=0"):
        Retention(last=0)
    with pytest.raises(ConfigError, match="best=-1"):
        Retention(best=-1)
    with pytest.raises(ConfigError, match="keep_every=0"):
        Retention(keep_every=0)
