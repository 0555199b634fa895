"""What people come with: the first answer is quick and seen whole, and what is exported starts."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_terminal import ESCAPE, in_terminal
from tests.software.frameworks import run_loader

from meshwright import api
from meshwright.cli import run
from meshwright.software.contract import Exported, import_text
from meshwright.software.registry import find_source
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import named_model
from meshwright.values.units import parse_count

MOST_CPU_S = 2.0
"""User and system time of the command, its imports included; bytecode is written already."""
TIMES = 3
"""Of them the least counts: processes that share a core slow each other's seconds."""
MOST_LINES, WIDTH = 25, 100
SCRIPT = """\
#!/bin/bash
# 22B on the A100 nodes
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=16
CHECKPOINT_PATH=$1
DATA_PATH=$2

MODEL_ARGS=(
    --num-layers 48
    --hidden-size 6144
    --num-attention-heads 64
    --seq-length 2048
    --max-position-embeddings 2048
)
TRAINING_ARGS=(
    --micro-batch-size 4
    --global-batch-size 512
    --train-iters 100000
    --lr 1.0e-4
    --lr-decay-style cosine
    --weight-decay 0.1
    --clip-grad 1.0
    --bf16
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
)
DATA_ARGS=(
    --data-path $DATA_PATH
    --vocab-file vocab.json
    --merge-file merges.txt
    --split 949,50,1
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]} \\
    --save $CHECKPOINT_PATH --load $CHECKPOINT_PATH --save-interval 1000
"""
ASKED = {
    "deepseek-v3 on GB200": "deepseek-v3 --cluster gb200:288 --seq 4096 --gbs 2048",
    "70B on MI300X": "llama3-70b --cluster mi300x:64 --seq 8192 --gbs 256",
    "1M tokens on 64 H100": "llama3-8b --cluster h100:64 --seq 1M --gbs 8",
}
ANSWERS = {
    **{name: f"plan {words}" for name, words in ASKED.items()},
    "7B on 2T tokens over clouds": (
        "compare llama2-7b --tokens 2T --clusters h100:64,mi300x:64,tpu-v6e:256 --seq 4096"
    ),
    "a 22B script on A100-40": "fix train.sh --cluster a100-40:128",
}


@pytest.fixture(scope="module", autouse=True)
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where bytecode is kept, once written, as an installation has it."""
    env = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode")),
    }
    for words in (["plan", "tiny-llama", "--cluster", "h100:8", "--seq", "512", "--gbs", "8"],):
        in_terminal(words, width=WIDTH, **env)
    in_terminal(ANSWERS["7B on 2T tokens over clouds"].split(), width=WIDTH, **env)
    return env


WIPED = re.compile(r"[^\n]*\x1b\[2K")
"""A line of progress, which the terminal wipes before the next."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_the_first_answer_is_quick_and_seen_whole(
    name: str, bytecode: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    quiet = [] if ANSWERS[name].startswith("fix") else ["--quiet"]
    words, took_s = [*ANSWERS[name].split(), *quiet], []
    for _ in range(TIMES):
        before = cpu_of_children_s()
        text = in_terminal(words, width=WIDTH, NO_COLOR="1", **bytecode)
        took_s.append(cpu_of_children_s() - before)
        if took_s[-1] < MOST_CPU_S:
            break
    lines = ESCAPE.sub("", WIPED.sub("", text)).rstrip().splitlines()
    print(f"{name}: {min(took_s):.2f} s, {len(lines)} lines")
    assert 5 < len(lines) <= MOST_LINES, text
    assert max(map(len, lines)) <= WIDTH
    assert min(took_s) < MOST_CPU_S


def cpu_of_children_s() -> float:
    """User and system time of all processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def exported(name: str, folder: Path) -> Exported:
    """Write the first answer as a user of Megatron-LM gets it, as its own loader wants it."""
    [model, _, cluster, _, seq, _, gbs] = ASKED[name].split()
    tokens = parse_count(seq, name="--seq")
    best = api.plan(model, cluster, seq=tokens, gbs=int(gbs), stack="megatron", top=1).best
    request: dict[str, Any] = {"seq": tokens, "gbs": int(gbs), "stack": "megatron"}
    found = api.export(best.layout.words(), model, cluster, to="megatron-lm", **request)
    folder.mkdir()
    for file in found.files:
        (folder / file.name).write_text(file.text, encoding="utf-8")
    spec = named_model(model)
    (folder / "plan.txt").write_text(
        f"{best.layout.num_chips} {spec.num_layers} {spec.hidden} {best.layout.words()}\n"
        f"{' '.join(found.command)}\n",
        encoding="utf-8",
    )
    [script] = [file for file in found.files if file.name.endswith(".sh")]
    read = import_text(script.text, source=find_source(script.name, script.text))
    assert read.passed_through == ()  # every word is one of Megatron-LM's
    for axis in ("tp", "cp", "pp", "vpp", "ep", "mbs", "gbs", "recompute"):
        usual = getattr(Layout(), axis)
        assert read.layout.get(axis, usual) == getattr(best.layout, axis), axis
    return found


@pytest.mark.parametrize("name", ASKED)
def test_what_is_exported_is_the_first_answer(name: str, tmp_path: Path) -> None:
    assert exported(name, tmp_path / "export").command


def test_the_mended_script_is_one_of_its_softwares(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    assert run(["fix", str(path), "--cluster", "a100-40:128", "--best", "--write"]) == 0
    capsys.readouterr()
    text = path.read_text(encoding="utf-8")
    assert "# 22B on the A100 nodes" in text and "CHECKPOINT_PATH=$1" in text
    found = import_text(text, source=find_source(path.name, text))
    assert found.passed_through == ()
    shape = found.layout
    replicas = 128 // (shape.get("tp", 1) * shape.get("pp", 1) * shape.get("cp", 1))
    assert 512 % (replicas * shape["mbs"]) == 0


def test_megatrons_own_parser_takes_the_exports(tmp_path: Path) -> None:
    for number, name in enumerate(ASKED):
        exported(name, tmp_path / str(number))
    run_loader(
        "megatron_lm.py",
        tmp_path,
        variable="MESHWRIGHT_MEGATRON_LM",
        what="torch, triton and Megatron-LM's other requirements",
    )
