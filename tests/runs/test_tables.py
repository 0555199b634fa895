from __future__ import annotations

import csv
import io
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.records import measured, predicted, record
from tests.software.logs.forms import megatron_line

from meshwright.platforms.executor import JobState, JobStatus
from meshwright.runs.counts import RunWork
from meshwright.runs.outcome import Failure, Measured, outcome_of, read_run_logs
from meshwright.runs.record import RunRecord, StudyFacts
from meshwright.runs.results import FAILED_COLUMNS, RESULT_COLUMNS, StudyTables, by_speed
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import find_model

MODEL = find_model("llama3-8b")
FACTS = StudyFacts(
    model="llama3-8b",
    params=8.03e9,
    chip="h100",
    num_chips=16,
    chips_per_node=8,
    seq_len=1024,
    precision="bf16",
    stack="megatron",
    software="megatron-lm",
    launcher="slurm",
    peak_flops_per_s=989.4e12,
    usd_per_chip_hour=3.0,
)
NEMO_1 = [
    *("Model Name", "Model Size", "Seq Length", "TP", "PP", "CP", "EP", "MBS"),
    *(
        "Act Ckpt Layers",
        "Act Ckpt Micro Bathes",
        "Act Ckpt Layers per Pipeline",
        "Num Layers",
        "Hidden Size",
        "FFN Hidden Size",
    ),
    *(
        "GBS",
        "Nodes",
        "GPUs per Node",
        "Time per Step",
        "Samples per Second",
        "Model TFLOPS / GPU",
        "Model TFLOPS Aggregate",
        "Config Name",
    ),
]
"""`result_columns` of NeMo-Framework-Launcher's compare_throughput.py."""
NEMO_2 = [name for name in NEMO_1[:-1] if not name.startswith("Act ")]
"""`result_columns` of NeMo 2.0's calculate_performance.py, less its `VP`."""


def tables(*records: RunRecord) -> StudyTables:
    return StudyTables(facts=FACTS, model=MODEL, records=records)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def layouts() -> list[Layout]:
    return [
        Layout(tp=tp, pp=pp, dp=16 // tp // pp, mbs=1, gbs=64)
        for tp, pp in ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2))
    ]


def test_nemos_headings_to_the_letter() -> None:
    assert [name for name in RESULT_COLUMNS if name in NEMO_1] == NEMO_1
    assert [name for name in RESULT_COLUMNS if name in [*NEMO_2, "VP"]] == [
        *NEMO_2[:8],
        "VP",
        *NEMO_2[8:],
    ]
    failed = [*NEMO_1[: NEMO_1.index("Time per Step")], "Error Message"]
    assert [name for name in FAILED_COLUMNS if name in failed] == failed


def test_one_row_by_hand() -> None:
    """Llama 3 8B, 64 sequences of 1024 in 2 s on 16 chips: 32768 tokens/s, 2048 a chip.

    Per token 6 FLOP for each of 7 504 658 432 weights in products (embedding left out) and 12 * 32
    * 4096 * 1024 in attention: 46.64 GFLOP; that is 95.5 TFLOPS a chip and 9.65 % of 989.4. 16
    chips at 3 dollars are 48 an hour, for 32768 * 3600 tokens: 0.4069 dollars a million.
    """
    run = replace(
        record(Layout(tp=2, pp=2, dp=4, mbs=1, gbs=64, recompute="full", recompute_layers=4)),
        state="finished",
        outcome=measured(2.0),
    )
    [row] = rows(tables(run).results_csv())
    assert (row["Model Name"], row["Model Size"], row["Num Layers"], row["Hidden Size"]) == (
        "llama3-8b",
        "8.03",
        "32",
        "4096",
    )
    assert (row["FFN Hidden Size"], row["TP"], row["PP"], row["VP"], row["GBS"]) == (
        "14336",
        "2",
        "2",
        "1",
        "64",
    )
    assert (
        row["Act Ckpt Layers"],
        row["Act Ckpt Micro Bathes"],
        row["Nodes"],
        row["GPUs per Node"],
    ) == ("4", "", "2", "8")
    assert (row["Time per Step"], row["Samples per Second"], row["tokens_per_s_per_gpu"]) == (
        "2",
        "32",
        "2048",
    )
    flops = (6 * 7_504_658_432 + 12 * 32 * 4096 * 1024) * 2048
    assert float(row["Model TFLOPS / GPU"]) == pytest.approx(flops / 1e12, rel=1e-3)
    assert float(row["Model TFLOPS Aggregate"]) == pytest.approx(16 * flops / 1e12, rel=1e-3)
    assert float(row["mfu"]) == pytest.approx(flops / 989.4e12, rel=1e-3)
    assert float(row["usd_per_million_tokens"]) == pytest.approx(48 / 3600 / 32768 * 1e6, rel=1e-5)
    assert (row["peak_allocated_gib"], row["peak_reserved_gib"], row["predicted_off"]) == (
        "30",
        "33",
        "0",
    )
    assert row["Config Name"] == "tp2_pp2_cp1_ep1_mbs1_act_4_num_mbs_act_None_act_per_pipe_None"
    assert row["run_id"] == run.run_id


