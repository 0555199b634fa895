from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.values.hardware.profiles import (
    ATTENTION_RATE,
    BACKWARD_RATE,
    DGRAD_RATE,
    FUSED_RATE,
    GEMM_RATE,
    H100,
    ON_CPU,
    ON_H100,
    profile,
)

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import find_chip, find_device
from meshwright.values.hardware.grid import Lookup
from meshwright.values.hardware.profile import Profile
from meshwright.values.hardware.profile_tables import shipped_tables
from meshwright.values.hardware.profiled import profiled_chip, stretched_chip
from meshwright.values.hardware.tables import (
    Role,
    attention_backward_seconds,
    attention_forward_seconds,
    gemm_seconds,
    kin,
)

CHIP = profiled_chip(ON_H100, find_chip("h100"))


def seconds(
    chip: object, role: Role = "forward", *, precision: str = "bf16", m: float = 2048.0
) -> float:
    found = gemm_seconds(chip, precision=precision, m=m, n=16384.0, k=16384.0, role=role)  # type: ignore[arg-type]
    assert found is not None
    return float(found.seconds)


def test_measured_products_go_before_the_shipped_ones() -> None:
    flops = 2 * 2048 * 16384.0**2
    assert math.isclose(seconds(CHIP), flops / (1000 * GEMM_RATE), rel_tol=1e-9)
    assert math.isclose(seconds(CHIP, "dgrad"), flops / (1000 * DGRAD_RATE), rel_tol=1e-9)
    assert math.isclose(seconds(CHIP, "main_grad_fused"), flops / (1000 * FUSED_RATE), rel_tol=1e-9)


def test_a_role_that_was_not_measured_takes_the_forward_product() -> None:
    assert seconds(CHIP, "wgrad") == seconds(CHIP)
    assert seconds("h100", "dgrad") == seconds("h100")


def test_what_the_profile_lacks_is_the_shipped_table() -> None:
    assert seconds(CHIP, precision="fp8") == seconds("h100", precision="fp8")


def test_attention_forward_and_backward_are_those_measured() -> None:
    shape = {"batch": 1, "heads": 128.0, "kv_heads": 16.0, "head_dim": 128.0, "sequence": 16384.0}
    forward, backward = (
        attention_forward_seconds(CHIP, **shape),  # type: ignore[arg-type]
        attention_backward_seconds(CHIP, **shape),  # type: ignore[arg-type]
    )
    assert forward is not None and backward is not None
    flops = 2 * 128 * 128 * 16384.0**2
    assert math.isclose(float(forward.seconds), flops / (1000 * ATTENTION_RATE), rel_tol=1e-9)
    assert math.isclose(float(backward.seconds), flops / (1000 * BACKWARD_RATE), rel_tol=1e-9)
    assert attention_backward_seconds("h100", **shape) is None  # type: ignore[arg-type]


def test_a_chip_without_tables_of_its_own_keeps_those_of_its_kin_behind_the_profile() -> None:
    pcie = find_chip("h100-pcie")
    measured = profiled_chip(
        profile(replace(H100, device_name="NVIDIA H100 PCIe"), "bf16", times=700.0), pcie
    )
    ratio = find_chip("h100").peak_flops_per_s("fp8") / pcie.peak_flops_per_s("fp8")
    assert math.isclose(
        seconds(measured, precision="fp8"), ratio * seconds("h100", precision="fp8"), rel_tol=1e-9
    )
    assert kin(measured).relation == "itself"
    stood_in = shipped_tables(pcie)
    assert stood_in is not None and set(stood_in.origins.values()) == {"kin"}


def test_a_chip_of_no_kin_has_the_profile_alone() -> None:
    assert shipped_tables(find_chip("mi300x")) is None
    chip = profiled_chip(ON_CPU, None)
    assert chip.name == "Some CPU (4 cores)" and chip.peak_flops_per_s("fp32") == pytest.approx(
        GEMM_RATE
    )
    assert chip.tables is not None and set(chip.tables.origins.values()) == {"profile"}
    assert gemm_seconds(chip, precision="bf16", m=1, n=1, k=1) is None


