from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.values.errors import UnknownNameError
from meshwright.values.hardware import tables
from meshwright.values.hardware import tables as _store
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.grid import Grid, Lookup
from meshwright.values.workload import Precision

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "src" / "meshwright" / "values" / "hardware" / "data"
MICROSECOND = 1e-6
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "fp8-blockwise", "mxfp8", "nvfp4")
GEMMS = [
    (chip, p)
    for chip in tables.TABLE_CHIPS
    for p in PRECISIONS
    if tables.gemm_seconds(chip, precision=p, m=1, n=32, k=32)
]
dims = st.integers(1, 200_000)


def found(lookup: Lookup | None) -> Lookup:
    assert lookup is not None
    return lookup


def gemm_us(chip: str, precision: Precision, m: float, n: float, k: float) -> float:
    return (
        float(found(tables.gemm_seconds(chip, precision=precision, m=m, n=n, k=k)).seconds)
        / MICROSECOND
    )


# Worked: rows of aiconfigurator-core 0.12.0, systems/data, read by hand, in microseconds.


def test_bf16_product_is_the_median_of_three_measurements() -> None:
    """h100_sxm/gemm/{sglang/0.5.14, trtllm/1.3.0rc20, vllm/0.24.0}, bfloat16, 8192 cubed: 1673.0,
    1404.8, 1541.7."""
    assert gemm_us("h100", "bf16", 8192, 8192, 8192) == pytest.approx(1541.7, rel=0.03)


def test_fp8_product_is_without_its_quantisation() -> None:
    """h100_sxm/gemm/trtllm, fp8, 8192 cubed: 884.9, of which quantize/trtllm (8192, 8192)
    compute_scale 109.9, scale_matrix 66.9."""
    assert gemm_us("h100", "fp8", 8192, 8192, 8192) == pytest.approx(884.9 - 109.9 - 66.9, rel=0.03)


def test_quantisation_passes() -> None:
    """h100_sxm/quantize/trtllm/1.3.0rc20, (16384, 16384): compute_scale 413.0, scale_matrix
    263.5."""
    amax = found(tables.quantise_seconds("h100", step="amax", elements=2**28))
    cast = found(tables.quantise_seconds("h100", step="cast", elements=2**28))
    assert float(amax.seconds) == pytest.approx(413.0 * MICROSECOND, rel=0.03)
    assert float(cast.seconds) == pytest.approx(263.5 * MICROSECOND, rel=0.03)


def test_gather_counts_bytes_of_the_whole_buffer() -> None:
    """h100_sxm/comm/nccl/2.29.2, all_gather, half, 8 GPUs, message_size 268435456 (values):
    1401.5."""
    gather = found(tables.collective_seconds("h100", op="all_gather", ranks=8, buffer_bytes=2**29))
    assert float(gather.seconds) == pytest.approx(1401.5 * MICROSECOND, rel=0.03)


def test_attention_is_without_the_copy_into_the_cache() -> None:
    """h100_sxm/attention/vllm/0.24.0, 32 heads of 128, sequence 8192: 912.2 with 8 key-value
    heads."""
    few = found(
        tables.attention_forward_seconds(
            "h100", batch=1, heads=32, kv_heads=8, head_dim=128, sequence=8192
        )
    )
    copy = tables.table_facts("h100")["kv_s_per_byte"] * 2 / 3 * 4 * 8192 * 8 * 128
    assert float(few.seconds) + copy == pytest.approx(912.2 * MICROSECOND, rel=0.05)


def test_heads_narrower_than_measured_do_less_work() -> None:
    """A100, measured from 128 a head on; 64 a head at 171 TFLOPS where 128 does 189
    (arXiv:2307.08691, figure 4): 0.55 of the time."""
    narrow, wide = (
        float(
            found(
                tables.attention_forward_seconds(
                    "a100-80", batch=1, heads=16, kv_heads=16, head_dim=d, sequence=16384
                )
            ).seconds
        )
        for d in (64, 128)
    )
    assert narrow / wide == pytest.approx(189 / 171 / 2, rel=0.01)


