from __future__ import annotations

import stat
from pathlib import Path

import pytest

from meshwright.platforms.given import (
    cluster_from_flag,
    cluster_of_listing,
    load_cluster,
    local_cluster,
)
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.parse import parse_cluster


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, in which a test may put its own nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def answer(script: Path, text: str, *, code: int = 0) -> None:
    script.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_eight_of_a_kind() -> None:
    cluster = cluster_of_listing("NVIDIA H100 80GB HBM3\n" * 8)
    assert cluster == parse_cluster("h100:8")


def test_two_kinds() -> None:
    cluster = cluster_of_listing("NVIDIA A100-SXM4-80GB\nTesla T4\nTesla T4\n")
    assert cluster.name == "a100-80:1,t4:2"
    assert cluster.pools[1].node.chips_per_node == 2


def test_unknown_and_none() -> None:
    with pytest.raises(UnknownNameError, match="'NVIDIA GeForce GT 710' is no known chip"):
        cluster_of_listing("NVIDIA GeForce GT 710\n")
    with pytest.raises(ConfigError, match="nvidia-smi lists no GPU"):
        cluster_of_listing("\n")


def test_this_machine(fake_smi: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"no nvidia-smi here, so no accelerator was found; name a cluster such as h100:8, or .*"
            r" `meshwright profile"
        ),
    ):
        local_cluster()
    answer(fake_smi, "NVIDIA L40S")
    assert cluster_from_flag("local").name == "l40s:1"
    answer(fake_smi, "driver mismatch", code=9)
    with pytest.raises(ConfigError, match="nvidia-smi failed"):
        cluster_from_flag("LOCAL")


def test_other_forms_pass_through() -> None:
    assert cluster_from_flag("h100:12", gpus_per_node=4) == parse_cluster(
        "h100:12", gpus_per_node=4
    )
    with pytest.raises(
        ConfigError,
        match=(
            r"cluster 'local:4': local is this machine with all it holds; write it alone, add"
            r" --profile FILE"
        ),
    ):
        cluster_from_flag("local:4")
    with pytest.raises(ConfigError, match="--gpus-per-node has no effect with --cluster local"):
        cluster_from_flag("local", gpus_per_node=4)


def test_a_path_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("pools: [{chip: h100, count: 24}]\n", encoding="utf-8")
    assert load_cluster(path) == load_cluster(str(path)) == parse_cluster("h100:24")
    with pytest.raises(
        ConfigError,
        match=(
            r"absent\.yml'?: No such file or directory; give a YAML file, or the short form such as"
            r" h100:256"
        ),
    ):
        load_cluster(tmp_path / "absent.yml")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text in UTF-8"):
        load_cluster(path)
