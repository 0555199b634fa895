from __future__ import annotations

from dataclasses import fields, replace

import pytest

from meshwright.platforms.given import load_cluster
from meshwright.platforms.job import Job, JobOptions, Mount, job_of
from meshwright.platforms.registry import job_text
from meshwright.software.contract import EnvVar, Exported, ExportedFile
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.cluster import Pool

EXPORTED = Exported(
    target="megatron-lm",
    files=(ExportedFile(name="train.sh", text="#!/bin/bash\n"),),
    command=("pretrain_gpt.py", "--bf16"),
    environment=(EnvVar(name="A", value="1", why="so"),),
)
FULL = {
    "name": "run-7",
    "start": "ranks",
    "time": "4:23:30:00",
    "image": "/images/a.sqsh",
    "mounts": ["/a:/b:ro", "/c:/d"],
    "workdir": "/opt/Megatron-LM",
    "account": "team",
    "partition": "gpu",
    "instance": "h100",
    "log_dir": "logs",
    "cpus": 96,
    "memory": "1000Gi",
    "shared_memory": "256Gi",
    "priority": "5",
    "order": 50,
    "preempt": "RESUMABLE",
    "min_timeslice": "2H",
    "words": ["--qos=high"],
}


def pool(text: str) -> Pool:
    return load_cluster(text).pools[0]


def test_every_option_reaches_the_job() -> None:
    assert set(FULL) == {field.name for field in fields(JobOptions)}
    found = job_of(EXPORTED, model="llama3-8b", pool=pool("h100:32"), options=JobOptions.of(FULL))
    assert found == Job(
        name="run-7",
        command=("pretrain_gpt.py", "--bf16"),
        environment=EXPORTED.environment,
        nodes=4,
        gpus_per_node=8,
        launch="ranks",
        time_limit_s=((4 * 24 + 23) * 60 + 30) * 60,
        image="/images/a.sqsh",
        mounts=(Mount(source="/a", target="/b", read_only=True), Mount(source="/c", target="/d")),
        workdir="/opt/Megatron-LM",
        account="team",
        partition="gpu",
        instance="h100",
        log_dir="logs",
        cpus=96,
        memory="1000Gi",
        shared_memory="256Gi",
        priority="5",
        order=50,
        preempt="RESUMABLE",
        min_timeslice="2H",
        words=("--qos=high",),
    )
    plain = replace(found, cpus=None, memory=None, shared_memory=None, priority=None)
    plain = replace(plain, order=None, preempt=None, min_timeslice=None)
    assert "--container-mounts=/a:/b:ro,/c:/d" in job_text(plain, launcher="slurm").text
    with pytest.raises(
        ConfigError, match="slurm has no word for cpus, memory, shared_memory, priority"
    ):
        job_text(found, launcher="slurm")


@pytest.mark.parametrize(
    ("chips", "nodes", "gpus"),
    [("h100:4", 1, 4), ("h100:8", 1, 8), ("h100:16", 2, 8), ("mi300x:24", 3, 8)],
)
def test_nodes_follow_the_cluster(chips: str, nodes: int, gpus: int) -> None:
    found = job_of(EXPORTED, model="llama3-8b", pool=pool(chips), options=JobOptions())
    assert (found.nodes, found.gpus_per_node) == (nodes, gpus)
    assert found.vendor == ("AMD" if chips.startswith("mi") else "NVIDIA")


def test_uneven_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="12 chips on nodes of 8"):
        job_of(EXPORTED, model="llama3-8b", pool=pool("h100:12"), options=JobOptions())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama3-70b", "llama3-70b"),
        ("Llama_3.1 70B", "llama-3-1-70b"),
        ("layers=32,hidden=64", "layers-32-hidden-64"),
        ("7", "training"),
    ],
)
def test_a_name_follows_the_model_in_letters_that_every_platform_takes(
    model: str, name: str
) -> None:
    assert job_of(EXPORTED, model=model, pool=pool("h100:8"), options=JobOptions()).name == name


def test_files_that_the_command_names_travel_with_it() -> None:
    config, module = (
        ExportedFile(name="config.toml", text=""),
        ExportedFile(name="a/recipe.py", text=""),
    )
    reading = replace(
        EXPORTED,
        command=("-m", "torchtitan.train", "--job.config_file=./config.toml"),
        files=(config,),
    )
    assert job_of(reading, model="a", pool=pool("h100:8"), options=JobOptions()).files == (config,)
    importing = replace(
        EXPORTED, command=("-m", "torchtitan.train", "--module", "a.recipe"), files=(module,)
    )
    assert job_of(importing, model="a", pool=pool("h100:8"), options=JobOptions()).files == (
        module,
    )
    assert job_of(EXPORTED, model="a", pool=pool("h100:8"), options=JobOptions()).files == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": 25}, "image=25: expected a text; put it in quotes"),
        ({"mounts": "/a:/b"}, "expected a list of texts"),
        ({"words": [1]}, "expected a list of texts"),
        ({"time": "60"}, "expected a duration"),
    ],
)
def test_broken_options_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        job_of(EXPORTED, model="a", pool=pool("h100:8"), options=JobOptions.of(given))


def test_unknown_options_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'account'"):
        JobOptions.of({"acount": "a"})
    with pytest.raises(UnknownNameError, match="did you mean 'ranks'"):
        JobOptions.of({"start": "rank"})
