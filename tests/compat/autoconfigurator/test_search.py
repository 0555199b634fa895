from __future__ import annotations

import json
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from meshwright.cli import run
from meshwright.compat.autoconfigurator.folders import write_candidates, write_first_job
from meshwright.compat.autoconfigurator.search import Search, search_of
from meshwright.compat.autoconfigurator.words import compose
from meshwright.software.contract import import_text
from meshwright.software.megatron_bridge.read import BRIDGE_SOURCE
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.text import read_yaml

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
INFERENCE = "search_config.inference_settings"
TRAIN = "search_config.train_settings"


def search(*words: str, results: Path | str = "/tmp/never-written", **train: Any) -> Search:
    settings = [f"{TRAIN}.{name}={json.dumps(value)}" for name, value in train.items()]
    return search_of(
        compose(
            ["auto_configurator_path=/opt/tool", f"base_results_dir={results}", *words, *settings]
        )
    )


@pytest.mark.parametrize("name", ["t5/0.22b", "mixtral/3b", "tiny/llama"])
def test_candidates_are_valid_distinct_and_fit_and_hold_the_best(name: str) -> None:
    """Some of the families; the script has all 69 searches."""
    outcome = run_path(str(BENCHMARKS / "nemo_searches.py"))["check"](name, again=20)
    assert outcome.faults == ()
    assert (outcome.candidates, outcome.gap) == (10, 0.0) and outcome.fitting > 10


def test_what_is_faster_in_another_software_is_said_and_can_be_asked_for() -> None:
    """95 layers: NeMo 1.x splits them into 5 or 19 even stages alone."""
    few: dict[str, Any] = {
        "tensor_parallel_sizes": [4, 8],
        "pipeline_parallel_sizes": [1, 4],
        "micro_batch_sizes": [1],
        "act_ckpt_layers": [0],
    }
    few |= {"context_parallel_sizes": [1], "limit_search_runs": 1}
    theirs = search("search_config=deepseek/67b", **few)
    [note] = [note for note in theirs.notes if "faster than all candidates" in note]
    assert "which nemo1-script can't run" in note and note.endswith(
        "software=megatron-lm searches with those of Megatron-LM"
    )
    other = search("search_config=deepseek/67b", "software=megatron-lm", **few)
    assert other.members[0].predicted.step_s < theirs.members[0].predicted.step_s * 0.98
    assert not [note for note in other.notes if "faster than all candidates" in note]
    with pytest.raises(ConfigError, match="'nemo' is no known software; did you mean 'nemo2'"):
        search("search_config=gpt3/5b", "software=nemo")
    with pytest.raises(ConfigError, match="software=nemo1-script: give program= as well"):
        search("search_config=gpt3/5b", "cluster_type=interactive", "software=nemo1-script")


def test_twenty_nodes_with_a_batch_of_2048_have_candidates() -> None:
    """24 layers over 5 stages: NeMo 2.0 splits them, NeMo 1.x can't."""
    found = search("search_config=gpt3/5b", num_nodes=20, global_batch_size=2048)
    assert {member.layout.pp % 5 for member in found.members} == {0}
    assert {member.layout.gbs for member in found.members} == {2048}
    assert found.tuning.trial.software == "nemo2"
    assert [note for note in found.notes if "recipes of NeMo 2.0" in note]


def test_twenty_nodes_have_configurations_of_nemo_1() -> None:
    found = search("search_config=gpt3/5b", num_nodes=20, limit_search_runs=1)
    assert found.tuning.trial.software == "nemo1-script"
    # 2,080 = 13 x 160 GPUs is the nearest to 2,048 of those that 160 GPUs divide
    assert {member.layout.gbs for member in found.members} == {2080}


@pytest.mark.parametrize("nodes", [12, 24])
def test_where_no_batch_is_set_one_that_divides_is_chosen_and_said(nodes: int) -> None:
    found = search("search_config=gpt3/5b", num_nodes=nodes, limit_search_runs=2)
    [gbs] = {member.layout.gbs for member in found.members}
    assert f"global batch {gbs}" in found.notes[0]
    if gbs != 2048:
        assert "in place of 2048" in found.notes[0]


def test_a_batch_that_is_set_is_never_changed() -> None:
    with pytest.raises(ConfigError, match="gbs is divisible by mbs"):
        search("search_config=gpt3/0.126b", global_batch_size=2047)


@pytest.mark.slow
def test_405b_on_512_gpus_and_llama3_70b_at_8192() -> None:
    few: dict[str, Any] = {
        "tensor_parallel_sizes": [8],
        "micro_batch_sizes": [1],
        "limit_search_runs": 1,
    }
    large = search("search_config=llama/llama3.1_405b", num_nodes=64, gpu_memory_gb=141, **few)
    assert large.members and large.settings.num_gpus == 512
    long = search("search_config=llama/llama3_70b", num_nodes=16, **few)
    assert long.members and long.settings.seq_length == 8192


