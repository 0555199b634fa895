from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.runs.measured.examples import LLAMA
from tests.runs.measured.logs import megatron_log, nccl_output

import meshwright
from meshwright import ConfigError, api
from meshwright.cli import run
from meshwright.cli.plan_files import read_request
from meshwright.search.request import PlanRequest

PLAN = ["llama3-8b", "--cluster", "h100:64", "--seq", "8192", "--gbs", "128"]
LAYOUT = ["--layout", "tp=2,pp=2"]


@pytest.fixture
def calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    log = tmp_path / "train.log"
    log.write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    path = tmp_path / "calibration.yaml"
    assert run(["calibrate", str(log), "--cluster", "h100:16", "-o", str(path)]) == 0
    capsys.readouterr()
    return path


def test_one_log_says_what_it_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    words = [
        "calibrate",
        str(tmp_path / "train.log"),
        "--cluster",
        "h100:16",
        "-o",
        str(tmp_path / "c.yaml"),
    ]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("calibrated on 1 run with megatron on h100: compute x")
    assert "one run can't be left out" in out
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calibration"]["chip"] == "h100"
    assert {factor["name"] for factor in found["calibration"]["factors"]} >= {
        "compute",
        "activations",
    }
    assert [line["quantity"] for line in found["runs"]] == ["step time", "peak memory"]


def test_plan_stands_on_it(calibration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *PLAN, "--json", "--top", "1"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run(["plan", *PLAN, "--json", "--top", "1", "--calibration", str(calibration)]) == 0
    fitted = json.loads(capsys.readouterr().out)
    basis = fitted["plans"][0]["provenance"]["calibration"]
    assert basis["runs"] == 1 and 0.3 < basis["measured_time_frac"] < 1
    assert "calibration" not in plain["plans"][0]["provenance"]
    assert fitted["request"]["calibration"] == str(calibration)
    assert fitted["plans"][0]["step_s"] != plain["plans"][0]["step_s"]
    assert run(["plan", *PLAN, "--calibration", str(calibration)]) == 0
    assert "calibrated on 1 run with megatron on h100: compute x" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "why-oom"])
def test_one_layout_stands_on_it(
    command: str, calibration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, *PLAN, *LAYOUT]
    assert run([*words, "--json"]) == 0
    plain = capsys.readouterr().out
    assert run([*words, "--json", "--calibration", str(calibration)]) == 0
    assert capsys.readouterr().out != plain
    assert run([*words, "--calibration", str(calibration)]) == 0
    assert "calibrated on 1 run" in capsys.readouterr().out


def test_predict_uses_it_for_its_own_kind(
    calibration: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "runs.csv"
    with table.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, list(LLAMA))
        writer.writeheader()
        writer.writerows([LLAMA, {**LLAMA, "row_id": "other", "gpu": "B200"}])
    texts = []
    for flags in ([], ["--calibration", str(calibration)]):
        assert run(["predict", str(table), "-o", str(tmp_path / "p.csv"), *flags]) == 0
        texts.append((tmp_path / "p.csv").read_text().splitlines())
    assert "holds for 1 row" in capsys.readouterr().err
    assert texts[0][1] != texts[1][1]
    assert texts[0][2] == texts[1][2]


def test_a_request_with_it_reads_back(calibration: Path, tmp_path: Path) -> None:
    saved = tmp_path / "request.yaml"
    assert (
        run(
            [
                "plan",
                *PLAN,
                "--calibration",
                str(calibration),
                "--save-request",
                str(saved),
                "--top",
                "1",
            ]
        )
        == 0
    )
    request = PlanRequest.of(read_request(saved))
    assert request.calibration == str(calibration)
    assert PlanRequest.of(read_request(saved)) == request
    assert api.plan(request).plans[0].provenance["calibration"]["runs"] == 1


def test_links_alone_make_a_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all_reduce.txt").write_text(
        nccl_output({2**n: 40 + 2**n / 1e5 for n in range(16, 33, 2)})
    )
    path = tmp_path / "links.yaml"
    assert run(["calibrate", str(tmp_path / "all_reduce.txt"), "-o", str(path)]) == 0
    assert "GB/s" in capsys.readouterr().out
    assert run(["explain", *PLAN, "--layout", "tp=8", "--calibration", str(path)]) == 0


REFUSED = {
    "no file": (["calibrate", "absent.log", "-o", "c.yaml"], "absent.log: cannot be read"),
    "no form": (["calibrate", "notes.txt", "-o", "c.yaml"], "no form that is known"),
    "no cluster": (["calibrate", "train.log", "-o", "c.yaml"], "give --cluster"),
    "unknown chip": (
        ["calibrate", "train.log", "--cluster", "h1000:16", "-o", "c.yaml"],
        "did you mean",
    ),
    "another count": (
        ["calibrate", "train.log", "--cluster", "h100:32", "-o", "c.yaml"],
        "16 chips",
    ),
    "batch of none": (
        ["calibrate", "train.log", "--cluster", "h100:16", "--gbs", "0", "-o", "c.yaml"],
        "gbs=0: expected 1 or more",
    ),
    "nowhere": (
        ["calibrate", "train.log", "--cluster", "h100:16", "-o", "no/where.yaml"],
        "there is no folder no",
    ),
    "no calibration": (["plan", *PLAN, "--calibration", "notes.txt"], "no calibration"),
    "absent calibration": (
        ["explain", *PLAN, *LAYOUT, "--calibration", "absent.yaml"],
        "No such file",
    ),
    "predict without": (
        ["predict", "notes.txt", "-o", "p.csv", "--calibration", "absent.yaml"],
        "notes.txt",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.log").write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    Path("notes.txt").write_text("nothing to see")
    words, message = REFUSED[name]
    assert run(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_another_chip_is_refused(calibration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "plan",
                "llama3-8b",
                "--cluster",
                "b200:64",
                "--seq",
                "8192",
                "--gbs",
                "128",
                "--calibration",
                str(calibration),
            ]
        )
        == 2
    )
    assert "calibration of h100 on b200" in capsys.readouterr().err


def test_the_functions_say_what_the_commands_print(tmp_path: Path, calibration: Path) -> None:
    log = tmp_path / "train.log"
    report = meshwright.calibrate(log, cluster="h100:16", output=tmp_path / "mine.yaml")
    assert [run.quantity for run in report.runs] == ["step time", "peak memory"]
    assert (tmp_path / "mine.yaml").read_text() == calibration.read_text()
    with pytest.raises(ConfigError, match="'seq' describes no run; known are model, cluster,"):
        meshwright.calibrate(log, seq=8192)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with (tmp_path / "runs.csv").open("w", newline="") as handle:
        writer = csv.DictWriter(handle, [*LLAMA, "step_time_s"])
        writer.writeheader()
        writer.writerow({**LLAMA, "step_time_s": "5.0"})
    with pytest.warns(UserWarning, match=r"other\.csv: left out"):
        answers = meshwright.predict(
            [tmp_path / "runs.csv", tmp_path / "other.csv"], calibration=calibration
        )
    plain = meshwright.predict(tmp_path / "runs.csv", output=tmp_path / "predictions.csv")
    assert answers.predictions[0].step_s != plain.predictions[0].step_s
    again = meshwright.validate(tmp_path / "runs.csv", predictions=tmp_path / "predictions.csv")
    assert again.figures == meshwright.validate([tmp_path / "runs.csv"]).figures
    with pytest.raises(ConfigError, match="no effect on --predictions"):
        meshwright.validate(
            tmp_path / "runs.csv", predictions=tmp_path / "predictions.csv", calibration=calibration
        )
