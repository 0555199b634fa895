"""`meshwright fix`: scripts in the form of Megatron-LM's examples, edited for a cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.software.test_megatron_fix import ARRAYS, changed, starts

from meshwright.api import problem_of
from meshwright.api.existing import price_of
from meshwright.cli import run
from meshwright.search.problem import ask
from meshwright.search.request import PlanRequest
from meshwright.software.contract import import_text
from meshwright.software.megatron_lm.read import MEGATRON_LM_SOURCE

Capture = pytest.CaptureFixture[str]

TOO_LARGE = """#!/bin/bash
# Llama 3 8B
CKPT=$1
DATA=$2   # prefix of the corpus
TP=1

MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --normalization RMSNorm --swiglu
    --disable-bias-linear --untie-embeddings-and-output-weights
    --vocab-size 128256
)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --use-distributed-optimizer
)
TRAINING_ARGS=(
    --micro-batch-size 8   # crashes with 16
    --global-batch-size 128
    --bf16 --hidden-dropout 0 --attention-dropout 0 --lr 1e-4 --train-iters 1000
)
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py ${MODEL_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} ${TRAINING_ARGS[@]} --data-path $DATA --save $CKPT --load $CKPT
"""
ON = ["--cluster", "h100:16"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(TOO_LARGE, encoding="utf-8")
    path.chmod(0o755)
    return path


def answer(script: Path, capsys: Capture, *words: str) -> dict[str, object]:
    assert run(["fix", str(script), *ON, *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_script_that_does_not_fit_changes_by_one_setting(script: Path, capsys: Capture) -> None:
    """Eight sequences of 8192 tokens need more than a card has, and one fits with all else alike:
    no smaller edit than one setting is one."""
    assert run(["fix", str(script), *ON]) == 0
    shown = capsys.readouterr()
    assert script.read_text(encoding="utf-8") == TOO_LARGE  # nothing without --write
    assert "fits: no" in shown.err and "after the edit" in shown.err
    assert run(["fix", str(script), *ON, "--write"]) == 0
    after = script.read_text(encoding="utf-8")
    gone, come = changed(TOO_LARGE, after)
    assert 1 <= len(come) <= 3 and len(gone) <= 1
    for line in ("CKPT=$1\n", "DATA=$2   # prefix of the corpus\n", "    --vocab-size 128256\n"):
        assert line in after
    assert starts(after)
    assert script.stat().st_mode & 0o777 == 0o755
    capsys.readouterr()
    assert run(["fix", str(script), *ON]) == 0  # mended is mended
    assert capsys.readouterr().out == ""


def test_the_price_after_the_edit_is_that_of_the_edited_file(script: Path, capsys: Capture) -> None:
    """Megatron-LM's overlap of tensor-parallel exchange is a flag of its own, which an edit that
    brings tensor parallelism does not write."""
    one = TOO_LARGE.replace("--micro-batch-size 8 ", "--micro-batch-size 1 ").replace(
        "bf16", "fp16"
    )
    script.write_text(one.replace("    --use-distributed-optimizer\n", ""), encoding="utf-8")
    first = answer(script, capsys, "--write", "--set", "tp=4")
    assert "tp=4,sp=1" in str(first["layout"])
    again = answer(script, capsys)
    assert again["diff"] == "" and again["step_s"] == first["step_s"]


def test_the_diff_is_one_that_patch_applies(script: Path, capsys: Capture) -> None:
    diff = str(answer(script, capsys, "--best")["diff"])
    name = script.as_posix().lstrip("/")
    assert diff.startswith(f"--- a/{name}\n+++ b/{name}\n")
    subprocess.run(
        ["patch", "-s", str(script)], input=diff.encode(), check=True, capture_output=True
    )
    patched = script.read_text(encoding="utf-8")
    script.write_text(TOO_LARGE, encoding="utf-8")
    assert run(["fix", str(script), *ON, "--best", "--write"]) == 0
    assert script.read_text(encoding="utf-8") == patched


def test_the_fixed_script_reads_as_the_layout_that_was_priced(
    script: Path, capsys: Capture
) -> None:
    found = answer(script, capsys, "--best", "--write")
    again = import_text(script.read_text(encoding="utf-8"), source=MEGATRON_LM_SOURCE)
    problem = problem_of(PlanRequest(model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=128))
    bare = problem_of(
        PlanRequest.of({**problem.request.model_dump(exclude_unset=True), "stack": again.stack})
    )
    layout = ask(dict(again.layout), bare).layout
    assert layout.words() == found["layout"]
    assert found["fits"] == "yes"
    assert price_of(ask(dict(again.layout), bare)).verdict == "yes"


def test_best_is_no_slower_than_the_nearest_and_says_so(script: Path, capsys: Capture) -> None:
    nearest, best = answer(script, capsys), answer(script, capsys, "--best")
    assert float(str(best["step_s"])) <= float(str(nearest["step_s"]))


def test_more_nodes_are_started_where_the_script_counts_them(script: Path, capsys: Capture) -> None:
    assert run(["fix", str(script), "--cluster", "h100:64", "--write"]) == 0
    capsys.readouterr()
    assert "--nproc-per-node 8 --nnodes 8 pretrain_gpt.py" in script.read_text(encoding="utf-8")


def test_a_ramp_and_chunks_go_by_whole_micro_batches(tmp_path: Path, capsys: Capture) -> None:
    """tp=2, pp=2 on 128 cards leaves 32 replicas: a ramp cannot start at 16."""
    script = tmp_path / "gpt.sh"
    script.write_text(ARRAYS, encoding="utf-8")
    words = ["--set", "tp=2", "--set", "pp=2", "--set", "vpp=1", "--set", "mbs=1"]
    assert run(["fix", str(script), "--cluster", "a100-80:128", *words, "--best", "--write"]) == 0
    after = script.read_text(encoding="utf-8")
    assert "    --rampup-batch-size 32 32 5859375 \n" in after  # 1536 - 32 = 47 * 32
    assert "CHECKPOINT_PATH=$1 #<Specify path>\n" in after
    assert "    --lr-decay-iters 430000 \n" in after
    assert starts(after)


def test_a_script_that_no_layout_fits_is_an_answer(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "gpt.sh"
    path.write_text(ARRAYS, encoding="utf-8")
    assert run(["fix", str(path), "--cluster", "rtx4090:1", "--gbs", "8"]) == 1
    said = capsys.readouterr().err
    assert "no layout fits on rtx4090:1" in said
    assert "memory: more than a chip has" in said
    assert "GiB too much on its fullest stage" in said


def test_where_no_edit_mends_it_the_broken_rule_is_said(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "odd.sh"
    path.write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 31 --hidden-size 4096"
        " --num-attention-heads 31 --kv-channels 128 --seq-length 8192 --micro-batch-size 1"
        " --max-position-embeddings 8192 --global-batch-size 7 --bf16 --swiglu"
        " --position-embedding-type rope --tensor-model-parallel-size 2 --train-iters 100"
        " --lr 1e-4 --tokenizer-type NullTokenizer --vocab-size 128255 --mock-data\n",
        encoding="utf-8",
    )
    assert run(["fix", str(path), "--cluster", "h100:64"]) == 2
    said = capsys.readouterr().err
    assert "heads=31 is not divisible by tp=2" in said
    assert "gbs=7 is not divisible by mbs * dp" in said
