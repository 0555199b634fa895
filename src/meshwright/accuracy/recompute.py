"""What a row recomputes in the backward pass."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.accuracy.cells import Cells, UnansweredError
from meshwright.accuracy.tables import Rule, read_rules
from meshwright.layout import RECOMPUTE_MODULES, Recompute, RecomputeMethod

__all__ = ["WHERE_SHORT", "Recomputed", "recompute_of_row"]

WHERE_SHORT = "where short"
"""In `frameworks.csv`: nothing, or every layer where the run would not fit otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputed:
    """The fields of a Layout that say what is recomputed."""

    recompute: Recompute = "none"
    recompute_method: RecomputeMethod = "uniform"
    recompute_layers: int | None = None
    recompute_modules: tuple[str, ...] = ()


def recompute_of_row(
    cells: Cells, framework: Rule, *, layers_per_stage: int, vpp: int
) -> Recomputed:
    """Return it; a blank column takes the software's habit."""
    word = cells.words("recompute") or framework["recompute"].replace(WHERE_SHORT, "none")
    if word not in ("none", "selective", "full"):
        raise UnansweredError("recompute: expected none, selective or full")
    text = _words(cells, word)
    rule = read_rules("recompute_words").first(text)
    assert rule is not None, "the last rules of recompute_words.csv match every granularity"
    found = rule.pattern.search(text)
    assert found is not None
    if rule["recompute"] == "full":
        return _full(rule, found, cells, layers_per_stage=layers_per_stage, vpp=vpp)
    if rule["recompute"] == "selective":
        return Recomputed(recompute="selective", recompute_modules=_modules(rule, found, framework))
    return Recomputed()


def _words(cells: Cells, word: str) -> str:
    """Granularity, detail and the mode that the notes name, as the rules expect them; a recipe's
    origin in brackets is left out."""
    detail = re.split(r"\[tag|\[joined", cells.words("recompute_detail"))[0].strip()
    mode = cells.match("notes", r"op-level|per-op|selective (?:layer|op)\b")
    return (
        f"{word} | {detail}{' ' + mode[0].lower() if mode and word == 'selective' else ''}".rstrip()
    )


def _modules(rule: Rule, found: re.Match[str], framework: Rule) -> tuple[str, ...]:
    if rule["modules"] == "modules":
        named = [word for word in re.split(r"[ ,]+", found["modules"]) if word in RECOMPUTE_MODULES]
    else:
        named = (framework["selective"] if rule["modules"] == "usual" else rule["modules"]).split(
            "+"
        )
    chosen = tuple(module for module in RECOMPUTE_MODULES if module in named)
    return chosen or tuple(framework["selective"].split("+"))


def _full(
    rule: Rule, found: re.Match[str], cells: Cells, *, layers_per_stage: int, vpp: int
) -> Recomputed:
    layers: int | None = None
    if rule["layers"] == "layers":
        layers = int(found["layers"][:6])
        if cells.match("recompute_detail", "per-pp-rank"):
            layers = round(layers / vpp)
    elif rule["layers"] == "half":
        layers = max(1, layers_per_stage // vpp // 2)
    elif rule["layers"] == "range":
        layers = _inside(
            range(int(found["first"][:6]), int(found["last"][:6]) + 1), layers_per_stage
        )
    elif rule["layers"] == "list":
        layers = _inside(
            [int(word[:6]) for word in found["list"].split(",") if word], layers_per_stage
        )
    method: RecomputeMethod = "block" if rule["method"] == "block" else "uniform"
    if method == "uniform" and layers == 0:
        return Recomputed()
    return Recomputed(recompute="full", recompute_method=method, recompute_layers=layers)


def _inside(layers: range | list[int], layers_per_stage: int) -> int:
    """How many of the listed layers lie in the first stage, whose memory such rows tell."""
    return sum(1 for layer in layers if layer < layers_per_stage)
