"""Times of single kernels at their limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cost.cases import CHIP, MATMUL_FLOPS_PER_S, MEMORY_BYTES_PER_S

from meshwright.cost.kernels import (
    DEPTH_HALF,
    WAVE_ELEMENTS,
    EagerPass,
    eager_s,
    element_bytes,
    gemm_s,
    matmul_share,
    streaming_s,
    sustained_share,
)
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.tables import gemm_seconds
from meshwright.values.workload import Precision

sizes = st.integers(1, 2**17).map(float)


def time_of(
    m: float,
    n: float,
    k: float,
    *,
    precision: Precision = "bf16",
    groups: float = 1.0,
    at_once: float | None = None,
) -> float:
    return float(
        gemm_s(
            CHIP,
            m=np.array([m]),
            n=np.array([n]),
            k=np.array([k]),
            precision=precision,
            groups=groups,
            at_once=at_once,
        )[0]
    )


def test_a_large_product_runs_at_the_sustained_share() -> None:
    """2 * 8192^3 = 1.0995 TFLOP at 1e15 * 0.8 * 0.5 is 2.749 ms; the last wave and the depth cost
    3.2 % and 3.1 %, the ramp 2 us."""
    ideal = 1_099_511_627_776 / 4e14
    half_wave = 132 * 128 * 256 / 2
    corrections = (1 + half_wave / 8192**2) * (1 + 256 / 8192)
    assert time_of(8192, 8192, 8192) == pytest.approx(ideal * corrections + 2e-6)
    assert corrections == pytest.approx(1.0645, abs=1e-4)


def test_the_peak_share_is_the_limit_of_large_products() -> None:
    ratios = [
        2.0 * size**3 / MATMUL_FLOPS_PER_S / time_of(size, size, size)
        for size in (2.0**power for power in range(8, 20))
    ]
    assert ratios == sorted(ratios)
    assert 0.999 < ratios[-1] < 1


def test_the_smallest_product_is_a_ramp_and_one_short_wave() -> None:
    """Half a wave of the shallowest tiles: 2 * (132 * 128 * 256 / 2) * 256 FLOP at 4e14."""
    assert time_of(1, 1, 1) == pytest.approx(2e-6 + WAVE_ELEMENTS * DEPTH_HALF / 4e14, rel=0.01)
    fast = replace(CHIP, bf16_flops_per_s=1e30, memory_bytes_per_s=1e30)
    tiny = gemm_s(fast, m=np.array([1.0]), n=np.array([1.0]), k=np.array([1.0]), precision="bf16")
    assert tiny[0] == pytest.approx(2e-6)


def test_a_small_chip_is_full_sooner() -> None:
    """40 multiprocessors: half a wave is 20 tiles of 128 x 256, so 2048 x 1024 outputs lose 20 / 64
    of their time to it, not 66 / 64."""
    small = replace(CHIP, multiprocessors=40.0)
    side = (np.array([2048.0]), np.array([1024.0]), np.array([8192.0]))
    seconds = [
        gemm_s(chip, m=side[0], n=side[1], k=side[2], precision="bf16")[0] - 2e-6
        for chip in (CHIP, small)
    ]
    assert seconds[0] / seconds[1] == pytest.approx((1 + 66 / 64) / (1 + 20 / 64))


def test_a_shallow_product_pays_for_its_ends() -> None:
    """At k = DEPTH_HALF prologue and epilogue are as long as the main loop: half the speed of an
    endless one."""
    n = 2.0**17
    shallow, deep = ((time_of(n, n, k) - 2e-6) / k for k in (DEPTH_HALF, 256 * DEPTH_HALF))
    assert shallow / deep == pytest.approx(2 * 256 / 257)


def test_a_skinny_product_reads_its_weights() -> None:
    """16 rows of 65536 x 65536 in bf16: 2 * (2 * 16 * 65536 + 65536^2) bytes at 1e12 bytes/s take
    longer than their FLOPs."""
    assert time_of(16, 65536, 65536) == pytest.approx(
        (4 * 16 * 65536 + 2 * 65536**2) / MEMORY_BYTES_PER_S + 2e-6
    )


def test_few_rows_cost_no_less_than_a_sixteenth() -> None:
    """A matrix instruction has 16 rows: 1 row takes as long as 16, and 128 rows are a whole
    tile."""
    assert time_of(1, 8192, 8192) == pytest.approx(time_of(16, 8192, 8192), rel=0.01)
    assert time_of(64, 8192, 8192) < time_of(128, 8192, 8192) < time_of(256, 8192, 8192)


def test_grouped_products_share_their_waves() -> None:
    """Eight experts of 1024 rows fill the chip as one product of 8192 rows does."""
    assert time_of(1024, 4096, 4096, groups=8.0) == pytest.approx(time_of(8192, 4096, 4096))


def test_products_on_streams_share_their_waves_two_by_two() -> None:
    """Eight experts, two at a time, are four rounds of a product of 2048 rows, each with its ramp;
    where all run at once, or one is alone, nothing changes."""
    pairs = 4 * time_of(2048, 4096, 4096)
    assert time_of(1024, 4096, 4096, groups=8.0, at_once=2.0) == pytest.approx(pairs)
    assert time_of(1024, 4096, 4096, groups=8.0, at_once=8.0) == time_of(
        1024, 4096, 4096, groups=8.0
    )
    assert time_of(1024, 4096, 4096, at_once=2.0) == time_of(1024, 4096, 4096)


def test_bytes_of_an_operand() -> None:
    by_hand = {
        "fp32": 4,
        "tf32": 4,
        "bf16": 2,
        "fp16": 2,
        "fp8": 1,
        "fp8-blockwise": 1,
        "mxfp8": 1,
        "nvfp4": 0.5 + 1 / 16,
    }
    for name, size in by_hand.items():
        precision: Precision = name  # type: ignore[assignment]
        assert element_bytes(precision) == size


def test_share_of_the_peak() -> None:
    assert matmul_share(CHIP, "bf16") == pytest.approx(0.8 * 0.5)
    assert matmul_share(CHIP, "fp8") == pytest.approx(0.8 * 0.5)
    measured = replace(CHIP, fp8_matmul_efficiency=0.7)
    assert (
        matmul_share(measured, "fp8")
        == matmul_share(measured, "mxfp8")
        == matmul_share(measured, "fp8-blockwise")
    )
    assert matmul_share(measured, "fp8") == pytest.approx(0.7 * 0.5)
    assert matmul_share(measured, "bf16") == pytest.approx(0.8 * 0.5)
    assert 0 < matmul_share(CHIP, "nvfp4") < matmul_share(CHIP, "bf16")


def test_half_the_bytes_and_twice_the_peak_halve_a_large_product() -> None:
    assert time_of(65536, 65536, 65536, precision="fp8") == pytest.approx(
        time_of(65536, 65536, 65536) / 2, rel=1e-3
    )


def test_streaming_at_the_measured_share() -> None:
    assert streaming_s(CHIP, np.array([3e12]))[0] == pytest.approx(
        3.0
    )  # 2e12 bytes/s, half of it reached


@settings(max_examples=50)
@given(m=sizes, n=sizes, k=sizes)
def test_a_product_takes_its_time_and_more_where_it_grows(m: float, n: float, k: float) -> None:
    alone = time_of(m, n, k)
    assert (
        alone
        >= max(2 * m * n * k / MATMUL_FLOPS_PER_S, 2 * (m * n + m * k + n * k) / MEMORY_BYTES_PER_S)
        + 2e-6
        - 1e-18
    )
    assert min(time_of(2 * m, n, k), time_of(m, 2 * n, k), time_of(m, n, 2 * k)) >= alone


@settings(max_examples=25)
@given(shapes=st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=8))
def test_a_column_of_products_is_each_alone(shapes: list[tuple[float, float, float]]) -> None:
    m, n, k = (np.array(axis) for axis in zip(*shapes, strict=True))
    column = gemm_s(CHIP, m=m, n=n, k=k, precision="bf16")
    assert column.tolist() == [time_of(*shape) for shape in shapes]


def test_measured_products_are_sustained() -> None:
    """A chip with a table takes its time, stretched by what training sustains of a benchmark; a
    stranger takes the roofline."""
    h100 = find_chip("h100")
    m, n, k = (np.array([float(v)]) for v in (8192, 8192, 8192))
    table = gemm_seconds("h100", precision="bf16", m=m, n=n, k=k)
    assert table is not None
    found = gemm_s(h100, m=m, n=n, k=k, precision="bf16")
    assert found == pytest.approx(table.seconds / h100.sustained_share)
    assert 2 * 8192**3 / float(found[0]) < h100.peak_flops_per_s("bf16") * h100.sustained_share


def test_narrow_products_sustain_their_own_share() -> None:
    chip = replace(find_chip("h100"), sustained_share=0.7, narrow_sustained_share=0.8)
    assert sustained_share(chip, "bf16") == 0.7
    assert sustained_share(chip, "fp8") == sustained_share(chip, "nvfp4") == 0.8
    assert sustained_share(replace(chip, narrow_sustained_share=None), "mxfp8") == 0.7


def test_a_kernel_that_reads_few_bytes_at_a_time_leaves_memory_idle() -> None:
    """2048 threads with 4 elements of 2 bytes have 16 KiB under way: a quarter of the 64 KiB that
    fill the chip. Twice as wide elements reach half; a pass that reads 16 bytes at once, one that
    only writes, and a chip that 16 KiB fill, reach all of it.
    """
    slow, plain = replace(CHIP, bytes_in_flight=2.0**16), replace(CHIP, bytes_in_flight=2.0**14)
    elements = np.array([1e9])

    def bytes_of(chip: Chip, each: EagerPass) -> float:
        return float(eager_s(chip, [each], elements=elements)[0]) * MEMORY_BYTES_PER_S / 1e9

    half = EagerPass(read=2.0, written=2.0)
    assert bytes_of(slow, half) == pytest.approx(4 * 4)
    assert bytes_of(slow, EagerPass(read=4.0, written=2.0)) == pytest.approx(6 * 2)
    assert (
        bytes_of(slow, replace(half, wide=True))
        == bytes_of(plain, half)
        == bytes_of(CHIP, half)
        == pytest.approx(4)
    )
    assert bytes_of(slow, EagerPass(read=0.0, written=4.0)) == pytest.approx(4)
    assert bytes_of(slow, replace(half, count=0.5)) == pytest.approx(8)
    both = eager_s(slow, [half, replace(half, wide=True)], elements=elements)
    assert float(both[0]) * MEMORY_BYTES_PER_S == pytest.approx(20e9)
