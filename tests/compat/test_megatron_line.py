"""Megatron-LM command lines of earlier days."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.compat.llmacc import run
from meshwright.compat.megatron_line import parser_complaint, repaired
from meshwright.values.errors import ConfigError

SMALL = (
    *("--task-type", "megatron.GPT", "--num-layers", "24", "--hidden-size", "1024"),
    *("--num-attention-heads", "16", "--seq-length", "1024", "--max-position-embeddings", "1024"),
    *("--vocab-file", "v", "--merge-file", "m", "--data-path", "x"),
)
CALCULATOR = ("--world-size", "8", "--local-world-size", "8", "--chip", "a100-80", "--top", "2")
MEGATRON = """
def add_megatron_arguments(parser):
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--bf16", action="store_true")
    return parser
"""


def test_what_todays_parser_rejects_is_repaired() -> None:
    words = ["--dataset-impl", "mmap", "--data-parallel-size", "4", "--bf16", "--lr", "1e-4"]
    line = repaired([*words, "--use-distributed-optimizer", "true", "--sequence-parallel=false"])
    assert line.words == ("--bf16", "--lr", "1e-4", "--use-distributed-optimizer")
    assert line.dp == 4 and len(line.notes) == 3


def test_a_good_line_stays_as_it_is() -> None:
    words = (
        "--split",
        "949,50,1",
        "--data-path",
        "0.5",
        "a b",
        "--bf16",
        "--lr=1e-4",
        "--own",
        "x",
    )
    line = repaired(words)
    assert line.words == words and line.notes == () and line.dp is None


@pytest.mark.parametrize(
    "words", [["--fp16", "--bf16"], ["--data-parallel-size", "many"], ["--bf16", "maybe"]]
)
def test_what_cannot_be_meant_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=words[0]):
        repaired(words)


def test_repairs_precision_and_batch_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    old = ("--dataset-impl", "mmap", "--data-parallel-size", "4")
    assert run((*SMALL, *CALCULATOR, *old), {}) == 0
    out, err = capsys.readouterr()
    for line in out.splitlines():  # 8 processes, of which dp takes 4
        assert (
            "--tensor-model-parallel-size 2" in line or "--pipeline-model-parallel-size 2" in line
        )
    assert "--dataset-impl no longer exists" in err and "dp=4 is held" in err
    assert "it trains in float32" in err and "with --bf16" in err
    assert "no --global-batch-size: " in err and "was chosen" in err


def test_the_line_passes_the_programs_own_parser(tmp_path: Path) -> None:
    """A stand-in with the function that Megatron-LM's arguments.py has."""
    package = tmp_path / "megatron" / "training"
    package.mkdir(parents=True)
    (package / "arguments.py").write_text(MEGATRON)
    program = tmp_path / "pretrain_gpt.py"
    program.write_text("")

    def complaint(*words: str, own: bool = True) -> str | None:
        return parser_complaint(str(program), words, {}, own=own)

    assert complaint("--num-layers", "2", "--bf16") is None
    assert complaint("--num-layers", "two") == "argument --num-layers: invalid int value: 'two'"
    assert complaint("--gone", "1") == "unrecognized arguments: --gone"
    assert complaint("--gone", "1", own=False) is None
    assert parser_complaint(str(tmp_path / "no" / "x.py"), ["--gone"], {}, own=True) is None
