from __future__ import annotations

import pytest
from tests.runs.loads.standin import Manners, standing_in

from meshwright.runs.loads.client import (
    Dialect,
    Target,
    find_dialect,
    find_model,
    next_dialect,
    send_load,
)
from meshwright.runs.loads.figures import Limits, figures_of
from meshwright.runs.loads.load import Ask, Lengths, Load, closed_loop, poisson
from meshwright.runs.loads.measure import measure_server
from meshwright.values.errors import ConfigError, ServerError

LENGTHS = Lengths(input_len=16, output_len=5)
SLACK_S = 5.0
"""How late a thread or a packet may come on a busy machine."""


def target(url: str) -> Target:
    return Target(url=url, vocab=320)


def test_times_of_a_closed_loop_are_those_of_the_server() -> None:
    manners = Manners(first_s=0.05, each_s=0.02)
    with standing_in(manners) as url:
        where = target(url)
        answers = send_load(where, find_dialect(where), closed_loop(2, LENGTHS, requests=6))
    assert manners.most_running == 2  # no client sends before its last answer is there
    assert len(answers) == 6
    for answer in answers:
        assert answer.error is None
        assert 0.05 <= answer.ttft_s < 0.05 + SLACK_S
        # four gaps of 20 ms: a sleep is never shorter
        assert answer.last_s is not None
        assert 0.13 <= answer.e2e_s < 0.13 + SLACK_S
        assert answer.tpot_s == pytest.approx(sum(answer.gaps_s) / 4)
        assert (answer.prompt_tokens, answer.output_tokens) == (11, 5)  # as the server counts


def test_prompts_have_the_length_and_are_each_another() -> None:
    manners = Manners(first_s=0.0, each_s=0.0)
    with standing_in(manners) as url:
        send_load(target(url), Dialect(model="stand-in"), closed_loop(1, LENGTHS, requests=3))
    prompts = [tuple(asked["prompt"]) for asked in manners.seen]
    assert {len(prompt) for prompt in prompts} == {16}
    assert len(set(prompts)) == 3
    assert all(
        20 <= token < 300 for prompt in prompts for token in prompt
    )  # a sixteenth of 320 at both ends is left out


def test_requests_of_a_trace_are_sent_at_their_times() -> None:
    asks = tuple(Ask(input_len=4, output_len=2, sent_s=at) for at in (0.0, 0.1, 0.3))
    with standing_in(Manners(first_s=1.5, each_s=0.0)) as url:
        answers = send_load(
            target(url), Dialect(model="stand-in"), Load(kind="trace", value=None, asks=asks)
        )
    for answer, at in zip(answers, (0.0, 0.1, 0.3), strict=True):
        assert answers[0].first_s is not None
        assert at <= answer.sent_s < answers[0].first_s  # nobody waits for an answer


def test_poisson_arrivals_have_their_mean_rate() -> None:
    load = poisson(50.0, LENGTHS, requests=2000)
    assert load.asks[0].sent_s == 0.0
    last = load.asks[-1].sent_s
    assert last is not None
    # 1999 exponential gaps of 20 ms: the mean is within 3 standard deviations, 3 / sqrt(1999) = 6.7
    # %
    assert last == pytest.approx(1999 / 50.0, rel=0.067)


@pytest.mark.parametrize("names_them", [True, False])
def test_refused_fields_are_left_out_and_said(names_them: bool) -> None:
    manners = Manners(
        refuses=("ignore_eos", "min_tokens"),
        names_them=names_them,
        ends_early_at=3,
        first_s=0.0,
        each_s=0.0,
    )
    with standing_in(manners) as url:
        (found,) = measure_server(target(url), [closed_loop(1, LENGTHS, requests=2)])
    assert (
        found.figures.output_tokens == 6
    )  # two answers that ended at three tokens each, as they came
    assert (
        "the server refuses ignore_eos: answers may end before they have their length"
        in found.notes
    )
    assert "stream_options" in manners.seen[-1]  # what is taken stays


def test_a_server_that_takes_text_alone_gets_words() -> None:
    manners = Manners(takes_ids=False, first_s=0.0, each_s=0.0)
    with standing_in(manners) as url:
        dialect = find_dialect(target(url))
        send_load(target(url), dialect, closed_loop(1, LENGTHS, requests=1))
    assert (dialect.prompt, dialect.left_out) == ("text", ())
    assert len(manners.seen[-1]["prompt"].split()) == 16


def test_a_server_with_chat_alone_gets_messages() -> None:
    manners = Manners(has_completions=False, first_s=0.0, each_s=0.0)
    with standing_in(manners) as url:
        dialect = find_dialect(target(url))
        answers = send_load(target(url), dialect, closed_loop(1, LENGTHS, requests=1))
    assert dialect.endpoint == "/v1/chat/completions"
    assert answers[0].output_tokens == 5
    assert any("chat template" in note for note in dialect.notes())


def test_without_usage_messages_are_counted() -> None:
    manners = Manners(refuses=("stream_options",), per_message=2, first_s=0.0, each_s=0.0)
    with standing_in(manners) as url:
        dialect = find_dialect(target(url))
        answers = send_load(target(url), dialect, closed_loop(1, LENGTHS, requests=1))
    assert answers[0].output_tokens == 3  # 5 tokens in messages of 2
    assert dialect.notes() == ("the server refuses stream_options: tokens are counted by messages",)


def test_a_cut_answer_and_a_refusal_are_failures_with_their_words() -> None:
    with standing_in(Manners(breaks_after=2, first_s=0.0, each_s=0.0)) as url:
        (cut,) = send_load(
            target(url), Dialect(model="stand-in"), closed_loop(1, LENGTHS, requests=1)
        )
    assert cut.error is not None and "peer closed connection" in cut.error
    with standing_in(Manners(fails_with=500, fails_from=2, first_s=0.0, each_s=0.0)) as url:
        answers = send_load(
            target(url), Dialect(model="stand-in"), closed_loop(1, LENGTHS, requests=5)
        )
    figures = figures_of(answers)
    assert (figures.requests, figures.failed) == (2, 3)
    assert figures.first_error == 'status 500: {"error": {"message": "out of pages"}}'


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ServerError, match=r"no list of models .*; is the server there\?"):
        find_model(Target(url="http://127.0.0.1:9", patience_s=2.0))


def test_every_refusal_ends_somewhere() -> None:
    dialect: Dialect | None = Dialect(model="m")
    steps = 0
    while dialect is not None:
        dialect = next_dialect(dialect, status=400, answer="no")
        steps += 1
    assert steps == 6  # four fields, ids, and the end
    assert (
        next_dialect(Dialect(model="m"), status=500, answer="ignore_eos") is None
    )  # a broken server is no matter of words


def test_goodput_counts_what_keeps_every_limit() -> None:
    with standing_in(Manners(first_s=0.05, each_s=0.0)) as url:
        loads = [closed_loop(1, LENGTHS, requests=4)]
        (strict,) = measure_server(target(url), loads, limits=Limits(ttft_s=0.01))
        (lax,) = measure_server(target(url), loads, limits=Limits(ttft_s=5.0, e2e_s=9.0))
        (none,) = measure_server(target(url), loads)
    assert strict.figures.good_per_s == 0.0
    assert lax.figures.good_per_s == pytest.approx(lax.figures.requests_per_s)
    assert none.figures.good_per_s is None


def test_bad_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        Target(url="localhost:8000")
