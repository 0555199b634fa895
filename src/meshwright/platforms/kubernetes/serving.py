"""A chosen deployment as an engine's script, or manifests of Kubernetes, KServe, Dynamo, llm-d and
Ray Serve."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from meshwright.platforms.kubernetes.manifests import as_is
from meshwright.platforms.kubernetes.serving_pods import (
    PORT,
    Where,
    chips,
    hf_token,
    image_of,
    name_of,
    one_pool,
    pod_of,
)
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
from meshwright.values.text import write_yaml

__all__ = ["Where", "export_serving"]

_COPYS_PORT = "PORT"
"""The word that stands for the port of a copy until the script is written."""
_MOUNT = "/etc/meshwright"
_LLMD_CHART = "0.4.12"
_NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
"""vLLM's and Dynamo's own example of a cache that is sent from pool to pool."""


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
        if any(given is not None for given in (where.image, where.name, where.hf_secret)):
            raise ConfigError(
                f"--image, --name and --hf-secret have no effect on a script of {target}; --to k8s"
                " writes a manifest"
            )
        part = one_pool(target, choice)
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
    port = f'"$(({PORT} + copy))"'
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
            *_open_port(choice.engine.name),
            f"exec {lines} \\",
            f"  {_HOST[choice.engine.name]}",
            "",
        ]
    )


_HOST = {
    "vllm": '--host "$host" "${key[@]}"',
    "sglang": '--host "$host" "${key[@]}"',
    "trtllm": '--host "$host"',
}
"""Last words of a script; trtllm-serve asks for no key."""


def _open_port(engine: str) -> list[str]:
    """Lines that keep the port on this machine unless HOST says otherwise, and then with a key."""
    asks = "key" in _HOST[engine]
    lines = ["# HOST=0.0.0.0 opens the port to other machines."]
    lines += ["host=${HOST:-127.0.0.1}"]
    if not asks:
        return lines
    said = "serve.sh: HOST opens the port; set API_KEY, which requests then need"
    return [
        "# HOST=0.0.0.0 opens the port to other machines, which takes an API_KEY.",
        "host=${HOST:-127.0.0.1}",
        "key=()",
        '[[ -z ${API_KEY:-} ]] || key=(--api-key "$API_KEY")',
        "if [[ $host != 127.0.0.1 && ${#key[@]} = 0 ]]; then",
        f"  echo '{said}' >&2",
        "  exit 2",
        "fi",
    ]


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
    found = pod_of("k8s", choice, where)
    name, count = name_of(choice, where), one_pool("k8s", choice).count
    labels = {"app": name}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [found.container], "volumes": found.volumes},
    }
    service = {"selector": labels, "ports": [{"port": PORT, "targetPort": PORT}]}
    documents = [
        *found.documents,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": pod},
        },
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service},
    ]
    return _manifest("k8s", "serving.yaml", _documents(documents), found.notes)


def _kserve(choice: ServingChoice, where: Where) -> Exported:
    """An InferenceService whose predictor has as many pods as the plan has copies, as a plain
    Deployment: Knative would start none for an idle model."""
    found = pod_of("kserve", choice, where)
    count = one_pool("kserve", choice).count
    predictor = {
        "minReplicas": count,
        "maxReplicas": count,
        "containers": [found.container | {"name": "kserve-container"}],
        "volumes": found.volumes,
    }
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name_of(choice, where),
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
        },
        "spec": {"predictor": predictor},
    }
    return _manifest("kserve", "kserve.yaml", _documents([*found.documents, service]), found.notes)


def _documents(documents: Sequence[Mapping[str, Any]]) -> str:
    return "---\n".join(write_yaml(dict(document)) for document in documents)


def _ray_serve(choice: ServingChoice, where: Where) -> Exported:
    """An application of Ray Serve's builder, whose replicas run vLLM."""
    if choice.engine.name != "vllm":
        reason = f"{choice.engine.name}: its builder starts vLLM"
        raise CannotExpress("ray-serve", reason, nearest="a plan of --engine vllm")
    if where.image is not None or where.hf_secret is not None:
        raise ConfigError("--image and --hf-secret have no effect on Ray Serve, which has its own")
    part = one_pool("ray-serve", choice)
    if part.worker.attention_dp > 1:
        reason = f"attention_dp={part.worker.attention_dp}: its builder starts one rank a replica"
        raise CannotExpress("ray-serve", reason, nearest=f"tp={part.worker.stage_chips}")
    served = choice.served(part, path=where.path)
    replicas = {"min_replicas": part.count, "max_replicas": part.count}
    config = {
        "model_loading_config": {"model_id": name_of(choice, where), "model_source": where.path},
        "deployment_config": {"autoscaling_config": replicas},
        "engine_kwargs": _keywords(vllm_words(served)),
    }
    application = {
        "name": name_of(choice, where),
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    notes = (
        *engine_command(served).notes,
        "Ray Serve asks for no key: keep its port on machines that you trust",
        "serve run ray_serve.yaml",
    )
    text = write_yaml({"applications": [application]})
    return _manifest("ray-serve", "ray_serve.yaml", text, notes)


def _keywords(words: Sequence[str]) -> dict[str, Any]:
    """Flags of `vllm serve` as keywords of its engine, which have the same names."""
    check_words(words, engines=("vllm",))
    found: dict[str, Any] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            last = at + 1 == len(words) or words[at + 1].startswith("--")
            found[word[2:].replace("-", "_")] = True if last else _value(words[at + 1])
    return found


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def _dynamo(choice: ServingChoice, where: Where) -> Exported:
    """A DynamoGraphDeployment: a frontend, and a component for each pool."""
    name, image = name_of(choice, where), image_of("dynamo", where)
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
        **({"env": env} if (env := hf_token(where)) else {}),
        "resources": {"limits": chips(part)},
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
    image = image_of("llm-d", where)
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
        "routing": {"servicePort": PORT, "proxy": {"enabled": len(choice.parts) > 1}},
        "decode": pools.get("decode") or pools["both"],
        "prefill": pools.get("prefill") or {"create": False},
    }
    notes = engine_command(choice.served(choice.parts[0], path=uri)).notes
    chart = f"llm-d-modelservice --version v{_LLMD_CHART} -f values.yaml"
    how = (f"helm install {name_of(choice, where)} {chart}",)
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
    how = () if target in ("llm-d", "ray-serve") else (f"kubectl apply -f {file}",)
    files, said = (ExportedFile(name=file, text=text),), (*notes, *how)
    return Exported(target=target, files=files, command=(file,), runs_on="once", notes=said)


WRITERS: Mapping[str, Callable[[ServingChoice, Where], Exported]] = MappingProxyType(
    {name: _script(name) for name in ("vllm", "sglang", "trtllm")}
    | {"k8s": _k8s, "kserve": _kserve, "dynamo": _dynamo, "llm-d": _llmd, "ray-serve": _ray_serve}
)
"""Everything that a serving plan can be written for."""
