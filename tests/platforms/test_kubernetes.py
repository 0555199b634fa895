from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from tests.platforms.examples import JOBS, NASTY, ON_KUBERNETES
from tests.platforms.platforms import read

from meshwright.platforms.registry import job_text

SCHEMAS = {
    path.stem: json.loads(path.read_text())
    for path in (Path(__file__).parent / "schemas").glob("*.json")
}
MANIFESTS = {
    name: read(job_text(job, launcher=launcher).text)
    for name, (launcher, job) in JOBS.items()
    if launcher.startswith("k8s-")
}
KUBERNETES = ("1.28", "1.34")
"""The oldest and the newest that the operators in question name."""


def pods(content: Any, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the templates of pods inside a resource, where its schema says that there are some."""
    if schema.get("x-pod-template"):
        yield content
    for name, inner in schema.get("properties", {}).items():
        if name in content:
            yield from pods(content[name], inner)
    if isinstance(schema.get("additionalProperties"), dict):
        for value in content.values():
            yield from pods(value, schema["additionalProperties"])
    for value in content if "items" in schema else ():
        yield from pods(value, schema["items"])


@pytest.mark.parametrize("name", list(MANIFESTS))
def test_resource_obeys_the_schema_of_its_project(name: str) -> None:
    content = MANIFESTS[name]
    known = SCHEMAS[content["kind"].lower()]
    assert content["apiVersion"] == known["apiVersion"]
    jsonschema.Draft202012Validator(known["schema"]).validate(content)


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_schemas_refuse_what_is_misspelt(kind: str) -> None:
    content = next(content for content in MANIFESTS.values() if content["kind"].lower() == kind)
    broken = {**content, "spec": {**content["spec"], "replica": 1}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMAS[kind]["schema"]).validate(broken)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", [name for name in MANIFESTS if "trainjob" not in name])
def test_pods_obey_the_schema_of_kubernetes(name: str, version: str) -> None:
    content = MANIFESTS[name]
    found = list(pods(content, SCHEMAS[content["kind"].lower()]["schema"]))
    assert found
    for template in found:
        kubernetes_validate.validate(pod(template["spec"]), version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_pod_that_a_trainjob_makes_obeys_the_schema_of_kubernetes(version: str) -> None:
    """Trainer puts its words and the patch into the runtime's pod."""
    spec = MANIFESTS["k8s-trainjob"]["spec"]
    trainer = spec["trainer"]
    patch = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][
        0
    ]["template"]["spec"]["template"]["spec"]
    container = {
        "image": trainer["image"],
        "command": trainer["command"],
        "env": trainer["env"],
        "resources": trainer["resourcesPerNode"],
    }
    made = {**patch, "containers": [{**patch["containers"][0], **container}]}
    kubernetes_validate.validate(pod(made), version, strict=True)


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize(
    "name", [name for name in MANIFESTS if name.endswith("job") or name.endswith("set")]
)
def test_all_chips_are_asked_for(name: str) -> None:
    assert chips(MANIFESTS[name]) == ON_KUBERNETES.num_gpus


def chips(content: dict[str, Any]) -> int:
    """Count what the scheduler will: the limits of each pod, times the pods."""
    spec = content["spec"]
    if content["kind"] == "TrainJob":
        return int(spec["trainer"]["numNodes"]) * int(
            spec["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
        )
    if content["kind"] == "JobSet":
        indexed = spec["replicatedJobs"][0]["template"]["spec"]
        return int(indexed["completions"]) * _limit(indexed["template"]["spec"])
    replicas = spec["mpiReplicaSpecs" if content["kind"] == "MPIJob" else "pytorchReplicaSpecs"]
    return sum(
        int(replica["replicas"]) * _limit(replica["template"]["spec"])
        for replica in replicas.values()
    )


def _limit(spec: dict[str, Any]) -> int:
    return sum(
        int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0))
        for container in spec["containers"]
    )


@pytest.mark.parametrize("name", list(MANIFESTS))
def test_manifest_reads_back_whatever_its_words_are(name: str) -> None:
    launcher, job = JOBS[name]
    text = job_text(replace(job, command=("train.py", *NASTY)), launcher=launcher).text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert read("\n".join(lines)) == read(text)
    assert "$$(id)" in str(read(text)), "Kubernetes would replace $(id)"
