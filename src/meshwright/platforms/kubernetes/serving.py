"""A chosen deployment as an engine's script, or manifests of Kubernetes, Dynamo and llm-d."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshwright.platforms.kubernetes.manifests import as_is
from meshwright.software.contract import Exported, ExportedFile
from meshwright.software.serving import (
    CONFIG_FILE,
    ChosenPart,
    ServingChoice,
    check_words,
    engine_command,
    engine_version,
)
from meshwright.software.sglang.serve import sglang_words
from meshwright.software.vllm.serve import vllm_words
from meshwright.values.errors import CannotExpress, ConfigError, UnknownNameError
from meshwright.values.hardware.chip import device_plugin
from meshwright.values.lines import check_lines
from meshwright.values.text import write_yaml

__all__ = ["Where", "export_serving"]

_PORT = 8000
_COPYS_PORT = "PORT"
"""The word that stands for the port of a copy until the script is written."""
_MOUNT = "/etc/meshwright"
_LLMD_CHART = "0.4.12"
_NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
"""vLLM's and Dynamo's own example of a cache that is sent from pool to pool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """What a plan does not say."""

    path: str
    """What the engine loads."""
    image: str | None = None
    """The container that manifests start."""
    name: str | None = None
    """Of the deployment on Kubernetes; None: the model's."""

    def __post_init__(self) -> None:
        check_lines(self)


def export_serving(choice: ServingChoice, *, target: str, where: Where) -> Exported:
    """Write a deployment for a target; CannotExpress for what that has no words for."""
    if target not in WRITERS:
        raise UnknownNameError("target of a serving plan", target, WRITERS)
    if choice.mode == "static":
        raise CannotExpress(
            target, "static batches: servers batch as requests come", nearest="--mode aggregated"
        )
    if choice.drafted is not None and len(choice.parts) > 1:
        reason = f"{choice.drafted} tokens drafted per step by two pools: not written yet"
        raise CannotExpress(
            target, reason, nearest="a plan of --mode aggregated, or without --speculate"
        )
    for part in choice.parts:
        if choice.drafted is not None and part.worker.pp > 1:
            reason = (
                f"{choice.drafted} tokens drafted per step over pp={part.worker.pp}: engines draft"
                " on one stage alone"
            )
            raise CannotExpress(target, reason, nearest="a plan of a worker with pp=1")
        if part.worker.chips > part.gpus_per_node:
            reason = (
                f"{part.worker.name} is {part.worker.chips} chips on nodes of {part.gpus_per_node}:"
                " workers over several nodes"
            )
            raise CannotExpress(target, reason, nearest=f"a worker of {part.gpus_per_node} chips")
    return WRITERS[target](choice, where)


def _script(target: str) -> Callable[[ServingChoice, Where], Exported]:
    def write(choice: ServingChoice, where: Where) -> Exported:
        if where.image is not None or where.name is not None:
            raise ConfigError(
                f"--image and --name have no effect on a script of {target}; --to k8s writes a"
                " manifest"
            )
        part = _one_pool(target, choice)
        if choice.engine.name != target:
            reason = f"the plan was priced for {choice.engine.name}"
            raise CannotExpress(
                target, reason, nearest=f"--to {choice.engine.name}, or a plan of --engine {target}"
            )
        command = engine_command(choice.served(part, path=where.path, port=_COPYS_PORT))
        files = [
            ExportedFile(name="serve.sh", text=_bash(choice, part, command.words), executable=True)
        ]
        if command.config is not None:
            files.append(ExportedFile(name=CONFIG_FILE, text=write_yaml(dict(command.config))))
        notes = (*command.notes, *_copies_note(part))
        return Exported(
            target=target, files=tuple(files), command=("serve.sh",), runs_on="once", notes=notes
        )

    return write


def _one_pool(target: str, choice: ServingChoice) -> ChosenPart:
    if len(choice.parts) > 1:
        near = "--to dynamo, or a plan of --mode aggregated"
        raise CannotExpress(target, "two pools of workers: one engine has one", nearest=near)
    return choice.parts[0]


def _copies_note(part: ChosenPart) -> tuple[str, ...]:
    if part.count == 1:
        return ()
    last = part.count - 1
    how = f"start each with its number, ./serve.sh 0 to ./serve.sh {last}, and share requests"
    return (f"the plan has {part.count} copies: {how}",)


def _bash(choice: ServingChoice, part: ChosenPart, words: Sequence[str]) -> str:
    """A script that starts one copy on its own chips, at a port of its own."""
    per_copy, per_node = part.worker.chips, part.gpus_per_node
    here = per_node // per_copy
    port = f'"$(({_PORT} + copy))"'
    lines = " \\\n  ".join(_lines(words, port=port))
    engine = f"{choice.engine.name} {engine_version(choice.engine.name)}"
    variable = "CUDA_VISIBLE_DEVICES" if part.vendor == "NVIDIA" else None
    chips = [
        f"first=$((copy % {here} * {per_copy}))",
        f'{variable}=$(seq -s, "$first" "$((first + {per_copy - 1}))")',
        f"export {variable}",
    ]
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# {choice.model.name} by {engine}: {part.count} x {part.worker.name} on {part.chip}.",
            f"# ./serve.sh [COPY], from 0; a node of {per_node} holds {here}.",
            "set -euo pipefail",
            "",
            "copy=${1:-0}",
            *(chips if variable else [f"# Give each copy {per_copy} chips of its own."]),
            'cd -- "$(dirname -- "${BASH_SOURCE[0]}")"',
            f"exec {lines}",
            "",
        ]
    )