@pytest.mark.parametrize(
    ("batch", "heads", "sequence", "microseconds"),
    [(4, 16, 4096, 592.47), (8, 16, 1024, 117.51), (32, 12, 512, 102.14), (2, 32, 8192, 2119.2)],
)
def test_full_attention(batch: int, heads: int, sequence: int, microseconds: float) -> None:
    """h100_sxm/encoder_attention/vllm/0.24.0, heads of 64, as many of keys."""
    full = tables.attention_forward_seconds(
        "h100",
        batch=batch,
        heads=heads,
        kv_heads=heads,
        head_dim=64,
        sequence=sequence,
        mask="full",
    )
    assert float(found(full).seconds) == pytest.approx(microseconds * MICROSECOND, rel=0.05)


# Properties.


@pytest.mark.parametrize(("chip", "precision"), GEMMS)
def test_larger_products_take_no_less(chip: str, precision: Precision) -> None:
    draw = np.random.default_rng(1)
    m, n, k = (np.exp(draw.uniform(0, np.log(2e5), 4000)) for _ in range(3))
    base = found(tables.gemm_seconds(chip, precision=precision, m=m, n=n, k=k)).seconds
    for more in ((2, 1, 1), (1, 1.3, 1), (1, 1, 1.01)):
        larger = found(
            tables.gemm_seconds(
                chip, precision=precision, m=m * more[0], n=n * more[1], k=k * more[2]
            )
        ).seconds
        assert np.all(larger >= base * (1 - 1e-12))


@pytest.mark.parametrize("chip", tables.TABLE_CHIPS)
def test_every_stored_surface_rises(chip: str) -> None:
    stored = found_tables(chip)
    for name, grid in stored.grids.items():
        free = {"attention": 1, "collective": 0}.get(name.split("/")[0])
        for axis in (axis for axis in range(grid.log_seconds.ndim) if axis != free):
            assert np.all(np.diff(grid.log_seconds, axis=axis) >= -1e-12), (name, axis)


@given(m=dims, n=dims, k=dims)
def test_scalar_is_as_column(m: int, n: int, k: int) -> None:
    one = found(tables.gemm_seconds("b200", precision="nvfp4", m=m, n=n, k=k))
    column = np.full((2, 3), float(m))
    many = found(tables.gemm_seconds("b200", precision="nvfp4", m=column, n=n, k=k))
    assert one.seconds.shape == ()
    assert many.seconds.shape == (2, 3)
    assert np.all(many.seconds == one.seconds)
    assert np.all(many.extrapolated == one.extrapolated)


@pytest.mark.parametrize(("chip", "precision"), GEMMS)
def test_no_jumps_between_near_training_shapes(chip: str, precision: Precision) -> None:
    """One row more may start another wave of tiles and double the time; for 95 % of shapes, 1 %
    more costs less than 2 %."""
    draw = np.random.default_rng(2)
    m, n, k = (np.exp(draw.uniform(np.log(512), np.log(60000), 20000)) for _ in range(3))
    base = found(tables.gemm_seconds(chip, precision=precision, m=m, n=n, k=k)).seconds
    for more in ((1.01, 1, 1), (1, 1.01, 1), (1, 1, 1.01)):
        near = found(
            tables.gemm_seconds(
                chip, precision=precision, m=m * more[0], n=n * more[1], k=k * more[2]
            )
        ).seconds
        assert np.max(near / base) < 2.1
        assert np.quantile(near / base, 0.95) < 1.02


@pytest.mark.parametrize(("chip", "precision"), GEMMS)
def test_no_product_beats_the_peak(chip: str, precision: Precision) -> None:
    draw = np.random.default_rng(3)
    m, n, k = (np.exp(draw.uniform(0, np.log(1e5), 20000)) for _ in range(3))
    seconds = found(tables.gemm_seconds(chip, precision=precision, m=m, n=n, k=k)).seconds
    assert np.max(2 * m * n * k / seconds) < 1.02 * find_chip(chip).peak_flops_per_s(precision)


# Outside the grid.


def test_extrapolates_at_constant_efficiency_and_says_so() -> None:
    grid = found_tables("h100").grids["gemm/bf16"]
    last = float(np.exp(grid.log_axes[0][-1]))
    inside = found(tables.gemm_seconds("h100", precision="bf16", m=last, n=4096, k=4096))
    outside = found(tables.gemm_seconds("h100", precision="bf16", m=4 * last, n=4096, k=4096))
    assert not inside.extrapolated
    assert outside.extrapolated
    assert float(outside.seconds) == pytest.approx(4 * float(inside.seconds))


