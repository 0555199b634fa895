from __future__ import annotations

import contextlib
import csv
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import (
    ChipRow,
    LinkRow,
    chip_rows,
    chips,
    default_node,
    find_chip,
    find_link,
    find_row,
    link_rows,
    network_link,
)
from meshwright.values.units import GB, GBIT, GIB, TERA

# Published figures by the names that data sheets use: GB, GB/s, TFLOPS bf16, fp16, fp8.
PUBLISHED: dict[str, tuple[float, float, float | None, float | None, float | None]] = {
    "V100-16-SXM": (16, 900, None, 125, None),
    "V100-32-SXM": (32, 900, None, 125, None),
    "V100-32-PCIe": (32, 900, None, 112, None),
    "A100-40-SXM": (40, 1555, 312, 312, None),
    "A100-80-SXM": (80, 2039, 312, 312, None),
    "A100-40-PCIe": (40, 1555, 312, 312, None),
    "A100-80-PCIe": (80, 1935, 312, 312, None),
    "A800-80-SXM": (80, 2039, 312, 312, None),
    "H100-80-SXM": (80, 3350, 989, 989, 1979),
    "H100-80-PCIe": (80, 2000, 756, 756, 1513),
    "H100-94-NVL": (94, 3900, 835, 835, 1671),
    "H800-80-SXM": (80, 3350, 989, 989, 1979),
    "H20-96-SXM": (96, 4000, 148, 148, 296),
    "H200-141-SXM": (141, 4800, 989, 989, 1979),
    "GH200-96": (96, 4000, 989, 989, 1979),
    "B200-180-SXM": (180, 8000, 2250, 2250, 4500),
    "B300-288-SXM": (288, 8000, 2250, 2250, 4500),
    "GB200-NVL72": (186, 8000, 2500, 2500, 5000),
    "GB300-NVL72": (288, 8000, 2500, 2500, 5000),
    "Rubin-VR200": (288, 22000, 4000, 4000, 17500),
    "L40S": (48, 864, 362, 362, 733),
    "L20": (48, 864, 119.5, 119.5, 239),
    "RTX-3090": (24, 936, 71, 71, None),
    "RTX-4090": (24, 1008, 165, 165, 330),
    "RTX-3080": (10, 760, 59.5, 59.5, None),
    "RTX-3090Ti": (24, 1008, 80, 80, None),
    "RTX-4080": (16, 716.8, 97.5, 97.5, 195),
    "Quadro RTX 8000": (48, 672, None, 130.5, None),
    "MI100": (32, 1228.8, 92.3, 184.6, None),
    "A10": (24, 600, 125, 125, None),
    "L4": (24, 300, 121, 121, 242),
    "T4": (16, 320, None, 65, None),
    "RTX-PRO-6000-Server": (96, 1597, 468, 468, 936),
    "MI250X": (128, 3277, 383, 383, None),
    "MI300X": (192, 5300, 1307, 1307, 2615),
    "MI325X": (256, 6000, 1307, 1307, 2615),
    "MI355X": (288, 8000, 2500, 2500, 5000),
    "Gaudi2": (96, 2460, 432, 432, 865),
    "Gaudi3": (128, 3700, 1677, 459, 1677),
    "Ascend-910A": (32, 1200, None, 256, None),
    "Ascend-910B1": (64, 1600, 414, 414, None),
    "Ascend-910B2": (64, 1600, 376, 376, None),
    "Ascend-910B3": (64, 1600, 313, 313, None),
    "Ascend-910B4": (32, 800, 280, 280, None),
    "Ascend-910C": (128, 3200, 752, 752, None),
    "Ascend-950DT": (96, 4000, 486, 486, 919),
    "Kunlun-R200": (32, 512, None, 128, None),
    "Kunlun-R480": (32, 512, None, 128, None),
    "Kunlun-P800": (96, 1800, 250, 250, None),
    "MLU590": (80, 2048, 314, 314, None),
    "TPU-v4": (32, 1200, 275, None, None),
    "TPU-v5e": (16, 819, 197, None, None),
    "TPU-v5p": (95, 2765, 459, None, 459),
    "TPU-v6e": (32, 1640, 918, None, 918),
    "TPU-v7x": (192, 7380, 2307, None, 4614),
    "Trainium2": (96, 2900, 667, 667, 1299),
    "Titan-RTX": (24, 672, None, 130, None),
    "RTX-2080Ti": (11, 616, None, 54, None),
    "A10G": (24, 600, 70, 70, None),
    "A30": (24, 933, 165, 165, None),
    "A40": (48, 696, 149.7, 149.7, None),
    "RTX-A5000": (24, 768, 111.1, 111.1, None),
    "RTX-A6000": (48, 768, 154.8, 154.8, None),
    "RTX-6000-Ada": (48, 960, 364.2, 364.2, 728.5),
    "L40": (48, 864, 181, 181, 362),
    "RTX-5090": (32, 1792, 209.5, 209.5, 419),
    "H20-141": (141, 4800, 148, 148, 296),
    "H200-NVL": (141, 4800, 835, 835, 1671),
    "GH200-144": (144, 4900, 989, 989, 1979),
    "GB10": (128, 273, 125, 125, 250),
    "MI210": (64, 1638.5, 181, 181, None),
    "MI250": (128, 3277, 362.1, 362.1, None),
    "MI300A": (128, 5300, 980.6, 980.6, 1961.2),
    "TPU-v3": (32, 900, 123, None, None),
}
# Where the catalogue says otherwise, its `choice` says why.
CHOSEN = {("B200-180-SXM", "memory"): 7672}

