from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.measured.examples import LLAMA
from tests.runs.measured.logs import megatron_log
from tests.values.hardware.profiles import ON_CPU, ON_H100

from meshwright import api
from meshwright.cli import run
from meshwright.cli.plan_files import read_request
from meshwright.search.request import PlanRequest
from meshwright.values.hardware.profile import Profile, profile_to_bytes

PLAN = ["llama3-8b", "--cluster", "h100:64", "--seq", "8192", "--gbs", "128"]


def written(path: Path, profile: Profile) -> Path:
    path.write_bytes(profile_to_bytes(profile, form="npz"))
    return path


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return written(tmp_path / "here.npz", ON_H100)


def test_a_plan_says_how_much_of_it_was_measured_here(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *PLAN, "--json", "--top", "1"]) == 0
    plain = json.loads(capsys.readouterr().out)["plans"][0]
    assert run(["plan", *PLAN, "--json", "--top", "1", "--profile", str(profile)]) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["plans"][0]
    shares = best["provenance"]["shares"]
    assert shares["profile"] > 0.5 and plain["provenance"]["shares"]["profile"] == 0
    assert "NVIDIA H100 80GB HBM3" in best["provenance"]["profile"]["source"]
    assert "profile" not in plain["provenance"]
    assert best["interval"]["step_s"][0] < best["step_s"] < best["interval"]["step_s"][1]
    assert best["step_s"] != plain["step_s"]
    assert answer["request"]["profile"] == str(profile)
    assert run(["plan", *PLAN, "--profile", str(profile)]) == 0
    assert f"{shares['profile']:.0%} of the step stands on your profile" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "why-oom"])
