"""Jobs on Kubernetes, through its API."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from meshwright.platforms.executor import (
    JobStatus,
    check_label,
    keep_end,
    keep_sent,
    kept_end,
    kept_sent,
    put_job,
    put_whole,
    was_sent,
)
from meshwright.platforms.job import Job, JobText, with_defaults
from meshwright.platforms.kubernetes.states import status_of
from meshwright.platforms.registry import job_text
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import (
    ConfigError,
    LauncherError,
    LauncherSilent,
    MissingExtraError,
    UnknownNameError,
)
from meshwright.values.lines import check_lines
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["KubernetesExecutor", "KubernetesKind", "KubernetesOptions"]

_MARK = {"app.kubernetes.io/managed-by": "meshwright"}
"""By which all runs are listed in one call."""
_CANCEL = "cancel"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """A custom resource, and how its pods are known."""

    name: str
    group: str
    version: str
    pod_label: str
    writer: str = ""
    """The replica whose pod prints, where the others do not."""

    @property
    def plural(self) -> str:
        """As the API's paths have it."""
        return f"{self.name.lower()}s"


_JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_OPERATOR_LABEL = "training.kubeflow.org/job-name"
_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        name.lower(): _Kind(name=name, group=group, version=version, pod_label=label, writer=writer)
        for name, group, version, label, writer in (
            ("TrainJob", "trainer.kubeflow.org", "v1alpha1", _JOBSET_LABEL, ""),
            ("JobSet", "jobset.x-k8s.io", "v1alpha2", _JOBSET_LABEL, ""),
            ("PyTorchJob", "kubeflow.org", "v1", _OPERATOR_LABEL, ""),
            ("MPIJob", "kubeflow.org", "v2beta1", _OPERATOR_LABEL, "launcher"),
        )
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Handle:
    """`NAMESPACE/KIND/NAME:DIRECTORY`."""

    namespace: str
    kind: str
    name: str
    directory: Path

    @staticmethod
    def of(text: str) -> _Handle:
        place, _, directory = text.partition(":")
        parts = place.split("/")
        if len(parts) != 3 or not all(parts) or not directory or parts[1] not in _KINDS:
            raise LauncherError(f"k8s: {text!r} is no handle of a job on Kubernetes")
        return _Handle(namespace=parts[0], kind=parts[1], name=parts[2], directory=Path(directory))

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}:{self.directory}"

    @property
    def folder(self) -> Path:
        return self.directory / "job"