ALIASES = {
    "A100": "a100-80",
    "A100-80GB-SXM": "a100-80",
    "A100-SXM4-80GB": "a100-80",
    "NVIDIA A100-SXM4-80GB": "a100-80",
    "a100_sxm4_40gb": "a100-40",
    "A100-PCIe-80GB": "a100-80-pcie",
    "NVIDIA H100 80GB HBM3": "h100",
    "H100-96GB-HBM2e(500W)": "h100-96",
    "GB200-NVL72": "gb200",
    "V100-16GB-SXM2": "v100-16",
    "V100-32GB-SXM3": "v100-32-sxm3",
    "Tesla T4": "t4",
    "RTX-2080": "rtx-2080ti",
    "RTXPro6000": "rtx-pro-6000",
    "MI250X-GCD": "mi250x-gcd",
    "MI300X-192GB": "mi300x",
    "kunlun3": "kunlun-p800",
    "ascend_910b": "ascend-910b3",
    "Ascend-910B (Atlas 800T A2)": "ascend-910b3",
    "Ascend NPU (A2 class, CI machine not named)": "ascend-910b3",
    "TPU7x": "tpu-v7x",
    "Trainium1-NeuronCore-v2": "trainium1-core",
    "Trainium2-NeuronCore-v3": "trainium2-core",
    "MetaX-C500": "metax-c500",
    "H100 SXM5 80GB HBM3": "h100",
    "A100 40GB PCIe": "a100-40-pcie",
    "A100 40GB SXM": "a100-40",
    "H100 NVL 94GB": "h100-nvl",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "A6000": "rtx-a6000",
    "910C": "ascend-910c",
    "v5p": "tpu-v5p",
    "AMD Instinct MI300X VF": "mi300x",
    "NVIDIA GH200 144G HBM3e": "gh200-144",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_are_as_published(name: str) -> None:
    chip = find_chip(name)
    memory_gb, bandwidth, bf16, fp16, fp8 = PUBLISHED[name]
    assert chip.nominal_bytes == memory_gb * GIB
    assert chip.memory_bytes_per_s == CHOSEN.get((name, "memory"), bandwidth) * GB
    assert chip.bf16_flops_per_s == (bf16 and pytest.approx(bf16 * TERA))
    assert chip.fp16_flops_per_s == (fp16 and pytest.approx(fp16 * TERA))
    assert chip.fp8_flops_per_s == (fp8 and pytest.approx(fp8 * TERA))


@pytest.mark.parametrize(("name", "what"), CHOSEN)
def test_a_choice_against_a_published_figure_is_explained(name: str, what: str) -> None:
    assert {"memory": "bandwidth"}[what] in find_row(name).cells["choice"]


@pytest.mark.parametrize("row", chip_rows(), ids=lambda row: row.chip.name)
def test_every_chip_is_sane_and_has_sources(row: ChipRow) -> None:
    chip, cells = row.chip, row.cells
    assert 0.9 < chip.usable_bytes / chip.nominal_bytes < 1.01
    assert 8 * GIB < chip.nominal_bytes < 300 * GIB
    assert 200 * GB < chip.memory_bytes_per_s < 25_000 * GB
    assert 20 * TERA < max(chip.bf16_flops_per_s or 0, chip.fp16_flops_per_s or 0) < 5000 * TERA
    assert 0.5 < chip.matmul_efficiency < 0.98
    assert 0.1 < chip.attention_backward_efficiency <= chip.attention_forward_efficiency < 0.9
    assert chip.confidence in {"high", "medium", "low"}
    empty = [column for column in cells if column == "source" or column.endswith("_source")]
    assert [column for column in empty if not cells[column] and column != "price_source"] == []
    assert bool(cells["usd_per_hour"]) == bool(cells["price_source"])
    assert cells["matmul_tflops"] or cells["matmul_kin"]


@pytest.mark.parametrize("row", chip_rows(), ids=lambda row: row.chip.name)
def test_every_chip_has_a_server(row: ChipRow) -> None:
    node = default_node(row.chip.name)
    assert node.chip is row.chip
    assert node.domain_link.name == row.domain_link
    assert (
        node.network_link.bytes_per_s < node.domain_link.bytes_per_s
        or node.domain_link.name.startswith("pcie")
    )


def test_details_of_few_chips_have_sources_and_reach_them() -> None:
    """jax-ml/scaling-book, tpus.md: 32 GB/s to the host and arrays of 256 on TPU v6e, 15 and 128
    before; PCI-SIG: 63 GB/s of PCIe 5.0 x16, of which 0.8 is assumed."""
    rows = package_rows("values/hardware/chip_details.csv")
    assert all(row["source"] and float(row["value"]) > 0 for row in rows)
    assert {row["field"] for row in rows} == {"host_gb_per_s", "matrix_width"}
    assert {row["chip"] for row in rows} <= {chip.name for chip in chips()}
    told = {name: find_chip(name) for name in ("tpu-v6e", "tpu-v5p", "h100")}
    assert [chip.host_bytes_per_s for chip in told.values()] == [32e9, 15e9, 0.8 * 63e9]
    assert [chip.matrix_width for chip in told.values()] == [256, 128, None]


def test_matrix_efficiency_is_reached_over_peak() -> None:
    assert find_chip("h100").matmul_efficiency == pytest.approx(794.5 / 989)
    assert find_chip("h100").fp8_matmul_efficiency == pytest.approx(1402.6 / 1979)
    assert find_chip("h800").matmul_efficiency == find_chip("h100").matmul_efficiency
    assert find_chip("a100-80").matmul_efficiency == pytest.approx(271.2 / 312)


def test_usable_memory_is_what_a_process_sees() -> None:
    assert find_chip("h100").usable_bytes == pytest.approx(79.1 * GIB)
    assert find_chip("mi355x").usable_bytes == pytest.approx(287.98 * GIB)
    assert find_chip("v100-16").usable_bytes == pytest.approx(15.77 * GIB)


@pytest.mark.parametrize("name", ALIASES)
def test_aliases(name: str) -> None:
    assert find_chip(name).name == ALIASES[name]


@pytest.mark.parametrize(
    "name",
    [
        "H100 64GB",
        "A800 80GB PCIe",
        "H100 80GB MIG 1g.10gb",
        "80GB",
        "PCIe",
        "GPU",
        "",
        "A100 80GB OAM",
    ],
)
def test_a_name_that_contradicts_the_chip_is_not_it(name: str) -> None:
    with pytest.raises(UnknownNameError):
        find_chip(name)


def test_names_and_aliases_mean_one_chip_each() -> None:
    for row in chip_rows():
        for name in (row.chip.name, *row.aliases):
            assert find_chip(name) is row.chip, name
            assert find_chip(name.upper().replace("-", "_")) is row.chip, name


def test_no_published_chip_is_lost() -> None:
    assert {find_chip(name).name for name in PUBLISHED} <= {chip.name for chip in chips()}


def test_unknown_chip_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"^'h1000' is no known chip; did you mean 'h100'"):
        find_chip("h1000")