def test_takes_constant_time_below_and_says_so() -> None:
    inside = found(tables.gemm_seconds("h100", precision="bf16", m=4096, n=32, k=4096))
    outside = found(tables.gemm_seconds("h100", precision="bf16", m=4096, n=8, k=4096))
    assert not inside.extrapolated
    assert outside.extrapolated
    assert outside.seconds == inside.seconds


def test_longer_sequences_cost_their_square() -> None:
    def seconds(sequence: int) -> Lookup:
        return found(tables.mla_forward_seconds("h100", batch=1, heads=16, sequence=sequence))

    assert not seconds(32768).extrapolated
    assert seconds(65536).extrapolated
    assert float(seconds(65536).seconds) == pytest.approx(4 * float(seconds(32768).seconds))


def test_full_attention_costs_up_to_twice_the_causal() -> None:
    def seconds(mask: tables.Mask) -> float:
        return float(
            found(
                tables.attention_forward_seconds(
                    "h100", batch=2, heads=32, kv_heads=8, head_dim=128, sequence=8192, mask=mask
                )
            ).seconds
        )

    assert 1.5 < seconds("full") / seconds("causal") < 2.1


def test_more_ranks_than_measured_are_marked() -> None:
    ranks = np.array([2, 3, 8, 64])
    lookup = found(
        tables.collective_seconds("h100", op="all_reduce", ranks=ranks, buffer_bytes=2.0**26)
    )
    assert lookup.extrapolated.tolist() == [False, False, False, True]
    assert lookup.seconds[3] == lookup.seconds[2]


# Absent tables.


def test_chips_and_precisions_without_a_table() -> None:
    assert tables.gemm_seconds("mi300x", precision="bf16", m=1, n=1, k=1) is None
    assert tables.gemm_seconds("a100-80", precision="fp8", m=1, n=1, k=1) is None
    assert tables.gemm_seconds("h100", precision="nvfp4", m=1, n=1, k=1) is None
    assert tables.gemm_seconds("h100", precision="mxfp8", m=1, n=1, k=1) is None
    assert tables.gemm_seconds("h100", precision="fp32", m=1, n=1, k=1) is None
    assert (
        tables.attention_forward_seconds(
            "tpu-v4", batch=1, heads=1, kv_heads=1, head_dim=64, sequence=128
        )
        is None
    )
    assert tables.table_facts("mi300x") == {}


def test_same_tables_under_two_names() -> None:
    assert gemm_us("h100", "fp16", 999, 999, 999) == gemm_us("h100", "bf16", 999, 999, 999)
    assert gemm_us("b200", "mxfp8", 999, 999, 999) == gemm_us(
        "b200", "fp8-blockwise", 999, 999, 999
    )


def test_unknown_words_name_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="all_gather"):
        tables.collective_seconds("h100", op="allgather", ranks=8, buffer_bytes=1e6)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="cast"):
        tables.quantise_seconds("h100", step="casts", elements=1e6)  # type: ignore[arg-type]


def test_kin() -> None:
    itself = tables.kin(find_chip("h100"))
    assert (itself.table.name, itself.confidence, itself.note) == ("h100", "high", "")
    assert itself.compute_scale("bf16") == itself.memory_scale == 1
    pcie = tables.kin(find_chip("h100-pcie"))
    assert (pcie.table.name, pcie.relation, pcie.confidence) == ("h100", "generation", "medium")
    assert pcie.compute_scale("bf16") == pytest.approx(989 / 756)
    assert pcie.memory_scale == pytest.approx(3350 / 2000)
    assert (
        pcie.note
        == "h100-pcie has no measured operators: the efficiencies of h100 at h100-pcie's peaks"
        " (generation)"
    )
    assert tables.kin(find_chip("v100-32")).confidence == "low"
    assert tables.kin(find_chip("mi300x")).relation == "stranger"


# The files.


def found_tables(chip: str) -> _store.ChipTables:
    stored = _store.tables_of(chip)
    assert stored is not None
    return stored


def test_one_file_per_chip_and_few_bytes() -> None:
    sizes = {file.stem: file.stat().st_size for file in DATA.glob("*.npz")}
    assert set(sizes) == set(tables.TABLE_CHIPS)
    assert max(sizes.values()) <= 400_000
    assert sum(sizes.values()) <= 4_000_000


