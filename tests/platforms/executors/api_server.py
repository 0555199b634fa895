"""A real API server of Kubernetes with its etcd, and a stand-in for what else a cluster has: the
four operators and a node, which run each pod's command as a process of this machine.

`kube-apiserver` and `etcd` are looked for on the PATH and in KUBEBUILDER_ASSETS.
"""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.platforms.executors.kubernetes_api import (
    DONE,
    MPIRUN,
    SCHEMAS,
    limit_of,
    now,
    pods_of,
)
from tests.platforms.platforms import container_call

__all__ = ["Control", "find_programs", "running_control"]

NAMESPACE = "research"
TOKENS = 'a-token,admin,1,"system:masters"\nno-rights,guest,2\n'
TICK_S = 0.1


def find_programs() -> dict[str, str] | None:
    """Return where both programs are; None where one is absent."""
    path = os.pathsep.join([os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ["PATH"]])
    found = {name: shutil.which(name, path=path) for name in ("kube-apiserver", "etcd")}
    return {name: place for name, place in found.items() if place} if all(found.values()) else None


def _ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Control:
    """The control plane: etcd, the API server, and the stand-in for operators and a node."""

    def __init__(self, folder: Path, programs: Mapping[str, str]) -> None:
        self.folder, self.programs = folder, programs
        self.etcd_port, self.peer_port, self.port, self.log_port = _ports(4)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.node = Node(self)

    def start(self) -> None:
        """Start all, and make the kinds of jobs, the namespace and the node known."""
        (self.folder / "tokens.csv").write_text(TOKENS)
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        words += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        words += ["-keyout", "key.pem", "-out", "cert.pem"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        self._run(
            "etcd",
            *("--data-dir", "etcd", "--unsafe-no-fsync"),
            f"--listen-client-urls=http://127.0.0.1:{self.etcd_port}",
            f"--advertise-client-urls=http://127.0.0.1:{self.etcd_port}",
            f"--listen-peer-urls=http://127.0.0.1:{self.peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{self.peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{self.peer_port}",
        )
        self.start_api()
        self._prepare()
        self.node.start()

    def start_api(self) -> None:
        """Start the API server, and wait until it answers."""
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}"),
            *("--tls-cert-file=cert.pem", "--tls-private-key-file=key.pem"),
            *("--service-account-key-file=cert.pem", "--service-cluster-ip-range=10.0.0.0/24"),
            *("--service-account-signing-key-file=key.pem", "--token-auth-file=tokens.csv"),
            f"--service-account-issuer=https://127.0.0.1:{self.port}",
            *("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"),
        )
        end = time.monotonic() + 120
        while time.monotonic() < end:
            with suppress(Exception):
                self.core().list_namespace(_request_timeout=2)
                return
            time.sleep(0.3)
        raise AssertionError((self.folder / "kube-apiserver.log").read_text()[-2000:])

    def kill_api(self) -> None:
        """kill -9 the API server; etcd keeps what it was told."""
        self.processes["kube-apiserver"].kill()
        self.processes["kube-apiserver"].wait()

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [self.programs[name], *words], cwd=self.folder, stdout=log, stderr=log
            )

    def client(self) -> Any:
        from kubernetes import client

        settings = client.Configuration()
        settings.host = f"https://127.0.0.1:{self.port}"
        settings.api_key = {"authorization": "Bearer a-token"}
        settings.ssl_ca_cert = str(self.folder / "cert.pem")
        settings.retries = False
        return client.ApiClient(settings)

    def core(self) -> Any:
        from kubernetes import client

        return client.CoreV1Api(self.client())

    def custom(self) -> Any:
        from kubernetes import client

        return client.CustomObjectsApi(self.client())

    def config(self, token: str = "a-token") -> Path:
        """Write a configuration of kubectl for a user."""
        path = self.folder / f"config-{token}"
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": str(self.folder / "cert.pem"),
        }
        context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
        content = {
            **{"apiVersion": "v1", "kind": "Config", "current-context": "here"},
            "clusters": [{"name": "c", "cluster": server}],
            "contexts": [{"name": "here", "context": context}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def _prepare(self) -> None:
        from kubernetes import client

        known = client.ApiextensionsV1Api(self.client())
        for kind in DONE:
            known.create_custom_resource_definition(_definition(kind))
        core = self.core()
        core.create_namespace({"metadata": {"name": NAMESPACE}})
        core.create_node({"metadata": {"name": "node-a"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.log_port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "", "message": ""}],
        }
        core.patch_node_status("node-a", {"status": status})
        end = time.monotonic() + 60
        for kind in DONE:
            while time.monotonic() < end:
                with suppress(Exception):
                    self.custom().list_namespaced_custom_object(*_place(kind))
                    break
                time.sleep(0.2)

    def stop(self) -> None:
        """End all."""
        self.node.stop()
        for process in self.processes.values():
            process.kill()
            process.wait()


def _place(kind: str) -> tuple[str, str, str, str]:
    group, _, version = SCHEMAS[kind]["apiVersion"].partition("/")
    return group, version, NAMESPACE, f"{kind}s"


def _definition(kind: str) -> dict[str, Any]:
    """The kind's own schema, in the form that the API takes, with a place for its status."""
    group, version, _, plural = _place(kind)
    schema = _structural(SCHEMAS[kind]["schema"])
    schema["properties"]["status"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    schema["properties"]["metadata"] = {"type": "object"}
    known = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                **{"plural": plural, "singular": kind, "kind": SCHEMAS[kind]["kind"]},
            },
            "versions": [{**known, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _structural(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema as the API wants it: fields that are not listed are refused by strictness."""
    found: dict[str, Any] = {
        key: value
        for key, value in schema.items()
        if key in ("type", "enum", "required", "minimum", "maximum", "pattern")
    }
    if "properties" in schema:
        found["properties"] = {
            name: _structural(inner) for name, inner in schema["properties"].items()
        }
    elif isinstance(schema.get("additionalProperties"), Mapping):
        found["additionalProperties"] = _structural(schema["additionalProperties"])
    elif schema.get("type") == "object":
        found["x-kubernetes-preserve-unknown-fields"] = True
    if "items" in schema:
        found["items"] = _structural(schema["items"])
    if not isinstance(schema.get("type"), str):
        return {"x-kubernetes-preserve-unknown-fields": True}
    return found


class Node(threading.Thread):
    """Makes pods of jobs through the API, runs them, serves their logs, and says how they end."""

    def __init__(self, control: Control) -> None:
        super().__init__(daemon=True)
        self.control, self.over = control, threading.Event()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.seen: set[str] = set()
        self.hangs = False
        """A node that hangs says nothing more, and answers nobody."""

    def run(self) -> None:
        threading.Thread(target=self._serve_logs, daemon=True).start()
        while not self.over.is_set():
            with suppress(Exception):  # the API server may be away
                for kind in DONE:
                    self._look(kind)
            time.sleep(TICK_S)

    def stop(self) -> None:
        self.over.set()
        self.join()
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, 9)

    def _look(self, kind: str) -> None:
        for job in self.control.custom().list_namespaced_custom_object(*_place(kind))["items"]:
            own = job["metadata"]
            if own.get("deletionTimestamp"):
                self._collect(kind, job)
            elif own["uid"] not in self.seen:
                self.seen.add(own["uid"])
                threading.Thread(target=self._operate, args=(kind, job), daemon=True).start()

    def _collect(self, kind: str, job: dict[str, Any]) -> None:
        """Do what the garbage collector does: what was made of a job goes first, then the job."""
        name = job["metadata"]["name"]
        for pod in list(self.running):
            if pod.startswith(f"{name}-"):
                if self.running[pod].poll() is None:
                    os.killpg(self.running[pod].pid, 9)
                with suppress(Exception):
                    self.control.core().delete_namespaced_pod(
                        pod, NAMESPACE, grace_period_seconds=0
                    )
        self.control.custom().patch_namespaced_custom_object(
            *_place(kind), name, {"metadata": {"finalizers": []}}
        )

    def _operate(self, kind: str, job: dict[str, Any]) -> None:
        made = list(pods_of(kind, job))
        for pod in made:
            given = pod.pop("given")
            spec = {**pod["spec"], "nodeName": "node-a", "restartPolicy": "Never"}
            pod.pop("status")
            self._again(
                lambda pod=pod, spec=spec: self.control.core().create_namespaced_pod(
                    NAMESPACE, {**pod, "spec": spec}
                )
            )
            pod["given"] = given
        codes = [
            self._container(pod, limit_of(kind, job))
            for pod in made
            if kind != "mpijob" or "worker" not in pod["metadata"]["name"]
        ]
        done = DONE[kind] if not any(codes) else "Failed"
        reason = "DeadlineExceeded" if None in codes else f"{kind}{done}"
        message = "active longer than specified deadline" if None in codes else ""
        done = "Failed" if None in codes else done
        condition = {
            **{"type": done, "status": "True", "reason": reason, "message": message},
            "lastTransitionTime": now(),
        }
        self._again(
            lambda: self.control.custom().patch_namespaced_custom_object_status(
                *_place(kind), job["metadata"]["name"], {"status": {"conditions": [condition]}}
            )
        )

    def _again(self, call: Any) -> None:
        """Call the API until it answers: it may be away, as for a node."""
        from kubernetes.client import ApiException

        while not self.over.is_set():
            try:
                call()
                return
            except ApiException as error:
                if error.status in (404, 409):
                    return
                if error.status == 422:
                    raise
            except Exception:
                time.sleep(TICK_S)

    def _container(self, pod: dict[str, Any], limit_s: float | None) -> int | None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        folder = self.control.folder
        path = f"{folder}/bin:{os.environ['PATH']}"
        words, env = container_call(container, {"PATH": path, "HOME": str(folder), **pod["given"]})
        started = now()
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[name] = process
        self._tell(name, container, "Running", {"running": {"startedAt": started}})
        end = None if limit_s is None else time.monotonic() + limit_s
        while process.poll() is None and (end is None or time.monotonic() < end):
            time.sleep(0.05)
        late = process.poll() is None
        if late:
            os.killpg(process.pid, 9)
        code = process.wait()
        code = 128 - code if code < 0 else code
        ended = {
            **{"exitCode": code, "reason": "Error" if code else "Completed"},
            **{"startedAt": started, "finishedAt": now()},
        }
        phase = "Failed" if code else "Succeeded"
        self._tell(name, container, phase, {"terminated": ended})
        return None if late else code

    def _tell(self, name: str, container: Any, phase: str, state: dict[str, Any]) -> None:
        status = {
            **{"name": container["name"], "image": container["image"], "imageID": ""},
            **{"ready": False, "restartCount": 0, "state": state},
        }
        content = {"status": {"phase": phase, "containerStatuses": [status]}}
        self._again(
            lambda: self.control.core().patch_namespaced_pod_status(name, NAMESPACE, content)
        )

    def _serve_logs(self) -> None:
        """Answer the API server, which fetches a container's log from its node."""
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                while node.hangs and not node.over.is_set():
                    time.sleep(TICK_S)
                pod = self.path.split("?")[0].strip("/").split("/")[2]
                content = (node.control.folder / f"{pod}.log").read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", self.control.log_port), Handler)
        server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        folder = self.control.folder
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.serve_forever()


@contextmanager
def running_control(folder: Path) -> Iterator[Control]:
    """Run a control plane, and let this process's kubectl configuration point at it."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no kube-apiserver and etcd on the PATH or in KUBEBUILDER_ASSETS")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "mpirun").write_text(MPIRUN)
    (folder / "bin" / "mpirun").chmod(0o755)
    control = Control(folder, programs)
    try:
        control.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(control.config()))
            yield control
    finally:
        control.stop()
