"""Python in a browser: arrays in place of numpy, one thread, and the page's questions answered."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

__all__ = ["InPlace", "start"]


_MIXED = (
    "Plans over several kinds of chips are searched by `meshwright ui` and `meshwright plan` alone:"
    " that search needs more of numpy than this page brings."
)


class InPlace:
    """An executor without threads, which browsers do not give Python: what is submitted is done at
    once."""

    def __init__(self, max_workers: int | None = None) -> None:
        """`max_workers` is as of a pool of threads, and of no effect."""

    def __enter__(self) -> InPlace:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *words: Any, **named: Any) -> Any:
        """Do it, and return what is done."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(function(*words, **named))
        except Exception as error:
            done.set_exception(error)
        return done


def start() -> Callable[[str, str], str]:
    """Make Python ready, and return what answers a question by its name and its address."""
    from meshwright.report.whatif_page.arrays import install

    install()
    concurrent.futures.ThreadPoolExecutor = InPlace  # type: ignore[assignment, misc]
    from meshwright.api.whatif import answers_of
    from meshwright.report.whatif_page.questions import reply

    answers = answers_of()

    def answer(name: str, query: str) -> str:
        words = dict(parse_qsl(query))
        if "," in words.get("cluster", "") and words.get("what", "train") == "train":
            return json.dumps({"refused": _MIXED})
        return json.dumps(reply(answers, name, query))

    return answer