def test_one_layout_stands_on_it(
    command: str, profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, *PLAN, "--layout", "tp=2,pp=2"]
    assert run([*words, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run([*words, "--json", "--profile", str(profile)]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["shares"]["profile"] > 0.5 and plain["shares"]["profile"] == 0
    assert fitted["step_s"] != plain["step_s"]
    assert run([*words, "--profile", str(profile)]) == 0
    assert "of the step stands on your profile" in capsys.readouterr().out


def test_both_sides_of_a_comparison_stand_on_it(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["diff", "tp=2", "tp=4", "--model", *PLAN, "--json"]
    assert run([*words, "--profile", str(profile)]) == 0
    assert all(
        price["shares"]["profile"] > 0.4 for price in json.loads(capsys.readouterr().out)["prices"]
    )
    assert run(["diff", "tp=2", "tp=4", "--profile", str(profile)]) == 2
    assert "profile: of no effect without --model" in capsys.readouterr().err


def test_rows_of_its_chip_are_predicted_with_it(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    with rows.open("w", newline="") as stream:
        writer = csv.DictWriter(
            stream, fieldnames=["row_id", *(key for key in LLAMA if key != "row_id")]
        )
        writer.writeheader()
        writer.writerow({**LLAMA, "row_id": "1", "gpu": "H100-80GB-SXM"})
        writer.writerow({**LLAMA, "row_id": "2", "gpu": "A100-80GB-SXM"})

    def steps(*words: str) -> list[float]:
        out = tmp_path / "predictions.csv"
        assert run(["predict", str(rows), "-o", str(out), *words]) == 0
        return [float(line["step_time_s"]) for line in csv.DictReader(out.read_text().splitlines())]

    plain, fitted = steps(), steps("--profile", str(profile))
    assert fitted[0] != plain[0] and fitted[1] == plain[1]
    assert (
        "profile of NVIDIA H100 80GB HBM3, 2026-11-21T00:00:00Z; holds for 1 row"
        in capsys.readouterr().err
    )


def test_a_calibration_with_a_profile_holds_with_it_alone(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, file = tmp_path / "train.log", tmp_path / "c.yaml"
    log.write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    words = ["calibrate", str(log), "--cluster", "h100:16", "-o", str(file)]
    assert run([*words, "--profile", str(profile)]) == 0
    asked = ["plan", *PLAN, "--top", "1", "--calibration", str(file)]
    assert run([*asked, "--profile", str(profile)]) == 0
    out = capsys.readouterr().out
    assert (
        "of the step stands on your profile" in out
        and "calibrated on 1 run with megatron on h100" in out
    )
    assert run(asked) == 2
    assert "calibration was fitted with a profile" in capsys.readouterr().err
    assert run(words) == 0
    assert run([*asked, "--profile", str(profile)]) == 2
    assert "calibration was fitted without a profile" in capsys.readouterr().err
    assert (
        run(
            [
                "predict",
                str(log),
                "-o",
                str(tmp_path / "p.csv"),
                "--calibration",
                str(file),
                "--profile",
                str(profile),
            ]
        )
        == 2
    )


def test_runs_on_another_chip_are_no_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    other = written(tmp_path / "cpu.npz", ON_CPU)
    assert (
        run(
            [
                "calibrate",
                str(log),
                "--cluster",
                "h100:16",
                "-o",
                str(tmp_path / "c.yaml"),
                "--profile",
                str(other),
            ]
        )
        == 2
    )
    assert "profile of Some CPU (4 cores), runs on h100" in capsys.readouterr().err


def test_bad_files_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = profile_to_bytes(ON_H100, form="json").replace(b'"form": 1', b'"form": 0')
    cases = {
        "absent.npz": (None, "No such file"),
        "broken.npz": (b"PK\x03\x04 and no more", "no profile of `meshwright profile`"),
        "text.json": (b"hello", "no profile of `meshwright profile`"),
        "stale.json": (stale, "form=0: this version reads form 1; measure again"),
        "cpu.npz": (profile_to_bytes(ON_CPU, form="npz"), "Some CPU (4 cores), cluster of h100"),
        "fast.npz": (profile_to_bytes(faster(ON_H100), form="npz"), "of what h100 can do at most"),
    }
    for name, (content, words) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert run(["plan", *PLAN, "--profile", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1, name


def faster(profile: Profile) -> Profile:
    """Ten times as fast as the card can be."""
    changed = tuple(
        replace(
            series,
            samples=tuple(
                replace(sample, seconds=(sample.seconds or 1.0) / 10) for sample in series.samples
            ),
        )
        for series in profile.series
    )
    return replace(profile, series=changed)


def test_a_partial_profile_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = written(tmp_path / "part.npz", replace(ON_H100, complete=False))
    assert run(["plan", *PLAN, "--top", "1", "--profile", str(part)]) == 0
    out = capsys.readouterr().out
    assert "the profile is partial" in out and "unsteady" not in out
    shaky = tuple(
        (
            replace(one, samples=tuple(replace(sample, spread_frac=0.5) for sample in one.samples))
            if one.name == "gemm/bf16"
            else one
        )
        for one in ON_H100.series
    )
    busy = written(tmp_path / "busy.npz", replace(ON_H100, series=shaky))
    assert run(["plan", *PLAN, "--top", "1", "--profile", str(busy)]) == 0
    assert (
        "of its shapes were unsteady, as on a busy machine: measure again"
        in capsys.readouterr().out
    )


def test_the_request_file_keeps_it(profile: Path, tmp_path: Path) -> None:
    file = tmp_path / "request.yaml"
    assert (
        run(["plan", *PLAN, "--top", "1", "--profile", str(profile), "--save-request", str(file)])
        == 0
    )
    asked = PlanRequest.of(read_request(file))
    assert asked.profile == str(profile)
    assert api.plan(asked).plans[0].provenance["shares"]["profile"] > 0.5


def test_made_predictions_leave_no_place_for_a_profile(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    with rows.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=[*LLAMA, "step_time_s"])
        writer.writeheader()
        writer.writerow({**LLAMA, "step_time_s": "10"})
    assert run(["validate", str(rows), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["tables"]
    assert run(["validate", str(rows), "--json", "--profile", str(profile)]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] != plain
    made = tmp_path / "made.csv"
    assert run(["predict", str(rows), "-o", str(made)]) == 0
    assert run(["validate", str(rows), "--predictions", str(made), "--profile", str(profile)]) == 2
    assert "have no effect on --predictions" in capsys.readouterr().err