@pytest.mark.parametrize("chip", tables.TABLE_CHIPS)
def test_files_say_where_they_come_from(chip: str) -> None:
    facts = tables.table_facts(chip)
    assert facts["source"].startswith("aiconfigurator-core 0.12.0, systems/data/")
    assert facts["source_licence"].startswith("Apache-2.0")
    assert all(grid["rows"] > 0 and grid["measured_by"] for grid in facts["grids"].values())
    assert "aiconfigurator-core 0.12.0" in (DATA / "NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize("chip", tables.TABLE_CHIPS)
def test_loads_in_no_time(chip: str) -> None:
    def load() -> float:
        start = time.process_time()
        _store.read_tables(DATA / f"{chip}.npz")
        return time.process_time() - start

    assert min(load() for _ in range(3)) < 0.05


def test_a_million_lookups() -> None:
    draw = np.random.default_rng(4)
    m, n, k = (np.exp(draw.uniform(np.log(64), np.log(60000), 10**6)) for _ in range(3))

    def look() -> float:
        start = time.process_time()
        tables.gemm_seconds("h100", precision="bf16", m=m, n=n, k=k)
        return time.process_time() - start

    assert min(look() for _ in range(3)) < 0.5


def test_stored_form_keeps_times() -> None:
    log_seconds = np.log(np.geomspace(1e-6, 10.0, 24)).reshape(4, 3, 2)
    assert (
        np.max(np.abs(_store.decode(_store.encode(log_seconds)) - log_seconds))
        <= 0.51 * _store.LOG_STEP
    )


def test_one_point_on_an_axis() -> None:
    grid = Grid(
        log_axes=(np.log([128.0]), np.log([1.0, 2.0])),
        log_seconds=np.log([[1.0, 2.0]]),
        growth=(1.0, 1.0),
    )
    assert grid.lookup(128.0, 2.0).seconds == pytest.approx(2.0)
    assert grid.lookup(256.0, 4.0).seconds == pytest.approx(8.0)


def test_importing_loads_no_numpy() -> None:
    command = [
        sys.executable,
        "-c",
        "import sys, meshwright.values.hardware.tables; sys.exit('numpy' in sys.modules)",
    ]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0


def source_is_absent() -> str:
    """Why the tables can't be made again here; empty where they can."""
    if importlib.util.find_spec("pyarrow") is None:
        return "pyarrow is not installed: pip install -r requirements-tables.txt"
    try:
        version = distribution("aiconfigurator-core").version
    except PackageNotFoundError:
        return "aiconfigurator-core is not installed: pip install -r requirements-tables.txt"
    return (
        ""
        if version == "0.12.0"
        else f"aiconfigurator-core {version} is installed, the tables are made from 0.12.0"
    )


@pytest.mark.skipif(bool(source_is_absent()), reason=source_is_absent() or "present")
def test_tables_are_what_the_script_makes() -> None:
    command = [
        sys.executable,
        str(ROOT / "scripts" / "distil_operators.py"),
        "--check",
        "--chip",
        "a100-80",
    ]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    row = next(line for line in result.stdout.splitlines() if "| gemm/bf16 |" in line)
    assert row in (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["rtx-3090", "rtx-4090", "rtx-5090", "a10", "a10g", "l4", "l40", "h20", "h20-141"]
)
def test_a_kins_speed_is_that_of_the_shares_that_both_reach(name: str) -> None:
    """A chip whose own best share of its peak is known makes of its peak that, not what its kin
    makes of another peak at another power."""
    chip = find_chip(name)
    table = tables.kin(chip).table
    found = tables.gemm_seconds(table, precision="bf16", m=4096.0, n=4096.0, k=4096.0)
    assert found is not None
    reached = 2 * 4096.0**3 / float(np.asarray(found.seconds)) / table.peak_flops_per_s("bf16")
    assert chip.kin_speed == pytest.approx(chip.matmul_efficiency / reached, abs=0.006)
    ratio = table.peak_flops_per_s("bf16") / chip.peak_flops_per_s("bf16")
    assert tables.kin(chip).compute_scale("bf16") == pytest.approx(ratio / chip.kin_speed)
