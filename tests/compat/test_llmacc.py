"""The door of llmacc, with real processes: the calculator, and the launcher as torchrun starts
it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.compat.llmacc import PROGRAMS, run

SEED = (
    *(
        "--num-layers",
        "48",
        "--hidden-size",
        "6144",
        "--num-attention-heads",
        "64",
        "--seq-length",
        "2048",
    ),
    *(
        "--max-position-embeddings",
        "2048",
        "--lr",
        "1.5e-4",
        "--train-iters",
        "1000",
        "--lr-decay-style",
        "cosine",
        "--bf16",
    ),
    *(
        "--vocab-file",
        "gpt2-vocab.json",
        "--merge-file",
        "gpt2-merges.txt",
        "--data-path",
        "my corpus_text_document",
        "--split",
        "949,50,1",
    ),
)
"""GPT-22B as a script of its users has it."""
CALCULATOR = (
    "--task-type",
    "megatron.GPT",
    "--world-size",
    "16",
    "--local-world-size",
    "8",
    "--max-global-batch-size",
    "32",
)
ENTRY = """
import json, os, sys
names = ("RANK", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_AVOID_RECORD_STREAMS")
found = {"argv": sys.argv, "env": {name: os.environ.get(name) for name in names}, "pid": os.getpid()}
open(os.path.join(os.environ["SEEN"], os.environ["RANK"]), "w").write(json.dumps(found))
"""  # noqa: E501
MEMORY = {"DEVICE_MEMORY_GB": "80"}


def value_of(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def lines_of(
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str] | None = None,
) -> list[list[str]]:
    """Return the strategies that the calculator prints, as a shell reads them."""
    code = run(words, MEMORY if environment is None else environment)
    streams = capsys.readouterr()
    assert code == 0, streams.err
    return [shlex.split(line, comments=True) for line in streams.out.splitlines()]


def test_calculator_prints_strategies_of_the_seed_case(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines_of((*CALCULATOR, *SEED), capsys)
    assert len(found) == 10
    for words in found:
        tp, pp = (
            int(value_of(words, f"--{axis}-model-parallel-size")) for axis in ("tensor", "pipeline")
        )
        cp = (
            int(value_of(words, "--context-parallel-size"))
            if "--context-parallel-size" in words
            else 1
        )
        batch, micro = (
            int(value_of(words, "--global-batch-size")),
            int(value_of(words, "--micro-batch-size")),
        )
        assert 16 % (tp * pp * cp) == 0
        assert 48 % pp == 0
        assert 64 % tp == 0
        assert 1 <= batch <= 32
        assert batch % (micro * (16 // (tp * pp * cp))) == 0
    assert len({tuple(words) for words in found}) == 10


def test_best_strategy_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    run((*CALCULATOR, *SEED), MEMORY)
    seconds = [
        float(line.split("# ")[1].split(" s a step")[0])
        for line in capsys.readouterr().out.splitlines()
    ]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    "given",
    [
        ("--tensor-model-parallel-size", "8"),
        ("--pipeline-model-parallel-size", "4"),
        ("--micro-batch-size", "2"),
        ("--global-batch-size", "16"),
        ("--tensor-model-parallel-size=4", "--sequence-parallel"),
        ("--use-distributed-optimizer",),
        (
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "uniform",
            "--recompute-num-layers",
            "1",
        ),
        ("--recompute-activations",),
    ],
)
def test_flags_of_parallelism_are_held(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A strategy adds what is not given, and never says a thing twice."""
    flags = {word.partition("=")[0] for word in given if word.startswith("--")}
    for words in lines_of((*CALCULATOR, *SEED, *given), capsys):
        assert not flags & set(words)
        assert not (
            any("recompute" in flag for flag in flags)
            and any("recompute" in word for word in words)
        )


def test_a_held_size_changes_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    for words in lines_of((*CALCULATOR, *SEED, "--tensor-model-parallel-size", "8"), capsys):
        assert int(value_of(words, "--pipeline-model-parallel-size")) in (1, 2)


def test_memory_of_the_device_decides_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    large, small = (
        lines_of((*CALCULATOR, *SEED), capsys, {"DEVICE_MEMORY_GB": size})[0]
        for size in ("80", "40")
    )
    assert large != small
    assert run((*CALCULATOR, *SEED), {"DEVICE_MEMORY_GB": "8"}) == 1
    assert "nothing fits" in capsys.readouterr().err


def test_old_names_of_task_types_work(capsys: pytest.CaptureFixture[str]) -> None:
    old = tuple("llmacc.megatron.GPT" if word == "megatron.GPT" else word for word in CALCULATOR)
    assert lines_of((*old, *SEED), capsys) == lines_of((*CALCULATOR, *SEED), capsys)


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (SEED, {}, "--task-type"),
        (("--task-type", "megatron.GTP", *SEED), {}, "did you mean 'megatron.GPT'"),
        (
            ("--task-type", "megatron.GPT", *SEED),
            {},
            "WORLD_SIZE, LOCAL_WORLD_SIZE, RANK, MASTER_ADDR, MASTER_PORT not set",
        ),
        (
            ("--task-type", "megatron.GPT", "--world-size", "16", *SEED),
            {},
            "--world-size needs --local-world-size",
        ),
        (
            ("--task-type", "megatron.GPT", "--local-world-size", "8", *SEED),
            {},
            "no effect without --world-size",
        ),
        (
            ("--task-type", "megatron.GPT", "--world-size", "12", "--local-world-size", "8", *SEED),
            MEMORY,
            "equally many processes",
        ),
        ((*CALCULATOR, *SEED), {}, "set DEVICE_MEMORY_GB"),
        (
            (*CALCULATOR, *SEED, "--global-batch-size", "64"),
            MEMORY,
            "above --max-global-batch-size 32",
        ),
        ((*CALCULATOR, *SEED, "--tensor-model-parallel-size", "7"), MEMORY, "7"),
        ((*CALCULATOR, "--world-size", "many", *SEED), MEMORY, "many"),
    ],
)
def test_bad_requests_are_one_line(
    words: tuple[str, ...],
    environment: dict[str, str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshwright.compat.apss._listing", lambda: None)
    assert run(words, environment) in (1, 2)
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err
    assert streams.err.splitlines()[-1].startswith("error: ")


class Started:
    """Processes as torchrun starts them."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        size: int,
        local_size: int,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start every rank."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        (folder / "seen").mkdir()
        self.folder, self.port = folder, port
        here = {
            **os.environ,
            **MEMORY,
            "SEEN": str(folder / "seen"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        here |= {
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(local_size),
            **(environment or {}),
        }
        exchange = ("--exchange-port", str(port))
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-m", "meshwright.pretrain", *exchange, *words],
                env={**here, "RANK": str(rank), "LOCAL_RANK": str(rank % local_size)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in reversed(range(size))
        ][::-1]
        self.streams = [process.communicate(timeout=120) for process in self.processes]
        self.codes = [process.returncode for process in self.processes]

    def seen(self) -> list[dict[str, object]]:
        """Return what the training program saw on every rank."""
        assert self.codes == [0] * len(self.codes), [err for _, err in self.streams]
        return [
            json.loads((self.folder / "seen" / str(rank)).read_text())
            for rank in range(len(self.codes))
        ]


def test_every_rank_becomes_the_training_program_with_the_same_strategy(tmp_path: Path) -> None:
    (tmp_path / PROGRAMS["megatron.GPT"]).write_text(ENTRY)
    started = Started(
        tmp_path,
        "--task-type",
        "llmacc.megatron.GPT",
        "--max-global-batch-size",
        "32",
        *small_model(),
        size=4,
        local_size=2,
    )
    seen = started.seen()
    first = seen[0]["argv"]
    assert isinstance(first, list)
    assert first[0] == PROGRAMS["megatron.GPT"]
    assert first[1 : len(SEED) + 1] == list(small_model()), "the user's words stay as they are"
    assert all(one["argv"] == first for one in seen)
    assert {one["pid"] for one in seen} == {process.pid for process in started.processes}, (
        "the program takes the place of the process"
    )
    tp, pp = (
        int(value_of(first, f"--{axis}-model-parallel-size")) for axis in ("tensor", "pipeline")
    )
    assert 4 % (tp * pp) == 0


def test_strategy_is_that_of_the_calculator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my train.py").write_text(ENTRY)
    words = ("--task-type", "megatron.GPT", "--global-batch-size", "16", *small_model())
    started = Started(tmp_path, "--entry", "my train.py", *words, size=2, local_size=2)
    best = lines_of(("--world-size", "2", "--local-world-size", "2", *words), capsys)[0]
    argv = started.seen()[0]["argv"]
    assert isinstance(argv, list)
    assert argv[-len(best) :] == best


def small_model() -> tuple[str, ...]:
    """GPT-1.3B."""
    return tuple({"48": "24", "6144": "2048", "64": "16"}.get(word, word) for word in SEED)


def test_what_the_user_set_in_the_environment_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENTRY)
    words = (
        "--entry",
        "train.py",
        "--task-type",
        "megatron.GPT",
        "--global-batch-size",
        "16",
        *small_model(),
    )
    ours, theirs = (
        Started(folder, *words, size=1, local_size=1, environment=environment).seen()[0]["env"]
        for folder, environment in (
            (made(tmp_path, "a"), {}),
            (made(tmp_path, "b"), {"TORCH_NCCL_AVOID_RECORD_STREAMS": "7"}),
        )
    )
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    assert ours["TORCH_NCCL_AVOID_RECORD_STREAMS"] == "1"
    assert theirs["TORCH_NCCL_AVOID_RECORD_STREAMS"] == "7"


def made(folder: Path, name: str) -> Path:
    """Return a new folder with the training program."""
    (folder / name).mkdir()
    (folder / name / "train.py").write_text(ENTRY)
    return folder / name


def test_when_nothing_fits_every_rank_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENTRY)
    words = (
        "--entry",
        "train.py",
        "--task-type",
        "megatron.GPT",
        "--global-batch-size",
        "16",
        *SEED,
    )
    started = Started(tmp_path, *words, size=3, local_size=3)
    assert all(code != 0 for code in started.codes)
    assert all("nothing fits" in err for _, err in started.streams)
    assert not list((tmp_path / "seen").iterdir())


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    started = Started(tmp_path, "--task-type", "megatron.T5", *SEED, size=1, local_size=1)
    assert started.codes == [2]
    assert (
        "pretrain_t5.py is neither here nor in MEGATRON_PATH or PYTHONPATH; name the training"
        " program by --entry" in started.streams[0][1]
    )


def test_program_is_found_in_megatron_path(tmp_path: Path) -> None:
    (tmp_path / "Megatron-LM").mkdir()
    (tmp_path / "Megatron-LM" / "pretrain_gpt.py").write_text(ENTRY)
    words = ("--task-type", "megatron.GPT", "--global-batch-size", "16", *small_model())
    started = Started(
        tmp_path,
        *words,
        size=1,
        local_size=1,
        environment={"MEGATRON_PATH": str(tmp_path / "Megatron-LM")},
    )
    assert started.seen()


def test_dry_run_prints_what_would_be_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENTRY)
    words = (
        "--dry-run",
        "--entry",
        "train.py",
        "--task-type",
        "megatron.GPT",
        "--global-batch-size",
        "16",
        *small_model(),
    )
    started = Started(tmp_path, *words, size=1, local_size=1)
    command = shlex.split(started.streams[0][0])
    assert command[:3] == [sys.executable, "-u", "train.py"]
    assert command[3 : 3 + len(SEED)] == ["--global-batch-size", "16", *small_model()][: len(SEED)]
    assert not list((tmp_path / "seen").iterdir())


TINY = (
    *("--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size", "128"),
    *("--num-attention-heads", "4", "--seq-length", "64", "--max-position-embeddings", "64"),
    *("--swiglu", "--normalization", "RMSNorm", "--position-embedding-type", "rope"),
    *("--disable-bias-linear", "--untie-embeddings-and-output-weights", "--vocab-size", "512"),
    *("--tokenizer-type", "NullTokenizer", "--mock-data", "--train-iters", "3", "--lr", "0.01"),
    *("--global-batch-size", "4", "--log-interval", "7", "--seed", "5"),
)


def test_the_embedded_trainer_as_the_program(tmp_path: Path) -> None:
    """Under torchrun itself, two processes: three steps of the line's model and batch."""
    pytest.importorskip("torch", reason="trains with torch: pip install 'meshwright[train]'")
    words = ["--entry", "meshwright.trainer", "--task-type", "llmacc.megatron.GPT", *TINY]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "meshwright.pretrain", "--exchange-port", port, *words]
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **MEMORY, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    assert [line["step"] for line in lines if line["event"] == "step"] == [1, 2, 3]
    assert max(line["learning_rate"] for line in lines if line["event"] == "step") <= 0.01
    summary = lines[-1]
    assert (summary["event"], summary["processes"], summary["gbs"]) == ("summary", 2, 4)
    assert (summary["seq_len"], summary["precision"]) == (64, "fp32")
    assert "the embedded trainer has no place for" in done.stderr
    assert "log_interval" in done.stderr
    assert len(list(tmp_path.glob("meshwright-plan-*.json"))) == 1
