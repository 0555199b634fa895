"""Whether a run starts again: the rules of `runs/watch/restart.py`, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.runs.outcome import FAILURE_CLASSES, Failure, FailureClass
from meshwright.runs.watch.restart import Attempt, RestartPolicy, next_start
from meshwright.values.errors import ConfigError


def ended(failure_class: FailureClass, *, saved: int | None, line: str | None = None) -> Attempt:
    return Attempt(
        failure=Failure(failure_class=failure_class, message="it broke", evidence=line),
        saved_step=saved,
    )


def test_a_run_that_ended_well_or_was_cancelled_is_left_alone() -> None:
    assert next_start([Attempt(failure=None, saved_step=500)]).action == "done"
    cancelled = Attempt(
        failure=Failure(failure_class="unknown", message="it was cancelled"),
        saved_step=500,
        cancelled=True,
    )
    assert next_start([cancelled]).action == "stop"


def test_a_failure_starts_again_and_the_wait_doubles_until_a_newer_checkpoint() -> None:
    policy = RestartPolicy(most_in_a_row=9, first_wait_s=30, longest_wait_s=100)
    classes: list[FailureClass] = ["node_failure", "hang", "host_oom", "unknown"]
    waits = []
    for count in range(1, 5):
        waits.append(
            next_start([ended(name, saved=1000) for name in classes[:count]], policy=policy).wait_s
        )
    assert waits == [30, 60, 100, 100]
    onwards = next_start(
        [*(ended(name, saved=1000) for name in classes), ended("hang", saved=1500)], policy=policy
    )
    assert (onwards.action, onwards.wait_s) == ("start", 30)
    assert onwards.why == "it broke; it starts again from step 1,500, restart 5 of 100 at most"


def test_the_same_way_twice_without_a_newer_checkpoint_stops_and_says_why() -> None:
    first = ended("nan_loss", saved=4000, line="loss nan at step 4812")
    assert next_start([first]).action == "start"
    stopped = next_start([first, ended("nan_loss", saved=4000, line="loss nan at step 4815")])
    assert stopped.action == "stop"
    assert stopped.why.startswith(
        "it failed the same way twice without a checkpoint behind step 4,000: it broke (loss nan at"
        " step 4815); "
    )
    between = ended("node_failure", saved=4000)
    assert next_start([first, between, first]).action == "stop"
    assert (
        next_start([first, ended("nan_loss", saved=4500, line="loss nan at step 4815")]).action
        == "start"
    )
    assert (
        next_start([first, ended("nan_loss", saved=4000, line="gradient norm inf")]).action
        == "start"
    )


def test_lost_nodes_may_come_twice_but_not_for_ever() -> None:
    lost = ended("node_failure", saved=1000)
    assert [next_start([lost] * count).action for count in (1, 2, 3, 4)] == [
        "start",
        "start",
        "start",
        "stop",
    ]
    assert (
        next_start([lost] * 4).why
        == "4 times without a checkpoint behind step 1,000 it ended (limit: 3 restarts in a row);"
        " last: it broke"
    )


def test_links_of_a_chain_start_at_once_and_count_for_no_limit() -> None:
    chain = [ended("time_limit", saved=1000 * link) for link in range(1, 300)]
    following = next_start(chain, policy=RestartPolicy(most=0, most_in_a_row=0))
    assert (following.action, following.wait_s) == ("start", 0)
    assert following.why == "its time was over; it goes on from step 299,000"
    too_short = [ended("time_limit", saved=None)] * 2
    assert next_start(too_short[:1]).action == "start"
    assert "too short" in next_start(too_short).why


def test_the_limit_of_all_restarts() -> None:
    jobs = [ended("hang", saved=100 * number) for number in range(1, 4)]
    assert next_start(jobs, policy=RestartPolicy(most=3)).action == "start"
    assert (
        next_start(jobs, policy=RestartPolicy(most=2)).why
        == "it failed 3 times in all (limit: 2 restarts); last: it broke"
    )


@given(
    st.lists(st.tuples(st.sampled_from(FAILURE_CLASSES), st.integers(0, 3)), min_size=1, max_size=8)
)
def test_no_run_goes_on_for_ever_without_a_newer_checkpoint(
    jobs: list[tuple[FailureClass, int]],
) -> None:
    """Whatever happened before: four more failures without a checkpoint end it, and waits keep
    their limit."""
    attempts = [ended(name, saved=step or None) for name, step in jobs]
    found = next_start(attempts)
    assert 0 <= found.wait_s <= RestartPolicy().longest_wait_s
    assert found.why
    newest = max((step for _, step in jobs), default=0) or None
    assert next_start([*attempts, *[ended("node_failure", saved=newest)] * 4]).action == "stop"


def test_bad_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="most_in_a_row=-1"):
        RestartPolicy(most_in_a_row=-1)
    with pytest.raises(ConfigError, match="first_wait_s=60, longest_wait_s=30"):
        RestartPolicy(first_wait_s=60, longest_wait_s=30)