def _lines(words: Sequence[str], *, port: str) -> list[str]:
    """Words in lines, each flag with its value; the word that stands for the port becomes it."""
    lines: list[str] = []
    for word in words:
        quoted = port if word == _COPYS_PORT else shlex.quote(word)
        if not lines or word.startswith("--"):
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return lines


def _k8s(choice: ServingChoice, where: Where) -> Exported:
    """A Deployment with as many pods as the plan has copies, and a Service before them."""
    part, name, image = _one_pool("k8s", choice), _name(choice, where), _image("k8s", where)
    command = engine_command(choice.served(part, path=where.path, port=str(_PORT)))
    own = {CONFIG_FILE: f"{_MOUNT}/{CONFIG_FILE}"}
    words = [*(own.get(word, word) for word in command.words), "--host", "0.0.0.0"]
    check_words(["--host"], engines=(choice.engine.name,))
    labels = {"app": name}
    container: dict[str, Any] = {
        "name": "engine",
        "image": image,
        "command": as_is(words),
        "ports": [{"containerPort": _PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": _PORT}, "periodSeconds": 10},
        "resources": {"limits": _chips(part)},
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
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    service = {"selector": labels, "ports": [{"port": _PORT, "targetPort": _PORT}]}
    documents += [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"replicas": part.count, "selector": {"matchLabels": labels}, "template": pod},
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service},
    ]
    text = "---\n".join(write_yaml(document) for document in documents)
    return _manifest("k8s", "serving.yaml", text, command.notes)


def _dynamo(choice: ServingChoice, where: Where) -> Exported:
    """A DynamoGraphDeployment: a frontend, and a component for each pool."""
    name, image = _name(choice, where), _image("dynamo", where)
    engine = choice.engine.name
    if engine not in _DYNAMO:
        reason = f"{engine} is none of its engines"
        raise CannotExpress("dynamo", reason, nearest="a plan of --engine vllm")
    if len(choice.parts) > 1 and engine == "trtllm":
        reason = "two pools of TensorRT-LLM: not written yet"
        raise CannotExpress("dynamo", reason, nearest="a plan of --engine vllm or sglang")
    frontend: dict[str, Any] = {"name": "Frontend", "type": "frontend", "replicas": 1}
    frontend |= _pod({"name": "main", "image": image})
    components = [frontend, *(_component(choice, part, where, image) for part in choice.parts)]
    content = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"components": components},
    }
    notes = engine_command(choice.served(choice.parts[0], path=where.path)).notes
    return _manifest("dynamo", "dynamo.yaml", write_yaml(content), notes)


def _component(choice: ServingChoice, part: ChosenPart, where: Where, image: str) -> dict[str, Any]:
    engine = choice.engine.name
    words = _DYNAMO[engine](choice, part, where)
    check_words(words, engines=(f"dynamo.{engine}", *(() if engine == "trtllm" else (engine,))))
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-m", f"dynamo.{engine}"],
        "args": as_is(words),
        "resources": {"limits": _chips(part)},
    }
    kinds = {
        "both": ("Worker", "worker"),
        "prefill": ("PrefillWorker", "prefill"),
        "decode": ("DecodeWorker", "decode"),
    }
    name, kind = kinds[part.role]
    return {"name": name, "type": kind, "replicas": part.count, **_pod(container)}


def _pod(container: dict[str, Any]) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [container]}}}


def _dynamo_vllm(choice: ServingChoice, part: ChosenPart, where: Where) -> list[str]:
    words = ["--model", where.path, *vllm_words(choice.served(part, path=where.path))]
    pools = ["--disaggregation-mode", part.role, "--kv-transfer-config", _NIXL]
    return words if part.role == "both" else [*words, *pools]


def _dynamo_sglang(choice: ServingChoice, part: ChosenPart, where: Where) -> list[str]:
    words = ["--model-path", where.path, *sglang_words(choice.served(part, path=where.path))]
    pools = ["--disaggregation-mode", part.role, "--disaggregation-transfer-backend", "nixl"]
    pools += ["--host", "0.0.0.0"]
    return words if part.role == "both" else [*words, *pools]


def _dynamo_trtllm(choice: ServingChoice, part: ChosenPart, where: Where) -> list[str]:
    """Its flags are Dynamo's own; the rest of the engine's settings goes as one dictionary."""
    worker = part.worker
    config = dict(engine_command(choice.served(part, path=where.path)).config or {})
    words = ["--model", where.path, "--tensor-parallel-size", str(worker.stage_chips)]
    words += ["--pipeline-parallel-size", str(worker.pp)] if worker.pp > 1 else []
    words += ["--expert-parallel-size", str(worker.ep)] if worker.ep > 1 else []
    words += ["--enable-attention-dp"] if config.pop("enable_attention_dp", False) else []
    words += ["--max-batch-size", str(part.max_sequences), "--max-seq-len", str(choice.max_len)]
    chunk = choice.engine.chunk_tokens
    words += ["--max-num-tokens", str(chunk)] if chunk else []
    return [*words, "--override-engine-args", json.dumps(config)]


