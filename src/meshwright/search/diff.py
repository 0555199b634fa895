"""What differs between two plans, and what each difference means for a run that goes on from the
other's checkpoint: the table `search/differences.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, get_args

from meshwright.values.data import package_rows
from meshwright.values.layout import Layout

__all__ = [
    "LABELS",
    "LABEL_ROWS",
    "Comparison",
    "Difference",
    "Label",
    "LabelRow",
    "Meaning",
    "When",
    "comparable_fields",
    "compare",
    "rows_of",
]

Label = Literal[
    "execution only", "reshard the checkpoint", "changes data order", "changes training"
]
"""Mildest first. `execution only`: the same checkpoint continues and the same numbers come out, up
to rounding; `reshard the checkpoint`: the same training, but what ranks store must be cut anew;
`changes data order`: the same samples, met by other ranks or in other groups; `changes training`:
another loss curve."""
LABELS: tuple[Label, ...] = get_args(Label)
When = Literal["always", "experts", "sharded"]
"""`experts`: the model has experts, or either side spreads them; `sharded`: either side shards
states over data parallel ranks, and not surely over as many as the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRow:
    """One thing that follows when a field differs."""

    field: str
    when: When
    label: Label
    reason: str


LABEL_ROWS: tuple[LabelRow, ...] = tuple(
    LabelRow(**row)  # type: ignore[arg-type]  # words of the table are labels
    for row in package_rows("search/differences.csv")
)
"""Source of the rows on data: Megatron-LM's samplers. The sequential one deals consecutive runs of
mbs samples to the ranks in turn, so step k reads samples [k gbs, (k + 1) gbs) under any dp and mbs;
the cyclic one shuffles a bucket per rank, whose size depends on both."""


def rows_of(field: str, *, conditions: frozenset[When]) -> tuple[LabelRow, ...]:
    """Return what follows when `field` differs, under these conditions."""
    known = {"always", *conditions}
    return tuple(row for row in LABEL_ROWS if row.field == field and row.when in known)


FOLLOWS = ("dp", "gbs")
"""Fields without a default worth the name: dp follows from the chips, gbs is the user's. Compared
only where both sides say them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Meaning:
    """One consequence of a difference."""

    label: Label
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One field that differs."""

    field: str
    a: Any
    b: Any
    meanings: tuple[Meaning, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every difference, in the order of the fields."""

    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    """What could not be compared, and what follows from the rest."""

    @property
    def labels(self) -> tuple[Label, ...]:
        """Every label that occurs, mildest first."""
        found = {m.label for d in self.differences for m in d.meanings}
        return tuple(label for label in LABELS if label in found)


def comparable_fields() -> tuple[str, ...]:
    """Return every field that has a label, each once, in the order of the table."""
    return tuple(dict.fromkeys(row.field for row in LABEL_ROWS))


def compare(a: Mapping[str, Any], b: Mapping[str, Any], *, has_experts: bool = False) -> Comparison:
    """Compare what two sides say, `field: value` each; left-out fields have Layout's defaults."""
    conditions = _conditions(a, b, has_experts=has_experts)
    defaults = {field.name: field.default for field in fields(Layout)}
    found, notes = [], []
    for field in comparable_fields():
        if field not in a and field not in b:
            continue
        if (field not in a or field not in b) and (field in FOLLOWS or field not in defaults):
            notes.append(
                f"{field} is said on one side only ({'A' if field in a else 'B'}:"
                f" {_text((a if field in a else b)[field])})"
            )
            continue
        left, right = (_plain(side.get(field, defaults.get(field))) for side in (a, b))
        if left != right:
            rows = rows_of(field, conditions=conditions)
            meanings = tuple(Meaning(label=row.label, reason=row.reason) for row in rows)
            found.append(Difference(field=field, a=left, b=right, meanings=meanings))
    return Comparison(differences=tuple(found), notes=(*notes, *_derived_notes(a, b)))


def _plain(value: Any) -> Any:
    """Lists of a JSON file and tuples of a Layout are the same."""
    return tuple(value) if isinstance(value, list) else value


def _text(value: Any) -> str:
    return "+".join(str(v) for v in value) if isinstance(value, (list, tuple)) else str(value)


def _conditions(
    a: Mapping[str, Any], b: Mapping[str, Any], *, has_experts: bool
) -> frozenset[When]:
    found: set[When] = set()
    if has_experts or any((side.get("ep") or 1) > 1 for side in (a, b)):
        found.add("experts")
    if any(side.get("sharding", "none") != "none" for side in (a, b)) and not _same_shards(a, b):
        found.add("sharded")
    return frozenset(found)


def _same_shards(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both sides surely cut states over as many ranks: what dp loses, cp may gain."""
    if "dp" not in a or "dp" not in b:
        return False
    return len({int(side["dp"]) * int(side.get("cp", 1)) for side in (a, b)}) == 1


def _derived_notes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """On the same chips dp follows from tp, cp and pp, although nobody said so."""
    if "dp" in a or "dp" in b:
        return []
    left, right = (_model_ranks(side) for side in (a, b))
    if left == right:
        return []
    meaning = rows_of("dp", conditions=frozenset())[0]
    ratio = Fraction(left, right)
    size = f"{ratio} times A's" if ratio > 1 else f"{ratio} of A's"
    return [
        f"tp * cp * pp goes from {left} to {right}: on the same chips dp of B is {size}, which"
        f" {meaning.label}"
    ]


def _model_ranks(side: Mapping[str, Any]) -> int:
    return int(side.get("tp", 1)) * int(side.get("cp", 1)) * int(side.get("pp", 1))
