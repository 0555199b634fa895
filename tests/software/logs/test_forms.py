from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from tests.software.logs.forms import (
    bridge_memory,
    bridge_step,
    deepspeed_memory,
    deepspeed_old_timer,
    deepspeed_pipe,
    deepspeed_timer,
    megatron_line,
    megatron_memory,
    megatron_saved,
    megatron_saving,
    megatron_validation,
    nanotron_line,
    nanotron_memory,
    nemo1_bar,
    nemo2_line,
    titan_line,
)

from meshwright.software.log import Evaluation, LogReading, after_warm_up, steady_reports
from meshwright.software.log_reader import read_log
from meshwright.values.units import GIB, MIB


def own_line(step: int, seconds: float, *, loss: float = 9.5) -> str:
    return (
        json.dumps(
            {
                "event": "step",
                "step": step,
                "loss": loss,
                "gradient_norm": 2.5,
                "step_s": seconds,
                "phases_s": {},
            }
        )
        + "\n"
    )


def read(text: str) -> LogReading:
    found = read_log(text)
    assert found is not None
    return found


def test_evaluations_checkpoints_and_the_end_are_read() -> None:
    """Of Megatron-LM, of the embedded trainer, and of torchtitan, which names no step of a
    checkpoint."""
    megatron = (
        megatron_line(1, 2500)
        + megatron_validation(1, 3.25)
        + megatron_saved(1)
        + megatron_line(2, 2500)
        + megatron_validation(2, 3.5)
    )
    found = read(megatron)
    assert found.evaluations == (Evaluation(step=1, loss=3.25), Evaluation(step=2, loss=3.5))
    assert (found.saved_step, found.total_steps, found.num_reports) == (1, 500000, 2)
    assert [
        read(megatron + more).is_saving
        for more in ("", megatron_saving(2), megatron_saving(2) + megatron_saved(2))
    ] == [
        False,
        True,
        False,
    ]
    events = [
        {"event": "validation", "step": 1, "loss": 3.25},
        {"event": "checkpoint", "step": 1, "validation_loss": 3.25, "write_s": 0.5},
    ]
    own = read(own_line(1, 2.5) + "".join(json.dumps(event) + "\n" for event in events))
    assert (own.evaluations, own.saved_step, own.num_reports) == (
        (Evaluation(step=1, loss=3.25),),
        1,
        1,
    )
    head = (  # `log_validation` of components/metrics.py, August 2026
        "[titan] 2026-03-01 10:00:00,123 - root - INFO - "
    )
    line = (
        f"{head}validate step: {10:2}  loss: {3.25:7.4f}  memory: {70.5:5.2f}GiB({89.1:.2f}%)  tps:"
        f" {4096:,}\n"
    )
    titan = read(titan_line(10, 4096) + line)
    assert (titan.evaluations, titan.num_reports) == ((Evaluation(step=10, loss=3.25),), 1)


TIMES = (40.0, 9.0, 2.5, 2.25, 2.5)
"""Seconds, exact in the digits of every form."""
FORMS: dict[str, tuple[str, Callable[[int, float], str]]] = {
    "Megatron-LM": ("megatron-lm", lambda step, s: megatron_line(step, s * 1e3)),
    "Megatron-LM 2.5": (
        "megatron-lm",
        lambda step, s: megatron_line(step, s * 1e3, tflops=None, date=False),
    ),
    "Bridge, last rank": (
        "megatron-bridge",
        lambda step, s: bridge_step(s, 400.0) + megatron_line(step, s * 1e3),
    ),
    "NeMo 2": ("nemo-2", nemo2_line),
    "NeMo 2, first line": ("nemo-2", lambda step, s: nemo2_line(step, s, last=False)),
    "NeMo 1": ("nemo-1", nemo1_bar),
    "nanotron": ("nanotron", lambda step, s: nanotron_line(step, s * 1e3)),
    "nanotron 0.4": ("nanotron", lambda step, s: nanotron_line(step, s * 1e3, old=True)),
    "DeepSpeed, pipeline": ("deepspeed", deepspeed_pipe),
    "our own": ("meshwright", own_line),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read(name: str) -> None:
    framework, line = FORMS[name]
    reading = read(
        "starting\n" + "".join(line(step, s) for step, s in enumerate(TIMES, start=1)) + "\ndone\n"
    )
    assert reading.framework == framework
    assert reading.step_s == pytest.approx(TIMES)
    assert (reading.steps, reading.last_step, reading.num_reports) == ((1, 2, 3, 4, 5), 5, 5)
    assert reading.loss == pytest.approx([9.5] * 5)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "0: ",
        " 7: ",
        "[default3]:",
        "[rank0]:",
        "3: [rank3]:",
        "[1,2]<stdout>:",
        "[pod/job-0-x7/main] ",
        "demo/0 [default0]:",
    ],
)
def test_prefixes_and_colours_do_not_matter(name: str, prefix: str) -> None:
    _, line = FORMS[name]
    text = (
        "".join(line(step, s) for step, s in enumerate(TIMES, start=1))
        .replace("\r", "\n")
        .strip("\n")
        + "\n"
    )
    dressed = "".join(f"{prefix}\x1b[32m{row}\x1b[0m\r\n" for row in text.splitlines())
    assert read(dressed).step_s == pytest.approx(TIMES)


