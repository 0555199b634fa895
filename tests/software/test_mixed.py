"""Plans over several kinds of chips in the words of one training software."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.search.mixed.problem import MixedProblem, resolve_mixed
from meshwright.search.request import PlanRequest
from meshwright.software.contract import Exported
from meshwright.software.mixed import export_mixed
from meshwright.software.registry import find_target
from meshwright.values.errors import CannotExpress
from meshwright.values.mixed_layout import MixedLayout, StageLayout

CLUSTER = "a800:16,h800:8"
HALF = StageLayout(pool=0, chip="a800", layers=5, tp=4, sp=True, dp=2, mbs=1)
FAST = replace(HALF, pool=1, chip="h800", layers=22)
PLAN = MixedLayout(stages=(FAST, HALF, HALF), gbs=32, sharding="zero1")


def problem(cluster: str = CLUSTER) -> MixedProblem:
    return resolve_mixed(
        PlanRequest.of({"model": "llama3-8b", "seq_len": 4096, "gbs": 32, "cluster": cluster})
    )


def written(layout: MixedLayout, cluster: str = CLUSTER, target: str = "megatron-lm") -> Exported:
    return export_mixed(layout, problem(cluster), target=find_target(target))


def test_stages_are_cut_and_nodes_ordered_by_kind() -> None:
    """22, 5 and 5 layers; 3 stages of 8 chips, the first on h800."""
    found = written(PLAN)
    words = " ".join(found.command)
    assert "--pipeline-model-parallel-size 3" in words and "--tensor-model-parallel-size 4" in words
    assert "--pipeline-model-parallel-layout Et*22|t*5|t*5L" in words
    assert (
        "order of the nodes: NODE_RANK 0 on h800, 1 to 2 on a800; MASTER_ADDR is node 0"
        in found.notes
    )
    assert '--nnodes "${NNODES:-3}"' in found.files[0].text


def test_a_variable_that_one_kind_needs_is_set_for_all() -> None:
    """A800 has no multicast, H800 has: overlapped products go by CUDA IPC on both."""
    found = written(PLAN)
    assert [var.value for var in found.environment if var.name == "UB_SKIPMC"] == ["1"]
    assert "export UB_SKIPMC=1" in found.files[0].text


def test_a_kind_that_comes_back_has_two_runs_of_nodes() -> None:
    found = written(replace(PLAN, stages=(HALF, FAST, HALF)))
    assert "--pipeline-model-parallel-layout Et*5|t*22|t*5L" in " ".join(found.command)
    assert (
        "order of the nodes: NODE_RANK 0 on a800, 1 on h800, 2 on a800; MASTER_ADDR is node 0"
        in found.notes
    )
    assert (
        "if (( node_rank < 1 )); then wanted=a800\nelif (( node_rank < 2 )); then wanted=h800\nelse"
        " wanted=a800; fi" in found.files[0].text
    )


def test_one_kind_in_use_needs_no_order() -> None:
    alone = written(replace(PLAN, stages=(replace(HALF, layers=16), replace(HALF, layers=16))))
    assert not any("order" in note for note in alone.notes)


def _started(tmp_path: Path, rank: int, gpu: str) -> str:
    """What a node says on stderr whose nvidia-smi names this GPU."""
    for name, text in (("nvidia-smi", f"echo 'NVIDIA {gpu}'"), ("torchrun", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sh").write_text(written(PLAN).files[0].text)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE_RANK": str(rank)}
    return subprocess.run(
        ["bash", "train.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    ).stderr


@pytest.mark.parametrize(
    ("rank", "gpu", "warns"),
    [
        (0, "H800", False),
        (2, "A800-SXM4-80GB", False),
        (0, "A800-SXM4-80GB", True),
        (1, "H800", True),
    ],
)
def test_a_node_out_of_order_warns(tmp_path: Path, rank: int, gpu: str, warns: bool) -> None:
    assert ("order the nodes by kind" in _started(tmp_path, rank, gpu)) == warns


def test_shellcheck_finds_nothing() -> None:
    """Commas in an array are one word: --split 99,1,0."""
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; requirements-dev.txt brings it")
    found = subprocess.run(
        [shellcheck, "--exclude=SC2054", "-"],
        input=written(PLAN).files[0].text,
        text=True,
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"recompute": "full"},
            "stages differ in recompute, for which it has one value for all ranks",
        ),
        ({"tp": 2, "dp": 4}, "stages differ in tp, dp, for which"),
    ],
)
def test_unlike_stages_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CannotExpress, match=message):
        written(replace(PLAN, stages=(FAST, replace(HALF, **changes), HALF)))


def test_what_no_command_can_say_is_refused() -> None:
    with pytest.raises(CannotExpress, match="written for megatron-lm alone"):
        written(PLAN, target="megatron-bridge")
    with pytest.raises(
        CannotExpress, match="no whole nodes of 8, and a node would hold stages of two kinds"
    ):
        written(
            replace(
                PLAN,
                stages=tuple(
                    replace(stage, tp=2, layers=layers)
                    for stage, layers in zip(PLAN.stages, (22, 5, 5), strict=True)
                ),
            )
        )
    with pytest.raises(CannotExpress, match="differ in vendor, AMD and NVIDIA"):
        written(
            replace(PLAN, stages=(replace(FAST, chip="mi300x"), HALF, HALF)),
            cluster="a800:16,mi300x:8",
        )
