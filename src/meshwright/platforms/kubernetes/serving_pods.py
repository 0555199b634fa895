"""What manifests of an engine's worker share: where it is found, its pod, its key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from meshwright.platforms.kubernetes.manifests import as_is
from meshwright.software.serving import (
    CONFIG_FILE,
    ChosenPart,
    ServingChoice,
    check_words,
    engine_command,
    engine_options,
)
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.hardware.chip import device_plugin
from meshwright.values.lines import check_lines
from meshwright.values.text import write_yaml

__all__ = ["PORT", "Pod", "Where", "chips", "hf_token", "image_of", "name_of", "one_pool", "pod_of"]

PORT = 8000
_MOUNT = "/etc/meshwright"


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """What a plan does not say."""

    path: str
    """What the engine loads."""
    image: str | None = None
    """The container that manifests start."""
    name: str | None = None
    """Of the deployment on Kubernetes; None: the model's."""
    hf_secret: str | None = None
    """The Kubernetes secret whose key HF_TOKEN opens the model's repository."""

    def __post_init__(self) -> None:
        check_lines(self)


def one_pool(target: str, choice: ServingChoice) -> ChosenPart:
    """Return the only part; CannotExpress where there are two."""
    if len(choice.parts) > 1:
        near = "--to dynamo, or a plan of --mode aggregated"
        raise CannotExpress(target, "two pools of workers: one engine has one", nearest=near)
    return choice.parts[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """One copy of a worker as a pod's parts."""

    container: dict[str, Any]
    volumes: list[dict[str, Any]]
    documents: list[dict[str, Any]]
    """What must be there beside it."""
    notes: tuple[str, ...]


def pod_of(target: str, choice: ServingChoice, where: Where) -> Pod:
    """Return a copy of the only part of a deployment, which listens to all that reach its pod."""
    part, name, image = one_pool(target, choice), name_of(choice, where), image_of(target, where)
    command = engine_command(choice.served(part, path=where.path, port=str(PORT)))
    own = {CONFIG_FILE: f"{_MOUNT}/{CONFIG_FILE}"}
    words = [*(own.get(word, word) for word in command.words), "--host", "0.0.0.0"]
    check_words(["--host"], engines=(choice.engine.name,))
    key, notes = _api_key(choice, name)
    env = [*hf_token(where), *([key] if key is not None else [])]
    container: dict[str, Any] = {
        "name": "engine",
        "image": image,
        "command": [*as_is(words), *(["--api-key", "$(API_KEY)"] if key is not None else [])],
        **({"env": env} if env else {}),
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10},
        "resources": {"limits": chips(part)},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    documents: list[dict[str, Any]] = []
    if command.config is not None:
        container["volumeMounts"].append({"name": "config", "mountPath": _MOUNT})
        volumes.append({"name": "config", "configMap": {"name": name}})
        content = {CONFIG_FILE: write_yaml(dict(command.config))}
        documents.append(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": content}
        )
    return Pod(
        container=container, volumes=volumes, documents=documents, notes=(*command.notes, *notes)
    )


def _api_key(choice: ServingChoice, name: str) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The variable with the key that an engine asks of requests, and how its secret is made."""
    if "--api-key" not in engine_options(choice.engine.name):
        return None, (f"{choice.engine.name} asks for no key: keep its Service in the cluster",)
    secret = f"{name}-api-key"
    source = {"secretKeyRef": {"name": secret, "key": "api-key"}}
    make = (
        f'kubectl create secret generic {secret} --from-literal=api-key="$(openssl rand -hex 32)"'
    )
    return {"name": "API_KEY", "valueFrom": source}, (make,)


def hf_token(where: Where) -> list[dict[str, Any]]:
    """Return the variable that opens the model's repository, where there is one."""
    if where.hf_secret is None:
        return []
    source = {"secretKeyRef": {"name": where.hf_secret, "key": "HF_TOKEN"}}
    return [{"name": "HF_TOKEN", "valueFrom": source}]


def chips(part: ChosenPart) -> dict[str, str]:
    """Return the resource that a worker's pod takes."""
    return {device_plugin(part.vendor).kubernetes_resource: str(part.worker.chips)}


def image_of(target: str, where: Where) -> str:
    """Return the container; ConfigError where none is given."""
    if where.image is None:
        raise ConfigError(f"{target}: a manifest needs --image, a container with the engine")
    return where.image


_MOST_LETTERS = 45
"""Dynamo names pods after the deployment and its component, in at most 63 letters."""


def name_of(choice: ServingChoice, where: Where) -> str:
    """Return the deployment's name; ConfigError for one that Kubernetes does not take."""
    name = where.name or re.sub(r"[^a-z0-9]+", "-", choice.model.name.lower()).strip("-")
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", name) or len(name) > _MOST_LETTERS:
        raise ConfigError(
            f"name={name}: expected up to {_MOST_LETTERS} lower-case letters, digits and dashes,"
            " the first a letter"
        )
    return name
