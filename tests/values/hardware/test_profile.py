from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.platforms.given import load_profile
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.profile import (
    FileForm,
    Machine,
    Outcome,
    Profile,
    Sample,
    Series,
    profile_from_bytes,
    profile_to_bytes,
)
from meshwright.values.hardware.profile_chip import measured_chip, measured_rates, profile_chip
from meshwright.values.hardware.profile_tables import grid_of_series, profile_tables

FORMS: tuple[FileForm, ...] = ("json", "npz")
MACHINE = Machine(
    device="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    num_devices=1,
    total_bytes=85e9,
    usable_bytes=84e9,
    platform="Linux x86_64, some processor",
    num_threads=8,
    driver="550.1",
    cuda_version="12.8",
    torch_version="2.13.0",
    python_version="3.11.7",
    date="2026-11-21T00:00:00Z",
    clock_mhz=1980.0,
)
GEMM = Series(
    name="gemm/bf16",
    dims=("m", "n", "k"),
    axes=((1024.0, 8192.0), (4096.0,), (4096.0, 8192.0)),
    samples=tuple(
        Sample(point=(m, 4096.0, k), seconds=2 * m * 4096 * k / rate, spread_frac=0.01, repeats=7)
        for m, k, rate in (
            (1024.0, 4096.0, 5e14),
            (1024.0, 8192.0, 5.5e14),
            (8192.0, 4096.0, 6e14),
            (8192.0, 8192.0, 7e14),
        )
    ),
)


def line(name: str, *pairs: tuple[float, float], dim: str = "bytes") -> Series:
    samples = tuple(
        Sample(point=(float(size),), seconds=seconds, spread_frac=0.0, repeats=3)
        for size, seconds in pairs
    )
    return Series(
        name=name,
        dims=(dim,),
        axes=(tuple(sample.point[0] for sample in samples),),
        samples=samples,
    )


def attention(name: str, *pairs: tuple[float, float], heads: float = 32.0) -> Series:
    """Times by sequence, head size 128."""
    samples = tuple(
        Sample(point=(128.0, 1.0, heads, length), seconds=seconds, repeats=3)
        for length, seconds in pairs
    )
    axes = ((128.0,), (1.0,), (heads,), tuple(length for length, _ in pairs))
    return Series(
        name=name,
        dims=("head_dim", "heads_per_kv_head", "batch_heads", "sequence"),
        axes=axes,
        samples=samples,
    )


PROFILE = Profile(
    machine=MACHINE,
    effort="quick",
    complete=True,
    series=(
        line("launch/host", (200.0, 8e-4), dim="operations"),
        line("launch/device", (200.0, 4e-4), dim="operations"),
        line("copy/device", (1e6, 1e-7), (1e9, 2e9 / 3e12)),  # the first is a cache's rate
        GEMM,
        Series(
            name="gemm_sustained/bf16",
            dims=GEMM.dims,
            axes=((8192.0,), (4096.0,), (8192.0,)),
            samples=(
                Sample(
                    point=(8192.0, 4096.0, 8192.0),
                    seconds=2 * 8192 * 4096 * 8192 / 6.3e14,
                    repeats=100,
                ),
            ),
        ),
        attention("attention/bf16", (512.0, 1e-5), (4096.0, 2 * 128 * 32 * 4096**2 / 4e14)),
        attention("attention_full/bf16", (4096.0, 0.8 * 2 * 2 * 128 * 32 * 4096**2 / 4e14)),
        attention("attention_backward/bf16", (4096.0, 2.5 * 2 * 128 * 32 * 4096**2 / 3e14)),
    ),
    skipped={"collective": "one process"},
)


@pytest.mark.parametrize("form", FORMS)
def test_round_trip(form: FileForm, tmp_path: Path) -> None:
    content = profile_to_bytes(PROFILE, form=form)
    assert content == profile_to_bytes(PROFILE, form=form)
    file = tmp_path / "here"
    file.write_bytes(content)
    assert load_profile(file) == PROFILE


sizes = st.floats(min_value=1e-3, max_value=1e12)
points = st.tuples(sizes, sizes)
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(["out of memory", "not supported"])
samples = st.one_of(
    st.builds(
        Sample,
        point=points,
        seconds=st.floats(1e-9, 1e6),
        spread_frac=st.floats(0, 10),
        repeats=st.integers(1, 10**6),
    ),
    st.builds(Sample, point=points, outcome=outcomes),
)
axes = st.lists(sizes, min_size=1, max_size=4, unique=True).map(
    lambda values: tuple(sorted(values))
)
any_series = st.builds(
    Series,
    name=st.text(),
    dims=st.just(("a", "b")),
    axes=st.tuples(axes, axes),
    samples=st.lists(samples, max_size=6).map(tuple),
)
profiles = st.builds(
    Profile,
    machine=st.just(MACHINE),
    effort=st.sampled_from(["quick", "standard", "full"]),
    complete=st.booleans(),
    series=st.lists(any_series, max_size=4, unique_by=lambda one: one.name).map(tuple),
    skipped=st.dictionaries(st.text(), st.text(), max_size=2),
)


