from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.platforms.examples import IMAGE, JOBS, LARGE, SMALL

from meshwright.platforms.job import Job, parse_mount
from meshwright.platforms.registry import job_text
from meshwright.values.errors import ConfigError

KEYS = {
    "body": {
        "WorkspaceId",
        "DisplayName",
        "JobType",
        "JobSpecs",
        "UserCommand",
        "ResourceId",
        "Priority",
        "JobMaxRunningTimeMinutes",
        "DataSources",
    },
    "spec": {"Type", "PodCount", "Image", "EcsSpec", "ResourceConfig"},
    "resources": {"CPU", "GPU", "Memory", "SharedMemory"},
    "source": {"DataSourceId", "Uri", "MountPath", "MountAccess"},
}
"""As alibabacloud-pai-dlc20201203 1.11.6, Alibaba's own package, writes them."""
QUOTA = replace(LARGE, image=IMAGE, account="12345", partition="quota1", cpus=96, memory="1000Gi")


def body(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job_text(job, launcher="pai-dlc").text)
    return found


def test_every_key_is_one_of_the_service() -> None:
    for name in ("pai-dlc-quota", "pai-dlc-public"):
        found = body(JOBS[name][1])
        assert set(found) <= KEYS["body"]
        (spec,) = found["JobSpecs"]
        assert set(spec) <= KEYS["spec"]
        assert set(spec.get("ResourceConfig", ())) <= KEYS["resources"]
        assert all(set(source) <= KEYS["source"] for source in found.get("DataSources", ()))


def test_a_quota_is_asked_for_nodes_and_their_parts() -> None:
    found = body(JOBS["pai-dlc-quota"][1])
    (spec,) = found["JobSpecs"]
    assert spec["PodCount"] == 4
    assert spec["ResourceConfig"] == {
        "CPU": "96",
        "GPU": "8",
        "Memory": "1000Gi",
        "SharedMemory": "256Gi",
    }
    assert (found["ResourceId"], found["Priority"]) == ("quota1abc", 5)
    assert found["JobMaxRunningTimeMinutes"] == 5 * 24 * 60
    assert found["DataSources"] == [
        {"DataSourceId": "d-77", "MountPath": "/data", "MountAccess": "RO"},
        {"Uri": "oss://b.oss.com/p/", "MountPath": "/out"},
    ]


def test_a_limit_is_rounded_up_to_minutes_and_a_machine_has_its_own_parts() -> None:
    found = body(JOBS["pai-dlc-public"][1])
    assert found["JobMaxRunningTimeMinutes"] == 2, "90 s"
    assert found["JobSpecs"][0]["EcsSpec"] == "ecs.gn7e-c16g1.16xlarge"
    assert "ResourceConfig" not in found["JobSpecs"][0]


def test_jobs_without_gpus_ask_for_none() -> None:
    data = replace(
        QUOTA,
        command=("meshwright", "data", "run", "x"),
        runs_on="node",
        gpus_per_node=1,
        asks_for="nodes",
    )
    assert body(data)["JobSpecs"][0]["ResourceConfig"] == {"CPU": "96", "Memory": "1000Gi"}


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            replace(SMALL, image=IMAGE, instance="i"),
            "pai-dlc needs account, such as the id of a workspace of PAI",
        ),
        (replace(SMALL, image=IMAGE, account="1"), "pai-dlc needs instance"),
        (
            replace(SMALL, image=IMAGE, account="1", instance="i", cpus=8),
            "cpus: a type of machine has its own",
        ),
        (replace(QUOTA, instance="i"), "instance=i: of no effect in the quota quota1"),
        (replace(QUOTA, memory=None), "pai-dlc needs memory, such as 1000Gi"),
        (replace(QUOTA, priority="HIGH"), "priority=HIGH: pai-dlc has 1, the lowest, to 9"),
        (
            replace(QUOTA, mounts=(parse_mount("/a:/b"),)),
            "pai-dlc expects dataset=ID, or an address",
        ),
        (replace(QUOTA, command=("train.py", "x" * 66_000)), "CreateJob takes 65,536"),
    ],
)
def test_what_it_has_no_word_for_is_refused(job: Job, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        job_text(job, launcher="pai-dlc")
