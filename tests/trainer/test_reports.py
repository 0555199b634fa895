"""Lines and summary of a run, worked by hand; needs no torch."""

from __future__ import annotations

from typing import Any

import pytest
from tests.trainer.curves import job_of

from meshwright.trainer.reports import Rates, StepReport, Tally
from meshwright.trainer.room import Recorded, collective_seconds


def _rates(device_name: str | None = None, **changes: Any) -> Rates:
    return Rates(job=job_of("dense:dp=2", **changes), processes=2, device_name=device_name)


def _report(
    step: int, *, step_s: float, peak: list[int], collectives_s: dict[str, float] | None = None
) -> StepReport:
    return StepReport(
        step=step,
        loss=10.0 - step,
        gradient_norm=1.0,
        learning_rate=1e-3,
        step_s=step_s,
        **_rates().of(step_s),
        phases_s={"forward": step_s / 4, "backward": 3 * step_s / 4},
        collectives_s=collectives_s,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=[2 * size for size in peak],
    )


def test_rates_of_a_step() -> None:
    """8 samples of 32 tokens in half a second on 2 processes: 512 tokens a second, 256 each.

    Model FLOPs per token: 6 * weights of products + 12 * layers * heads * head_dim * tokens, of 4
    layers of 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128 = 36864 weights, and 500 * 64 = 32000 of the
    head: 6 * 179456 + 12 * 4 * 64 * 32 = 1175040. Half of it on each of two processes.
    """
    speed = _rates(peak_tflops=0.001).of(0.5)
    assert speed["tokens_per_s"] == 512
    assert speed["tokens_per_s_per_gpu"] == 256
    assert speed["tflops_per_gpu"] == pytest.approx(256 * 1175040 / 1e12)
    assert speed["mfu"] == pytest.approx(256 * 1175040 / 1e9)


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        (None, "bf16", None),
        ("NVIDIA H100 80GB HBM3", "bf16", pytest.approx(989, rel=1e-3)),
        ("NVIDIA H100 80GB HBM3", "fp32", pytest.approx(67, rel=1e-2)),
        ("Unheard-of 9000", "bf16", None),
    ],
)
def test_the_peak_is_the_catalogues(device: str | None, precision: str, peak: Any) -> None:
    assert _rates(device, precision=precision).peak_tflops == peak
    assert (_rates(device, precision=precision).of(1.0)["mfu"] is None) == (peak is None)


def test_a_given_peak_goes_before_the_catalogues() -> None:
    assert _rates("NVIDIA H100 80GB HBM3", peak_tflops=500.0).peak_tflops == 500


def test_summary_of_six_steps() -> None:
    """Steps 1 and 2 warm up, 3 was recorded: the rest take 0.4, 0.2 and 0.3 s."""
    tally = Tally(rates=_rates())
    for step, (step_s, peak) in enumerate(
        [(9.0, [5, 9]), (8.0, [6, 1]), (7.0, [1, 1]), (0.4, [1, 1]), (0.2, [1, 1]), (0.3, [7, 1])],
        1,
    ):
        tally.add(
            _report(
                step,
                step_s=step_s,
                peak=peak,
                collectives_s={"all_reduce": 0.1} if step == 3 else None,
            )
        )
    summary = tally.summary(
        done=6, start_s=2.5, ended_by="steps", device="cpu", torch_version="2.13.0"
    )
    assert (summary.first_step, summary.last_step, summary.measured_steps) == (1, 6, 3)
    assert (summary.step_s, summary.step_s_range) == (0.3, [0.2, 0.4])
    assert summary.tokens_per_s == pytest.approx(256 / 0.3)
    assert summary.phases_s == pytest.approx({"forward": 0.075, "backward": 0.225})
    assert summary.collectives_s == {"all_reduce": 0.1}
    assert (summary.peak_allocated_bytes, summary.peak_reserved_bytes) == ([7, 9], [14, 18])
    assert (summary.first_loss, summary.last_loss) == (9.0, 4.0)
    assert summary.layout == "tp=1,pp=1,dp=2,mbs=2,gbs=8"


def test_a_run_too_short_to_measure_says_nothing() -> None:
    tally = Tally(rates=_rates())
    tally.add(_report(1, step_s=9.0, peak=[1, 1]))
    summary = tally.summary(
        done=1, start_s=1.0, ended_by="signal", device="cpu", torch_version="2.13.0"
    )
    assert (
        summary.measured_steps,
        summary.step_s,
        summary.mfu,
        summary.tokens_per_s,
        summary.phases_s,
    ) == (0, None, None, None, None)
    assert (summary.first_loss, summary.ended_by) == (9.0, "signal")


def test_a_run_that_was_done_before_has_no_steps() -> None:
    summary = Tally(rates=_rates()).summary(
        done=20, start_s=1.0, ended_by="steps", device="cpu", torch_version="2.13.0"
    )
    assert (
        summary.first_step,
        summary.last_step,
        summary.first_loss,
        summary.peak_allocated_bytes,
    ) == (None, 20, None, [])


def _event(name: str, start_us: float, duration_us: float, *, on_device: bool = False) -> Recorded:
    return Recorded(name=name, start_us=start_us, duration_us=duration_us, on_device=on_device)


def test_gloos_work_is_named_after_its_call() -> None:
    """gloo runs a reduce-scatter as an all-reduce; order in the record is of no matter."""
    events = [
        _event("gloo:all_reduce", 21, 3_000_000),
        _event("gloo:all_reduce", 11, 1_000_000),
        _event("gloo:all_to_all", 31, 500_000),
        _event("c10d::allreduce_", 10, 5),
        _event("c10d::_reduce_scatter_base_", 20, 5),
        _event("c10d::alltoall_base_", 30, 5),
        _event("aten::mm", 32, 9),
    ]
    assert collective_seconds(events) == {
        "reduce_scatter": 3.0,
        "all_reduce": 1.0,
        "all_to_all": 0.5,
    }


def test_of_nccl_the_kernels_count() -> None:
    """The record also holds the call on the host and a span of the same name on the device; each
    kernel counts once."""
    events = [
        _event("nccl:all_reduce", 1, 700_000),
        _event("nccl:all_reduce", 2, 800_000, on_device=True),
        _event(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            2,
            250_000,
            on_device=True,
        ),
        _event(
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            3,
            125_000,
            on_device=True,
        ),
        _event(
            "ncclKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)",
            4,
            125_000,
            on_device=True,
        ),
    ]
    assert collective_seconds(events) == {
        "all_reduce": 0.25,
        "all_gather": 0.125,
        "send_receive": 0.125,
    }


def test_a_line_says_first_what_it_is() -> None:
    line = _report(3, step_s=0.5, peak=[1, 2]).to_dict()
    assert line["event"] == "step"
    assert list(line)[:6] == ["event", "step", "loss", "gradient_norm", "learning_rate", "step_s"]
