"""One layout in its problem: what `explain`, `why-oom` and `diff` look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.search.problem import Problem
from meshwright.search.rules.check import complete_layout, require_valid
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout, parse_layout

__all__ = ["Asked", "ask"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A layout that keeps the rules of its problem."""

    layout: Layout
    problem: Problem


def ask(layout: str | Mapping[str, Any], problem: Problem) -> Asked:
    """Fill in what a layout (words, or fields) leaves open; LayoutError where it breaks a rule."""
    given = parse_layout(layout) if isinstance(layout, str) else dict(layout)
    if not given:
        raise ConfigError(f"layout {layout!r}: expected key=value words such as tp=8,pp=4,mbs=1")
    found = complete_layout(given, problem.case)
    require_valid(found, problem.case)
    return Asked(layout=found, problem=problem)