def test_what_is_not_known_is_blank() -> None:
    free = replace(FACTS, usd_per_chip_hour=None)
    run = replace(record(), outcome=measured(2.0, peak_allocated_bytes=None, final_loss=None))
    [row] = rows(StudyTables(facts=free, model=MODEL, records=(run,)).results_csv())
    assert [
        row[name]
        for name in (
            "usd_per_million_tokens",
            "peak_allocated_gib",
            "final_loss",
            "Act Ckpt Layers",
        )
    ] == [""] * 4


def test_evidence_with_commas_and_quotes_stays_one_cell() -> None:
    failure = Failure(
        failure_class="cuda_oom",
        message="ran out",
        evidence='Tried to allocate 2.00 GiB, "GPU 3"',
        step=7,
    )
    [row] = rows(tables(replace(record(), state="failed", outcome=failure)).failed_csv())
    assert (row["failure_class"], row["Error Message"], row["evidence"], row["step"]) == (
        "cuda_oom",
        "ran out",
        failure.evidence,
        "7",
    )


def test_no_runs_and_only_failures() -> None:
    assert rows(tables().results_csv()) == rows(tables().failed_csv()) == []
    assert (
        tables(record()).top_log()
        == "llama3-8b on 16 x h100: 0 measured, 0 failed\n\nNo run was measured.\n"
    )
    out = [
        replace(
            record(at, number=n),
            outcome=Failure(failure_class="cuda_oom", message="ran out", evidence=f"line {n}"),
        )
        for n, at in enumerate(layouts()[:2], start=1)
    ]
    assert (
        tables(*out).top_log()
        == "llama3-8b on 16 x h100: 0 measured, 2 failed\n\nNo run was measured.\n\nFailed: 2"
        f" cuda_oom\n  {out[0].run_id}: cuda_oom, ran out: line 1\n  {out[1].run_id}: cuda_oom,"
        " ran out: line 2\n"
    )


def test_log_of_the_fastest() -> None:
    first, second, third = layouts()[:3]
    runs = (
        replace(record(first, number=1), outcome=measured(4.0)),
        replace(
            record(second, number=2),
            outcome=measured(2.5),
            predicted=predicted(step_s=2.0, step_interval_s=(1.6, 2.4)),
        ),
        replace(record(third, number=3), outcome=measured(3.0)),
    )
    text = tables(*runs).top_log(top=2)
    assert (
        "Top 2 configs sorted from fastest to slowest:\nConfig #1: tp=2,pp=1,dp=8,mbs=1,gbs=64 with"
        " 2.5000s per global step, " in text
    )
    assert "per global step, 76.41 TFLOPS/GPU, MFU 7.7 %; predicted" in text
    assert "predicted 2.0000s (-20.0 %, outside 1.6 to 2.4 s)" in text
    assert "Config #2: tp=4,pp=1,dp=4,mbs=1,gbs=64 with 3.0000s" in text and "Config #3" not in text
    assert (
        "Predicted against measured: median 33.3 %, worst 50.0 %; the fastest takes 2.5 s." in text
    )


