"""Pipelines simulated together take what each takes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost.schedules import Pipeline
from meshwright.cost.simulate import steady_step_s, steady_steps_s

seconds = st.floats(0.05, 3.0)


@st.composite
def pipelines(draw: st.DrawFn) -> list[Pipeline]:
    """Up to four pipelines of one shape with any times."""
    pp, vpp = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    micro = pp * draw(st.integers(1, 40))

    def times() -> list[float]:
        return draw(st.lists(seconds, min_size=pp * vpp, max_size=pp * vpp))

    return [
        Pipeline(
            schedule="interleaved" if vpp > 1 else "1f1b",
            pp=pp,
            vpp=vpp,
            num_microbatches=micro,
            forward_s=times(),
            backward_s=times(),
            link_s=draw(st.lists(st.floats(0.0, 1.0), min_size=pp, max_size=pp)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]


def together(many: list[Pipeline]) -> list[float]:
    """Simulate pipelines of one shape at once."""
    columns = {
        "forward_s": [p.forward_s for p in many],
        "backward_s": [p.backward_s for p in many],
        "links_s": [p.links_s for p in many],
    }
    found = steady_steps_s(
        many[0], **{name: np.array(column, dtype=np.float64) for name, column in columns.items()}
    )
    return [float(seconds) for seconds in found]


@settings(max_examples=60, deadline=None)
@given(many=pipelines())
def test_together_they_take_what_each_takes_alone(many: list[Pipeline]) -> None:
    np.testing.assert_allclose(
        together(many), [steady_step_s(pipeline) for pipeline in many], rtol=1e-8
    )


def test_two_stages_by_hand() -> None:
    """Forwards of 1 and 2, backwards of 2 and 3, two micro batches: 1 + (2 + 3) * 2 + 2; with twice
    the times twice that."""
    one = Pipeline(schedule="1f1b", pp=2, num_microbatches=2, forward_s=[1, 2], backward_s=[2, 3])
    assert together([one, replace(one, forward_s=[2, 4], backward_s=[4, 6])]) == [13, 26]


def test_messages_that_stop_a_stage_are_simulated_too() -> None:
    one = Pipeline(
        schedule="1f1b",
        pp=2,
        num_microbatches=4,
        forward_s=[1, 2],
        backward_s=[2, 3],
        link_s=0.5,
        p2p="blocking",
    )
    assert together([one])[0] == pytest.approx(steady_step_s(one))