@pytest.mark.parametrize("name", FORMS)
def test_a_number_that_was_cut_short_is_not_read(name: str) -> None:
    """Every cut of the last line gives the steps before it, with or without the last one, and never
    another time."""
    _, line = FORMS[name]
    before, last = "".join(line(step, s) for step, s in enumerate(TIMES, start=1)), line(6, 2.75)
    for cut in range(len(last)):
        times = read(before + last[:cut]).step_s
        assert times == pytest.approx(TIMES) or times == pytest.approx((*TIMES, 2.75)), last[:cut]
        noisy = read(
            before + last[:cut] + "slurmstepd: error: *** JOB 7 ON n1 CANCELLED ***\n"
        ).step_s
        assert noisy == pytest.approx(TIMES) or noisy == pytest.approx((*TIMES, 2.75)), last[:cut]


def test_titan_rates_are_of_one_device() -> None:
    for form, tflops in (("2024", None), ("2025", 1398.12), ("2026", 398.12)):
        for colour in (False, True):
            reading = read(
                "".join(titan_line(step, 7200, form=form, colour=colour) for step in (1, 10, 20))
            )
            assert (reading.framework, reading.steps) == ("torchtitan", (1, 10, 20))
            assert [report.tokens_per_s_per_gpu for report in reading.reports] == [7200] * 3
            assert reading.reports[0].tflops_per_gpu == tflops
            assert reading.peak_reserved_bytes == 70.5 * GIB
            assert reading.reports[0].seconds(seq_len=8192, gbs=16, num_chips=8) == pytest.approx(
                2 * 8192 / 7200
            )


def test_titan_line_that_was_cut_short() -> None:
    line = titan_line(10, 17200, form="2026")
    for cut in range(len(line)):
        reading = read_log(titan_line(1, 800) + line[:cut])
        assert reading is not None
        assert [report.tokens_per_s_per_gpu for report in reading.reports] in ([800], [800, 17200])


def test_validation_of_titan_is_no_step() -> None:
    line = titan_line(10, 7200)
    assert read(line.replace("step: ", "validate step: ")).reports == ()


def test_units_of_memory() -> None:
    assert (
        read(
            megatron_line(1, 9e3) + megatron_memory(0, 1, allocated_mib=100.5, reserved_mib=200.25)
        ).peak_allocated_bytes
        == 100.5 * MIB
    )
    mixed = megatron_memory(0, 2, allocated_mib=300.0, reserved_mib=500.0) + megatron_memory(
        8, 2, allocated_mib=400.0, reserved_mib=450.0
    )
    reading = read(mixed)
    assert (reading.peak_allocated_bytes, reading.peak_reserved_bytes, reading.reports) == (
        400 * MIB,
        500 * MIB,
        (),
    )
    names = {
        "mem-allocated-gigabytes": 12.0,
        "mem-max-allocated-gigabytes": 31.234,
        "mem-max-reserved-gigabytes": 35.0,
        "mem-alloc-retires": 0,
    }
    bridge = read(bridge_step(2.5, 400) + bridge_step(2.25, 410) + bridge_memory(0, 2, names))
    assert (bridge.framework, bridge.step_s) == ("megatron-bridge", (2.5, 2.25))
    assert (bridge.peak_allocated_bytes, bridge.peak_reserved_bytes) == (31.234e9, 35e9)
    nano = read(nanotron_memory(1024, 2048.5) + nanotron_line(1, 2500))
    assert (nano.peak_allocated_bytes, nano.peak_reserved_bytes) == (GIB, 2048.5 * MIB)
    deep = read(deepspeed_memory(31.25, 40) + deepspeed_pipe(10, 0.5))
    assert (deep.peak_allocated_bytes, deep.peak_reserved_bytes) == (31.25 * GIB, 40 * GIB)
    ours = (
        json.dumps(
            {
                "step": 1,
                "loss": 9.0,
                "step_s": 0.5,
                "peak_allocated_bytes": [5, 7],
                "peak_reserved_bytes": 9,
            }
        )
        + "\n"
    )
    assert (read(ours).peak_allocated_bytes, read(ours).peak_reserved_bytes) == (7, 9)


def test_thousands_of_nanotron() -> None:
    """12 345.6 ms are written 12.3K: three digits are all there is."""
    reading = read(nanotron_line(1, 12345.6))
    assert reading.step_s == (12.3,)
    assert reading.tflops_per_gpu == (412.0,)
    assert reading.reports[0].batch == 65500


def test_samples_a_second_of_deepspeed() -> None:
    for text in (
        deepspeed_timer(10, 0.5) + deepspeed_timer(20, 0.5),
        deepspeed_old_timer(10, 0.5) + deepspeed_old_timer(20, 0.5),
        deepspeed_old_timer(10, 0.5, memory=True) + deepspeed_old_timer(20, 0.5, memory=True),
    ):
        reading = read(text)
        assert [
            report.seconds(seq_len=1024, gbs=64, num_chips=8) for report in reading.reports
        ] == pytest.approx([0.5, 0.5], rel=1e-5)
    assert read(deepspeed_timer(10, 0.5)).peak_allocated_bytes == 31.25 * GIB


