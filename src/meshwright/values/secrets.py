"""What is secret by its name, and texts with such values masked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

__all__ = ["HIDDEN", "holds_secret", "is_secret", "masked"]

HIDDEN = "***"
_SECRET = re.compile(r"(?:^|_)(?:KEYS?|TOKEN|SECRETS?|PASSWORDS?|PASSWD|CREDENTIALS?)(?:_|$)", re.I)
"""TRAIN_TOKENS of a training script counts tokens."""
_LEAST = 6
"""Letters of a value that is looked for by itself: a shorter one stands in many a word."""
_VALUE = r"""(?P<quote>["']?)(?P<value>[^\s"',;&|)}\]]+)"""
_VARIABLE = re.compile(rf"""\b(?P<name>[A-Z][A-Z0-9_]*)(?P<sign>["']?(?:=|:[ ]))(?:{_VALUE})""")
"""A variable of the environment with its value, as shells, YAML and JSON write it. Names in small
letters are those of files, in which tokens are of a vocabulary."""
_FLAG = re.compile(
    r"(?P<name>--?[\w.-]*(?:api|access|secret|auth|private|wandb)[-_](?:key|token)|--?[\w.-]*"
    r"(?:hf|hub)[-_]token|--?[\w.-]*(?:password|passwd|credentials?))"
    rf"(?P<sign>=|["
    rf""""',]*\s+){_VALUE}"""
)
"""An option whose value is one, as the wandb key of a program."""


def is_secret(name: str) -> bool:
    """Whether a variable of that name holds what nobody else may read, as WANDB_API_KEY does."""
    return _SECRET.search(name) is not None


def masked(text: str, values: Iterable[str] = ()) -> str:
    """Return a text without the values of secrets: those given, those behind the name of a variable
    that `is_secret`, and those of an option such as --wandb-api-key."""
    for value in values:
        if len(value) >= _LEAST:
            for written in {value, json.dumps(value)[1:-1]}:
                text = text.replace(written, HIDDEN)
    return _FLAG.sub(_without, _VARIABLE.sub(_without, text))


def holds_secret(text: str) -> bool:
    """Whether a text has a value that `masked` would hide by its name."""
    return masked(text) != text


def _without(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    is_name = not name.startswith("-")
    told_elsewhere = value.startswith(("$", "<", "{", "...", HIDDEN)) or value in ("null", "None")
    # behind an option may stand another one, or the word of a help text, such as TEXT
    no_value = not is_secret(name) if is_name else value.startswith("-") or value.isupper()
    if told_elsewhere or no_value:
        return found[0]
    return f"{name}{found['sign']}{found['quote']}{HIDDEN}"
