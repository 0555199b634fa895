"""What is peculiar to Kubernetes, on a stand-in for its API; documents of pods are in the form that
the API gives them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from tests.platforms.executors.harness import Harness, bash
from tests.platforms.executors.kubernetes_api import TOKEN, Cluster, running_cluster

from meshwright.platforms.executor import JobState
from meshwright.platforms.job import Job
from meshwright.platforms.kubernetes.executor import KubernetesExecutor, KubernetesOptions
from meshwright.platforms.kubernetes.states import CONDITIONS, PHASES, REASONS, status_of
from meshwright.values.errors import (
    ConfigError,
    LauncherError,
    LauncherSilent,
    MissingExtraError,
    UnknownNameError,
)

KINDS = ("trainjob", "pytorchjob", "jobset")
SLEEP = "echo up; exec sleep 300"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("k8s") / "cluster") as started:
        yield started


@pytest.fixture
def harness(cluster: Cluster, tmp_path: Path) -> Harness:
    return Harness(make=KubernetesExecutor, folder=tmp_path, fields={"image": "pytorch:25.04"})


def of_kind(harness: Harness, kind: Any) -> Harness:
    return replace(harness, make=lambda: KubernetesExecutor(KubernetesOptions(kind=kind)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("line", "state", "code"),
    [("exit 0", "succeeded", 0), ("exit 9", "failed", 9), (SLEEP, "timed_out", None)],
)
def test_every_kind(harness: Harness, kind: str, line: str, state: str, code: int | None) -> None:
    harness = of_kind(harness, kind)
    handle = harness.submit(replace(bash(line), time_limit_s=1 if "sleep" in line else None))
    assert f"research/{kind}/" in handle
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code, status.nodes) == (state, code, ("node-a",))


def test_an_mpijob(harness: Harness) -> None:
    """Its launcher prints for all; the workers only wait."""
    harness = of_kind(harness, "mpijob")
    directory, label = harness.place()
    job = Job(
        name="a",
        command=("-c", "import os; print('rank', os.environ['RANK'])"),
        nodes=2,
        gpus_per_node=1,
    )
    handle = harness.executor.submit(harness.of(job), directory=directory, label=label)
    assert harness.end(handle)[handle].state == "succeeded"
    assert (directory / "stdout.log").read_text() == "rank 0\n"


def test_logs_of_all_nodes_come_in_order(harness: Harness) -> None:
    directory, label = harness.place()
    job = replace(bash('echo "node $NODE_RANK"'), nodes=3)
    handle = harness.executor.submit(harness.of(job), directory=directory, label=label)
    harness.end(handle)
    assert (directory / "stdout.log").read_text() == "node 0\nnode 1\nnode 2\n"
    assert (directory / "stderr.log").read_text() == ""


def test_logs_come_while_it_runs_and_stay_when_it_is_deleted(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(harness.of(bash(SLEEP)), directory=directory, label=label)
    harness.wait(handle, "running")
    while (directory / "stdout.log").read_text() != "up\n":
        harness.status(handle)
    harness.executor.cancel(handle)
    assert harness.end(handle)[handle].reason == "cancelled"
    assert (directory / "stdout.log").read_text() == "up\n"


def test_what_was_sent_stands_in_the_run(cluster: Cluster, harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(harness.of(bash("true")), directory=directory, label=label)
    sent = yaml.safe_load((directory / "job" / "job.trainjob.yaml").read_text())
    assert {
        key: value for key, value in cluster.jobs["trainjob", label].items() if key != "status"
    } == sent
    harness.end(handle)


def test_options_of_the_executor(cluster: Cluster, harness: Harness) -> None:
    options = KubernetesOptions(kind="jobset", image="ours:1", queue="team", time_limit_s=600)
    directory, label = harness.place()
    handle = KubernetesExecutor(options).submit(bash("true"), directory=directory, label=label)
    sent = cluster.jobs["jobset", label]
    assert sent["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    inner = sent["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert inner["activeDeadlineSeconds"] == 600
    assert inner["template"]["spec"]["containers"][0]["image"] == "ours:1"
    harness.end(handle)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": "missing:1"}, 'ImagePullBackOff: Back-off pulling image "missing:1"'),
        (
            {"gpus_per_node": 16},
            "Unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        ),
    ],
)
def test_a_queue_that_does_not_start_it(
    harness: Harness, change: dict[str, Any], reason: str
) -> None:
    handle = harness.submit(bash("true"))
    harness.end(handle)
    harness.fields |= change
    handle = harness.submit(
        replace(bash("true"), **{key: value for key, value in change.items() if key != "image"})
    )
    status = harness.wait(handle, "queued")
    while not (status := harness.status(handle)).reason:
        assert status.state == "queued"
    assert (status.state, status.reason, status.started_s) == ("queued", reason, None)
    harness.executor.cancel(handle)


def test_a_quota_is_told_by_events(cluster: Cluster, harness: Harness) -> None:
    """No pod says why, and only a warning about what the operator made does."""
    harness.fields |= {"image": "missing:1"}  # the harness's image goes before the job's
    handle = harness.submit(bash("true"))
    name = handle.split("/")[2].partition(":")[0]
    end = time.monotonic() + 10.0
    while (
        not harness.status(handle).reason and time.monotonic() < end
    ):  # the operator makes its pods a moment after the job
        time.sleep(0.01)
    cluster.pods = {
        pod: content for pod, content in cluster.pods.items() if not pod.startswith(name)
    }
    for about, message in (
        (f"{name}1-node", "of another"),
        (f"{name}-node-0", "exceeded quota: gpus"),
    ):
        event = {
            "involvedObject": {"name": about},
            "reason": "FailedCreate",
            "message": message,
            "lastTimestamp": "2026-11-20T10:00:00Z",
        }
        cluster.events.append(event)
    assert harness.status(handle).reason == "FailedCreate: exceeded quota: gpus"
    harness.executor.cancel(handle)


def test_many_runs_are_few_questions(cluster: Cluster, harness: Harness) -> None:
    handles = [harness.submit(bash(SLEEP)) for _ in range(4)]
    for handle in handles:
        harness.wait(handle, "running")
    cluster.calls.clear()
    harness.executor.poll(handles)
    asked = [call for call in cluster.calls if not call.endswith("/log")]
    assert len(asked) <= 4, "jobs, pods, Jobs, and events where one waits without a word"
    assert len(cluster.calls) - len(asked) == 4, "one log each"
    for handle in handles:
        harness.executor.cancel(handle)


def test_an_end_outlives_the_resource(cluster: Cluster, harness: Harness) -> None:
    """Clusters delete what has ended some day."""
    handle = harness.submit(bash("exit 4"))
    seen = harness.end(handle)[handle]
    cluster.delete("trainjob", handle.split("/")[2].partition(":")[0])
    assert KubernetesExecutor().poll([handle])[handle] == seen


def test_deleted_by_somebody_else(cluster: Cluster, harness: Harness) -> None:
    handle = harness.submit(bash(SLEEP))
    harness.wait(handle, "running")
    cluster.delete("trainjob", handle.split("/")[2].partition(":")[0])
    status = harness.end(handle)[handle]
    assert status.state == "cancelled" and "was deleted by somebody else" in status.reason


def test_the_same_label_twice(harness: Harness) -> None:
    directory, label = harness.place()
    harness.end(harness.executor.submit(harness.of(bash("true")), directory=directory, label=label))
    with pytest.raises(
        LauncherError,
        match=f'k8s: TrainJob {label}: 409 trainjobs.trainer.kubeflow.org "{label}" already exists',
    ):
        harness.executor.submit(
            harness.of(bash("true")), directory=harness.folder / "other", label=label
        )


def test_an_operator_that_is_not_installed(cluster: Cluster, harness: Harness) -> None:
    cluster.operators.remove("jobset")
    try:
        with pytest.raises(
            LauncherError,
            match=(
                r"k8s: a list of jobsets.jobset.x-k8s.io: 404 .* is the operator installed that"
                r" runs it"
            ),
        ):
            of_kind(harness, "jobset").executor.check()
    finally:
        cluster.operators.add("jobset")


def test_what_the_api_refuses(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster
) -> None:
    with pytest.raises(LauncherError, match=r"403 .* is forbidden"):
        KubernetesExecutor(KubernetesOptions(namespace="other")).check()
    (tmp_path / "config").write_text(
        (cluster.folder / "config").read_text().replace(TOKEN, "old-token")
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(LauncherError, match="401 Unauthorized"):
        KubernetesExecutor().check()


@pytest.mark.parametrize("code", [429, 500, 503])
def test_an_api_in_trouble(cluster: Cluster, harness: Harness, code: int) -> None:
    handle = harness.submit(bash("true"))
    cluster.broken = code
    try:
        with pytest.raises(LauncherSilent, match="etcdserver: leader changed"):
            harness.executor.poll([handle])
    finally:
        cluster.broken = None
    assert harness.end(handle)[handle].state == "succeeded"


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    config = yaml.safe_load((cluster.folder / "config").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(LauncherSilent, match="k8s: the API does not answer"):
        KubernetesExecutor().check()


def test_no_cluster_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(
        LauncherError, match=r"k8s: no cluster is configured .* kubectl must work here"
    ):
        KubernetesExecutor().check()
    with pytest.raises(ConfigError, match="context=there"):
        KubernetesExecutor(KubernetesOptions(context="there")).check()


def test_the_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[k8s\]'"):
        KubernetesExecutor().check()


def test_an_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'trainjob'"):
        KubernetesOptions(kind="trainjobs")  # type: ignore[arg-type]


@pytest.mark.parametrize("handle", ["", "a", "a/b/c", "research/pod/a:/x", "research/trainjob/a"])
def test_what_is_no_handle(handle: str) -> None:
    with pytest.raises(LauncherError, match="no handle"):
        KubernetesExecutor().poll([handle])


def ended(*, reason: str = "PyTorchJobFailed", message: str = "") -> dict[str, Any]:
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-20T10:05:00Z",
    }
    return {
        "status": {
            "conditions": [
                {"type": "Created", "status": "True"},
                {"type": "Running", "status": "False"},
                condition,
            ]
        }
    }


def pod(
    name: str, *, code: int = 1, why: str = "Error", at: str = "10:04:00", **status: Any
) -> dict[str, Any]:
    terminated = {
        "exitCode": code,
        "reason": why,
        "startedAt": "2026-11-20T10:00:00Z",
        "finishedAt": f"2026-11-20T{at}Z",
    }
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": f"on-{name}"},
        "status": {
            "phase": "Failed",
            "containerStatuses": [{"state": {"terminated": terminated}}],
            **status,
        },
    }


def test_an_out_of_memory_kill_is_the_cause_even_if_a_neighbour_ends_first() -> None:
    status = status_of(
        ended(),
        [pod("a", code=1, at="10:03:00"), pod("b", code=137, why="OOMKilled", at="10:03:05")],
    )
    assert (status.state, status.exit_code) == ("out_of_memory", 137)
    assert status.reason == "OOMKilled: exit code 137 of pod b"
    assert (status.nodes, status.ended_s) == (
        ("on-a", "on-b"),
        datetime(2026, 11, 20, 10, 3, 5, tzinfo=UTC).timestamp(),
    )


def test_the_first_pod_that_failed_is_the_cause() -> None:
    assert (
        status_of(
            ended(), [pod("a", code=143, at="10:03:05"), pod("b", code=3, at="10:03:00")]
        ).exit_code
        == 3
    )


def test_a_kill_without_a_word_of_memory_is_a_failure() -> None:
    assert status_of(ended(), [pod("a", code=137)]).state == "failed"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (
            {
                "reason": "Evicted",
                "message": "The node was low on resource: memory. Threshold quantity: 100Mi",
            },
            "out_of_memory",
        ),
        (
            {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."},
            "node_failed",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                    }
                ]
            },
            "preempted",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByTaintManager",
                    }
                ]
            },
            "node_failed",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "EvictionByEvictionAPI",
                    }
                ]
            },
            "preempted",
        ),
        ({"conditions": [{"type": "Ready", "status": "False", "reason": "PodFailed"}]}, "failed"),
    ],
)
def test_what_was_done_to_a_pod(status: dict[str, Any], state: str) -> None:
    assert status_of(ended(), [pod("a", code=143, **status)]).state == state


def test_limits_are_told_in_three_ways() -> None:
    assert status_of(ended(reason="DeadlineExceeded"), []).state == "timed_out"
    late = "Job a has failed because it was active longer than specified deadline"
    assert status_of(ended(message=late), [pod("a", code=143)]).state == "timed_out"
    child = {
        "status": {
            "conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
        }
    }
    assert status_of(ended(reason="FailedJobs"), [], children=[child]).state == "timed_out"


def test_words_that_nobody_knows() -> None:
    odd = {"status": {"conditions": [{"type": "Shiny", "status": "True"}]}}
    running = {"metadata": {"name": "a"}, "spec": {}, "status": {"phase": "Running"}}
    assert status_of(odd, [running]).state == "running", "its pods tell"
    assert status_of(odd, [{**running, "status": {"phase": "Dreaming"}}]).state == "unknown"
    assert status_of(odd, [running, {**running, "status": {"phase": "Unknown"}}]).state == "unknown"
    assert status_of(ended(reason="Shiny"), []).state == "failed"


def test_a_job_of_which_one_pod_waits_is_queued() -> None:
    running = {"metadata": {"name": "a"}, "spec": {}, "status": {"phase": "Running"}}
    assert status_of({}, [running, {**running, "status": {"phase": "Pending"}}]).state == "queued"
    assert status_of({}, []).state == "queued"
    suspended = {
        "status": {
            "conditions": [
                {
                    "type": "Suspended",
                    "status": "True",
                    "reason": "Suspended",
                    "message": "waits in queue team",
                }
            ]
        }
    }
    status = status_of(suspended, [])
    assert (status.state, status.reason) == ("queued", "Suspended: waits in queue team")


def test_tables_hold_known_states_alone() -> None:
    assert {*CONDITIONS.values(), *PHASES.values(), *REASONS.values()} <= set(get_args(JobState))