def test_tokens_count_where_batches_differ() -> None:
    """4 s for 256 sequences is faster than 2 s for 64."""
    small = replace(record(Layout(dp=16, gbs=64), number=1), outcome=measured(2.0))
    large = replace(
        record(Layout(dp=16, gbs=256), number=2),
        outcome=measured(4.0, tokens_per_s=256 * 1024 / 4.0, samples_per_s=64.0),
    )
    assert by_speed([small, large]) == (large, small)


WHY: dict[str, tuple[JobState, int | None, str | None, float | None]] = {
    "20": ("succeeded", 0, "".join(megatron_line(step, 20e3) for step in range(1, 9)), None),
    "9": ("succeeded", 0, "".join(megatron_line(step, 9e3) for step in range(1, 9)), None),
    "12": ("succeeded", 0, "".join(megatron_line(step, 12e3) for step in range(1, 9)), None),
    "5": ("succeeded", 0, "".join(megatron_line(step, 5e3) for step in range(1, 9)), None),
    "oom": ("out_of_memory", None, None, None),
    "hang": ("cancelled", 143, "".join(megatron_line(step, 1e3) for step in range(1, 9)), 900.0),
    "nan": (
        "succeeded",
        0,
        "".join(megatron_line(step, 1e3, loss=math.nan, nan=1) for step in range(1, 9)),
        None,
    ),
}
"""Runs by name: how the launcher says that it ended, its log, for how long it was silent. What
fails was faster than all others."""


def study(folder: Path, order: list[str]) -> tuple[RunRecord, ...]:
    """Runs in some order of layouts and of submission, each in its own folder; the one that ran out
    of memory has no log."""
    found = []
    for number, (name, layout) in enumerate(zip(order, layouts(), strict=True), start=1):
        run = record(layout, number=number)
        path = folder / run.run_id
        path.mkdir(parents=True)
        state, code, text, silent_s = WHY[name]
        if text is not None:
            (path / "stdout.log").write_text(text)
        logs = read_run_logs([path / "stdout.log", path / "stderr.log"])
        work = RunWork(seq_len=1024, gbs=64, num_chips=16)
        outcome = outcome_of(
            JobStatus(state=state, exit_code=code), logs=logs, work=work, silent_s=silent_s
        )
        assert outcome is not None
        found.append(
            replace(
                run,
                chosen_because=name,
                state="finished" if isinstance(outcome, Measured) else "failed",
                outcome=outcome,
            )
        )
    return tuple(found)


def test_no_run_is_credited_with_another(tmp_path: Path) -> None:
    chance = random.Random(20261121)
    for trial in range(100):
        order = chance.sample(list(WHY), len(WHY))
        found = study(tmp_path / str(trial), order)
        names = {run.run_id: run.chosen_because for run in found}
        shuffled = tables(*chance.sample(found, len(found)))
        results, failed = rows(shuffled.results_csv()), rows(shuffled.failed_csv())
        assert [names[row["run_id"]] for row in results] == ["5", "9", "12", "20"]
        assert [row["Time per Step"] for row in results] == ["5", "9", "12", "20"]
        assert {names[row["run_id"]]: row["failure_class"] for row in failed} == {
            "oom": "host_oom",
            "hang": "hang",
            "nan": "nan_loss",
        }
        layout_of = {run.run_id: run.layout for run in found}
        for row in [*results, *failed]:
            at = layout_of[row["run_id"]]
            assert (int(row["TP"]), int(row["PP"]), row["layout"]) == (at.tp, at.pp, at.words())
        top = shuffled.top_log()
        assert [top.index(f"with {s}.0000s") for s in (5, 9, 12, 20)] == sorted(
            top.index(f"with {s}.0000s") for s in (5, 9, 12, 20)
        )
