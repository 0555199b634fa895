"""Arrays in the files that numpy writes."""

from __future__ import annotations

import ast
import struct
import zipfile
from array import array as packed
from typing import Any

from meshwright.report.whatif_page.arrays.array import ndarray

__all__ = ["load"]

_CODES = {"<i2": "h", "<i8": "q", "|u1": "B", "<f8": "d", "|b1": "B"}
_KINDS = {"f": "f", "i": "i", "u": "i", "b": "b"}


class load:
    """The arrays of an .npz file, each read when it is asked for."""

    def __init__(self, stream: Any, allow_pickle: bool = False) -> None:
        self._zip = zipfile.ZipFile(stream)

    def __enter__(self) -> load:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def __getitem__(self, name: str) -> ndarray:
        return _read(self._zip.read(f"{name}.npy"))


def _read(data: bytes) -> ndarray:
    """Read one .npy, format 1: eight bytes of name and version, two of the heading's length."""
    [length] = struct.unpack("<H", data[8:10])
    heading = ast.literal_eval(data[10 : 10 + length].decode())
    values = packed(_CODES[heading["descr"]])
    values.frombytes(data[10 + length :])
    shape = tuple(heading["shape"])
    own = shape[::-1] if heading["fortran_order"] else shape
    found = ndarray(values.tolist(), own, _KINDS[heading["descr"][1]])
    return found.T if heading["fortran_order"] else found
