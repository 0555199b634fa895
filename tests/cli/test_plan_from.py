from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import meshwright
from meshwright.api import problem_of
from meshwright.api.existing import price_of
from meshwright.cli import run
from meshwright.search.problem import ask
from meshwright.search.request import PlanRequest

SCRIPT = """
NODES=8
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \\
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \\
  --vocab-size 128256 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel --micro-batch-size 1 \\
  --global-batch-size 128 --use-distributed-optimizer --overlap-grad-reduce --bf16 --hidden-dropout 0 --attention-dropout 0 \\
  --lr 1e-3 --dataset-impl mmap --wandb-project mine
"""  # noqa: E501


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_a_script_is_improved(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--from", str(script), "--cluster", "h100:64", "--top", "1", "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert answer["request"]["gbs"] == 128
    current, best = answer["current"], answer["plans"][0]
    assert {name: current["layout"][name] for name in ("tp", "pp", "dp", "mbs")} == {
        "tp": 4,
        "pp": 2,
        "dp": 8,
        "mbs": 1,
    }
    assert best["step_s"] < current["step_s"]
    problem = problem_of(
        PlanRequest(model="llama3-8b", cluster="h100:64", seq_len=8192, gbs=128, stack="megatron")
    )
    setting = problem.setting
    as_it_is = replace(
        problem,
        setting=replace(
            setting, stack=setting.stack.without(("tp_overlap", "cross_entropy_fused"))
        ),
    )
    assert current["step_s"] == pytest.approx(price_of(ask("tp=4,pp=2,mbs=1", as_it_is)).step_s)
    assert "passed through: --wandb-project mine" in shown.err
    assert "--dataset-impl no longer exists" in shown.err
    assert answer["request"]["model"]["details"]["rope_base"] == 10000
    assert (
        "note: learning_rate" in shown.err
        and "of the file do not go with --json; --export DIR writes them" in shown.err
    )


def test_what_a_script_leaves_off_is_priced_without_it(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script sets --overlap-grad-reduce alone; tensor-parallel exchanges hide behind nothing,
    and the loss makes an fp32 copy."""
    assert run(["plan", "--from", str(script), "--cluster", "h100:64", "--top", "1", "--json"]) == 0
    shown = capsys.readouterr()
    for flag in ("--tp-comm-overlap", "--cross-entropy-loss-fusion"):
        assert f"{flag} is off: the file's layout is priced without it" in shown.err
    assert "--overlap-grad-reduce is off" not in shown.err
    script.write_text(
        SCRIPT.replace("--bf16", "--bf16 --tp-comm-overlap --cross-entropy-loss-fusion"),
        encoding="utf-8",
    )
    assert run(["plan", "--from", str(script), "--cluster", "h100:64", "--top", "1", "--json"]) == 0
    switched = capsys.readouterr()
    assert "is off" not in switched.err
    today, then = json.loads(shown.out)["current"], json.loads(switched.out)["current"]
    assert then["step_s"] < today["step_s"]
    explained = meshwright.explain(
        "tp=4,pp=2,mbs=1",
        model="llama3-8b",
        cluster="h100:64",
        seq_len=8192,
        gbs=128,
        stack="megatron",
    )
    assert then["step_s"] == pytest.approx(explained.quote.step_s)


def test_both_layouts_and_what_differs_are_printed(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--from", str(script), "--cluster", "h100:64", "--top", "1"]) == 0
    shown = capsys.readouterr().out
    assert "A, the file's layout: tp=4,sp=1,pp=2,dp=8" in shown
    assert "B, the best: " in shown
    assert "Differences" in shown
    assert "faster than A" in shown


def test_a_file_that_ran_is_compared_as_it_must_have_run(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script does not say that it recomputes anything."""
    script.write_text(
        SCRIPT.replace("--micro-batch-size 1", "--micro-batch-size 16"), encoding="utf-8"
    )
    asked = ["plan", "--from", str(script), "--cluster", "h100:64", "--top", "1"]
    assert run(asked) == 0
    as_told = " ".join(capsys.readouterr().out.split())
    assert "mbs=16" in as_told and "With --ran it is compared so." in as_told
    assert run([*asked, "--ran", "--json"]) == 0
    current = json.loads(capsys.readouterr().out)["current"]
    assert current["ran"]["taken"] and current["layout"]["mbs"] == 16
    assert current["fits"] != "no"
    assert max(current["peak_memory_gib"]) < current["ran"]["as_told_gib"]
    assert run([*asked, "--ran"]) == 0
    assert current["ran"]["words"] in " ".join(capsys.readouterr().out.split())
    assert run(["plan", "llama3-8b", "--cluster", "h100:8", "--seq", "8192", "--ran"]) == 2
    assert "of --from ran" in capsys.readouterr().err


def test_the_best_is_written_with_the_settings_of_the_script(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "better"
    assert (
        run(
            [
                "plan",
                "--from",
                str(script),
                "--cluster",
                "h100:64",
                "--top",
                "1",
                "--export",
                str(folder),
            ]
        )
        == 0
    )
    written = folder / "train.sh"
    text = written.read_text(encoding="utf-8")
    assert "    --lr 0.001\n" in text
    assert "    --wandb-project mine\n" in text
    assert subprocess.run(["bash", "-n", str(written)], check=False).returncode == 0


def test_other_chips_than_the_scripts_change_its_replicas_only(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["plan", "--from", str(script), "--cluster", "h100:128", "--top", "1", "--json"]) == 0
    )
    layout = json.loads(capsys.readouterr().out)["current"]["layout"]
    assert (layout["tp"], layout["pp"], layout["dp"]) == (4, 2, 16)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the file does not say which chips it runs on; add --cluster"),
        (["--cluster", "h100:64", "llama3-8b"], "names a model of its own"),
        (
            ["--cluster", "h100:64", "--export", "x", "--to", "megatron"],
            "did you mean 'megatron-lm'",
        ),
        (["--cluster", "h100:12"], "its layout does not run as it is"),
    ],
)
def test_bad_requests_are_one_line(
    script: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "--from", str(script), *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_file_of_no_known_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello", encoding="utf-8")
    assert run(["plan", "--from", str(path), "--cluster", "h100:64"]) == 2
    assert capsys.readouterr().err.startswith("error: notes.txt: not recognised as any of")
    path.write_text('{"model_type": "llama"}', encoding="utf-8")
    assert run(["plan", "--from", str(path), "--cluster", "h100:64"]) == 2
    assert "; a config.json of Hugging Face goes with --hf" in capsys.readouterr().err


def test_a_batch_that_the_file_leaves_to_its_software_follows_from_the_chips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchtitan takes local_batch_size x data-parallel ranks: 4 x (16 / 2)."""
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\nseq_len ='
        ' 8192\n[activation_checkpoint]\nmode = "full"\n[parallelism]\ntensor_parallel_degree'
        " = 2\n",
        encoding="utf-8",
    )
    assert run(["plan", "--from", str(path), "--cluster", "h100:16"]) == 0
    shown = capsys.readouterr()
    assert "global batch 32: 4 sequences of each replica, as torchtitan takes them" in shown.err
    assert "A, the file's layout: tp=2,sp=1,pp=1,dp=8,sharding=zero3,mbs=4,gbs=32" in shown.out


def test_the_python_function_writes_what_the_command_writes() -> None:
    exported = meshwright.export(
        "tp=2", to="megatron-lm", model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=64
    )
    assert exported.command[0] == "pretrain_gpt.py"
    assert "--tensor-model-parallel-size" in exported.command
