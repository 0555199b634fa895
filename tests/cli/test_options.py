from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest

from meshwright.cli import commands, run
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.platforms.job import JobOptions
from meshwright.search.request import PlanRequest
from meshwright.values.options import Option


def _double(text: str) -> int:
    return 2 * int(text)


@dataclass(frozen=True, kw_only=True)
class Asked:
    place: Annotated[str, Option("Where.", metavar="PLACE", is_file=True)] = "here"
    way: Annotated[Literal["a", "b"] | None, Option("How.", ("--how",))] = None
    twice: Annotated[int, Option("Doubled.", kind=str, read=_double)] = 3
    loud: Annotated[bool, Option("Aloud.")] = False
    words: Annotated[tuple[str, ...], Option("Many.", ("--word",))] = ()
    hidden: int = 1


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def help_of(parameter: inspect.Parameter) -> str:
    return str(get_args(parameter.annotation)[1].help)


def test_fields_become_options_of_their_types_with_their_defaults() -> None:
    @command
    def asks(given: Given = fields_of(Asked)) -> None: ...

    found = parameters(asks)
    assert list(found) == ["place", "way", "twice", "loud", "words"]
    kinds = [get_args(parameter.annotation)[0] for parameter in found.values()]
    assert kinds == [Path | None, str | None, str | None, bool, list[str] | None]
    assert help_of(found["place"]) == "Where. [default: here]"
    assert help_of(found["way"]) == "How."
    assert all(parameter.default in (None, False) for parameter in found.values())


def test_the_body_gets_what_was_given_as_the_request_takes_it() -> None:
    got: list[Any] = []

    @command
    def asks(given: Given = fields_of(Asked), own: int = option(7, "Own.")) -> None:
        got.append((given, own))

    asks(place=Path("there"), way=None, twice="4", loud=False, words=[], own=0)
    assert got == [({"place": "there", "twice": 8}, 0)]


def test_zero_is_given() -> None:
    got: list[Given] = []

    @command
    def asks(given: Given = fields_of(PlanRequest, "headroom", "unlike_batch")) -> None:
        got.append(given)

    asks(headroom=0.0, unlike_batch=True)
    assert got == [{"headroom": 0.0, "unlike_batch": True}]


def test_a_command_chooses_fields_and_may_need_or_explain_them_otherwise() -> None:
    @command
    def asks(
        name: str = argument(REQUIRED, "Who."),
        given: Given = fields_of(Asked, "twice", "place", required=("place",), twice="Two times."),
    ) -> None: ...

    found = parameters(asks)
    assert list(found) == ["name", "twice", "place"]
    assert found["name"].default is found["place"].default is REQUIRED
    assert help_of(found["twice"]) == "Two times. [default: 3]"


def test_plan_has_an_option_for_every_field_of_its_request() -> None:
    assert set(PlanRequest.model_fields) <= set(parameters(commands()["plan"]))


def test_export_has_an_option_for_every_field_of_a_job() -> None:
    assert set(JobOptions.__dataclass_fields__) <= set(parameters(commands()["export"]))


def test_a_switch_has_no_negative_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "llama3-8b", "--no-unlike-batch"]) == 2
    assert "--no-unlike-batch: no such option" in capsys.readouterr().err


def test_a_default_that_the_command_line_writes_otherwise_is_shown_and_read() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Words:
        ways: Annotated[
            tuple[str, ...],
            Option("Ways.", ("--way",), kind=str, read=lambda text: text.split(","), usual="a,b"),
        ] = ("a", "b")

    seen: list[Given] = []

    @command
    def asks(given: Given = fields_of(Words)) -> None:
        seen.append(given)

    found = parameters(asks)["ways"]
    assert (found.default, help_of(found)) == ("a,b", "Ways.")
    asks(ways=found.default)
    asks(ways="c")
    assert seen == [{"ways": ["a", "b"]}, {"ways": ["c"]}]
