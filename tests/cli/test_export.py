from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.values.models.hf_configs import CONFIGS

from meshwright.cli import run

MODEL = ["llama3-8b", "--cluster", "h100:16", "--seq", "8192", "--gbs", "64"]
LAYOUT = ["--layout", "tp=2,mbs=1,sharding=zero3"]
TO = ["--to", "torchtitan"]


def written(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_files_are_written_with_the_command_that_starts_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", *MODEL, *LAYOUT, *TO, "-o", str(tmp_path / "run")]) == 0
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "-m torchtitan.train" in streams.err
    assert list(written(tmp_path / "run"))


def test_a_job_script_lies_beside_them_and_starts_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = [
        "--launcher",
        "slurm",
        "--time",
        "5D",
        "--account",
        "team",
        "--launcher-word",
        "--qos=high",
    ]
    assert run(["export", *MODEL, *LAYOUT, *TO, *job, "-o", str(tmp_path)]) == 0
    assert "sbatch job.sbatch" in capsys.readouterr().err
    text = written(tmp_path)["job.sbatch"]
    assert all(
        line in text
        for line in (
            "#SBATCH --time=5-00:00:00",
            "#SBATCH --account=team",
            "#SBATCH --qos=high",
            "#SBATCH --nodes=2",
        )
    )
    assert "torchtitan.train" in text
    assert (tmp_path / "job.sbatch").stat().st_mode & 0o111


def test_dry_run_prints_exactly_what_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", *MODEL, *LAYOUT, *TO, "--launcher", "torchrun", "-o", str(tmp_path / "run")]
    assert run([*words, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    assert run(words) == 0
    files = written(tmp_path / "run")
    assert len(files) >= 2
    assert sorted(printed.split("==> ")[1:]) == sorted(
        f"{tmp_path / 'run' / name}\n{text}\n" for name, text in files.items()
    )


def test_a_job_file_says_what_flags_say_and_flags_go_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("time: 10h\naccount: team\nwords: [--qos=high]\n")
    assert (
        run(
            [
                "export",
                *MODEL,
                *LAYOUT,
                *TO,
                "--launcher",
                "slurm",
                "--job",
                str(tmp_path / "job.yaml"),
                "--account",
                "other",
                "--dry-run",
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert all(line in text for line in ("--time=0-10:00:00", "--account=other", "--qos=high"))


def test_a_plan_of_a_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *MODEL, "--stack", "torchtitan", "--top", "3", "--json"]) == 0
    answer = capsys.readouterr().out
    (tmp_path / "plans.json").write_text(answer)
    second = json.loads(answer)["plans"][1]["layout"]
    assert run(["export", f"{tmp_path / 'plans.json'}#2", *TO, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["job"] is None
    text = "".join(file["text"] for file in record["files"])
    assert f"local_batch_size={second['mbs']}" in text
    assert f"tensor_parallel_degree={second['tp']}" in text


def test_details_of_a_config_reach_the_files_by_way_of_a_plan_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dims = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
    }
    config = {
        "model_type": "llama",
        **dims,
        "vocab_size": 128256,
        "rope_theta": 250000.0,
        "rms_norm_eps": 1e-6,
    }
    (tmp_path / "mine.json").write_text(json.dumps(config))
    case = [
        "--hf",
        str(tmp_path / "mine.json"),
        "--cluster",
        "h100:8",
        "--seq",
        "4096",
        "--gbs",
        "64",
    ]
    assert run(["plan", *case, "--top", "1", "--json"]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    for words in ([str(tmp_path / "plan.json")], [*case, "--layout", "mbs=1"]):
        assert run(["export", *words, "--to", "megatron-lm", "--dry-run"]) == 0
        flags = capsys.readouterr().out.split()
        assert (
            flags[flags.index("--rotary-base") + 1],
            flags[flags.index("--norm-epsilon") + 1],
        ) == ("250000", "1e-06")
    wrong = json.loads((tmp_path / "plan.json").read_text())
    wrong["request"]["model"]["details"] = {"rope_bass": 1}
    (tmp_path / "plan.json").write_text(json.dumps(wrong))
    assert run(["export", str(tmp_path / "plan.json"), "--to", "megatron-lm", "--dry-run"]) == 2
    assert (
        "'rope_bass' is no known detail of a model; did you mean 'rope_base'"
        in capsys.readouterr().err
    )


def test_without_a_layout_the_best_plan_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *MODEL, "--stack", "torchtitan", "--top", "1", "--json"]) == 0
    layout = json.loads(capsys.readouterr().out)["plans"][0]["layout"]
    words = ",".join(
        f"{name}={layout[name]}"
        for name in ("tp", "cp", "pp", "vpp", "dp", "mbs", "sharding", "recompute")
    )
    texts = []
    for given in ([], ["--layout", words]):
        assert run(["export", *MODEL, *TO, *given, "--json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["files"])
    assert texts[0] == texts[1]


def test_a_best_plan_that_the_target_cannot_run_is_passed_over_aloud(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DeepSpeed splits a sequence in a program of its own, not as Transformers' trainer starts it;
    the fastest plan splits it."""
    words = [
        "llama3-8b",
        "--cluster",
        "h100:8",
        "--seq",
        "8192",
        "--gbs",
        "64",
        "--stack",
        "deepspeed",
        "--fastest",
    ]
    assert run(["plan", *words, "--top", "1", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]["layout"]
    assert best["cp"] > 1
    assert run(["export", *words, "--to", "deepspeed", "--json"]) == 0
    streams = capsys.readouterr()
    passed, chosen = streams.err.splitlines()[:2]
    assert f"cp={best['cp']}" in passed and "was passed over: deepspeed: cp=" in passed
    assert (
        chosen.startswith("plan: ")
        and chosen.endswith("slower by prediction")
        and "cp=" not in chosen
    )
    assert json.loads(streams.out)["files"]


def test_settings_reach_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--setting", "learning_rate=1e-4", "--setting", "train_steps=77"]
    assert run(["export", *MODEL, *LAYOUT, *TO, *settings, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "0.0001" in text or "1e-4" in text or "1e-04" in text
    assert "77" in text


def test_files_that_differ_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", *MODEL, *LAYOUT, *TO, "-o", str(tmp_path)]
    assert run(words) == 0
    assert run(words) == 0, "the same again is no loss"
    name = next(iter(written(tmp_path)))
    (tmp_path / name).write_text("edited by hand")
    capsys.readouterr()
    assert run(words) == 2
    assert "there already, with other contents; --force" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "edited by hand"
    assert run([*words, "--force"]) == 0
    assert (tmp_path / name).read_text() != "edited by hand"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*MODEL, *LAYOUT, "--to", "torchtitn", "--dry-run"], "did you mean 'torchtitan'"),
        ([*MODEL, *LAYOUT, *TO], "nothing is written without -o DIR"),
        (
            [*MODEL, *LAYOUT, *TO, "--time", "5D", "--dry-run"],
            "time: of no effect without --launcher",
        ),
        ([*MODEL, *LAYOUT, *TO, "--launcher", "slrm", "--dry-run"], "did you mean 'slurm'"),
        (
            [*MODEL, *LAYOUT, *TO, "--launcher", "slurm", "--time", "60", "--dry-run"],
            "expected a duration",
        ),
        ([*MODEL, *LAYOUT, *TO, "--launcher", "k8s-jobset", "--dry-run"], "needs image"),
        (["llama3-8b", *TO, "--dry-run"], "needs --cluster and --seq"),
        (["plans/best.json#2", *TO, "--dry-run"], "plans/best.json#2: no such file"),
        ([*TO, "--dry-run", "--cluster", "h100:8", "--seq", "8192"], "give a model"),
        ([*MODEL, "--layout", "tp=3", *TO, "--dry-run"], "tp=3"),
        (
            [*MODEL, *LAYOUT, *TO, "--setting", "learning_rte=1", "--dry-run"],
            "did you mean 'learning_rate'",
        ),
        ([*MODEL, *LAYOUT, *TO, "--setting", "seed", "--dry-run"], "expected each KEY=VALUE once"),
    ],
)
def test_bad_requests_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "acount: a\n", "image: 25\n"])
def test_broken_job_files_are_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert (
        run(
            [
                "export",
                *MODEL,
                *LAYOUT,
                *TO,
                "--launcher",
                "slurm",
                "--job",
                str(tmp_path / "job.yaml"),
                "--dry-run",
            ]
        )
        == 2
    )
    assert capsys.readouterr().err.startswith("error: ")


def test_a_plan_that_fits_nowhere_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "export",
                "llama3-70b",
                "--cluster",
                "h100:1",
                "--seq",
                "8192",
                "--gbs",
                "8",
                *TO,
                "--dry-run",
            ]
        )
        == 1
    )
    assert "nothing fits" in capsys.readouterr().err


def test_what_a_software_has_no_place_for_is_left_out_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIGS["qwen3-30b-a3b"], "router_aux_loss_coef": 0.001}))
    asked = ["export", "--hf", str(config), "--cluster", "h100:32", "--seq", "4096", "--gbs", "128"]
    asked += ["--layout", "tp=1,ep=8,mbs=1", *TO, "-o", str(tmp_path / "run")]
    assert run(asked) == 2
    assert "--leave-out aux_loss writes it without" in capsys.readouterr().err
    assert run([*asked, "--leave-out", "aux_loss"]) == 0
    capsys.readouterr()
    assert run([*asked, "--leave-out", "aux_los"]) == 2
    assert (
        "--leave-out aux_los: the plan does not set it; it sets aux_loss" in capsys.readouterr().err
    )


def test_plan_prices_the_software_that_it_writes_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", *MODEL, "--tp", "2", "--mbs", "1", "--recompute", "none", "--top", "1"]
    assert run([*asked, *TO, "--export", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["stack"] == "torchtitan"
    assert run([*asked, *TO, "--stack", "megatron"]) == 2
    assert "plan with --stack torchtitan" in capsys.readouterr().err
