"""A small part of numpy in plain Python, under its names, for a browser.

No registry holds numpy for Pyodide, and its full distribution is 400 MB. A page that prices one
layout works on columns of one row, the tables of a chip and the stages of a pipeline. What that
needs of numpy is here: three kinds of numbers, stretching, selecting, and adding in numpy's order,
so that figures are the same to the last digit. Any other name is an AttributeError. Every selection
is a copy; numpy's is often a view.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

from meshwright.report.whatif_page.arrays import array, elementwise, files, kinds, making, places

__all__ = ["install", "numpy_module"]

_METHODS = ("all", "any", "argmax", "argmin", "argsort", "cumsum", "max", "mean", "min", "prod")
_RENAMED = {
    "abs": elementwise.abs_,
    "divmod": elementwise.divmod_,
    "round": elementwise.around,
    "shape": making.shape_of,
}


class _Typing:
    """`NDArray[...]`: whatever stands in the brackets."""

    def __getitem__(self, _: Any) -> type:
        return array.ndarray


def _method(name: str) -> Any:
    return lambda given, *words, **named: getattr(array.asarray(given), name)(*words, **named)


def numpy_module() -> ModuleType:
    """Return the part of numpy as a module of that name."""
    found = ModuleType("numpy")
    for room in (elementwise, making):
        found.__dict__.update({name: getattr(room, name) for name in room.__all__})
    found.__dict__.update({name: getattr(kinds, name) for name in kinds.__all__})
    found.__dict__.update({name: _method(name) for name in (*_METHODS, "ravel", "sum")})
    found.__dict__.update(_RENAMED)
    found.__dict__.update(
        array=array.array,
        asarray=array.asarray,
        ascontiguousarray=array.asarray,
        broadcast_shapes=places.shared_shape,
        broadcast_to=array.stretch,
        inf=math.inf,
        load=files.load,
        nan=math.nan,
        ndarray=array.ndarray,
        newaxis=None,
    )
    return found


def install() -> None:
    """Be numpy for all that is imported from now on."""
    typing = ModuleType("numpy.typing")
    typing.__dict__.update(NDArray=_Typing(), ArrayLike=Any)
    found = numpy_module()
    found.__dict__["typing"] = typing
    sys.modules["numpy"], sys.modules["numpy.typing"] = found, typing
