"""YAML that reads back as it was: texts of several lines stay readable, and every other word stays on one line."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["document"]


class _Dumper(yaml.SafeDumper):
    """Block style for texts of several lines."""


_ODD = re.compile(r"[^\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]|[\u2028\u2029\ufeff]")
"""Signs that YAML reads as ends of lines, or not at all, unless they are escaped."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Several lines are a block; one line with odd signs is quoted, so that it stays one line."""
    block = text.endswith("\n") and text.count("\n") > 1 and not _ODD.search(text)
    style = "|" if block else '"' if "\n" in text or _ODD.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]


def document(content: dict[str, Any], *, comment: str) -> str:
    """Write one document in the order of its keys, under a comment."""
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)
    return f"{comment}\n{body}"
