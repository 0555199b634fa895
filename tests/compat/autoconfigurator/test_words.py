from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.cli import run
from meshwright.compat.autoconfigurator.cluster import platform_of
from meshwright.compat.autoconfigurator.conf import conf_differences, conf_here
from meshwright.compat.autoconfigurator.settings import clusters, search_names
from meshwright.compat.autoconfigurator.words import compose, write_tree
from meshwright.values.errors import ConfigError

PATH = "auto_configurator_path=/opt/tool"


def test_words_override_the_tree_and_interpolations_follow() -> None:
    found = compose(
        [
            "search_config=t5/2.8b",
            "cluster_type=bcm",
            PATH,
            "search_config.train_settings.gpu_memory_gb=40",
            "cluster.partition=gpu",
        ]
    )
    train = found["search_config"]["train_settings"]
    assert found["search_config_value"] == "t5/2.8b"
    assert train["logs"] == "/opt/tool/results/t5/2.8b_40gb"
    assert (
        found["search_config"]["inference_settings"]["run"]["results_dir"]
        == "/opt/tool/results/t5/2.8b_40gb"
    )
    assert found["data_dir"] == "/opt/tool/../launcher_scripts/data"
    assert (train["num_nodes"], train["max_minutes_per_run"], train["num_tokens_in_b"]) == (
        20,
        35,
        1000,
    )
    assert found["cluster"]["partition"] == "gpu"


def test_the_cluster_follows_its_type() -> None:
    for kind, values in clusters().items():
        assert compose([PATH, f"cluster_type={kind}"])["cluster"] == values
    assert compose([PATH, "cluster_type=bcp", "cluster=bcm"])["cluster"] == clusters()["bcm"]


