"""What several targets work out from a layout: layers of each chunk, in Megatron-Core's text too,
and tensor parallelism of experts."""

from __future__ import annotations

import re

from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout, head_alone

__all__ = ["chunk_layers", "expert_tp", "read_split_text", "split_text"]

_LONGEST = 200_000
"""Symbols beyond any pipeline: a slip in a text that is read, or repeats of repeats."""
_REPEATS = (r"\(([^()]*)\)\*([0-9]{1,9})", r"([EtmL])\*([0-9]{1,9})")


def chunk_layers(layout: Layout, total_layers: int) -> tuple[int, ...]:
    """Return the layers of each of the pp * vpp chunks; chunk v of stage s is entry v * pp + s."""
    given, chunks = layout.layers_per_stage, layout.pp * layout.vpp
    if given is None:
        return (total_layers // chunks,) * chunks
    return (
        given if len(given) == chunks else tuple(size // layout.vpp for size in given) * layout.vpp
    )


def expert_tp(layout: Layout) -> int:
    """Return the tensor parallelism of experts with the default filled in; unlike the layout's
    property it reads the field."""
    return layout.tp if layout.etp is None else layout.etp


def split_text(chunks: tuple[int, ...], mtp_layers: int) -> str:
    """Write `Et*3|t*4|t*3L`; runs of equal chunks are not shortened, so that the text can be read
    at a glance."""
    parts = [f"t*{size}" if size > 1 else "t" * size for size in chunks]
    parts[0] = f"E{parts[0]}"
    parts[-2 if head_alone(chunks) else -1] += "m" * mtp_layers
    parts[-1] += "L"
    return "|".join(parts)


def read_split_text(text: str, *, what: str) -> tuple[str, ...]:
    """Unroll `Et*3|(tt|)*29,m|L` into the symbols of each chunk: E embedding, t layer, m
    multi-token prediction, L loss."""
    expected = (
        f"{what} {text[:60]!r}: expected E, t, m and L with | between chunks, as in Et*3|(tt|)*2mL"
    )
    plain = re.sub(r"[, ]", "", text)
    for pattern in _REPEATS:
        if sum(len(found[1]) * int(found[2]) for found in re.finditer(pattern, plain)) > _LONGEST:
            raise ConfigError(f"{expected}, and no more than a pipeline has")
        plain = re.sub(pattern, lambda found: found[1] * int(found[2]), plain)
    if not plain or len(plain) > 2 * _LONGEST or set(plain) - set("EtmL|"):
        raise ConfigError(expected)
    chunks = tuple(plain.split("|"))
    _require_planned_mtp(chunks, what=f"{what} {text[:60]!r}")
    return chunks


def _require_planned_mtp(chunks: tuple[str, ...], *, what: str) -> None:
    """Refuse multi-token prediction elsewhere than in the last chunk, or alone before the loss
    alone: plans know no other."""
    held = [number for number, chunk in enumerate(chunks) if "m" in chunk]
    alone = head_alone(tuple(chunk.count("t") for chunk in chunks))
    if held and held != [len(chunks) - (2 if alone else 1)]:
        raise ConfigError(
            f"{what}: multi-token prediction (m) is planned behind the last layer, ...tmL, or alone"
            " before the loss, ...t|m|L"
        )