@given(st.text(max_size=40))
def test_any_name_is_found_or_unknown(name: str) -> None:
    with contextlib.suppress(UnknownNameError):
        find_chip(name)


def test_a_rack_stays_and_a_box_follows_its_chips() -> None:
    assert (default_node("gb200").chips_per_node, default_node("gb200").domain_size) == (4, 72)
    assert default_node("gb200", gpus_per_node=8).domain_size == 72
    assert default_node("h100", gpus_per_node=4).domain_size == 4
    assert default_node("h100-nvl", gpus_per_node=4).domain_size == 2
    with pytest.raises(ConfigError, match="gpus_per_node=0: expected a positive number such as 8"):
        default_node("h100", gpus_per_node=0)


def test_network_of_any_rate() -> None:
    assert default_node("h100", network_gbps=200).network_link == find_link("ib-200")
    odd = default_node("a100-80", network_gbps=100.5).network_link
    assert (odd.name, odd.bytes_per_s, odd.efficiency) == (
        "ib-100.5",
        100.5 * GBIT,
        find_link("ib-100").efficiency,
    )
    assert find_link("roce-320") == network_link(320, family="roce")
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="expected a positive number of Gb/s"):
            network_link(rate)
    with pytest.raises(UnknownNameError, match="did you mean 'nvlink"):
        find_link("nvlnk4")


