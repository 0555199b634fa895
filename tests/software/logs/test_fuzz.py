from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.software.logs.forms import (
    bridge_step,
    deepspeed_memory,
    deepspeed_pipe,
    deepspeed_timer,
    megatron_line,
    megatron_memory,
    nanotron_line,
    nemo1_bar,
    nemo2_line,
    titan_line,
)

from meshwright.runs.outcome import EvidenceReader
from meshwright.software.log import LONGEST_LINE, rank_of, whole_lines, without_rank
from meshwright.software.log_reader import read_chunks, read_log

LINES = (
    megatron_line(3, 2500),
    megatron_memory(0, 2, allocated_mib=100, reserved_mib=200),
    bridge_step(2.5, 400),
    nemo2_line(3, 2.5),
    nemo1_bar(3, 2.5),
    titan_line(3, 7200, colour=True),
    nanotron_line(3, 2500),
    deepspeed_pipe(3, 2.5),
    deepspeed_timer(3, 2.5),
    deepspeed_memory(31.25, 40),
    '{"step": 3, "step_s": 2.5, "loss": 9.5}\n',
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n",
)
JUNK = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "9" * 40,
        "1.2.3",
        "nan",
        "inf",
        "1e999",
        "None",
        "{",
        "[",
        '{"step_s":',
        "|",
        ":",
        "\x1b[31",
        "\x1b]0;",
        "\r",
        "\n",
        "\x00",
        "\u2028",
        "²",
        "٣",
    ]
)


def evidence_of(text: str) -> EvidenceReader:
    reader = EvidenceReader()
    for block in whole_lines([text]):
        reader.feed(block)
    return reader


@given(
    lines=st.lists(st.sampled_from(LINES), max_size=8),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), JUNK), max_size=8),
)
@settings(max_examples=300)
def test_any_damage_is_read(lines: list[str], edits: list[tuple[int, int, str]]) -> None:
    text = "".join(lines)
    for at, length, junk in edits:
        start = at % (len(text) + 1)
        text = text[:start] + junk + text[start + length :]
    reading = read_log(text)
    assert (
        reading is None
        or len(reading.reports)
        <= reading.num_reports
        <= text.count("\n") + text.count("\r") + len(text) // 40 + 1
    )
    assert all(len(found.line) <= 300 for found in evidence_of(text).evidence())


@given(text=st.text(max_size=400))
def test_any_text_is_read(text: str) -> None:
    assert read_log(text) is None
    evidence_of(text)


@given(lines=st.lists(st.sampled_from(LINES), max_size=12), size=st.integers(1, 97))
def test_pieces_do_not_matter(lines: list[str], size: int) -> None:
    text = "".join(lines).replace("\n", "\r\n", 3)
    assert read_chunks(text[at : at + size] for at in range(0, len(text), size)) == read_log(text)


@pytest.mark.parametrize(
    "hard",
    [
        "iteration       1/     100 |",
        " elapsed time per iteration (ms): 1 |",
        "(after 1 iterations memory (MB) | ",
        "train_step_timing in s=1, | 1/1 [ ",
        "a_b c ",
        "step: 1  loss: 1  memory: ",
        " tps: 1,111",
        "steps: 1 loss: 1 iter time (s): ",
        "global_step=1, RunningAvgSamplesPerSec=1",
        '{"step_s": [',
        "\x1b[0;",
        "\x1b]0;x",
        "gloo timeout nccl error: hccl ",
        "a.b.c.d.e.f.g.h.i.j.k.l.m_error",
        "rank 1: [rank1]: ",
        "9" * 50,
        " Peak allocated 111111.1",
        "could not override 'key '",
        "resource_exhausted: synstatus pt_devmem npu ",
    ],
)
def test_time_is_linear(hard: str) -> None:
    """One line of 2^16 and one of 2^18 characters of what each pattern begins with: four times the
    text, not sixteen times the time."""
    seconds = []
    for size in (2**14, 2**16):
        text = (hard * (size // len(hard) + 1))[:size] + "\n"
        blocks = [text, (hard + "\n") * (size // len(hard))]
        start = process_time()
        for block in blocks:
            read_log(block)
            evidence_of(block)
        seconds.append(process_time() - start)
    assert seconds[1] < 0.2 + 12 * seconds[0]


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    """A log of 64 MiB in one line without an end, and one of 70 000 steps."""

    def endless() -> Iterator[str]:
        for _ in range(64):
            yield "x" * 2**20

    def steps() -> Iterator[str]:
        for at in range(0, 70_000, 500):
            yield "".join(
                f'{{"step": {step}, "step_s": 0.5}}\n' for step in range(at + 1, at + 501)
            )

    tracemalloc.start()
    assert read_chunks(endless()) is None
    reading = read_chunks(steps())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reading is not None
    assert (reading.num_reports, reading.last_step, len(reading.reports)) == (70_000, 70_000, 2**16)
    assert peak < 64 * 2**20


def test_lines_that_are_too_long_are_cut() -> None:
    long, *rest = "".join(whole_lines(["a" * (LONGEST_LINE + 10) + "\nb\r\nc\rd"])).split("\n")
    assert len(long) == LONGEST_LINE
    assert rest == ["b", "c", "d"]


def test_prefixes() -> None:
    cases = {
        "0: x": ("0", "x"),
        "  7: [rank7]:x": ("7/7", "x"),
        "[default3]: x": ("3", "x"),
        "[1,12]<stderr>:x": ("12", "x"),
        "[pod/job-0/main] x": ("job-0/main", "x"),
        "worker-1: x": ("worker-1", "x"),
        "training-demo/0 [default0]:x": ("training-demo/0/0", "x"),
        "loss: 3": ("", "loss: 3"),
        "": ("", ""),
    }
    for line, (rank, rest) in cases.items():
        assert (rank_of(line), without_rank(line)) == (rank, rest)
