"""What the `notes` of a row say of the layout and the model; what they say of results is never
looked for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.runs.measured.cells import Cells, UnansweredError

__all__ = [
    "Notes",
    "Placement",
    "read_notes",
]

Placement = tuple[tuple[tuple[str, int], ...], ...]
"""Per stage, the chips of each replica: (name, count)."""
_FLAGS = frozenset(
    {
        "attention-backend",
        "expert-tensor-parallel-size",
        "fp8-recipe",
        "hybrid-layer-pattern",
        "kv-channels",
        "moe-ffn-hidden-size",
        "moe-layer-freq",
        "moe-shared-expert-intermediate-size",
        "mtp-num-layers",
        "multi-latent-attention",
        "num-query-groups",
        "pipeline-model-parallel-layout",
        "position-embedding-type",
        "swiglu",
        "transformer-impl",
        "untie-embeddings-and-output-weights",
        "use-flash-attn",
        "vocab-size",
    }
)
"""Words of a training command that are read; all else in the notes is passed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """Facts of the layout found in free text."""

    flags: Mapping[str, str]
    """Flags of the training command, as `name=value` between semicolons."""
    tied: bool | None
    head_dim: int | None
    mtp_layers: int | None
    first_dense_layers: int | None
    capacity_factor: float | None
    hybrid_pattern: str | None
    partition: tuple[int, ...] | None
    """Entries per stage of a pipeline that also counts embedding, norms and loss as entries."""
    pipeline_pattern: str | None
    """A pipeline written like `Et*3|(tt|)*6L`."""
    thin_ends: bool
    """One layer less in the first and in the last stage."""
    placement: Placement | None
    seq_len: int | None
    """A default that the row names."""

    def flag_count(self, name: str) -> int | None:
        """Return the flag's value as a whole number of 1 or more."""
        text = self.flags.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
            raise UnansweredError(f"notes: {name}: expected a whole number")
        return int(text)


def read_notes(cells: Cells) -> Notes:
    """Return what the row's notes say of its layout."""
    text = cells.text("notes") or ""
    pairs = (part.strip().partition("=") for part in text.split(";"))
    flags = {key: value.strip() for key, equals, value in pairs if equals and key in _FLAGS}
    tied = re.search(r"tied_embeddings=(true|false|0|1)", text, re.IGNORECASE)
    return Notes(
        flags=flags,
        tied=None if tied is None else tied[1].lower() in ("true", "1"),
        head_dim=_count(r"\bhead_dim (\d{1,5})\b", text),
        mtp_layers=_mtp_layers(text, flags),
        first_dense_layers=_first_dense(text, flags),
        capacity_factor=_factor(text),
        hybrid_pattern=_hybrid(flags),
        partition=_partition(text),
        pipeline_pattern=_pipeline_pattern(text, flags),
        thin_ends="one fewer layer in first and last stage" in text,
        placement=_placement(text),
        seq_len=_count(r"seq_len not printed \(default of \S+ is (\d{1,8})\)", text),
    )


def _count(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) or None if found else None


def _mtp_layers(text: str, flags: Mapping[str, str]) -> int | None:
    if "w/o MTP" in text:
        return 0
    value = flags.get("mtp-num-layers", "")
    return int(value) if re.fullmatch(r"\d{1,3}", value) else None


def _first_dense(text: str, flags: Mapping[str, str]) -> int | None:
    pattern = re.search(r"\(\[0\]\*(\d{1,4})\+\[1\]\*\d+\)", flags.get("moe-layer-freq", ""))
    return int(pattern[1]) if pattern else _count(r"\b(\d{1,3}) dense (?:layer|\+)", text)


def _factor(text: str) -> float | None:
    found = re.search(r"capacity(?: factor |=)(\d{1,3}(?:\.\d{1,3})?)\b", text)
    return float(found[1]) or None if found else None


def _hybrid(flags: Mapping[str, str]) -> str | None:
    pattern = flags.get("hybrid-layer-pattern", "")
    return pattern if re.fullmatch(r"[ME*-]{1,500}(/[ME*-]{1,50}){0,9}", pattern) else None


def _partition(text: str) -> tuple[int, ...] | None:
    cuts = re.search(r"layer partition \[([\d, ]{1,2000})\]", text)
    if cuts is not None:
        at = _integers(cuts[1])
        sizes = tuple(b - a for a, b in itertools.pairwise(at))
        return sizes if sizes and min(sizes) >= 0 else None
    stages = re.search(r"layers_per_stage=\[([\d, ]{1,2000})\]", text)
    return _integers(stages[1]) or None if stages else None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text))


def _pipeline_pattern(text: str, flags: Mapping[str, str]) -> str | None:
    given = flags.get("pipeline-model-parallel-layout")
    if given is not None:
        return given
    found = re.search(r"pipeline layout (E?t[t*x|,L\d]{1,200})", text)
    return found[1] if found else None


def _placement(text: str) -> Placement | None:
    found = re.search(r"stage placement=(\[[^;]{1,20000}\])", text)
    if found is None:
        return None
    try:
        stages = json.loads(found[1])
        return tuple(
            tuple((str(name), int(count)) for replica in stage for name, count in replica)
            for stage in stages
        )
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return None
