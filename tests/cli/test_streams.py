from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from meshwright.cli.streams import HidingText, hide_secrets


def test_what_was_standard_output_is_not_closed_beneath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that put a stream of its own there, and keeps no other name of it."""
    path = tmp_path / "out.txt"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", path.open("w"))
        hide_secrets()
        first = sys.stdout
        gc.collect()
        hide_secrets()
        assert isinstance(first, HidingText)
        assert sys.stdout is first
        print("a line", flush=True)
        assert path.read_text() == "a line\n"
        sys.stdout.close()