KubernetesKind = Literal["trainjob", "pytorchjob", "jobset", "mpijob"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesOptions:
    """Kubernetes; what a job says itself goes before these."""

    kind: KubernetesKind = "trainjob"
    """What is created; the cluster needs the operator that runs it."""
    namespace: str | None = None
    """None: the context's, else that of the pod that this runs in."""
    context: str | None = None
    """None: kubectl's current one, else the service account of the pod that this runs in."""
    queue: str | None = None
    """A queue of Kueue."""
    image: str | None = None
    time_limit_s: int | None = None
    patience_s: float = 60.0
    """How long the API may take to answer."""

    def __post_init__(self) -> None:
        check_lines(self)
        check_amounts(self, ["time_limit_s"], least=1)
        check_amounts(self, ["patience_s"], least=0)
        if self.kind not in get_args(KubernetesKind):
            raise UnknownNameError("kind of job on Kubernetes", self.kind, get_args(KubernetesKind))


class KubernetesExecutor:
    """TrainJob, JobSet, PyTorchJob or MPIJob. Whenever it is polled all pods' logs are fetched."""

    def __init__(self, options: KubernetesOptions | None = None) -> None:
        self.options = options or KubernetesOptions()
        self._client: Any = None
        self._default_namespace = "default"

    @property
    def name(self) -> str:
        """That of the launcher: `k8s` is a TrainJob."""
        return "k8s" if self.options.kind == "trainjob" else f"k8s-{self.options.kind}"

    def check(self) -> None:
        """Reach the API, and see that the cluster knows the kind of job and lets us list it."""
        kind = _KINDS[self.options.kind]
        self._list_jobs(kind, self._namespace(), limit=1)

    def slots(self, job: Job) -> None:
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return the manifest, which goes through the API as `kubectl create` would send it."""
        text = job_text(self._full(job, label), launcher=f"k8s-{self.options.kind}")
        head = "".join(line + "\n" for line in text.text.splitlines() if line.startswith("#"))
        content = read_yaml(text.text, what="manifest")
        content["metadata"].setdefault("labels", {}).update(_MARK)
        return replace(text, text=head + write_yaml(content))

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Create the resource that `job/` holds."""
        own, kind = self.options, _KINDS[self.options.kind]
        run, name = directory.absolute(), check_label(label)
        handle = _Handle(namespace=self._namespace(), kind=own.kind, name=name, directory=run)
        text = self.written(job, directory=directory, label=label)
        content = read_yaml(text.text, what=text.file_name)
        folder = put_job(handle.directory, self._full(job, label), text)
        (folder / _CANCEL).unlink(missing_ok=True)
        keep_sent(folder, label=label, handle=str(handle))
        where, what = self._where(kind, handle.namespace), f"{kind.name} {label}"
        # As kubectl: a field that the operator's version does not know is refused, not dropped.
        strict = {"field_validation": "Strict"}
        self._call("create_namespaced_custom_object", *where, body=content, what=what, **strict)
        return str(handle)

    def find(self, label: str, *, directory: Path) -> str | None:
        """Ask for a resource of that name; one that has ended and is gone is known by its end."""
        known = kept_sent(directory.absolute() / "job", label=label)
        if known is None:
            return None
        handle = _Handle.of(known["handle"])
        there = kept_end(handle.folder) is not None or any(
            found["metadata"]["name"] == handle.name
            for found in self._list_jobs(_KINDS[handle.kind], handle.namespace)
        )
        return str(handle) if there else None

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """List the jobs of each namespace and kind; what has ended is written down."""
        found: dict[str, JobStatus] = {}
        groups: dict[tuple[str, str], list[_Handle]] = {}
        for text in handles:
            handle = _Handle.of(text)
            end = kept_end(handle.folder)
            if end is not None:
                found[text] = end
            else:
                groups.setdefault((handle.namespace, handle.kind), []).append(handle)
        for (namespace, kind), group in groups.items():
            found |= self._poll(_KINDS[kind], namespace, group)
        return {handle: found[handle] for handle in handles}

    def cancel(self, handle: str) -> None:
        """Delete the resource with its pods; what they printed is fetched first."""
        own = _Handle.of(handle)
        if self.poll([handle])[handle].ended or not was_sent(own.folder):
            return
        (own.folder / _CANCEL).touch()
        kind = _KINDS[own.kind]
        words = {"propagation_policy": "Foreground", "what": f"{kind.name} {own.name}"}
        where = (*self._where(kind, own.namespace), own.name)
        with suppress(_NotThere):
            self._call("delete_namespaced_custom_object", *where, **words)

    def _full(self, job: Job, label: str) -> Job:
        own = self.options
        named = replace(job, name=check_label(label))
        return with_defaults(named, own, partition=own.queue)

    def _poll(
        self, kind: _Kind, namespace: str, handles: Sequence[_Handle]
    ) -> dict[str, JobStatus]:
        jobs = {job["metadata"]["name"]: job for job in self._list_jobs(kind, namespace)}
        names = ",".join(handle.name for handle in handles)
        chosen = {"label_selector": f"{kind.pod_label} in ({names})"}
        pods = self._list("list_namespaced_pod", namespace, **chosen)
        inner_jobs = kind.pod_label == _JOBSET_LABEL
        children = self._list("list_namespaced_job", namespace, **chosen) if inner_jobs else []
        events: list[Any] | None = None
        found = {}
        for handle in handles:
            own, inner = (
                [one for one in ones if one["metadata"]["labels"][kind.pod_label] == handle.name]
                for ones in (pods, children)
            )
            if handle.name not in jobs or jobs[handle.name]["metadata"].get("deletionTimestamp"):
                found[str(handle)] = _gone(handle, kind)
                continue
            status = status_of(jobs[handle.name], own, children=inner)
            if status.state == "queued" and not status.reason:
                events = self._warnings(namespace) if events is None else events
                about = _about(events, handle.name)
                status = status_of(jobs[handle.name], own, children=inner, warnings=about)
            self._fetch_logs(handle, kind, own)
            if status.ended:
                keep_end(handle.folder, status)
            found[str(handle)] = status
        return found

    def _fetch_logs(self, handle: _Handle, kind: _Kind, pods: Sequence[Mapping[str, Any]]) -> None:
        """Write what all pods printed into stdout.log; Kubernetes keeps no stderr apart."""
        folder = handle.folder / "logs"
        folder.mkdir(exist_ok=True)
        for pod in pods:
            name = pod["metadata"]["name"]
            if not pod.get("status", {}).get("containerStatuses") or kind.writer not in name:
                continue
            container = pod["spec"]["containers"][0]["name"]
            what = f"the log of {name}"
            words = {"container": container, "_preload_content": False, "what": what}
            try:
                answer = self._call("read_namespaced_pod_log", name, handle.namespace, **words)
            except _NotThere:
                continue  # it has not begun to print, or is gone
            old = folder / f"{name}.log"
            if not old.exists() or len(answer.data) > old.stat().st_size:
                put_whole(old, answer.data.decode(errors="replace"))
        whole = "".join(log.read_text() for log in sorted(folder.glob("*.log")))
        put_whole(handle.directory / "stdout.log", whole)
        (handle.directory / "stderr.log").touch()

    def _warnings(self, namespace: str) -> list[Any]:
        """Events that warn, oldest first; none where we may not see them."""
        try:
            events = self._list("list_namespaced_event", namespace, field_selector="type=Warning")
        except LauncherSilent:
            raise
        except LauncherError:
            return []
        return sorted(
            events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or "")
        )

    def _namespace(self) -> str:
        self._connect()
        return self.options.namespace or self._default_namespace

    def _where(self, kind: _Kind, namespace: str) -> tuple[str, str, str, str]:
        return kind.group, kind.version, namespace, kind.plural

    def _list_jobs(self, kind: _Kind, namespace: str, **words: Any) -> list[Any]:
        words["label_selector"] = ",".join(f"{name}={value}" for name, value in _MARK.items())
        words["what"] = f"a list of {kind.plural}.{kind.group}"
        where = self._where(kind, namespace)
        return list(self._call("list_namespaced_custom_object", *where, **words)["items"])

    def _list(self, call: str, namespace: str, **words: Any) -> list[Any]:
        """List what has types of its own, in the plain form that custom resources come in."""
        answer = self._call(
            call, namespace, what=call.replace("_", " "), _preload_content=False, **words
        )
        return list(json.loads(answer.data)["items"])

    def _connect(self) -> Any:
        if self._client is None:
            self._client, self._default_namespace = _connect(self.options)
        return self._client

    def _call(self, name: str, *places: Any, what: str, **words: Any) -> Any:
        """Call the API; LauncherSilent without an answer, LauncherError where it refuses."""
        client = self._connect()
        import urllib3.exceptions
        from kubernetes.client import ApiException

        try:
            return _method(client, name)(*places, _request_timeout=self.options.patience_s, **words)
        except ApiException as error:
            raise _refusal(error, what) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise LauncherSilent(f"k8s: the API does not answer: {error}") from None


