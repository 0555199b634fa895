from __future__ import annotations

from pathlib import Path

import pytest

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
        ([], "auto_configurator_path: a value is missing"),
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