@given(profile=profiles, form=st.sampled_from(FORMS))
def test_any_profile_reads_back(profile: Profile, form: FileForm) -> None:
    assert profile_from_bytes(profile_to_bytes(profile, form=form), source="x") == profile


@given(content=st.binary(max_size=60), start=st.sampled_from([b"", b"PK\x03\x04", b"{"]))
def test_bytes_at_random_are_refused_in_one_line(content: bytes, start: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^some\.npz: "):
        profile_from_bytes(start + content, source="some.npz")


@given(
    place=st.floats(0, 1), new=st.integers(0, 255), form=st.sampled_from(FORMS), cut=st.booleans()
)
def test_a_damaged_file_is_read_or_refused(
    place: float, new: int, form: FileForm, cut: bool
) -> None:
    content = bytearray(profile_to_bytes(PROFILE, form=form))
    where = int(place * (len(content) - 1))
    if cut:
        del content[where:]
    else:
        content[where] = new
    try:
        profile_from_bytes(bytes(content), source="x")
    except ConfigError as error:
        assert str(error).startswith("x: ")


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(profile_to_bytes(PROFILE, form="json")) | changes).encode()


def series_with(**changes: Any) -> bytes:
    record = json.loads(profile_to_bytes(PROFILE, form="json"))
    record["series"] = [record["series"][0] | changes]
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "it has no 'form'"),
        (b"{}", "it has no 'form'"),
        (b"not json", "no profile of `meshwright profile`"),
        (changed(form=2), "form=2: this version reads form 1"),
        (changed(effort="some"), "effort: Input should be 'quick', 'standard' or 'full'"),
        (changed(extra=1), "extra: Extra inputs are not permitted"),
        (changed(machine={}), "machine.device: Field required"),
        (series_with(seconds=[]), "launch/host: columns of 1, 0, 1, 1, 1 rows"),
        (series_with(seconds=[-1.0]), "seconds=-1.0 at [200.0], measured: expected a time above 0"),
        (series_with(seconds=[None]), "seconds=None at [200.0], measured: expected a time above 0"),
        (series_with(points=[[0.0]]), "point=[0.0]: expected positive numbers"),
        (
            series_with(points=[[1.0, 2.0]]),
            "launch/host: expected points with 1 numbers, operations",
        ),
        (series_with(axes=[[2.0, 1.0]]), "launch/host: expected axes of rising positive numbers"),
        (series_with(axes=[]), "launch/host: 0 axes for dims=['operations']"),
        (series_with(outcomes=["lost"]), "series.0.outcomes.0: Input should be"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        profile_from_bytes(content, source="mine.json")
    assert str(error.value).startswith("mine.json: ") and words in str(error.value)


def test_an_absent_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`meshwright profile -o .*` writes it"):
        load_profile(tmp_path / "none.npz")


def test_a_series_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected each name once"):
        replace(PROFILE, series=(GEMM, GEMM))


def test_set_ups_differ_by_what_matters() -> None:
    assert (
        MACHINE.differences(
            replace(MACHINE, date="later", clock_mhz=300.0, usable_bytes=1.0, num_threads=1)
        )
        == []
    )
    assert MACHINE.differences(replace(MACHINE, torch_version="2.14.0")) == [
        "torch_version 2.13.0 is 2.14.0 there"
    ]
    on_cpu = replace(MACHINE, device="cpu")
    assert on_cpu.differences(replace(on_cpu, num_threads=1)) == ["num_threads 8 is 1 there"]


def test_rates_by_hand() -> None:
    rates = measured_rates(PROFILE)
    assert rates.matmul_flops_per_s == pytest.approx({"bf16": 7e14})
    assert rates.attention_forward_flops_per_s == pytest.approx({"bf16": 4e14})
    assert rates.attention_backward_flops_per_s == pytest.approx({"bf16": 3e14})
    assert rates.sustained_share == pytest.approx({"bf16": 0.9})
    assert (rates.memory_bytes_per_s, rates.launch_s, rates.ramp_s) == pytest.approx(
        (3e12, 4e-6, 2e-6)
    )


def test_chip_takes_what_was_measured() -> None:
    base = find_chip("h100")
    chip = profile_chip(PROFILE, base)
    assert chip.matmul_efficiency == pytest.approx(7e14 / 989e12)
    assert chip.attention_forward_efficiency == pytest.approx(4e14 / 989e12)
    assert chip.attention_backward_efficiency == pytest.approx(3e14 / 989e12)
    assert chip.memory_efficiency == pytest.approx(3e12 / base.memory_bytes_per_s)
    assert chip.sustained_share == pytest.approx(min(base.sustained_share, 0.9))
    assert (chip.launch_s, chip.ramp_s, chip.usable_bytes) == pytest.approx((4e-6, 2e-6, 84e9))
    assert "measured by meshwright profile on NVIDIA H100 80GB HBM3" in chip.source
    kept = (
        "name",
        "bf16_flops_per_s",
        "fp8_matmul_efficiency",
        "memory_bytes_per_s",
        "nominal_bytes",
        "flash2_share",
    )
    assert all(getattr(chip, field) == getattr(base, field) for field in kept)


def test_empty_profile_changes_no_rate() -> None:
    base = find_chip("h100")
    chip = profile_chip(replace(PROFILE, series=()), base)
    assert replace(chip, source=base.source, usable_bytes=base.usable_bytes) == base


def test_another_chips_profile_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"reaches 224% of what a100-80 can do at most \(matmul_efficiency\)"
    ):
        profile_chip(PROFILE, find_chip("a100-80"))


