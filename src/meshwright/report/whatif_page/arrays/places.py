"""Where numbers lie in a flat list: strides, stretching, and what a key in brackets selects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

__all__ = ["Indices", "Way", "crossed", "offsets", "place_in", "shared_shape", "strides_of"]

Shape = tuple[int, ...]


class Indices(NamedTuple):
    """An array of places along one axis, as distances in the flat list."""

    values: list[int]
    shape: Shape


class Way(NamedTuple):
    """A slice or one place along one axis, as distances in the flat list."""

    values: list[int]
    is_kept: bool
    """Whether the answer has this axis."""


def strides_of(shape: Shape) -> list[int]:
    """The distance from one place of each axis to the next."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def offsets(ways: Sequence[Sequence[int]]) -> list[int]:
    """All sums of one distance from each way, the last fastest."""
    found = [0]
    for way in ways:
        found = list(way) if found == [0] else [a + b for a in found for b in way]
    return found


def place_in(index: int, count: int) -> int:
    """A place from the front; IndexError beyond the ends."""
    if not -count <= index < count:
        raise IndexError(f"place {index} of an axis of {count}")
    return index % count


def shared_shape(*shapes: Shape) -> Shape:
    """The shape that all of them stretch to."""
    found: Shape = ()
    for shape in shapes:
        if shape == found:
            continue
        longest = max(len(found), len(shape))
        pairs = list(
            zip(
                (1,) * (longest - len(found)) + found,
                (1,) * (longest - len(shape)) + shape,
                strict=True,
            )
        )
        if any(a != b and 1 not in (a, b) for a, b in pairs):
            raise ValueError(f"shapes {found} and {shape} do not stretch to each other")
        found = tuple(b if a == 1 else a for a, b in pairs)
    return found


def stretched(values: list[int], own: Shape, shape: Shape) -> list[int]:
    """Places of the one shape in the list of another; ValueError where it does not stretch."""
    own = (1,) * (len(shape) - len(own)) + own
    if shared_shape(own, shape) != shape:
        raise ValueError(f"shape {own} does not stretch to {shape}")
    at = offsets(
        [
            [0] * wide if count == 1 else [i * stride for i in range(wide)]
            for wide, count, stride in zip(shape, own, strides_of(own), strict=True)
        ]
    )
    return [values[i] for i in at]


def crossed(ways: list[Way | Indices]) -> tuple[list[int], Shape]:
    """Return the flat places that ways along all axes select together, and the answer's shape.

    Arrays of places are stretched to each other and walk together; their axes stand where the first
    of them stood, or in front where a slice lies between them, as numpy has it.
    """
    arrays = [way for way in ways if isinstance(way, Indices)]
    if not arrays:
        plain = [way for way in ways if isinstance(way, Way)]
        return offsets([way.values for way in plain]), tuple(
            len(way.values) for way in plain if way.is_kept
        )
    shape = shared_shape(*(array.shape for array in arrays))
    columns = [
        a.values if a.shape == shape else stretched(a.values, a.shape, shape) for a in arrays
    ]
    together = list(map(sum, zip(*columns, strict=True)))
    advanced = [i for i, way in enumerate(ways) if isinstance(way, Indices) or not way.is_kept]
    is_one_run = advanced[-1] - advanced[0] + 1 == len(advanced)
    first = advanced[0] if is_one_run else 0
    before = [way for way in ways[:first] if isinstance(way, Way)]
    after = [way for way in ways[first:] if isinstance(way, Way)]
    head, tail = (offsets([way.values for way in side]) for side in (before, after))
    at = [a + b + c for a in head for b in together for c in tail]
    sides = [tuple(len(way.values) for way in side if way.is_kept) for side in (before, after)]
    return at, tuple(chain(sides[0], shape, sides[1]))