def _method(client: Any, name: str) -> Callable[..., Any]:
    from kubernetes import client as apis

    api = apis.BatchV1Api if name.endswith("_job") else apis.CoreV1Api
    api = apis.CustomObjectsApi if "custom_object" in name else api
    found: Callable[..., Any] = getattr(api(client), name)
    return found


class _NotThere(LauncherError):
    """What was asked for does not exist, or not yet."""


def _refusal(error: Any, what: str) -> LauncherError:
    """The API's own sentence."""
    try:
        said = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        said = error.reason
    if error.status == 404:
        said = f"{said}; is the operator installed that runs it?"
    if error.status == 429 or error.status >= 500:
        return LauncherSilent(f"k8s: {what}: {error.status} {said}")
    kind = _NotThere if error.status in (400, 404) else LauncherError
    return kind(f"k8s: {what}: {error.status} {said}")


def _connect(options: KubernetesOptions) -> tuple[Any, str]:
    """Return a client and a namespace: kubectl's, else those of the pod that this runs in."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise MissingExtraError("kubernetes", "k8s") from None
    settings = client.Configuration()
    try:
        file = os.environ.get("KUBECONFIG")
        config.load_kube_config(file, context=options.context, client_configuration=settings)
        contexts, current = config.list_kube_config_contexts(file)
        chosen = next((found for found in contexts if found["name"] == options.context), current)
        namespace = chosen["context"].get("namespace", "default")
    except (config.ConfigException, OSError) as error:
        if options.context is not None:
            raise ConfigError(f"k8s: context={options.context}: {error}") from None
        try:
            config.load_incluster_config(client_configuration=settings)
        except config.ConfigException:
            raise LauncherError(
                f"k8s: no cluster is configured ({error}); kubectl must work here, or name a"
                " context"
            ) from None
        namespace = _OWN_NAMESPACE.read_text().strip()
    settings.retries = False
    return client.ApiClient(settings), namespace


def _gone(handle: _Handle, kind: _Kind) -> JobStatus:
    """A resource that is gone, or about to go, was deleted; one never sent is not known."""
    if not was_sent(handle.folder):
        return JobStatus(state="unknown", reason=f"the cluster knows no {kind.name} {handle.name}")
    ours = (handle.folder / _CANCEL).exists()
    return JobStatus(
        state="cancelled",
        reason="cancelled" if ours else f"{kind.name} {handle.name} was deleted by somebody else",
    )


def _about(events: Iterable[Any], name: str) -> list[str]:
    """Warnings about a job, or what was made of it, whose names begin with its own."""
    return [
        f"{event.get('reason')}: {event.get('message')}"
        for event in events
        if (about := event["involvedObject"].get("name", "")) == name
        or about.startswith(f"{name}-")
    ]