def test_null_lists_and_auto() -> None:
    words = [
        "search_config.train_settings.model_size_in_b=null",
        "search_config.train_settings.tensor_parallel_sizes=[1,2]",
    ]
    train = compose([PATH, "search_config=gpt3/unknown_size", *words])["search_config"][
        "train_settings"
    ]
    assert train["model_size_in_b"] is None
    assert train["tensor_parallel_sizes"] == [1, 2]
    assert train["micro_batch_sizes"] == "auto"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [PATH, "search_config=gpt3/6b"],
            "'gpt3/6b' is no known search_config; did you mean 'gpt3/8b'",
        ),
        (
            [PATH, "cluster_type=slurm"],
            "'slurm' is no known cluster_type; known: bcm, bcp, interactive, k8s",
        ),
        (
            [PATH, "search_config.train_settings.num_node=8"],
            "did you mean 'search_config.train_settings.num_nodes'",
        ),
        (
            [PATH, "num_nodes=8"],
            "'num_nodes' is no known key; known: search_config.train_settings.num_nodes",
        ),
        ([PATH, "gpt3/5b"], "expected key=value"),
        (
            [PATH, "search_config.train_settings.tensor_parallel_sizes=[1,2"],
            "no viable alternative",
        ),
        ([PATH, "data_dir=???"], "data_dir: a value is missing"),
        (
            [PATH, "~search_config.train_settings.num_nodes"],
            "search_config.train_settings.num_nodes: missing",
        ),
        ([PATH, "wandb=1"], "wandb=1: expected a section of keys"),
        (
            [PATH, "run_training_hp_search=maybe"],
            "run_training_hp_search=maybe: expected True or False",
        ),
        ([PATH, "parallel_runs=0"], "parallel_runs=0: expected a whole number of 1 or more"),
        ([PATH, "run_all=perhaps"], "run_all=perhaps: expected True or False"),
        ([PATH, "container_mounts=/a"], "container_mounts=/a: expected a list"),
        (
            [PATH, "search_config.train_settings.logs=null"],
            "search_config.train_settings.logs=None: expected a text",
        ),
        (
            [PATH, "cluster.gpus_per_node=4"],
            "cluster.gpus_per_node=4: nodes have 8 by search_config.train_settings.gpus_per_node",
        ),
        (["auto_configurator_path=null"], "auto_configurator_path=null: expected a path"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(words)
    assert said in str(caught.value)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    write_tree(tmp_path)
    assert len(list((tmp_path / "search_config").rglob("*.yaml"))) == len(search_names())
    own = tmp_path / "search_config" / "gpt3" / "6b.yaml"
    text = (tmp_path / "search_config" / "gpt3" / "5b.yaml").read_text()
    own.write_text(text.replace("num_nodes: 16", "num_nodes: 7"))
    found = compose([PATH, "search_config=gpt3/6b"], config_dir=tmp_path)
    assert (
        found["search_config_value"],
        found["search_config"]["train_settings"]["num_nodes"],
    ) == ("gpt3/6b", 7)
    with pytest.raises(ConfigError, match="no such folder"):
        compose([PATH], config_dir=tmp_path / "none")


NVIDIAS = """
train_settings:
  model_size_in_b: 0.126
  num_nodes: 3
  gpus_per_node: 8
  gpu_memory_gb: 80
  max_training_days: 2
  limit_search_runs: 7
  output_top_n: 10
  max_steps_per_run: 50
  max_minutes_per_run: 20
  tflops_per_gpu: 140
  num_tokens_in_b: 300
  vocab_size: 51200
  seq_length: 2048
  custom_config: null
  logs: ${base_results_dir}/${search_config_value}_${.gpu_memory_gb}gb
  tensor_parallel_sizes: auto
  pipeline_parallel_sizes: auto
  micro_batch_sizes: auto
  act_ckpt_layers: auto
"""
"""Keys of the old tool's search_config/gpt3/0.126b.yaml, with other nodes and runs."""
ROOT = """
defaults:
  - _self_
  - cluster: bcm
  - search_config: gpt3/0.126b
  - override hydra/job_logging: stdout
hydra: {run: {dir: .}, output_subdir: null}
run_training_hp_search: True
run_inference_hp_search: False
cluster_type: bcm
auto_configurator_path: ???
launcher_scripts_path: ${auto_configurator_path}/../launcher_scripts
base_results_dir: /elsewhere
data_dir: ${launcher_scripts_path}/data
training_container: mine
container_mounts: [null]
wandb: {enable: False, api_key_file: null, project: p}
search_config_value: ${hydra:runtime.choices.search_config}
"""


def old_tree(folder: Path) -> Path:
    """A tree of the old tool's own form, edited."""
    (folder / "search_config" / "gpt3").mkdir(parents=True)
    (folder / "search_config" / "gpt3" / "0.126b.yaml").write_text(NVIDIAS)
    (folder / "config.yaml").write_text(ROOT)
    (folder / "hydra").mkdir()
    (folder / "hydra" / "other.yaml").write_text("x: 1")
    return folder


def test_the_users_tree_comes_first(tmp_path: Path) -> None:
    found = compose([], config_dir=old_tree(tmp_path / "conf"))
    train = found["search_config"]["train_settings"]
    assert (found["search_config_value"], train["num_nodes"], train["limit_search_runs"]) == (
        "gpt3/0.126b",
        3,
        7,
    )
    assert (found["training_container"], found["base_results_dir"]) == ("mine", "/elsewhere")
    # what it leaves out is ours
    assert (found["auto_configurator_path"], found["run_all"], train["chip"]) == (
        ".",
        False,
        "auto",
    )
    assert found["cluster"]["job_name_prefix"] == "nemo_megatron_autoconfig:"
    words = ["run_all=True", "search_config.train_settings.chip=h100", "cluster.nodelist=n1"]
    again = compose(words, config_dir=tmp_path / "conf")
    assert (again["run_all"], again["cluster"]["nodelist"]) == (True, "n1")


def test_a_size_that_was_edited_is_another_model(tmp_path: Path) -> None:
    folder = old_tree(tmp_path / "conf")
    path = folder / "search_config" / "gpt3" / "0.126b.yaml"
    same = compose([], config_dir=folder)["search_config"]["train_settings"]
    assert (same["model"], same["series"]) == ("gpt3-126m", "gpt3")
    path.write_text(NVIDIAS.replace("model_size_in_b: 0.126", "model_size_in_b: 0.2"))
    assert compose([], config_dir=folder)["search_config"]["train_settings"]["model"] is None


def test_conf_here_is_taken_and_differences_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert conf_here(None) is None
    old_tree(tmp_path / "conf")
    assert conf_here(None) == Path("conf")
    assert run(["autoconfigurator", "--diff-conf", "conf"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "search_config/gpt3/0.126b: train_settings.num_nodes: 3, ours 8" in lines
    assert "config: training_container: 'mine', ours 'nvcr.io/nvidia/nemo:24.09'" in lines
    assert not [line for line in lines if "vocab_size" in line or "inference_settings" in line]
    with pytest.raises(ConfigError, match="it has no config"):
        conf_differences(tmp_path / "conf" / "hydra")


def test_keys_of_earlier_releases_are_known_and_said() -> None:
    words = ["fastertransformer_path=/ft", "hydra.run.dir=/tmp"]
    found = compose([*words, "search_config.train_settings.override_search_num_nodes=2"])
    notes = platform_of(found).notes
    assert [note.partition(" has no effect")[0] for note in notes] == [
        "override_search_num_nodes=2",
        "fastertransformer_path",
    ]
    assert "--nodelist=n1" in platform_of(compose(["cluster.nodelist=n1"])).job.words


def test_slurm_without_a_container_mounts_nothing() -> None:
    job = platform_of(compose(["training_container=null", "container_mounts=[/raw]"])).job
    assert (job.image, job.mounts) == (None, ())


def test_every_family_of_the_documents_is_there() -> None:
    documented = {
        "gpt3": "0.126b 0.843b 2b 5b 8b 20b 43b 175b unknown_size",
        "t5": "0.22b 2.8b 11b 23.5b 41.2b unknown_size",
        "mt5": "0.17b 0.39b 3.2b 11.9b 24.65b 42.54b unknown_size",
        "bert": "0.11b 4b 20b 100b unknown_size",
    }
    assert {
        f"{family}/{size}" for family, sizes in documented.items() for size in sizes.split()
    } <= set(search_names())
    families = {name.partition("/")[0] for name in search_names()}
    assert {
        "llama",
        "mixtral",
        "mistral",
        "gemma",
        "nemotron",
        "qwen2",
        "qwen3",
        "baichuan2",
        "chatglm",
        "deepseek",
    } <= families
