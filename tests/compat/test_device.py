from __future__ import annotations

import pytest

from meshwright.compat import apss as device
from meshwright.compat.apss import Device, device_of, device_of_listing
from meshwright.values.errors import ConfigError, UnknownNameError

SXM = "NVIDIA A100-SXM4-80GB, 81920\n"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_listing", lambda: None)


def test_device_of_this_machine_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_listing", lambda: SXM * 8)
    assert device_of(chip=None, environment={"DEVICE_MEMORY_GB": "32"}) == Device(chip="a100-80")


def test_a_named_chip_goes_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_listing", lambda: SXM)
    assert device_of(chip="h100", environment={}) == Device(chip="h100")
    assert device_of(chip="H100-80GB", environment={"DEVICE_MEMORY_GB": "60"}) == Device(
        chip="h100", max_memory_gib=60.0
    )


@pytest.mark.parametrize(
    ("memory", "limit"), [("80", None), ("79.5", None), ("40", 40.0), ("32", 32.0)]
)
def test_memory_alone_assumes_a_chip_and_says_so(memory: str, limit: float | None) -> None:
    assert device_of(chip=None, environment={"DEVICE_MEMORY_GB": memory}) == Device(
        chip="a100-80", max_memory_gib=limit, assumed=True
    )


def test_more_memory_than_the_assumed_chip_has_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="a100-80, which is assumed, has 80 GiB; name the chip by --chip"
    ):
        device_of(chip=None, environment={"DEVICE_MEMORY_GB": "141"})


def test_a_slice_of_a_gpu_limits_the_memory() -> None:
    assert device_of_listing("NVIDIA A100-SXM4-80GB, 40192\n") == Device(
        chip="a100-80", max_memory_gib=39.25
    )


@pytest.mark.parametrize("memory", ["", "0", "-1", "inf", "nan", "80GB"])
def test_broken_memory_is_refused(memory: str) -> None:
    with pytest.raises(ConfigError, match="expected GiB of one GPU"):
        device_of(chip=None, environment={"DEVICE_MEMORY_GB": memory})


def test_nothing_known_is_refused_with_what_to_give() -> None:
    with pytest.raises(
        ConfigError, match="name one by --chip, such as --chip h100, or set DEVICE_MEMORY_GB"
    ):
        device_of(chip=None, environment={})
    with pytest.raises(UnknownNameError):
        device_of(chip="h1000", environment={})


@pytest.mark.parametrize(
    "listing",
    [
        "NVIDIA A100-SXM4-80GB, 81920\nTesla T4, 15360\n",
        "Riva 128, 4\n",
        "NVIDIA A100-SXM4-80GB, [N/A]\n",
        "broken",
    ],
)
def test_unusable_listings_ask_for_the_chip(listing: str) -> None:
    with pytest.raises(ConfigError, match="--chip"):
        device_of_listing(listing)