_DYNAMO: Mapping[str, Callable[[ServingChoice, ChosenPart, Where], list[str]]] = MappingProxyType(
    {"vllm": _dynamo_vllm, "sglang": _dynamo_sglang, "trtllm": _dynamo_trtllm}
)


def _llmd(choice: ServingChoice, where: Where) -> Exported:
    """Values for the chart llm-d-modelservice, whose pods run `vllm serve`."""
    if choice.engine.name != "vllm":
        reason = f"{choice.engine.name}: its chart starts vLLM"
        raise CannotExpress("llm-d", reason, nearest="a plan of --engine vllm")
    uri = where.path if "://" in where.path else f"hf://{where.path}"
    if not re.match(r"(hf|pvc|pvc\+hf)://[^/]", uri):
        reason = f"model path {where.path}: its chart loads hf://ORG/NAME or pvc://CLAIM/PATH"
        raise CannotExpress("llm-d", reason, nearest="--model-path pvc://CLAIM/PATH")
    image = _image("llm-d", where)
    pools = {
        part.role: _llmd_pool(choice, part, uri, image, pooled=len(choice.parts) > 1)
        for part in choice.parts
    }
    content = {
        "modelArtifacts": {
            "name": uri.partition("://")[2] if uri.startswith("hf://") else choice.model.name,
            "uri": uri,
        },
        "multinode": False,
        "routing": {"servicePort": _PORT, "proxy": {"enabled": len(choice.parts) > 1}},
        "decode": pools.get("decode") or pools["both"],
        "prefill": pools.get("prefill") or {"create": False},
    }
    notes = engine_command(choice.served(choice.parts[0], path=uri)).notes
    chart = f"llm-d-modelservice --version v{_LLMD_CHART} -f values.yaml"
    how = (f"helm install {_name(choice, where)} {chart}",)
    return _manifest("llm-d", "values.yaml", write_yaml(content), (*notes, *how))


def _llmd_pool(
    choice: ServingChoice, part: ChosenPart, uri: str, image: str, *, pooled: bool
) -> dict[str, Any]:
    worker = part.worker
    if worker.pp > 1:
        reason = f"pp={worker.pp}: its chart knows tensor and data parallelism"
        raise CannotExpress("llm-d", reason, nearest=f"tp={worker.chips}")
    words = vllm_words(choice.served(part, path=uri))
    own = ("--tensor-parallel-size", "--data-parallel-size")  # the chart writes these itself
    rest = [
        word
        for at, word in enumerate(words)
        if word not in own and (at == 0 or words[at - 1] not in own)
    ]
    rest += ["--kv-transfer-config", _NIXL] if pooled else []
    check_words(rest, engines=("vllm",))
    container: dict[str, Any] = {
        "name": "vllm",
        "image": image,
        "modelCommand": "vllmServe",
        "args": as_is(rest),
        "mountModelVolume": True,
    }
    data = worker.attention_dp
    parallelism = {"tensor": worker.tp, "data": data, "dataLocal": data, "workers": 1}
    return {
        "create": True,
        "replicas": part.count,
        "parallelism": parallelism,
        "containers": [container],
    }


def _manifest(target: str, file: str, text: str, notes: tuple[str, ...]) -> Exported:
    how = () if target == "llm-d" else (f"kubectl apply -f {file}",)
    files, said = (ExportedFile(name=file, text=text),), (*notes, *how)
    return Exported(target=target, files=files, command=(file,), runs_on="once", notes=said)


def _chips(part: ChosenPart) -> dict[str, str]:
    return {device_plugin(part.vendor).kubernetes_resource: str(part.worker.chips)}


def _image(target: str, where: Where) -> str:
    if where.image is None:
        raise ConfigError(f"{target}: a manifest needs --image, a container with the engine")
    return where.image


_MOST_LETTERS = 45
"""Dynamo names pods after the deployment and its component, in at most 63 letters."""


def _name(choice: ServingChoice, where: Where) -> str:
    name = where.name or re.sub(r"[^a-z0-9]+", "-", choice.model.name.lower()).strip("-")
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", name) or len(name) > _MOST_LETTERS:
        raise ConfigError(
            f"name={name}: expected up to {_MOST_LETTERS} lower-case letters, digits and dashes,"
            " the first a letter"
        )
    return name


WRITERS: Mapping[str, Callable[[ServingChoice, Where], Exported]] = MappingProxyType(
    {name: _script(name) for name in ("vllm", "sglang", "trtllm")}
    | {"k8s": _k8s, "dynamo": _dynamo, "llm-d": _llmd}
)
"""Everything that a serving plan can be written for."""
