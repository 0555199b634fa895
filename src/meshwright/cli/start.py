"""What `meshwright` alone asks on a terminal: a model, chips, and what they are for."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from meshwright.values.errors import MeshwrightError, UnknownNameError
from meshwright.values.units import parse_tokens

__all__ = ["ask_command"]

Read = Callable[[str], str]
_MODEL, _CLUSTER = "llama3-8b", "h100:8"
_SEQ = "8192"
"""Tokens in one sequence where nobody said: what Llama 3 was trained with."""
_HELLO = "Three questions lead to a first answer; Enter takes what stands in brackets."
_QUESTIONS = (
    f"Which model? A name, or the path of a config.json [{_MODEL}]: ",
    f"Which chips, and how many? [{_CLUSTER}]: ",
    (
        "What for? `layout` is the fastest way to train, a number of tokens such as 2T its days and"
        " cost, `serve` a deployment [layout]: "
    ),
)
_LAYOUT, _SERVE = "layout", "serve"


def ask_command(read: Read, say: Callable[[str], None]) -> list[str]:
    """Ask the three questions, each again until its answer can be used, and return the words of
    the command that answers; it is said, so that it can be run again."""
    say(_HELLO)
    ask_model, ask_cluster, ask_goal = _QUESTIONS
    model = _answer(read, say, ask_model, usual=_MODEL, check=_model_words)
    cluster = _answer(read, say, ask_cluster, usual=_CLUSTER, check=_cluster_words)
    goal = _answer(read, say, ask_goal, usual=_LAYOUT, check=_goal_words)
    words = [goal[0], *model, *cluster, *goal[1:]]
    if words[0] == _SERVE:
        words = ["serving", "plan", *words[1:]]
    say(f"\n$ meshwright {shlex.join(words)}\n")
    return words


def _answer(
    read: Read,
    say: Callable[[str], None],
    question: str,
    *,
    usual: str,
    check: Callable[[str], list[str]],
) -> list[str]:
    while True:
        given = read(question).strip() or usual
        try:
            return check(given)
        except MeshwrightError as error:
            say(f"{error}")


def _model_words(given: str) -> list[str]:
    from meshwright.values.models.catalogue import named_model

    if Path(given).exists():
        from meshwright.platforms.given import read_hf_config

        read_hf_config(Path(given))
        return ["--hf", given]
    named_model(given)
    return [given]


def _cluster_words(given: str) -> list[str]:
    from meshwright.platforms.given import cluster_from_flag

    cluster_from_flag(given)
    return ["--cluster", given]


def _goal_words(given: str) -> list[str]:
    if given == _LAYOUT:
        return ["plan", "--seq", _SEQ]
    if given == _SERVE:
        return [_SERVE]
    if not given[:1].isdigit():
        raise UnknownNameError("goal", given, (_LAYOUT, _SERVE), hint=", or tokens such as 2T")
    parse_tokens(given, name="tokens")
    return ["estimate", "--seq", _SEQ, "--tokens", given]
