"""Where candidates run: inside a job of Base Command, outside, and on Slurm without a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.platforms.executors.harness import inside_base_command

from meshwright.compat.autoconfigurator.cluster import platform_of
from meshwright.compat.autoconfigurator.words import compose
from meshwright.platforms.job import Job
from meshwright.platforms.registry import job_text
from meshwright.values.errors import ConfigError

DATA = "data_dir=/mount/data/the_pile_gpt3"
BCP = ("search_config=gpt3/0.126b", "auto_configurator_path=.", "cluster_type=bcp")
NODES = "search_config.train_settings.num_nodes={}"


def test_inside_a_job_of_base_command_candidates_start_there(tmp_path: Path) -> None:
    with inside_base_command(tmp_path, nodes=2):
        found = platform_of(compose([*BCP, DATA, NODES.format(2)]))
        assert (found.launcher, found.job.image, found.job.mounts) == ("bcprun", None, ())
        assert found.executor().name == "bcprun"
        assert "candidates run one after the other on 2 of its 2 nodes" in found.notes[-1]
        with pytest.raises(ConfigError, match="num_nodes=8: this job of Base Command has 2 nodes"):
            platform_of(compose([*BCP, NODES.format(8)]))


@pytest.mark.parametrize(
    ("words", "mounts"),
    [
        (["cluster.workspace=ID", DATA], ("workspace=ID:/mount/data/the_pile_gpt3",)),
        (["cluster.workspace=ID:/mount", DATA], ("workspace=ID:/mount",)),
        (
            ["cluster.workspace=ID", DATA, "container_mounts=[/mount/data,/mount/results]"],
            ("workspace=ID:/mount/data", "workspace=ID:/mount/results"),
        ),
        (
            [DATA, "container_mounts=['workspace=A:/mount/data','dataset=7:/pile']"],
            ("workspace=A:/mount/data", "dataset=7:/pile"),
        ),
    ],
)
def test_outside_jobs_have_the_mounts_of_the_line(
    words: list[str], mounts: tuple[str, ...]
) -> None:
    found = platform_of(compose([*BCP, *words]))
    assert (found.launcher, found.job.mounts) == ("bcp", mounts)
    assert not [note for note in found.notes if "no workspace" in note]


def test_data_that_no_job_sees_is_said() -> None:
    [note] = [note for note in platform_of(compose([*BCP, DATA])).notes if "workspace" in note]
    assert note == (
        "data_dir=/mount/data/the_pile_gpt3 is on no workspace of the jobs: cluster.workspace=ID"
        " mounts one there"
    )


def text(*words: str) -> str:
    """Return a job of the line for Slurm."""
    asked = platform_of(compose(["search_config=gpt3/0.126b", "auto_configurator_path=.", *words]))
    own: dict[str, Any] = {"image": asked.job.image, "words": asked.job.words}
    job = Job(name="a", command=("a.py",), nodes=2, gpus_per_node=8, **own)
    return job_text(job, launcher="slurm").text


def test_srun_args_are_options_of_srun() -> None:
    args = "cluster.srun_args=['--mpi=pmix','--no-container-mount-home']"
    line = next(row for row in text(args).splitlines() if row.startswith("srun "))
    assert "--mpi=pmix" in line and "--no-container-mount-home" in line
    assert "#SBATCH srun" not in text(args)


def test_without_a_container_srun_gets_no_word_of_pyxis() -> None:
    args = "cluster.srun_args=['--mpi=pmix','--no-container-mount-home']"
    bare = text(args, "training_container=null")
    assert "--mpi=pmix" in bare and "container" not in bare
