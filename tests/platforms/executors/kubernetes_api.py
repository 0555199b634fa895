"""A stand-in for a cluster's API with the four operators: resources are held to their projects'
schemas, and containers really run.

Each pod's command runs as a process of this machine. An image whose name holds `missing` is never
pulled, and a node has eight GPUs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
import yaml
from tests.platforms.platforms import container_call

ROOT = Path(__file__).resolve().parents[1] / "schemas"
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in ROOT.glob("*.json")}
TOKEN = "a-token"
GPUS = 8
DONE = {
    "trainjob": "Complete",
    "jobset": "Completed",
    "pytorchjob": "Succeeded",
    "mpijob": "Succeeded",
}
MPIRUN = """#!/bin/bash
while [[ $1 != bash ]]; do shift; done
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 exec "$@"
"""
CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "research"}}
    ],
    "users": [{"name": "u", "user": {"token": TOKEN}}],
}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Refused(Exception):
    """An answer with a status other than 200."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Cluster:
    """What the API holds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.RLock()
        self.jobs: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.operators = set(DONE)
        self.broken: int | None = None
        self.calls: list[str] = []

    def create(
        self, group: str, version: str, plural: str, content: dict[str, Any]
    ) -> dict[str, Any]:
        """Take a resource, and let its operator make pods of it."""
        kind = plural.removesuffix("s")
        if kind not in self.operators:
            raise Refused(404, "the server could not find the requested resource")
        known = SCHEMAS[kind]
        if (
            known["apiVersion"] != f"{group}/{version}"
            or content["apiVersion"] != f"{group}/{version}"
        ):
            raise Refused(
                400, "the API version in the data does not match the expected API version"
            )
        try:
            jsonschema.Draft202012Validator(known["schema"]).validate(content)
        except jsonschema.ValidationError as error:
            raise Refused(422, error.message) from None
        name = content["metadata"]["name"]
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
            raise Refused(
                422,
                f"{name}: a DNS-1035 label must consist of lower case alphanumeric characters"
                " or '-'",
            )
        if (kind, name) in self.jobs:
            raise Refused(409, f'{plural}.{group} "{name}" already exists')
        self.jobs[kind, name] = {**content, "status": {"conditions": []}}
        threading.Thread(target=self.operate, args=(kind, name), daemon=True).start()
        return self.jobs[kind, name]

    def operate(self, kind: str, name: str) -> None:
        """Make the pods of a job, run them, and say how it ended."""
        job = self.jobs[kind, name]
        made = list(pods_of(kind, job))
        with self.lock:
            self.pods.update({pod["metadata"]["name"]: pod for pod in made})
        if any(self.stuck(pod) for pod in made):
            return
        if kind in ("pytorchjob", "mpijob"):
            self.say(job, "Created", f"{kind}Created", "")
            self.say(job, "Running", f"{kind}Running", "")
        limit = limit_of(kind, job)
        codes = [
            self.run(pod, limit)
            for pod in made
            if "worker" not in pod["metadata"]["name"] or kind != "mpijob"
        ]
        if (kind, name) not in self.jobs:
            return
        if None in codes:
            late = {
                "jobset": ("FailedJobs", "jobset failed due to one or more job failures"),
                "trainjob": ("DeadlineExceeded", ""),
            }
            words = late.get(
                kind,
                (
                    f"{kind}Failed",
                    f"Job {name} has failed because it was active longer than specified deadline",
                ),
            )
            self.say(job, "Failed", *words)
        elif any(codes):
            self.say(job, "Failed", f"{kind}Failed", "a pod failed")
        else:
            self.say(job, DONE[kind], f"{kind}Succeeded", "")

    def stuck(self, pod: dict[str, Any]) -> bool:
        """Leave a pod waiting for what is not there."""
        container = pod["spec"]["containers"][0]
        if int(container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)) > GPUS:
            message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
            pod["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
            ]
            return True
        if "missing" in container["image"]:
            waiting = {
                "reason": "ImagePullBackOff",
                "message": f'Back-off pulling image "{container["image"]}"',
            }
            pod["status"]["containerStatuses"] = [
                {"name": container["name"], "state": {"waiting": waiting}}
            ]
            return True
        return False

    def run(self, pod: dict[str, Any], limit_s: float | None) -> int | None:
        """Run the container of a pod; None where the limit ended it."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        words, env = container_call(
            container,
            {
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "HOME": str(self.folder),
                **pod["given"],
            },
        )
        started = now()
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words,
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append((name, process))
        pod["spec"]["nodeName"] = "node-a"
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [
                {"name": container["name"], "state": {"running": {"startedAt": started}}}
            ],
        }
        end = None if limit_s is None else time.monotonic() + limit_s
        while process.poll() is None and (end is None or time.monotonic() < end):
            time.sleep(0.05)
        late = process.poll() is None
        self.kill(process)
        code = process.wait()
        code = 128 - code if code < 0 else code
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": started,
            "finishedAt": now(),
        }
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": container["name"], "state": {"terminated": ended}}],
        }
        return None if late else code

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a process with all in its session."""
        if process.poll() is None:
            os.killpg(process.pid, 9)

    def say(self, job: dict[str, Any], kind: str, reason: str, message: str) -> None:
        """Add a condition."""
        with self.lock:
            condition = {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": now(),
            }
            job["status"]["conditions"] = [*job["status"]["conditions"], condition]

    def delete(self, kind: str, name: str) -> dict[str, Any]:
        """Delete a job and its pods."""
        if (kind, name) not in self.jobs:
            raise Refused(404, f'{kind}s "{name}" not found')
        with self.lock:
            del self.jobs[kind, name]
            for pod in [pod for pod in self.pods if pod.startswith(f"{name}-")]:
                del self.pods[pod]
        for owner, process in self.processes:
            if owner.startswith(f"{name}-"):
                self.kill(process)
        return {"kind": "Status", "status": "Success"}

    def jobs_of(self) -> list[dict[str, Any]]:
        """The Jobs of batch/v1 that JobSets are made of."""
        late = "Job was active longer than specified deadline"
        condition = {
            "type": "Failed",
            "status": "True",
            "reason": "DeadlineExceeded",
            "message": late,
        }
        return [
            {
                "metadata": {
                    "name": f"{name}-node-0",
                    "labels": {"jobset.sigs.k8s.io/jobset-name": name},
                },
                "status": {
                    "conditions": [
                        condition
                        for told in job["status"]["conditions"]
                        if told["reason"] == "FailedJobs"
                    ]
                },
            }
            for (kind, name), job in self.jobs.items()
            if kind == "jobset"
        ]

    def stop(self) -> None:
        """End what runs."""
        for _, process in self.processes:
            self.kill(process)
            process.wait()


def pods_of(kind: str, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What an operator makes of a job: names, labels, and the variables that it sets."""
    name, spec = job["metadata"]["name"], job["spec"]
    if kind == "trainjob":
        container = {
            "name": "node",
            **{
                key: spec["trainer"][key]
                for key in ("image", "command", "env")
                if key in spec["trainer"]
            },
        }
        container["resources"] = spec["trainer"]["resourcesPerNode"]
        for rank in range(spec["trainer"]["numNodes"]):
            given = {
                "PET_NODE_RANK": str(rank),
                "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
                "PET_MASTER_PORT": "29500",
            }
            yield pod(
                f"{name}-node-0-{rank}-x7b2p",
                {"containers": [container]},
                {"jobset.sigs.k8s.io/jobset-name": name},
                given,
            )
    elif kind == "jobset":
        inner = spec["replicatedJobs"][0]["template"]["spec"]
        for rank in range(inner["completions"]):
            labels = {"jobset.sigs.k8s.io/jobset-name": name}
            yield pod(
                f"{name}-node-0-{rank}-x7b2p",
                inner["template"]["spec"],
                labels,
                {"JOB_COMPLETION_INDEX": str(rank)},
            )
    else:
        replicas = spec["pytorchReplicaSpecs" if kind == "pytorchjob" else "mpiReplicaSpecs"]
        for role, replica in replicas.items():
            for rank in range(replica["replicas"]):
                given = {
                    "PET_NODE_RANK": str(rank),
                    "PET_MASTER_ADDR": f"{name}-master-0",
                    "PET_MASTER_PORT": "23456",
                }
                yield pod(
                    f"{name}-{role.lower()}-{rank}",
                    replica["template"]["spec"],
                    {"training.kubeflow.org/job-name": name},
                    given,
                )


