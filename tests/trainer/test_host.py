"""The memory of a host."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from meshwright.trainer.job import keep_freed_memory


@pytest.mark.parametrize("refused", [None, -1, -3])
def test_freed_memory_is_kept_where_the_library_knows_how(
    refused: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mallopt(3): -3 is the size from which blocks are mapped, -1 how much is free at the top
    before it is given back."""
    asked: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        asked[parameter] = value
        return int(parameter != refused)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory() is (refused is None)
    assert asked[-3] == 32 * 2**20


def test_other_libraries_have_no_such_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    assert keep_freed_memory() is False