@pytest.mark.parametrize(
    ("measured", "chip", "words"),
    [
        (
            ON_H100,
            "a100-80",
            "NVIDIA H100 80GB HBM3.*cluster of a100-80: name that chip .--cluster h100:COUNT",
        ),
        (ON_H100, "h800", "cluster of h800: name that chip"),
        (
            ON_CPU,
            "h100",
            "Some CPU .4 cores., cluster of h100: the catalogue has no such chip; --cluster local",
        ),
    ],
)
def test_another_chip_is_refused(measured: Profile, chip: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        profiled_chip(measured, find_chip(chip))


def test_a_chip_of_a_cluster_file_is_taken_at_its_word() -> None:
    own = replace(find_chip("h100"), name="h100-capped", memory_efficiency=0.5)
    assert profiled_chip(ON_H100, own).memory_efficiency == pytest.approx(
        50e9 * 50 / own.memory_bytes_per_s
    )


def test_times_of_one_origin_are_stretched_and_no_others() -> None:
    own, shipped = stretched_chip(CHIP, "profile", 2.0), stretched_chip(CHIP, "tables", 2.0)
    assert math.isclose(seconds(own), 2 * seconds(CHIP), rel_tol=1e-9)
    assert seconds(own, precision="fp8") == seconds(CHIP, precision="fp8")
    assert seconds(shipped) == seconds(CHIP)
    assert math.isclose(
        seconds(shipped, precision="fp8"), 2 * seconds(CHIP, precision="fp8"), rel_tol=1e-9
    )
    assert own.launch_s == 2 * CHIP.launch_s and shipped.launch_s == CHIP.launch_s
    assert own.memory_efficiency == CHIP.memory_efficiency / 2


def test_times_beyond_the_measured_shapes_are_stretched_alone() -> None:
    beyond = stretched_chip(CHIP, "profile", 1.0, beyond=3.0)
    assert seconds(beyond) == seconds(CHIP)
    assert math.isclose(seconds(beyond, m=65536.0), 3 * seconds(CHIP, m=65536.0), rel_tol=1e-9)
    assert math.isclose(seconds(beyond, m=1.0), 3 * seconds(CHIP, m=1.0), rel_tol=1e-9)


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
    ],
)
def test_drivers_names_are_those_of_the_catalogue(device: str, chip: str) -> None:
    found = find_device(device)
    assert found is not None and found.name == chip


def test_an_unknown_device_is_none() -> None:
    assert find_device("AMD EPYC (2 cores)") is None
    assert find_device("") is None


def test_smaller_shapes_than_measured_take_less_by_their_work() -> None:
    measured, smaller = (
        float(found.seconds) for m in (256.0, 64.0) if (found := products(m)) is not None
    )
    assert math.isclose(smaller, measured / 4, rel_tol=1e-9)
    least = gemm_seconds(CHIP, precision="bf16", m=1.0, n=1.0, k=1.0)
    smallest = gemm_seconds(CHIP, precision="bf16", m=256.0, n=256.0, k=256.0)
    assert least is not None and smallest is not None
    assert (
        float(least.seconds) == float(smallest.seconds) < 1e-5
    )  # shorter than a launch: nothing is gained by being smaller


def products(m: float) -> Lookup | None:
    return gemm_seconds(CHIP, precision="bf16", m=m, n=16384.0, k=16384.0)


def test_columns_and_scalars_agree() -> None:
    m = np.array([256.0, 2048.0, 16384.0])
    column = gemm_seconds(CHIP, precision="bf16", m=m, n=16384.0, k=16384.0)
    assert column is not None
    assert column.seconds.tolist() == [seconds(CHIP, m=float(one)) for one in m]
