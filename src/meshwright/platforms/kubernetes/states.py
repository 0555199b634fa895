"""Kubernetes' words for how a job is: conditions of the job, states of its pods, warnings of the
scheduler, each read through one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.platforms.executor import JobState, JobStatus, by_word, state_table, unix_s

__all__ = ["CONDITIONS", "REASONS", "status_of"]

CONDITIONS = state_table(
    {
        "succeeded": "Complete Completed Succeeded",
        "failed": "Failed",
        "queued": "Suspended Created Queued StartupPolicyInProgress",
        "running": "StartupPolicyCompleted Running Restarting",
    }
)
"""Conditions of TrainJob (Complete, Failed, Suspended), JobSet (Completed, ...), PyTorchJob and
MPIJob (Succeeded, ...)."""

PHASES = by_word({"queued": "Pending", "running": "Running Succeeded Failed"})
"""Pods; the end of a job is told by the job alone."""

REASONS = by_word(
    {
        "out_of_memory": "OOMKilled",
        "timed_out": "DeadlineExceeded",
        "preempted": "Preempting PreemptionByScheduler PreemptionByKueue EvictionByEvictionAPI",
        "node_failed": "Evicted TerminationByKubelet DeletionByTaintManager DeletionByPodGC"
        " NodeLost NodeShutdown Shutdown UnexpectedAdmissionError",
    }
)
"""Why a pod or a job failed; any other reason reads as `failed`."""

_LATE = "active longer than specified deadline"
"""PyTorchJob and MPIJob say it in words alone."""
_ENDS = ("succeeded", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    """One reason for the end of a pod."""

    state: JobState
    words: str
    exit_code: int | None = None
    at_s: float | None = None


def status_of(
    job: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    *,
    children: Iterable[Mapping[str, Any]] = (),
    warnings: Iterable[str] = (),
) -> JobStatus:
    """Read a job with its pods, the Jobs made of it, and warnings, the newest last."""
    true = [condition for condition in _conditions(job) if condition.get("status") == "True"]
    end = next((found for found in true if CONDITIONS.get(found["type"]) in _ENDS), None)
    nodes = tuple(sorted({name for pod in pods if (name := pod["spec"].get("nodeName"))}))
    started_s = min(_times(pods, "startedAt", "running", "terminated"), default=None)
    if end is None:
        state = _open_state(true, pods)
        reason = _why_queued(true, pods, warnings) if state == "queued" else ""
        start = None if state == "queued" else started_s
        return JobStatus(state=state, reason=reason, started_s=start, nodes=nodes)
    ends = _times(pods, "finishedAt", "terminated")
    ended_s = max(ends, default=None) or unix_s(end.get("lastTransitionTime"))
    if CONDITIONS[end["type"]] == "succeeded":
        return JobStatus(
            state="succeeded", exit_code=0, started_s=started_s, ended_s=ended_s, nodes=nodes
        )
    inner = [found for child in children for found in _of_type(child, "Failed")]
    failure = _failure([*inner, end], pods)
    return JobStatus(
        state=failure.state,
        exit_code=failure.exit_code,
        reason=failure.words,
        started_s=started_s,
        ended_s=ended_s,
        nodes=nodes,
    )


def _open_state(true: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]) -> JobState:
    """A job runs when all its pods do; one that cannot be reached makes it unknown."""
    states = {PHASES.get(pod.get("status", {}).get("phase", "Pending"), "unknown") for pod in pods}
    if any(condition["type"] == "Suspended" for condition in true) or not states:
        return "queued"
    return "unknown" if "unknown" in states else "queued" if "queued" in states else "running"


def _why_queued(
    true: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]], warnings: Iterable[str]
) -> str:
    """The first of a container, a pod, a queue and the newest warning that says something."""
    starting = ("ContainerCreating", "PodInitializing")
    waiting = [state for pod in pods for state in _containers(pod, "waiting")]
    found = [_said(state) for state in waiting if state.get("reason") not in starting]
    unplaced = [one for pod in pods for one in _of_type(pod, "PodScheduled", "False")]
    found += [_said(condition) for condition in unplaced]
    found += [_said(condition) for condition in true if condition["type"] == "Suspended"]
    return next((words for words in [*found, *list(warnings)[::-1]] if words), "")


def _failure(ends: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]) -> _Failure:
    """What a limit or a node did goes before exit codes, and the first pod before the others."""
    found = [failure for pod in pods for failure in _failures(pod)]
    found.sort(key=lambda failure: (failure.state == "failed", failure.at_s or float("inf")))
    for end in ends:
        if end.get("reason") == "DeadlineExceeded" or _LATE in end.get("message", ""):
            return _Failure(state="timed_out", words=_said(end))
    if found:
        return found[0]
    return _Failure(state=REASONS.get(ends[0].get("reason", ""), "failed"), words=_said(ends[0]))


def _failures(pod: Mapping[str, Any]) -> Iterable[_Failure]:
    status = pod.get("status", {})
    disrupted = _of_type(pod, "DisruptionTarget")
    for end in [status, *disrupted] if status.get("phase") == "Failed" else ():
        if end.get("reason") in REASONS:
            # A node that runs out of memory evicts; out of disk it does too, and that is its own
            # trouble.
            starved = end["reason"] == "Evicted" and "resource: memory" in end.get("message", "")
            state = "out_of_memory" if starved else REASONS[end["reason"]]
            yield _Failure(state=state, words=_said(end))
    for container in _containers(pod, "terminated"):
        code = container.get("exitCode")
        if code:
            state = REASONS.get(container.get("reason", ""), "failed")
            said = container.get("reason") or "Error"
            words = f"{said}: exit code {code} of pod {pod['metadata']['name']}"
            at_s = unix_s(container.get("finishedAt"))
            yield _Failure(state=state, words=words, exit_code=code, at_s=at_s)


def _conditions(thing: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return thing.get("status", {}).get("conditions") or ()


def _of_type(thing: Mapping[str, Any], name: str, status: str = "True") -> list[Mapping[str, Any]]:
    return [
        one for one in _conditions(thing) if one["type"] == name and one.get("status") == status
    ]


def _containers(pod: Mapping[str, Any], state: str) -> list[Mapping[str, Any]]:
    status = pod.get("status", {})
    kinds = ("initContainerStatuses", "containerStatuses")
    states = [one.get("state", {}).get(state) for kind in kinds for one in status.get(kind) or ()]
    return [found for found in states if found is not None]


def _times(pods: Sequence[Mapping[str, Any]], name: str, *kinds: str) -> list[float]:
    states = [state for pod in pods for kind in kinds for state in _containers(pod, kind)]
    return [time for state in states if (time := unix_s(state.get(name))) is not None]


def _said(thing: Mapping[str, Any]) -> str:
    return ": ".join(word for word in (thing.get("reason"), thing.get("message")) if word)
