"""Every software: its export takes a training's settings, stops by its own clock before the
platform's limit, and goes on alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.training.plans import prepared

from meshwright.runs.training.request import SOFTWARE, find_software
from meshwright.values.errors import CannotExpress, ConfigError

LAYOUTS = {
    "deepspeed": "dp=16,sharding=zero3,mbs=1",
    "accelerate": "dp=16,sharding=zero3,mbs=1",
    "torchtitan": "dp=16,sharding=zero3,mbs=1",
}
LAYOUTS |= {"torchtitan-toml": LAYOUTS["torchtitan"], "megatron-bridge": "tp=2,mbs=1"}
STOPS = {
    "meshwright": "minutes=7170",
    "megatron-lm": "--exit-duration-in-mins 7170 --exit-signal-handler",
    "megatron-bridge": "train.exit_duration_in_mins=7170 train.exit_signal_handler=true",
    "nemo1-script": "trainer.max_time=04:23:30:00",
}
"""4:23:30:00 are 430,200 s, 7,170 minutes."""


@pytest.mark.parametrize("software", [row.name for row in SOFTWARE if row.name != "torchtune"])
def test_job_of_five_days(software: str, tmp_path: Path) -> None:
    found = prepared(software, tmp_path, layout=LAYOUTS.get(software, "mbs=1"))
    text = (
        " ".join(found.written(number=1, label="mw-0-1").text.split())
        .replace("'", "")
        .replace("\\ ", "")
    )
    assert "#SBATCH --time=5-00:00:00" in text
    assert found.limits is not None
    assert (found.limits.framework_s == 430_200) == (software in STOPS)
    assert STOPS.get(software, "") in text
    everything = text + "".join(file.text for file in found.exported.files)
    assert f"{tmp_path}/checkpoints" in everything
    # 1e11 tokens / (128 * 8192 tokens a step), rounded up
    assert "95368" in everything


def test_torchtune_names_its_data_by_a_component(tmp_path: Path) -> None:
    with pytest.raises(CannotExpress, match="a data set is a component of its own"):
        prepared("torchtune", tmp_path, layout="mbs=1").written(number=1, label="mw-0-1")


def test_megatron_loads_what_it_saves(tmp_path: Path) -> None:
    command = prepared("megatron-lm", tmp_path).exported.command
    assert (
        command[command.index("--load") + 1]
        == command[command.index("--save") + 1]
        == f"{tmp_path}/checkpoints"
    )


def test_a_software_that_no_job_starts_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'nemo1' is no known software to train with; did you mean 'nemo2'.*no job",
    ):
        find_software("nemo1")


def test_checkpoints_of_another_folder_are_not_set_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --save-dir"):
        prepared(
            "megatron-lm", tmp_path, settings={"train_tokens": 10**9, "save_dir": "/elsewhere"}
        )