def test_losses_that_are_no_numbers() -> None:
    for text in (
        megatron_line(1, 9e3) + megatron_line(2, 9e3, loss=math.nan, nan=1),
        nemo2_line(1, 9.5) + nemo2_line(2, 9.5, loss=math.nan),
        nemo1_bar(1, 9.5) + nemo1_bar(2, 9.5, loss=math.nan) + "\n",
        titan_line(1, 7e3) + titan_line(2, 7e3, loss=math.nan),
        nanotron_line(1, 9e3) + nanotron_line(2, 9e3, loss=math.nan),
        deepspeed_pipe(1, 9.5) + deepspeed_pipe(2, 9.5, loss=math.nan),
        own_line(1, 9.5) + own_line(2, 9.5, loss=math.nan),
    ):
        first, second = read(text).loss
        assert first == 9.5 and math.isnan(second)
    assert read(titan_line(1, 7e3, loss=math.inf)).loss == (math.inf,)


def test_two_reports_in_one_line() -> None:
    joined = megatron_line(7, 2500).rstrip("\n") + megatron_line(8, 2250)
    assert read(joined).step_s == (2.5, 2.25)
    torn = megatron_line(7, 2500)[:70] + megatron_line(8, 2250)
    assert read(torn).step_s == (2.25,)


def test_a_bar_is_drawn_again_and_again() -> None:
    text = (
        nemo1_bar(1, 40.0)
        + nemo1_bar(1, 40.0, loss=9.0)
        + nemo1_bar(2, 2.5)
        + nemo1_bar(2, 2.5)
        + "\n"
    )
    reading = read(text)
    assert (reading.steps, reading.step_s, reading.loss) == ((1, 2), (40.0, 2.5), (9.0, 9.5))


def test_ranks_are_not_counted_twice() -> None:
    """A pipeline's first stage has no loss (-1 is written), its last one has."""
    text = "".join(
        f"[rank0]:{titan_line(step, 7200, loss=-1.0, gib=70.5)}[rank7]:{titan_line(step, 7100, gib=60.25)}"  # noqa: E501
        for step in (1, 10, 20)
    )
    reading = read(text)
    assert (reading.steps, reading.loss, reading.num_reports) == ((1, 10, 20), (9.5,) * 3, 3)
    assert [report.tokens_per_s_per_gpu for report in reading.reports] == [7200] * 3
    assert reading.peak_reserved_bytes == 70.5 * GIB


def test_ranks_without_names_are_not_counted_twice() -> None:
    text = "".join(
        titan_line(step, 7200 + rank, gib=70.5 + rank)
        for step in (1, 10, 20, 30)
        for rank in (0, 1)
    )
    reading = read(text)
    assert (reading.steps, reading.num_reports, reading.peak_reserved_bytes) == (
        (1, 10, 20, 30),
        4,
        71.5 * GIB,
    )
    assert [report.tokens_per_s_per_gpu for report in steady_reports(reading.reports)] == [7200] * 3


def test_each_start_has_its_warm_up() -> None:
    """Steps 1 to 6, then again from 5: both starts lose their first two of six."""
    first = "".join(
        megatron_line(step, ms)
        for step, ms in enumerate((40e3, 9e3, 2500, 2500, 2500, 2500), start=1)
    )
    second = "".join(
        megatron_line(step, ms)
        for step, ms in enumerate((50e3, 8e3, 2250, 2250, 2250, 2250), start=5)
    )
    reading = read(first + "resuming\n" + second)
    assert reading.last_step == 10
    assert [report.start for report in reading.reports] == [0] * 6 + [1] * 6
    assert [report.step_s for report in steady_reports(reading.reports)] == [2.5] * 4 + [2.25] * 4


def test_only_the_last_batch_and_updates_count() -> None:
    ramp = "".join(megatron_line(step, 1250, batch=32) for step in (1, 2, 3))
    full = "".join(
        megatron_line(step, 2500, skipped=int(step == 8), norm=math.inf) for step in range(4, 10)
    )
    steady = steady_reports(read(ramp + full).reports)
    assert [report.step for report in steady] == [6, 7, 9]


def test_no_steps_and_no_software() -> None:
    assert read_log("") is None
    assert read_log("the quick brown fox\n") is None
    reading = read("-------------------- end of arguments ---------------------\nTraceback\n")
    assert (reading.framework, reading.reports, reading.last_step) == ("megatron-lm", (), None)
    assert steady_reports(()) == ()


def test_warm_up() -> None:
    """At least one, at most three, at most a third."""
    assert [len(after_warm_up([0.0] * count)) for count in (0, 1, 2, 3, 5, 6, 8, 9, 30)] == [
        0,
        0,
        1,
        2,
        4,
        4,
        6,
        6,
        27,
    ]
