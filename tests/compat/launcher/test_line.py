"""The launcher's words: which files they take, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.platforms.executors.harness import inside_base_command

from meshwright.cli import run
from meshwright.compat.launcher.line import Line, read_line
from meshwright.compat.launcher.tree import Files
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.values.errors import ConfigError
from meshwright.values.models.params import model_params
from meshwright.values.text import read_yaml, write_yaml

BCP = ("cluster_type=bcp", "data_dir=/mount/data", "base_results_dir=/mount/results")
TRAIN = (*BCP, "stages=[training]", "training=gpt3/7b_improved")


def line(*words: str, config_dir: Path | None = None) -> Line:
    return read_line(words, config_dir=config_dir)


def test_the_documented_line() -> None:
    """Values of conf/training/gpt3/7b_improved.yaml (26e42fa), read by hand."""
    found = line(
        *TRAIN,
        "training.run.name=8b_slimpajama",
        "training.run.time_limit=5-00:00:00",
        "training.trainer.max_time=4:23:30:00",
        "training.trainer.num_nodes=8",
        "+env_vars.NCCL_TOPO_FILE=/opt/topo.xml",
        "training.model.tokenizer.vocab_file=/mount/data/bpe/vocab.json",
    )
    training = found.config["training"]
    assert found.stages == ("training",) and found.choice("training") == "gpt3/7b_improved"
    assert training["run"]["results_dir"] == "/mount/results/8b_slimpajama"
    assert training["trainer"]["max_time"] == "4:23:30:00"
    assert training["exp_manager"]["explicit_log_dir"] == "/mount/results/8b_slimpajama/results"
    assert training["exp_manager"]["checkpoint_callback_params"]["model_parallel_size"] == 4
    model = training["model"]
    shape = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
    assert [model[name] for name in shape] == [32, 4096, 10880, 32]
    assert (model["global_batch_size"], model["optim"]["lr"]) == (512, 1e-4)
    assert len(model["data"]["data_prefix"]) == 60
    assert found.config["env_vars"]["NCCL_TOPO_FILE"] == "/opt/topo.xml"


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # 6.838 by hand (docs/base-command.md); the others by name, as published.
        ("gpt3/7b_improved", 6.838),
        ("gpt3/175b", 175),
        ("llama/llama2_7b", 6.738),
        ("llama/llama3_70b", 70.55),
        ("mixtral/mixtral_8x7b", 46.7),
        ("mistral/mistral_7b", 7.242),
    ],
)
def test_configurations_have_the_models_of_their_names(name: str, billions: float) -> None:
    found = line(*BCP, "stages=[training]", f"training={name}").config["training"]
    text = write_yaml({key: found[key] for key in ("trainer", "exp_manager", "model")})
    model = NEMO1_SOURCE.read(text).model
    assert model_params(model).total / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_training_is_composed() -> None:
    """The YAML files of these families in conf/training, counted by hand."""
    files = Files.of(None)
    families = {"gpt3": 20, "llama": 12, "t5": 5, "mt5": 5, "nemotron": 5, "bert": 4, "qwen2": 4}
    families |= {"mistral": 3, "mixtral": 3, "starcoder2": 3, "baichuan2": 2, "chatglm": 2}
    families |= {"falcon": 1, "grok": 1}
    found = Counter(name.partition("/")[0] for name in files.names("training"))
    assert found == families
    for name in files.names("training"):
        assert "model" in files.values(f"training/{name}"), name


def test_words_that_other_configurations_have_are_taken_and_lists_without_quotes() -> None:
    assert line(*TRAIN, "training.model.sharp=True").config["training"]["model"]["sharp"]
    found = line(*BCP, "stages=[data_preparation]", "data_preparation.file_numbers=0,3,5-7")
    assert found.config["data_preparation"]["file_numbers"] == "0,3,5-7"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["training=gpt3/7b_improvd"], "did you mean 'gpt3/7b_improved'"),
        (["training.trainer.num_node=8"], "did you mean 'training.trainer.num_nodes'"),
        (["cluster_type=slurm"], "known: bcm, bcp, interactive, k8s"),
        (["stages=[conversion]"], "stages: conversion is not done here; data_preparation"),
        (["stages=[trainin]"], "did you mean 'training'"),
        (["stages=[]"], "expected data_preparation, training or notebook"),
        (["num_nodes"], "num_nodes: expected key=value"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        line(*BCP, *words)


def test_the_number_of_nodes_is_that_of_the_job(tmp_path: Path) -> None:
    words = (*TRAIN, "training.trainer.num_nodes=$NGC_ARRAY_SIZE")
    outside = line(*words)
    assert outside.config["training"]["trainer"]["num_nodes"] == 16
    assert "NGC_ARRAY_SIZE is set inside a job alone" in outside.corrected[0]
    with inside_base_command(tmp_path, nodes=4):
        inside = line(*words)
    assert inside.config["training"]["trainer"]["num_nodes"] == 4
    assert inside.corrected == () and inside.platform.launcher == "bcprun"


def test_your_own_configurations_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launcher", "--write-conf", str(tmp_path / "scripts" / "conf")]) == 0
    path = tmp_path / "scripts" / "conf" / "training" / "gpt3" / "7b_improved.yaml"
    path.write_text(path.read_text().replace("lr: 0.0001", "lr: 3e-4  # mine"))
    for words, folder in (
        ([f"launcher_scripts_path={tmp_path / 'scripts'}"], None),
        ([], tmp_path / "scripts" / "conf"),
    ):
        found = line(*TRAIN, *words, config_dir=folder)
        assert found.config["training"]["model"]["optim"]["lr"] == 3e-4
    monkeypatch.chdir(tmp_path / "scripts")
    assert line(*TRAIN).config["training"]["model"]["optim"]["lr"] == 3e-4
    capsys.readouterr()
    assert read_yaml(path.read_text(), what="")["run"]["name"] == "gpt_7b_improved"


def test_workspaces_are_where_the_line_has_its_folders() -> None:
    assert line(*TRAIN, "cluster.workspace=ID").platform.job.mounts == ("workspace=ID:/mount",)
    two = "container_mounts=['workspace=A:/mount/data','workspace=B:/mount/results']"
    assert line(*TRAIN, two).platform.job.mounts == (
        "workspace=A:/mount/data",
        "workspace=B:/mount/results",
    )
