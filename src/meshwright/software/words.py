"""Tables that an export and an import share: words that hold one field each, and the values of
fields that a software has words for."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset
from meshwright.software.text import Taken
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress

__all__ = [
    "LLAMA",
    "WordTable",
    "blend",
    "chosen",
    "field_of",
    "require",
    "require_one_of",
    "require_whole_recompute",
    "shares",
    "split_shares",
]

T = TypeVar("T")
_SHOWN = {"model.hybrid": "mixers", "model.mla": "latent attention", "model.moe": "experts"}
"""Parts of a model, in words."""


LLAMA: dict[str, Any] = {
    "model.gated": True,
    "model.norm": "rmsnorm",
    "model.norms_per_layer": 2,
    "model.positions": "rope",
    "model.linear_bias": False,
    "model.attention_sinks": False,
    "model.parallel_block": False,
    "model.window": None,
    "model.mtp_layers": 0,
}
"""Layers of Llama's kind, which several softwares have alone."""


def field_of(plan: Any, path: str) -> Any:
    """Return the field of a path (`model.moe.top_k`, or `moe.top_k`); None where a part on the way
    is None."""
    value: Any = plan
    for name in (f"model.{path}" if path.startswith("moe.") else path).split("."):
        value = None if value is None else getattr(value, name)
    return value


def require(
    plan: Any,
    wanted: Mapping[str, Any],
    *,
    name: str,
    reason: str = "{path}={given}: its models have {has}",
    nearest: str = "a model with {path}={has}",
) -> None:
    """Refuse a plan whose field has another value than the one that a software has; None is no
    value."""
    for path, has in wanted.items():
        given = field_of(plan, path)
        if given is not None and given != has:
            said = {"path": path, "field": path.rpartition(".")[2], "has": has}
            said["given"] = _SHOWN.get(path, given)
            raise CannotExpress(name, reason.format(**said), nearest=nearest.format(**said))


def require_one_of(
    plan: TrainingPlan,
    path: str,
    known: Collection[Any],
    *,
    name: str,
    says: str,
    nearest: Any = None,
) -> None:
    """Refuse a plan whose field has none of some values, the first of which is the nearest."""
    given, field = field_of(plan, path), path.rpartition(".")[2]
    if given not in known:
        near = next(iter(known)) if nearest is None else nearest
        raise CannotExpress(name, f"{field}={given}: {says}", nearest=f"{field}={near}")


def chosen(
    words: Mapping[Any, T],
    plan: TrainingPlan,
    path: str,
    *,
    name: str,
    says: str = "",
    nearest: Any = None,
) -> T:
    """Return a software's word for the value of a field."""
    says = says or f"it has {', '.join(words)}"
    require_one_of(plan, path, words, name=name, says=says, nearest=nearest)
    return words[field_of(plan, path)]


def require_whole_recompute(plan: TrainingPlan, *, name: str) -> None:
    """Refuse a plan that recomputes some layers, or parts of them."""
    layout = plan.layout
    if (
        layout.recompute == "selective"
        or layout.recompute_layers is not None
        or layout.recompute_method != "uniform"
    ):
        reason = f"recompute={layout.recompute}: it recomputes every layer or none"
        raise CannotExpress(name, reason, nearest="recompute=full or none")


@dataclass(frozen=True, slots=True)
class WordTable:
    """Words of a software's files that hold one field of a plan as it is, in both directions.

    Rows of a `words.csv`: the word, the field, how it is read (a method of Taken) and what the
    program takes where the file does not say, as JSON.
    """

    path: str

    def written(
        self, plan: TrainingPlan, under: str = "", *, part: str | None = None
    ) -> dict[str, Any]:
        """Return the words right below a section (`optimizer.`), in the order of the table; those
        of a part inside a part (`model.moe`) for themselves."""
        return {
            word: field_of(plan, row["field"])
            for row in package_rows(self.path)
            if row["word"].startswith(under)
            and "." not in (word := row["word"].removeprefix(under))
            and (row["field"].count(".") == 1 if part is None else _part(row) == part)
        }

    def read(self, words: Taken, part: str, *, at: str = "") -> dict[str, Any]:
        """Take the words of a part's fields (`settings`) away, which stand below `at`; return its
        values by name."""
        return {
            row["field"].removeprefix(f"{part}."): getattr(words, row["kind"])(
                at + row["word"], json.loads(row["default"] or "null")
            )
            for row in package_rows(self.path)
            if _part(row) == part and row["kind"]
        }


def _part(row: Mapping[str, str]) -> str:
    return row["field"].rpartition(".")[0]


def split_shares(plan: TrainingPlan) -> str:
    """Write the shares of training, validation and test, `99,1,0`."""
    return ",".join(f"{share:g}" for share in plan.settings.split or ())


def shares(text: Any) -> tuple[float, ...] | None:
    """Read such shares; ValueError where they are none."""
    return None if text is None else tuple(float(share) for share in str(text).split(","))


def blend(words: list[Any], *, alone: bool = False) -> tuple[Dataset, ...]:
    """Read weights and paths in turn, or one path; `alone`: paths without weights. ValueError or
    TypeError where they are neither."""
    pairs = (
        [(1.0, path) for path in words]
        if alone or len(words) == 1
        else list(zip(words[::2], words[1::2], strict=True))
    )
    return tuple(Dataset(path=str(path), weight=float(weight)) for weight, path in pairs)
