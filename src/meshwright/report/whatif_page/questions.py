"""The page's questions by name: a server answers them, or a worker of the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from meshwright.report.whatif_page.answers import Answers
from meshwright.report.whatif_page.choices import choices_record
from meshwright.report.whatif_page.state import WhatIf, read_state
from meshwright.values.errors import ConfigError, MeshwrightError

__all__ = ["QUESTIONS", "Comparison", "reply"]

Comparison = Callable[[WhatIf], dict[str, Any]]
"""Answers `compare` of several clusters, which stands above the rooms that the page reads."""
Words = Mapping[str, str]


def _number(words: Words, name: str) -> int | None:
    return int(words[name]) if words.get(name, "").isdecimal() else None


QUESTIONS: Mapping[str, Callable[[Answers, Words], dict[str, Any]]] = {
    "choices": lambda answers, words: choices_record(),
    "price": lambda answers, words: answers.price(
        _state(words), moved=words.get("moved"), was=_number(words, "was")
    ),
    "near": lambda answers, words: answers.near(_state(words)),
    "pictures": lambda answers, words: answers.pictures(
        _state(words), wide=_number(words, "wide") or 900
    ),
    "plan": lambda answers, words: answers.plan(_state(words)),
    "serve": lambda answers, words: answers.serve(_state(words)),
    "compare": lambda answers, words: answers.compare(_state(words)),
    "export": lambda answers, words: answers.export(_state(words), to=words.get("to", "")),
    "difference": lambda answers, words: answers.difference(_state(words), _other(words)),
}


def reply(answers: Answers, name: str, query: str) -> dict[str, Any]:
    """Answer one question; what can't be answered is said in one line under `refused`."""
    try:
        return QUESTIONS[name](answers, dict(parse_qsl(query, keep_blank_values=True)))
    except MeshwrightError as error:
        return {"refused": " ".join(str(error).split())}


def _state(words: Words) -> WhatIf:
    names = WhatIf.__dataclass_fields__
    return read_state({name: word for name, word in words.items() if name in names})


def _other(words: Words) -> WhatIf:
    """The plan to compare with, as an address of its own."""
    if "other" not in words:
        raise ConfigError("other: expected the address of the plan to compare with")
    return read_state(dict(parse_qsl(words["other"], keep_blank_values=True)))