def pod(
    name: str, spec: Mapping[str, Any], labels: dict[str, str], given: dict[str, str]
) -> dict[str, Any]:
    """A pod that waits."""
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": dict(spec),
        "status": {"phase": "Pending"},
        "given": given,
    }


def limit_of(kind: str, job: Mapping[str, Any]) -> float | None:
    """Where each kind has its limit."""
    spec = job["spec"]
    place = {
        "trainjob": spec,
        "jobset": spec.get("replicatedJobs", [{}])[0].get("template", {}).get("spec", {}),
    }
    found: float | None = place.get(kind, spec.get("runPolicy", {})).get("activeDeadlineSeconds")
    return found


def selected(thing: Mapping[str, Any], selector: str) -> bool:
    """Whether labels match `a=b,c in (d,e)`."""
    labels = thing["metadata"].get("labels", {})
    for name, values in re.findall(r"([\w./-]+) in \(([^)]*)\)", selector):
        if labels.get(name) not in values.split(","):
            return False
    return all(
        labels.get(name) == value for name, value in re.findall(r"([\w./-]+)=([\w.-]+)", selector)
    )


class Handler(BaseHTTPRequestHandler):
    """The API over HTTP."""

    cluster: Cluster

    def answer(self) -> None:
        """Answer one request."""
        parts, query = (
            urlsplit(self.path),
            {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()},
        )
        self.cluster.calls.append(f"{self.command} {parts.path}")
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        try:
            if self.cluster.broken:
                raise Refused(self.cluster.broken, "etcdserver: leader changed")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, "Unauthorized")
            found = self.route(parts.path, query, body)
            code = 200
        except Refused as refused:
            code = refused.code
            found = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "message": str(refused),
                "code": code,
            }
        content = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(code)
        self.send_header(
            "Content-Type", "text/plain" if isinstance(found, bytes) else "application/json"
        )
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer

    def route(self, path: str, query: Mapping[str, str], body: dict[str, Any]) -> Any:
        """Return what a path holds."""
        cluster, words = self.cluster, path.strip("/").split("/")
        selector = query.get("labelSelector", "")
        if words[:2] == ["api", "v1"] and words[2] == "namespaces" and words[3] == "research":
            if words[4] == "pods" and words[-1] == "log":
                log = cluster.folder / f"{words[5]}.log"
                if words[5] not in cluster.pods or not log.exists():
                    raise Refused(400, f'container in pod "{words[5]}" is waiting to start')
                return log.read_bytes()
            if words[4] == "events":
                return {"items": cluster.events}
            return {
                "items": [
                    found for found in list(cluster.pods.values()) if selected(found, selector)
                ]
            }
        group, version, namespace, plural = words[1], words[2], words[4], words[5]
        if namespace != "research":
            raise Refused(
                403,
                f'{plural} is forbidden: User "u" cannot list resource in the namespace'
                f' "{namespace}"',
            )
        if group == "batch":
            return {"items": [found for found in cluster.jobs_of() if selected(found, selector)]}
        if self.command == "POST":
            return cluster.create(group, version, plural, body)
        kind = plural.removesuffix("s")
        if self.command == "DELETE":
            return cluster.delete(kind, words[6])
        if kind not in cluster.operators:
            raise Refused(404, "404 page not found")
        return {
            "items": [
                job
                for (of, _), job in list(cluster.jobs.items())
                if of == kind and selected(job, selector)
            ]
        }

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Serve a cluster, and let this process's kubectl configuration point at it."""
    folder.mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "mpirun").write_text(MPIRUN)
    (folder / "bin" / "mpirun").chmod(0o755)
    cluster = Cluster(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"cluster": cluster}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = {
        **CONFIG,
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(folder / "config"))
            yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        cluster.stop()
