from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from meshwright.platforms.kubernetes.serving import Where, export_serving
from meshwright.serving.engine import Worker, find_engine
from meshwright.software.serving import (
    SERVING_TARGETS,
    ChosenPart,
    ServingChoice,
    read_choice,
)
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.models.catalogue import named_model

WHERE = Where(path="meta-llama/Llama-3.1-70B", image="registry/engine:1")


def part(role: Any = "both", **changes: Any) -> ChosenPart:
    values: dict[str, Any] = {
        "chip": "h100",
        "vendor": "NVIDIA",
        "gpus_per_node": 8,
        "worker": Worker(tp=2),
        "count": 3,
        "max_sequences": 40,
    }
    return ChosenPart(role=role, **{**values, **changes})


def choice(engine: str = "vllm", *parts: ChosenPart, **changes: Any) -> ServingChoice:
    values: dict[str, Any] = {
        **{
            "model": named_model("llama3.1-70b"),
            "engine": find_engine(engine),
            "mode": "aggregated",
            "weights": "fp8",
            "cache": "fp8",
        },
        **{"max_len": 5000, "parts": parts or (part(),), "drafted": None, **changes},
    }
    return ServingChoice(**values)


def pools(engine: str = "vllm") -> ServingChoice:
    prompts, answers = (
        part("prefill", count=2, max_sequences=1024),
        part("decode", worker=Worker(tp=4), count=1),
    )
    return choice(engine, prompts, answers, mode="disaggregated")


def documents(chosen: ServingChoice, target: str) -> list[dict[str, Any]]:
    (file,) = export_serving(chosen, target=target, where=WHERE).files
    return list(yaml.safe_load_all(file.text))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_script_starts_each_copy_on_its_own_chips(engine: str, tmp_path: Path) -> None:
    exported = export_serving(choice(engine), target=engine, where=Where(path="/models/70b"))
    for file in exported.files:
        (tmp_path / file.name).write_text(file.text)
    script = tmp_path / "serve.sh"
    assert (
        shutil.which("shellcheck") is None
        or subprocess.run(["shellcheck", script], check=False, capture_output=True).returncode == 0
    )
    # What would be started stands in the way of the engine's own name.
    started = {"vllm": "vllm", "sglang": "python3", "trtllm": "trtllm-serve"}[engine]
    fake = tmp_path / "bin" / started
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $*"\n')
    fake.chmod(0o755)
    path = {"PATH": f"{fake.parent}:/usr/bin:/bin"}
    said = [
        subprocess.run(
            ["bash", script, copy], env=path, check=True, capture_output=True, text=True
        ).stdout
        for copy in ("0", "2", "4")
    ]
    assert [line.split()[0] for line in said] == [
        "0,1",
        "4,5",
        "0,1",
    ]  # a node of 8 holds 4 copies of 2
    assert [line.split("--port ")[1].split()[0] for line in said] == ["8000", "8002", "8004"]