def test_chip_from_the_profile_alone() -> None:
    chip = measured_chip(PROFILE)
    assert (
        chip.bf16_flops_per_s,
        chip.matmul_efficiency,
        chip.memory_bytes_per_s,
    ) == pytest.approx((7e14, 1.0, 3e12))
    assert chip.attention_forward_efficiency == pytest.approx(4 / 7)
    with pytest.raises(ConfigError, match="lacks matrix products or copies"):
        measured_chip(replace(PROFILE, series=PROFILE.series[:2]))


def test_tables_give_back_every_measured_time() -> None:
    tables = profile_tables(PROFILE)
    for series in PROFILE.series:
        grid = tables.grids[series.name]
        for sample in series.samples:
            found = grid.lookup(*sample.point)
            assert float(found.seconds) == pytest.approx(sample.seconds) and not found.extrapolated
    assert tables.meta["full_share"] == pytest.approx(0.8)
    assert tables.meta["kv_s_per_byte"] == 0.0


def test_between_points_and_beyond() -> None:
    grid = profile_tables(PROFILE).grids["gemm/bf16"]
    times = {sample.point: sample.seconds or 0.0 for sample in GEMM.samples}
    middle = float(grid.lookup((1024.0 * 8192.0) ** 0.5, 4096.0, 4096.0).seconds)
    assert middle == pytest.approx(
        (times[1024.0, 4096.0, 4096.0] * times[8192.0, 4096.0, 4096.0]) ** 0.5
    )
    beyond = grid.lookup(16384.0, 4096.0, 8192.0)
    assert (
        float(beyond.seconds) == pytest.approx(2 * times[8192.0, 4096.0, 8192.0])
        and beyond.extrapolated
    )
    longer = profile_tables(PROFILE).grids["attention/bf16"].lookup(128.0, 1.0, 32.0, 8192.0)
    assert float(longer.seconds) == pytest.approx(4 * 2 * 128 * 32 * 4096**2 / 4e14)


def test_holes_grow_from_the_nearest_point() -> None:
    lost = Sample(point=GEMM.samples[3].point, outcome="out of memory")
    grid = grid_of_series(replace(GEMM, samples=(*GEMM.samples[:3], lost)))
    assert grid is not None
    assert float(grid.lookup(8192.0, 4096.0, 8192.0).seconds) == pytest.approx(
        2 * (GEMM.samples[2].seconds or 0.0)
    )


def test_a_series_cut_off_early_is_left_out() -> None:
    assert grid_of_series(replace(GEMM, samples=GEMM.samples[:1])) is None
    assert grid_of_series(replace(GEMM, samples=())) is None


def test_exact_shapes_are_kept_beside_the_grid() -> None:
    exact = Sample(point=(3000.0, 4096.0, 5000.0), seconds=3e-4)
    grid = grid_of_series(replace(GEMM, samples=(*GEMM.samples, exact)))
    plain = grid_of_series(GEMM)
    assert grid is not None and plain is not None
    assert float(grid.lookup(*exact.point).seconds) == pytest.approx(3e-4)
    for sample in GEMM.samples:
        assert float(grid.lookup(*sample.point).seconds) == pytest.approx(sample.seconds)
    far = np.asarray([1024.0, 8192.0]), 4096.0, np.asarray([4096.0, 8192.0])
    assert grid.lookup(*far).seconds == pytest.approx(plain.lookup(*far).seconds)


def test_fp16_reads_bf16_where_it_was_not_measured() -> None:
    assert profile_tables(PROFILE).meta["same"]["gemm/fp16"] == "gemm/bf16"
    both = replace(PROFILE, series=(*PROFILE.series, replace(GEMM, name="gemm/fp16")))
    assert "gemm/fp16" not in profile_tables(both).meta["same"]
