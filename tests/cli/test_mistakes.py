"""Mistakes that a person makes: each is answered in one line that says what to type instead, with
exit code 2, and before anything is searched."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.values.models.hf_configs import CONFIGS

from meshwright import api
from meshwright.cli import run

Capture = pytest.CaptureFixture[str]
ON = "--cluster h100:8 --seq 8k"
ASKED = f"llama3-8b {ON} --gbs 64"
MISTAKES = {
    # what is missing
    "plan": "--cluster, such as h100:256",
    "plan llama3-8b": "--seq, such as 8192",
    "plan llama3-8b --cluster h100:8": "plan needs --seq, such as 8192",
    f"estimate {ASKED}": "give --tokens: to train on: 300B, 15T",
    "size --cluster h100:64": "give --days TIME: longest that the training may take: 30, 30d, 4w",
    f"explain {ASKED}": "--tp 8 --pp 4 --mbs 1",
    f"explain llama3-8b {ON} --layout tp=2": "add gbs=... to the layout, or --gbs",
    "diff tp=8,pp=4": "give B: tp=8,pp=4,mbs=1",
    f"export {ASKED}": "give --to SOFTWARE",
    f"export {ASKED} --to torchtitan": "--dry-run prints the files",
    "serving plan llama3-8b": "give --cluster, such as h100:8",
    "calibrate train.log --cluster h100:8": "give --output CALIBRATION.yaml",
    "train tiny-llama --cluster local:1": "--steps 100 to try it, or --tokens 79M, 20 for each",
    "train llama3-8b --cluster h100:16 --seq 8192 --launcher bcp --time 5d": "5d reaches",
    # chips
    "plan llama3-8b --cluster 8h100 --seq 8k": "did you mean h100:8?",
    "plan llama3-8b --cluster 8xh100 --seq 8k": "did you mean h100:8?",
    "plan llama3-8b --cluster '8 x h100' --seq 8k": "did you mean h100:8?",
    "plan llama3-8b --cluster 8:h100 --seq 8k": "did you mean h100:8?",
    "plan llama3-8b --cluster h100x8 --seq 8k": "did you mean h100:8?",
    "plan llama3-8b --cluster h100=8 --seq 8k": "did you mean h100:8?",
    "plan llama3-8b --cluster 8a100-80 --seq 8k": "did you mean a100-80:8?",
    "plan llama3-8b --cluster h100 --seq 8k": "how many, as in h100:8?",
    "plan llama3-8b --cluster a100-80 --seq 8k": "how many, as in a100-80:8?",
    "plan llama3-8b --cluster h10:8 --seq 8k": "did you mean 'h100'",
    "plan llama3-8b --cluster h100:0 --seq 8k": "expected 1 to",
    "plan llama3-8b --cluster h100:8,h100:8 --seq 8k": "give it once with the sum",
    "plan llama3-8b --gpus 8 --seq 8k": "such as --cluster h100:8",
    "plan llama3-8b h100:8 --seq 8k": "chips go with --cluster: --cluster h100:8",
    "chips h1000": "did you mean 'h100'",
    "plan llama3-8b --cluster h100:8,a100-80:8 --finetune lora --seq 4k": (
        "plan each kind alone, --cluster h100:8 or --cluster a100-80:8"
    ),
    "plan llama3-8b --cluster h100:64 --num-gpus 8 --finetune lora --seq 4k": (
        "type their number, such as --cluster h100:8"
    ),
    # models
    f"plan lama3-8b {ON}": "did you mean 'llama3-8b'",
    f"plan {ON} --model llama3-8b": "the model stands without an option",
    f"plan --hf lama3-8b {ON}": "did you mean 'llama3-8b'",
    f"plan --hf my-lab/my-model {ON}": "hf download my-lab/my-model config.json",
    f"plan --hf nowhere.json {ON}": "--hf takes a config.json, or the folder that holds one",
    f"plan --hf empty.json {ON}": "expected a config.json of Hugging Face",
    f"plan --hf binary {ON}": "binary: no JSON",
    f"plan llama3-8b --hf config.json {ON}": "give either a name or a config",
    "models llama9": "`meshwright models` lists them",
    # numbers, tokens and times
    "plan llama3-8b --cluster h100:8 --seq 8,192": "without commas: 8192",
    "plan llama3-8b --cluster h100:8 --seq long": "expected a whole number, such as 8192 or 8k",
    "plan llama3-8b --cluster h100:8 --seq -8192": "expected a whole number of 1 or more",
    f"plan llama3-8b {ON} --gbs 0.5": "expected a whole number, such as 8192 or 8k",
    f"estimate {ASKED} --tokens 15": "did you mean 15B or 15T?",
    f"estimate {ASKED} --tokens 15trillion": "expected a number such as 4096, 300B or 15T",
    f"plan {ASKED} --tokens 2T": "`meshwright estimate` says days and cost",
    f"plan {ASKED} --deadline 30d": "of no effect without --tokens, such as 300B",
    f"plan {ASKED} --tokens 2T --deadline 30": "did you mean 30d (days) or 30h (hours)?",
    f"train {ASKED} --tokens 15": "did you mean 15B or 15T?",
    "size --cluster h100:64 --days 0": "expected a positive number",
    "size --cluster h100:64 --days soon": "expected a duration such as 30d",
    # options of other tools
    f"plan llama3-8b {ON} --batch-size 64": "did you mean --gbs?",
    f"plan llama3-8b {ON} --global-batch-size 64": "did you mean --gbs?",
    f"plan llama3-8b {ON} --micro-batch-size 1": "did you mean --mbs?",
    f"plan llama3-8b {ON} --tensor-model-parallel-size 2": "did you mean --tp?",
    f"plan llama3-8b {ON} --pipeline-parallel 2": "did you mean --pp?",
    "plan llama3-8b --cluster h100:8 --seq-length 8192": "did you mean --seq?",
    f"plan {ASKED} --dtype bf16": "did you mean --precision, such as --precision bf16?",
    f"plan {ASKED} --optimize cost": "such as --objective tokens_per_dollar?",
    f"plan {ASKED} --framework megatron": "did you mean --stack?",
    f"plan {ASKED} --xyzzy red": "`meshwright plan --help` lists them",
    # layouts
    f"plan {ASKED} --layout tp=2": "hold an axis by --tp 2",
    f"plan {ASKED} --tp 3": "tp may be 1, 2, 4, 8",
    f"plan {ASKED} --tp two": "tp=two: expected a whole number",
    f"plan {ASKED} --tp 2 --set tp=2": "given twice",
    f"plan {ASKED} --set tp": "expected key=value[,value...] such as tp=1,2",
    f"plan {ASKED} --set tp=2,pp=2": "write --set once for each key",
    f"plan {ASKED} --recompute yes": "expected one of none, selective, full",
    f"plan {ASKED} --sharding zero4": "expected one of none, zero1, zero2, zero3, hybrid",
    f"explain {ASKED} --layout 'tp 2'": "expected key=value, such as tp=8",
    f"explain {ASKED} --tp 2 --pp 3": "take 6 or 12 chips, or other sizes",
    f"explain {ASKED} --tp 2 --term bubbles": "did you mean 'bubble'",
    "diff plans.json tp=2": "a layout is written tp=8,pp=4",
    # software and platforms
    f"plan {ASKED} --stack pytorch": "`meshwright stacks` says what each is",
    f"plan {ASKED} --stack megatron-lm": "did you mean 'megatron'",
    f"plan {ASKED} --to torch-titan": "did you mean 'torchtitan'",
    f"plan {ASKED} --to torchtitan --stack megatron": "plan with --stack torchtitan",
    f"plan {ASKED} --precision bfloat16": "did you mean 'bf16'?",
    f"export {ASKED} --to vllm": "meshwright serving export --to vllm",
    f"export {ASKED} --to torchtitan -o x --launcher slrum": "did you mean 'slurm'?",
    f"export {ASKED} --to torchtitan -o x --time 5D": "such as --launcher slurm",
    "serving plan llama3-8b --cluster h100:8 --engine vlm": "did you mean 'vllm'?",
    # files
    "plan --from binary --cluster h100:8": "not a text in UTF-8",
    "plan --from config.json --cluster h100:8": "a config.json of Hugging Face goes with --hf",
    "export plan.json --to torchtitan -o x": "`meshwright plan ... --json > plan.json` writes one",
    "watch binary": "give a training's log, or its folder",
    "watch nowhere.log": "no such file or folder",
    "report nowhere.json": "cannot be read (No such file or directory)",
    "validate nowhere.csv": "cannot be read (No such file or directory)",
    # commands
    "plans llama3-8b": "did you mean 'plan'",
    "serve llama3-8b --cluster h100:8": "did you mean 'serving'?",
    "train-status run": "did you mean 'train status'",
    "--verbose plan": "did you mean --version?",
}


BY_THE_RULES = (
    "tp may be 1, 2, 4, 8",
    "expected one of none, selective, full",
    "expected one of none, zero1, zero2, zero3, hybrid",
)
"""Values of axes are held against the rules of the space where this is made, before it is
priced."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the mistakes name."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama3-8b"]))
    (folder / "empty.json").write_text("{}")
    (folder / "binary").write_bytes(bytes(range(256)) * 16)
    (folder / "train.log").write_text("")
    return folder


@pytest.mark.parametrize("line", list(MISTAKES))
def test_a_mistake_is_one_line_with_what_to_type(
    line: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(desk)
    if MISTAKES[line] not in BY_THE_RULES:
        monkeypatch.setattr(api, "plan", _no_search)
    assert run(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert MISTAKES[line] in err


def _no_search(*_: object, **__: object) -> None:
    raise AssertionError("a refusal comes before the search")


def test_there_are_sixty() -> None:
    assert len(MISTAKES) >= 60


def test_help_and_version_may_be_words(capsys: Capture) -> None:
    assert run(["help", "plan"]) == 0
    assert capsys.readouterr().out.startswith("Usage: meshwright plan")
    assert run(["version"]) == 0
    assert capsys.readouterr().out.startswith("meshwright ")
