"""What is measured, and the command line; torch is not needed."""

from __future__ import annotations

import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli import run
from meshwright.trainer import profile
from meshwright.trainer.profile.design import (
    _GRIDS,
    EFFORTS,
    DeviceKind,
    ProfileRequest,
    grid,
    grid_points,
    model_points,
    read_dtypes,
    sized,
    sustained_point,
)
from meshwright.values.errors import ConfigError, MissingExtraError, UnknownNameError
from meshwright.values.hardware.profile import Effort
from meshwright.values.models.catalogue import Preset, find_model, presets

DEVICES: tuple[DeviceKind, ...] = ("cpu", "cuda")
EFFORT_NAMES: tuple[Effort, ...] = ("quick", "standard", "full")


def test_every_device_and_effort_has_every_family() -> None:
    families = {frozenset(_GRIDS[device][effort]) for device in DEVICES for effort in EFFORT_NAMES}
    assert len(families) == 1
    assert set(EFFORTS) == set(EFFORT_NAMES)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("effort", EFFORT_NAMES)
def test_axes_rise(device: DeviceKind, effort: Effort) -> None:
    for axes in _GRIDS[device][effort].values():
        assert all(list(axis) == sorted(set(axis)) and axis[0] > 0 for axis in axes)


@pytest.mark.parametrize("device", DEVICES)
def test_more_effort_measures_more(device: DeviceKind) -> None:
    for family in _GRIDS[device]["quick"]:
        counts = [
            len(grid_points(grid(family, device=device, effort=effort))) for effort in EFFORT_NAMES
        ]
        assert counts == sorted(counts), family


@given(most=st.floats(1, 1e15))
def test_a_slow_device_gets_a_grid_that_it_finishes(most: float) -> None:
    whole = grid("gemm", device="cuda", effort="full")
    kept = sized(whole, most=most)
    assert all(
        len(mine) > 0 and mine == every[: len(mine)]
        for mine, every in zip(kept, whole, strict=True)
    )
    assert prod(axis[-1] for axis in kept) <= max(most, prod(axis[0] for axis in whole))


def test_the_sustained_product_is_on_the_grid() -> None:
    for device in DEVICES:
        for effort in EFFORT_NAMES:
            axes = grid("gemm", device=device, effort=effort)
            assert sustained_point(axes, device=device) in grid_points(axes)


def test_shapes_of_llama3_8b_by_hand() -> None:
    points = model_points(find_model("llama3-8b"), device="cpu")
    into_and_out = {(128256, 4096), (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)}
    assert set(points["gemm"]) == {
        (tokens, out, into) for tokens in (256, 1024) for out, into in into_and_out
    }
    assert set(points["gemm_wgrad"]) == {
        (out, into, tokens) for tokens in (256, 1024) for out, into in into_and_out
    }
    assert set(points["attention"]) == {(128, 4, 32, 256), (128, 4, 32, 1024)}
    assert "experts" not in points
    eighth = model_points(find_model("llama3-8b"), device="cuda")["gemm"]
    assert (4096, 768, 4096) in eighth and (4096, 4096, 1792) in eighth


def test_shapes_of_experts() -> None:
    points = model_points(find_model("mixtral-8x7b"), device="cuda")
    assert (1024, 8, 4096, 14336) in points["experts"]
    latent = model_points(find_model("deepseek-v3"), device="cuda")
    assert "attention" not in latent and all(
        experts <= 64 for _, experts, _, _ in latent["experts"]
    )


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.spec.name)
def test_every_model_has_shapes(preset: Preset) -> None:
    for device in DEVICES:
        for found in model_points(preset.spec, device=device).values():
            assert all(number >= 1 for point in found for number in point)


def test_dtypes_in_one_order() -> None:
    assert read_dtypes("fp8, bf16,bf16") == ("bf16", "fp8")
    with pytest.raises(ConfigError, match="expected some of"):
        read_dtypes(",")
    with pytest.raises(UnknownNameError, match="did you mean 'bf16'"):
        read_dtypes("bf61")


def test_unknown_device() -> None:
    with pytest.raises(UnknownNameError, match="no known device"):
        ProfileRequest(device="gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "x.csv"], "expected a name that ends in .npz or .json"),
        (["-o", "no/folder/x.npz"], "there is no folder"),
        (["-o", "x.npz", "--quick", "--full"], "give one of them"),
        (["-o", "x.npz", "--dtype", "bf61"], "no known dtype"),
        (["-o", "x.npz", "--device", "gpu"], "no known device"),
        (["-o", "x.npz", "--model", "llama3-8bb"], "did you mean 'llama3-8b'"),
        (["-o", "old.npz"], "old.npz: no profile of `meshwright profile`"),
        ([], "--output"),
    ],
)
def test_bad_requests(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.npz").write_bytes(b"something else")
    assert run(["profile", *words]) == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["old.npz"]


def test_without_torch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError):
        profile.profile_device(ProfileRequest())
    assert run(["profile", "-o", str(tmp_path / "x.npz")]) == 2
    assert "pip install -e '.[train]'" in capsys.readouterr().err


def test_a_machine_without_torch_is_told_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from meshwright.cli import run;"
        " sys.exit(run(['profile', '-o', 'x.npz']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "pip install -e '.[train]'" in ended.stderr