def test_kubernetes_takes_the_manifest() -> None:
    for engine, kinds in (
        ("vllm", ["Deployment", "Service"]),
        ("trtllm", ["ConfigMap", "Deployment", "Service"]),
    ):
        found = documents(choice(engine), "k8s")
        assert [document["kind"] for document in found] == kinds
        for document in found:
            kubernetes_validate.validate(document, "1.33", strict=True)
    deployment = found[1]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert (deployment["replicas"], container["resources"]["limits"]) == (
        3,
        {"nvidia.com/gpu": "2"},
    )
    assert (
        container["command"][container["command"].index("--extra_llm_api_options") + 1]
        == "/etc/meshwright/extra_llm_api_options.yaml"
    )
    assert (
        yaml.safe_load(found[0]["data"]["extra_llm_api_options.yaml"])["kv_cache_config"]["dtype"]
        == "fp8"
    )


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_dynamo_has_a_component_for_each_pool(engine: str) -> None:
    (graph,) = documents(pools(engine), "dynamo")
    assert (graph["apiVersion"], graph["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    found = {component["type"]: component for component in graph["spec"]["components"]}
    assert {kind: component["replicas"] for kind, component in found.items()} == {
        "frontend": 1,
        "prefill": 2,
        "decode": 1,
    }
    for kind, gpus in (("prefill", "2"), ("decode", "4")):
        (container,) = found[kind]["podTemplate"]["spec"]["containers"]
        assert container["command"] == ["python3", "-m", f"dynamo.{engine}"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": gpus}
        words = container["args"]
        assert words[words.index("--disaggregation-mode") + 1] == kind


def test_dynamo_of_tensorrt_llm_gets_its_settings_as_one_dictionary() -> None:
    (graph,) = documents(choice("trtllm"), "dynamo")
    (container,) = graph["spec"]["components"][1]["podTemplate"]["spec"]["containers"]
    words = container["args"]
    settings = yaml.safe_load(words[words.index("--override-engine-args") + 1])
    assert settings["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.95}
    assert words[words.index("--tensor-parallel-size") + 1] == "2"


def test_llm_d_writes_what_its_chart_does_not() -> None:
    (values,) = documents(pools(), "llm-d")
    assert values["modelArtifacts"] == {
        "name": "meta-llama/Llama-3.1-70B",
        "uri": "hf://meta-llama/Llama-3.1-70B",
    }
    assert values["decode"]["parallelism"] == {"tensor": 4, "data": 1, "dataLocal": 1, "workers": 1}
    assert (values["prefill"]["replicas"], values["prefill"]["parallelism"]["tensor"]) == (2, 2)
    (container,) = values["decode"]["containers"]
    assert container["modelCommand"] == "vllmServe"
    assert not {"--tensor-parallel-size", "--port", "4"} & set(container["args"])
    assert "--kv-transfer-config" in container["args"]
    (one,) = documents(choice(), "llm-d")
    assert one["prefill"] == {"create": False} and one["routing"]["proxy"] == {"enabled": False}
    assert "--kv-transfer-config" not in one["decode"]["containers"][0]["args"]


@pytest.mark.parametrize(
    ("chosen", "target", "says"),
    [
        (choice(), "sglang", "the plan was priced for vllm"),
        (pools(), "vllm", "two pools of workers: one engine has one"),
        (pools(), "k8s", "two pools of workers"),
        (pools("trtllm"), "dynamo", "two pools of TensorRT-LLM"),
        (choice("sglang"), "llm-d", "its chart starts vLLM"),
        (
            choice("vllm", part(worker=Worker(tp=2, pp=2))),
            "llm-d",
            "its chart knows tensor and data parallelism",
        ),
        (choice("vllm", part(worker=Worker(tp=16))), "k8s", "tp=16 is 16 chips on nodes of 8"),
        (choice(mode="static"), "vllm", "static batches"),
        (
            choice("vllm", part(worker=Worker(tp=2, pp=2)), drafted=3),
            "vllm",
            "3 tokens drafted per step over pp=2: engines draft on one",
        ),
        (replace(pools(), drafted=3), "dynamo", "3 tokens drafted per step by two pools"),
        (choice("fastertransformer"), "dynamo", "fastertransformer is none of its engines"),
    ],
)
def test_what_a_target_has_no_words_for_is_refused(
    chosen: ServingChoice, target: str, says: str
) -> None:
    with pytest.raises(CannotExpress, match=says):
        export_serving(
            chosen,
            target=target,
            where=replace(WHERE, image=None) if target in ("vllm", "sglang") else WHERE,
        )


def test_places_are_checked() -> None:
    with pytest.raises(ConfigError, match="k8s: a manifest needs --image"):
        export_serving(choice(), target="k8s", where=Where(path="m"))
    with pytest.raises(ConfigError, match="have no effect on a script"):
        export_serving(choice(), target="vllm", where=WHERE)
    with pytest.raises(CannotExpress, match="loads hf://ORG/NAME or pvc://CLAIM/PATH"):
        export_serving(choice(), target="llm-d", where=replace(WHERE, path="/models/70b"))
    with pytest.raises(ConfigError, match="name=A_b: expected up to 45"):
        export_serving(choice(), target="k8s", where=replace(WHERE, name="A_b"))


def test_every_target_takes_a_plan() -> None:
    for target in SERVING_TARGETS:
        engine = target if target in ("sglang", "trtllm") else "vllm"
        where = (
            Where(path="org/model")
            if target in ("vllm", "sglang", "trtllm", "ray-serve")
            else replace(WHERE)
        )
        assert export_serving(choice(engine), target=target, where=where).files


def test_a_plan_is_read_as_it_is_printed() -> None:
    layout = {"tp": 2, "pp": 1, "ep": 1, "attention_dp": 1}
    plan = {
        **{"rank": 2, "mode": "aggregated", "weights": "fp8", "cache": "fp8", "concurrency": 25},
        "parts": [
            {
                "role": "prompts and answers",
                "chip": "h100",
                "layout": layout,
                "workers": 3,
                "running_per_rank": 7.2,
            }
        ],
    }
    request = {
        **{
            "dims": "llama3.1-70b",
            "engine": "vllm",
            "input_len": 4000,
            "output_len": 1000,
            "drafted": None,
        },
        "nodes": {"h100": {"vendor": "NVIDIA", "gpus_per_node": 8}},
    }
    found = read_choice({"request": request, "plans": [plan]}, rank=2, what="plans.json")
    assert found == choice("vllm", part(max_sequences=9))  # 25 requests over 3 workers
    with pytest.raises(ConfigError, match="has plans 1 to 1, and none of rank 1"):
        read_choice({"request": request, "plans": [plan]}, rank=1, what="plans.json")
    with pytest.raises(ConfigError, match=r"plans\.json: no plan of serving"):
        read_choice({"plans": []}, rank=1, what="plans.json")


def started(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script whose engine only says its words."""
    fake = script.parent / "bin" / "vllm"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text('#!/bin/sh\necho "$*"\n')
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:/usr/bin:/bin", **variables}
    return subprocess.run(
        ["bash", script, "0"], env=env, check=False, capture_output=True, text=True
    )


def test_a_script_listens_here_alone_and_elsewhere_with_a_key(tmp_path: Path) -> None:
    (file,) = export_serving(choice(), target="vllm", where=Where(path="org/model")).files
    script = tmp_path / "serve.sh"
    script.write_text(file.text)
    assert started(script).stdout.endswith("--host 127.0.0.1\n")
    open_ = started(script, HOST="0.0.0.0")
    assert (open_.returncode, open_.stdout) == (2, "")
    assert "set API_KEY" in open_.stderr
    assert started(script, HOST="0.0.0.0", API_KEY="x").stdout.endswith(
        "--host 0.0.0.0 --api-key x\n"
    )


@pytest.mark.parametrize("target", ["k8s", "kserve"])
def test_an_open_port_asks_for_a_key_of_a_secret(target: str) -> None:
    exported = export_serving(choice(), target=target, where=replace(WHERE, hf_secret="mine"))
    assert "kubectl create secret generic llama3-1-70b-api-key" in " ".join(exported.notes)
    text = exported.files[0].text
    assert "- --api-key\n" in text
    assert "- $(API_KEY)\n" in text
    secrets = yaml.safe_load_all(text)
    document = next(one for one in secrets if one["kind"] in ("Deployment", "InferenceService"))
    spec = document["spec"]
    pod = spec["predictor"] if target == "kserve" else spec["template"]["spec"]
    env = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in pod["containers"][0]["env"]}
    assert env == {
        "HF_TOKEN": {"name": "mine", "key": "HF_TOKEN"},
        "API_KEY": {"name": "llama3-1-70b-api-key", "key": "api-key"},
    }


def test_an_engine_without_keys_says_so() -> None:
    exported = export_serving(choice("trtllm"), target="k8s", where=WHERE)
    assert "--api-key" not in exported.files[0].text
    assert any("asks for no key" in note for note in exported.notes)


def test_kserve_gets_a_predictor_of_as_many_pods() -> None:
    (service,) = documents(choice("sglang"), "kserve")
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    predictor = service["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)
    (container,) = predictor["containers"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": [container], "volumes": predictor["volumes"]},
    }
    kubernetes_validate.validate(pod, "1.33", strict=True)
    config, service = documents(choice("trtllm"), "kserve")
    assert (config["kind"], service["kind"]) == ("ConfigMap", "InferenceService")


def test_ray_serve_gets_keywords_of_vllm() -> None:
    """Worked: flags of `vllm serve` by the names of its engine's arguments, numbers as numbers."""
    chosen = choice(
        "vllm",
        part(worker=Worker(tp=4, ep=4), count=2),
        model=named_model("deepseek-v3"),
        weights="fp8-blockwise",
        cache="fp8",
        drafted=1,
    )
    exported = export_serving(chosen, target="ray-serve", where=Where(path="org/model"))
    (application,) = yaml.safe_load(exported.files[0].text)["applications"]
    assert application["import_path"] == "ray.serve.llm:build_openai_app"
    (config,) = application["args"]["llm_configs"]
    assert config["model_loading_config"]["model_source"] == "org/model"
    assert config["deployment_config"]["autoscaling_config"] == {
        "min_replicas": 2,
        "max_replicas": 2,
    }
    told = config["engine_kwargs"]
    assert told["tensor_parallel_size"] == 4
    assert told["enable_expert_parallel"] is True
    assert told["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 1}
    assert told["max_model_len"] == 5000
    assert told["gpu_memory_utilization"] == 0.9


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (choice("sglang"), "its builder starts vLLM"),
        (pools(), "two pools"),
    ],
)
def test_ray_serve_refuses_what_its_builder_does_not_start(
    chosen: ServingChoice, words: str
) -> None:
    with pytest.raises(CannotExpress, match=words):
        export_serving(chosen, target="ray-serve", where=Where(path="org/model"))


def test_drafts_of_an_unnamed_drafter_are_refused() -> None:
    asked = {"engine": "vllm", "drafted": 3, "drafted_by": "eagle"}
    content = {"request": asked, "plans": [{"rank": 1}]}
    with pytest.raises(CannotExpress, match="drafted by eagle: which drafter"):
        read_choice(content, rank=1, what="plans.json")