def test_a_faster_network_reaches_more() -> None:
    """Between two rates of a family what collectives reach grows in a line: sockets at 0.9 of 2.5
    Gb/s and 0.6 of 10, so 3.5 of 5 Gb/s."""
    assert network_link(5, family="tcp").efficiency == pytest.approx(
        (0.9 * 2.5 * 2 / 3 + 0.6 * 10 / 3) / 5
    )
    assert [network_link(rate, family="tcp").efficiency for rate in (1, 2.5, 10, 400)] == [
        0.9,
        0.9,
        0.6,
        0.6,
    ]
    for family in {row.family for row in link_rows()} - {"domain"}:
        reached = [
            link.bytes_per_s * link.efficiency
            for rate in range(1, 900, 7)
            for link in [network_link(rate, family=family)]
        ]
        assert reached == sorted(reached)


@pytest.mark.parametrize("row", link_rows(), ids=lambda row: row.link.name)
def test_every_link_has_sources(row: LinkRow) -> None:
    assert all(row.cells[column] for column in ("source", "latency_source", "efficiency_source"))
    assert find_link(row.link.name) is row.link
    assert 0.15 <= row.link.efficiency <= 0.96
    assert 0.5e-6 < row.link.latency_s < 1e-3
    assert row.cells["efficiency_source"] != f"assumed as {row.link.name}"


def test_every_network_name_says_its_rate() -> None:
    for row in link_rows():
        if row.family != "domain":
            assert row.link.bytes_per_s == float(row.link.name.rpartition("-")[2]) * GBIT


def test_published_runs_name_known_chips(truth_dir: Path) -> None:
    from meshwright.values.hardware.parse import parse_chip_mix

    csv.field_size_limit(10**8)
    texts = set()
    for path in sorted(truth_dir.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            texts |= {
                row[key]
                for row in csv.DictReader(stream)
                for key in ("gpu", "gpu_mix")
                if row.get(key)
            }
    assert texts
    for text in texts:
        assert parse_chip_mix(text)


def test_finding_a_chip_loads_neither_yaml_nor_pydantic_nor_numpy() -> None:
    code = (
        "import sys; from meshwright.values.hardware.catalogue import find_chip; find_chip('h100');"
        " print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"yaml", "pydantic", "numpy"} & set(loaded)


def test_no_figure_is_from_memory() -> None:
    """A source is a document that anyone can look up, or `assumed` with the reason."""
    package = Path(meshwright.__file__).parent
    tables = [path for kind in ("*.csv", "*.toml", "*.yaml") for path in package.rglob(kind)]
    assert len(tables) > 40
    found = [
        path.name for path in tables if "from memory" in path.read_text(encoding="utf-8").lower()
    ]
    assert found == []