def test_175b_on_16_gpus_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "search_config=gpt3/175b",
        "auto_configurator_path=/opt/tool",
        f"{TRAIN}.num_nodes=2",
        "--dry-run",
    ]
    assert run(["autoconfigurator", *words]) == 1
    said = capsys.readouterr().out
    assert "gpt3/175b: does not fit" in said
    needed = int(said.split("needs at least ")[1].split()[0])
    # 14 bytes a parameter and more, on 16 GPUs of 79 GiB: 2,276 GiB are twice what there is
    assert (
        needed >= 32
        and search("search_config=gpt3/175b", num_nodes=needed // 8, limit_search_runs=1).members
    )


@pytest.mark.slow
def test_sizes_and_bounds_hold() -> None:
    found = search(
        "search_config=gpt3/5b",
        tensor_parallel_sizes=[2, 4],
        pipeline_parallel_sizes=[2],
        micro_batch_sizes=[1, 2],
        act_ckpt_layers=[0, 3],
    )
    for member in found.members:
        at = member.layout
        assert at.tp in (2, 4) and at.pp == 2 and at.mbs in (1, 2)
        assert (at.recompute, at.recompute_layers) in (("none", None), ("full", 3))
    assert {member.layout.recompute for member in found.members} == {"none", "full"}
    bounded = search("search_config=gpt3/5b", min_model_parallel_size=4, max_model_parallel_size=8)
    assert {member.layout.tp * member.layout.pp for member in bounded.members} <= {4, 8}
    with pytest.raises(ConfigError, match="no candidate is left"):
        search("search_config=gpt3/0.126b", min_model_parallel_size=5, max_model_parallel_size=5)


def test_an_unknown_size_is_that_of_the_closed_form() -> None:
    found = search(
        "search_config=gpt3/unknown_size", num_nodes=20, max_training_days=5, limit_search_runs=1
    )
    params = model_params(found.prepared.problem.setting.model).total
    assert params == pytest.approx(4.03e9, rel=0.025)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"num_nodes": 0}, f"{TRAIN}.num_nodes=0: expected a whole number"),
        ({"gpu_memory_gb": 81}, "no card is known by this memory"),
        ({"chip": "h101"}, "'h101' is no known chip"),
        ({"max_training_days": -1}, f"{TRAIN}.max_training_days=-1: expected a positive number"),
        ({"tensor_parallel_sizes": ["a"]}, "expected auto or a list of whole numbers"),
        ({"custom_config": "/nowhere.yaml"}, "/nowhere.yaml: No such file"),
        ({"max_steps_per_run": 1}, "max_steps_per_run=1: expected 7 or more"),
    ],
)
def test_values_that_cannot_be(train: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        search("search_config=gpt3/5b", **train)
    assert said in str(caught.value)


@pytest.mark.slow
def test_a_dry_run_writes_configurations_that_nemo_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "search_config=gpt3/5b",
        f"auto_configurator_path={tmp_path}",
        f"{TRAIN}.limit_search_runs=5",
        "run_inference_hp_search=False",
    ]
    assert run(["autoconfigurator", *words, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "You can train a 5B parameter model in 7.75 days using 128 GPUs" in out
    folder = tmp_path / "results" / "gpt3" / "5b_80gb"
    candidates = sorted((folder / "candidate_configs").iterdir())
    assert len(candidates) == 5 and {path.suffix for path in candidates} == {".yaml"}
    for path in candidates:
        read = import_text(path.read_text(), source=NEMO1_SOURCE)
        assert (read.model.num_layers, read.model.hidden, read.work.gbs, read.num_chips) == (
            24,
            4096,
            2048,
            128,
        )
        values = read_yaml(path.read_text(), what="test")
        assert (values["trainer"]["max_steps"], values["run"]["time_limit"]) == (50, "0-00:20:00")
    base = read_yaml((folder / "base_cfg_5b.yaml").read_text(), what="test")
    assert base["run"]["time_limit"] == "5-00:00:00"
    assert base["trainer"]["max_time"] == "04:23:30:00"
    assert base["trainer"]["max_steps"] == round(300e9 / (2048 * 2048))
    assert run(["autoconfigurator", *words, f"{TRAIN}.micro_batch_sizes=[1]", "--dry-run"]) == 0
    assert "of an earlier search in" in capsys.readouterr().err
    for form, source in (("nemo2", NEMO2_SOURCE), ("bridge", BRIDGE_SOURCE)):
        text = (folder / f"base_cfg_5b_{form}.yaml").read_text()
        same = import_text(text, source=source)
        assert (same.model.num_layers, same.model.hidden, same.work.gbs) == (24, 4096, 2048)
        assert same.settings.train_steps == round(300e9 / (2048 * 2048))


def test_one_object_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "search_config=gpt3/2b",
        f"auto_configurator_path={tmp_path}",
        f"{TRAIN}.limit_search_runs=2",
        f"{TRAIN}.micro_batch_sizes=[1]",
    ]
    few = [f"{INFERENCE}.benchmark.batch_sizes=[4]", f"{INFERENCE}.run.tensor_parallel_sizes=[1,3]"]
    assert run(["autoconfigurator", *words, *few, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    training, inference = found["training"], found["inference"]
    # 8 FLOP x 2e9 parameters x 300e9 tokens / (64 GPUs x 140e12)
    assert training["closed_form"]["training_days"] == pytest.approx(
        8 * 2e9 * 300e9 / (64 * 140e12) / 86400, abs=0.01
    )
    assert training["study"] is None and [
        Path(one["file"]).exists() for one in training["candidates"]
    ] == [True, True]
    for one in training["candidates"]:
        at = one["layout"]
        assert at["tp"] * at["pp"] * at["cp"] * at["dp"] == 64 and at["mbs"] == 1
    # 300e9 tokens in steps of 1,024 sequences of 2,048
    first = training["candidates"][0]["predicted"]
    assert training["predicted_training_days"] == pytest.approx(
        300e9 / (1024 * 2048) * first["step_s"] / 86400
    )
    assert [(point["tp"], point["batch"]) for point in inference["points"]] == [
        (1, 4)
    ] and inference["source"] == "predicted"
    assert [(one["tp"], one["kind"]) for one in inference["failed"]] == [(3, "rule")]


def test_one_object_where_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "search_config=gpt3/175b",
        "auto_configurator_path=/opt/tool",
        f"{TRAIN}.num_nodes=2",
        "run_inference_hp_search=False",
    ]
    assert run(["autoconfigurator", *words, "--dry-run", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "needs at least" in found["training"]["nothing_fits"] and found["inference"] is None


@pytest.mark.slow
def test_a_custom_configuration_brings_its_model_and_batch(tmp_path: Path) -> None:
    first = search(
        "search_config=gpt3/2b", results=tmp_path, limit_search_runs=1, tensor_parallel_sizes=[1]
    )
    [path] = write_candidates(first)
    again = search(
        "search_config=gpt3/5b", num_nodes=8, custom_config=str(path), tensor_parallel_sizes=[1]
    )
    assert again.prepared.problem.setting.model.num_layers == find_model("gpt3-2b").num_layers
    assert {member.layout.gbs for member in again.members} == {1024}
    assert not [note for note in again.notes if "global batch" in note]


def test_jobs_have_the_containers_mounts_and_the_clusters_words() -> None:
    words = [
        "container_mounts=[/raw:/data,/models]",
        "cluster.partition=gpu",
        "cluster.account=me",
        "training_container=image",
    ]
    job = search("search_config=gpt3/0.126b", *words, limit_search_runs=1).tuning.job
    assert job.mounts[:2] == ("/raw:/data", "/models:/models")
    assert "/opt/tool:/opt/tool" in job.mounts
    assert (job.partition, job.account, job.image) == ("gpu", "me", "image")
    # Whole nodes and all of their memory are what every job of ours asks for.
    assert job.words == ("srun --no-container-mount-home",)


@pytest.mark.slow
def test_a_clusters_words_reach_the_launcher(tmp_path: Path) -> None:
    few: dict[str, Any] = {
        "results": tmp_path,
        "limit_search_runs": 1,
        "tensor_parallel_sizes": [1],
    }
    words = [
        "search_config=gpt3/0.126b",
        "cluster_type=bcp",
        "cluster.workspace=ws",
        "cluster.team=x",
        "cluster.ace=a",
        "cluster.org=o",
    ]
    base_command = search(*words, **few)
    path, submit = write_first_job(base_command)
    text = path.read_text()
    assert submit == "bash job.sh" and path == base_command.folder / "first_job" / "job.sh"
    for line in (
        "--workspace ws:/opt/launcher_scripts/data:RW",
        "--team x",
        "--ace a",
        "--org o",
        "--total-runtime 20M",
    ):
        assert line in text
    words = [
        "search_config=gpt3/0.126b",
        "cluster_type=k8s",
        "cluster.namespace=ml",
        "cluster.volume=data:/ws",
        "cluster.nfs_path=/x",
    ]
    kubernetes = search(*words, **few)
    assert kubernetes.tuning.job.mounts == ("pvc=data:/ws",) and kubernetes.platform.starter == {
        "namespace": "ml"
    }
    assert "cluster.nfs_server and nfs_path have no effect" in kubernetes.notes[-1]
    with pytest.raises(ConfigError, match=r"cluster.volume=data: expected NAME:/path"):
        search(*words[:2], "cluster.volume=data", **few)
