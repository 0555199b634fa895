from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runs.measured.logs import megatron_log, nemo_log

from meshwright.api import plan
from meshwright.api.measured import anchor
from meshwright.cli import run as cli_run
from meshwright.runs.measured.anchor import SETTINGS, Setting, anchor_run, values_of
from meshwright.runs.measured.files import MeasuredRun
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.results import untold_log
from meshwright.runs.measured.rows import Case, Given, case_of
from meshwright.software.described import Described
from meshwright.trust.calibration import Calibration
from meshwright.trust.calibration_file import calibration_to_yaml, parse_calibration
from meshwright.values.errors import ConfigError

MOE = Given(
    model="mixtral-8x7b",
    cluster="h100:16",
    seq_len=4096,
    gbs=256,
    stack="megatron",
    layout="tp=4,ep=8,mbs=1",
)
NEMO = Given(
    model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=128, stack="megatron", layout="tp=2"
)


SPREAD = Given(
    model="llama3-8b", cluster="h100:64", seq_len=1024, gbs=64, stack="megatron", layout="mbs=1"
)


def case(given: Given = MOE) -> Case:
    return case_of(Described(), given, source="mine")


def as_if(setting: Setting, value: str, given: Given = MOE) -> MeasuredRun:
    """A run that takes exactly what is predicted under a value, told as if nobody knew."""
    [found] = predict_rows([values_of(case(given), setting)[value]]).predictions
    return MeasuredRun(case=case(given), step_s=found.step_s, peak_bytes=found.peak_memory_bytes)


@pytest.mark.parametrize(
    ("setting", "value", "given"),
    [("recompute", "full", MOE), ("graphs", "on", MOE), ("network", "quarter", SPREAD)],
)
def test_a_setting_that_moves_the_step_is_found(setting: Setting, value: str, given: Given) -> None:
    found = anchor_run(as_if(setting, value, given), [setting])
    assert found.inferred[0].found == value
    assert sum(found.inferred[0].shares.values()) == pytest.approx(1.0)
    assert found.after.step_s == pytest.approx(found.run.step_s)


def test_what_predicts_alike_cannot_be_told() -> None:
    """Tensor and expert groups lie inside nodes, so that little of the step is the network's."""
    found = anchor_run(as_if("network", "quarter"), ["network"])
    assert found.inferred[0].found is None
    assert found.after.step_s == found.before.step_s and found.links == ()


def test_settings_that_play_no_part_have_no_values() -> None:
    dense = case_of(Described(), replace(NEMO, layout="tp=2,mbs=1"), source="mine")
    assert values_of(dense, "dispatcher") == {} and values_of(dense, "network") == {}
    with pytest.raises(ConfigError, match="is no known setting"):
        values_of(dense, "bogus")  # type: ignore[arg-type]
    assert {name for name in SETTINGS if values_of(case(), name)} == set(SETTINGS)


def test_what_log_and_flags_tell_is_not_inferred(tmp_path: Path) -> None:
    path = tmp_path / "nemo.log"
    path.write_text(nemo_log([40.0, *[16.8] * 9]))
    run, untold = untold_log(path, NEMO)
    assert untold == SETTINGS
    assert run.case.assumptions == ("micro batch", "recompute")
    _, less = untold_log(path, replace(NEMO, layout="tp=2,mbs=1,recompute=none"))
    assert set(SETTINGS) - set(less) == {"micro-batch", "recompute"}
    dump = tmp_path / "train.log"
    dump.write_text(megatron_log([9e3] * 9))
    assert untold_log(dump, Given(cluster="h100:16"))[1] == ("graphs", "network")


def test_what_is_found_narrows_the_interval(tmp_path: Path) -> None:
    path = tmp_path / "nemo.log"
    path.write_text(nemo_log([40.0, *[23.0] * 9]))
    known = {name: getattr(NEMO, name) for name in ("model", "cluster", "seq_len", "gbs", "stack")}
    found, _ = anchor(path, layout="tp=2,mbs=1", infer=["recompute"], **known)
    assert found.found_of("recompute") == "full"
    before, after = (one.intervals.step_s for one in (found.before, found.after))
    assert after[1] / after[0] < before[1] / before[0]


def test_what_is_found_of_the_software_goes_into_plans(tmp_path: Path) -> None:
    """A file says that experts go through a flexible dispatcher, and plans of it are priced so."""
    known = Calibration(chip="h100", stack="megatron", settings=(("dispatcher", "flex"),))
    path = tmp_path / "anchor.yaml"
    path.write_text(calibration_to_yaml(known))
    assert parse_calibration(path.read_text()) == known
    asked: Any = {"seq_len": 4096, "gbs": 256, "stack": "megatron", "pins": {"ep": [8], "tp": [1]}}
    steps = [
        plan("mixtral-8x7b", "h100:16", calibration=file, **asked).plans[0].step_s
        for file in (None, str(path))
    ]
    assert steps[1] < steps[0]
    for bad in ("launch_hidden: 2", "dispatcher: pigeons", "master_bytes: 2"):
        text = path.read_text().replace("dispatcher: flex", bad)
        with pytest.raises(ConfigError, match=r"setting|dispatcher"):
            parse_calibration(text)


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "nemo.log", tmp_path / "anchor.yaml"
    log.write_text(nemo_log([40.0, *[23.0] * 9]))
    words = ["anchor", str(log), "--model", "llama3-8b", "--cluster", "h100:8", "--seq", "8192"]
    words += ["--gbs", "128", "--stack", "megatron", "--layout", "tp=2,mbs=1", "-o", str(out)]
    assert cli_run(words) == 0
    said = capsys.readouterr().out
    assert "recompute    full" in said and "graphs       cannot be told" in said
    assert parse_calibration(out.read_text()).chip == "h100"
    assert cli_run([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["settings"]["recompute"]["found"] == "full"
    assert record["settings"]["graphs"]["found"] is None
    log.write_text(nemo_log([40.0, 23.0, 23.0]))
    assert cli_run(words) == 2
    assert "behind the warm-up" in capsys.readouterr().err
