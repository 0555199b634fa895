"""One training at a time in a folder of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.trainer.build import held
from meshwright.values.errors import ConfigError


def test_a_second_training_in_a_folder_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with (
        held(tmp_path),
        pytest.raises(ConfigError, match=r"save\.folder=.*: another training writes there; end it"),
        held(tmp_path, wait_s=0),
    ):
        pass
    with held(tmp_path, wait_s=0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"save\.folder=.*absent: No such file or directory"),
        held(tmp_path / "absent"),
    ):
        pass
