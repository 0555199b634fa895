"""Checkpoints: resumed at another layout, and never from a half-written one; needs torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="trains with torch: pip install 'meshwright[train]'")

from tests.trainer.curves import curves

STEPS, HALF = 6, 4


def test_a_run_goes_on_at_other_layouts(tmp_path: Path) -> None:
    """Steps 5 and 6 after a checkpoint are those of the run that was not cut, under other dp, tp, pp and sharding."""
    saved = tmp_path / "saved"
    save = {"folder": str(saved), "every": HALF}
    (whole,) = curves(2, ["moe:dp=2,sharding=zero1"], changes={"steps": STEPS, "save": save})
    assert sorted(child.name for child in saved.iterdir()) == [f"step-{HALF}", f"step-{STEPS}"]
    shutil.rmtree(saved / f"step-{STEPS}")
    (saved / "part-5").mkdir()  # a save that was cut off
    (saved / "step-9").mkdir()  # without what the last rank writes last
    for words in ("tp=2,sp=1", "pp=2,vpp=2", "dp=2,sharding=zero3"):
        folder = tmp_path / words
        shutil.copytree(saved, folder)
        (rest,) = curves(2, [f"moe:{words}"], changes={"steps": STEPS, "save": {"folder": str(folder)}})
        assert [line["step"] for line in rest] == [5, 6]
        assert [line["loss"] for line in rest] == pytest.approx([line["loss"] for line in whole[HALF:]], abs=1e-4)
