"""What the base configuration and the candidates train: rules of NVIDIA's tool, the user's data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.data.corpora import bin_and_idx

from meshwright.compat.autoconfigurator.folders import (
    base_name,
    write_candidates,
    write_first_job,
    write_other_forms,
)
from meshwright.compat.autoconfigurator.search import Search, search_of
from meshwright.compat.autoconfigurator.training import SHORT_RUN
from meshwright.compat.autoconfigurator.words import compose
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

TRAIN = "search_config.train_settings"


def corpus(folder: Path, **documents: int) -> Path:
    """Pairs of .bin and .idx with so many documents of four tokens each."""
    for name, count in documents.items():
        folder.mkdir(parents=True, exist_ok=True)
        tokens, index = bin_and_idx([[1, 2, 3, 4]] * count, eod=None)
        (folder / f"{name}.bin").write_bytes(tokens)
        (folder / f"{name}.idx").write_bytes(index)
    return folder


def search(tmp_path: Path, name: str, *words: str, **train: Any) -> Search:
    few = {"limit_search_runs": 1, "micro_batch_sizes": [1], **train}
    settings = [f"{TRAIN}.{key}={json.dumps(value)}" for key, value in few.items()]
    own = [f"search_config={name}", f"base_results_dir={tmp_path}/results"]
    return search_of(compose(["auto_configurator_path=/opt/tool", *own, *words, *settings]))


def base_of(found: Search) -> dict[str, Any]:
    write_candidates(found)
    return read_yaml((found.folder / base_name(found)).read_text(), what="test")


def test_the_base_configuration_trains_the_users_data_by_the_tools_rules(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data", a_text_document=3)
    corpus(tmp_path / "data" / "more", b_text_document=1)
    found = search(tmp_path, "gpt3/5b", f"data_dir={data}", num_nodes=16)
    base = base_of(found)
    model, kept = base["model"], base["exp_manager"]["checkpoint_callback_params"]
    # three documents of four tokens beside one
    assert model["data"]["data_prefix"] == [
        0.75,
        f"{data}/a_text_document",
        0.25,
        f"{data}/more/b_text_document",
    ]
    assert (model["data"]["data_impl"], model["data"]["splits_string"]) == ("mmap", "99990,8,2")
    # 300e9 tokens in steps of 2,048 sequences of 2,048; 0.0015 and 0.166 of them; 0.64 / sqrt(4096)
    steps = base["trainer"]["max_steps"]
    assert steps == 71526
    assert model["optim"]["sched"] == {
        "name": "CosineAnnealing",
        "warmup_steps": 107,
        "constant_steps": 11873,
        "min_lr": 1.2e-5,
    }
    assert (model["optim"]["lr"], model["init_method_std"]) == (1.2e-4, 0.01)
    assert (model["hidden_dropout"], model["attention_dropout"]) == (0.1, 0.1)
    assert model["tokenizer"]["vocab_file"] == f"{data}/bpe/vocab.json"
    assert (kept["monitor"], kept["save_top_k"], kept["save_last"]) == ("val_loss", 10, True)
    assert base["exp_manager"]["create_checkpoint_callback"] is True
    trainer = base["trainer"]
    assert (trainer["val_check_interval"], trainer["limit_val_batches"]) == (2000, 50)
    results = base["run"]["results_dir"]
    assert base["exp_manager"]["explicit_log_dir"] == f"{results}/results"
    assert (base["run"]["time_limit"], trainer["max_time"]) == ("5-00:00:00", "04:23:30:00")


def test_a_candidate_is_what_runs_and_its_command_line_switches_off(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data", a_text_document=3)
    found = search(tmp_path, "gpt3/5b", f"data_dir={data}")
    [path] = write_candidates(found)
    job, _ = write_first_job(found)
    shown, run = path.read_text(), (job.parent / "plan.yaml").read_text()
    section, _, rest = shown.partition("# Written by meshwright")
    assert rest and run == f"# Written by meshwright{rest}" and section.startswith("run:")
    values = read_yaml(run, what="test")
    # 20 minutes less a tenth
    assert (values["trainer"]["max_steps"], values["trainer"]["max_time"]) == (50, "00:00:18:00")
    assert read_yaml(shown, what="test")["run"]["time_limit"] == "0-00:20:00"
    assert values["model"]["data"]["data_prefix"] == [1.0, f"{data}/a_text_document"]
    assert values["exp_manager"]["create_checkpoint_callback"] is True
    command = job.read_text()
    for word in SHORT_RUN:
        assert word in command
    assert "max_time" not in command and "data_impl=mock" not in command


def test_without_data_only_candidates_run_on_mock_data_and_it_is_said(tmp_path: Path) -> None:
    found = search(tmp_path, "gpt3/0.126b", f"data_dir={tmp_path}/none")
    assert [note for note in found.notes if "no .idx lies there" in note]
    assert base_of(found)["model"]["data"] | {"data_prefix": None} == {
        **base_of(found)["model"]["data"],
        "data_impl": "mmap",
        "data_prefix": None,
    }
    [weight, name] = base_of(found)["model"]["data"]["data_prefix"]
    assert (weight, name) == (1.0, f"{tmp_path}/none/my-gpt3_00_text_document")
    job, _ = write_first_job(found)
    assert "model.data.data_impl=mock" in job.read_text()


@pytest.mark.parametrize(
    ("name", "rate", "least", "dropout", "schedule", "library", "split"),
    [
        # autoconfig/utils.py and base_config.py: BERT and T5 by size; base_configs/*.yaml
        ("bert/4b", 1e-4, 1e-5, 0.1, "CosineAnnealing", "megatron", "900,50,50"),
        ("t5/0.22b", 1e-4, 1e-5, 0.1, "WarmupAnnealing", "megatron", "90,5,5"),
        ("mt5/0.17b", 1e-4, 1e-5, 0.1, "WarmupAnnealing", "sentencepiece", "90,5,5"),
        ("llama/llama2_7b", 1e-4, 1e-5, 0.0, "CosineAnnealing", "sentencepiece", "99990,8,2"),
        ("qwen2/4b", 1e-4, 1e-5, 0.0, "CosineAnnealing", "huggingface", "900,50,50"),
        ("mixtral/3b", 1e-4, 1e-5, 0.0, "CosineAnnealing", "huggingface", "99990,8,2"),
    ],
)
def test_every_family_trains_by_its_own_rules(
    tmp_path: Path,
    name: str,
    rate: float,
    least: float,
    dropout: float,
    schedule: str,
    library: str,
    split: str,
) -> None:
    model = base_of(search(tmp_path, name))["model"]
    optim, side = model["optim"], model.get("encoder", model)
    assert (optim["lr"], optim["sched"]["min_lr"], optim["sched"]["name"]) == (
        rate,
        least,
        schedule,
    )
    assert (side["hidden_dropout"], side["attention_dropout"]) == (dropout, dropout)
    assert (model["tokenizer"]["library"], model["data"]["splits_string"]) == (library, split)


@pytest.mark.parametrize(
    ("name", "rate"), [("gpt3/0.126b", 6e-4), ("gpt3/2b", 1.6e-4), ("gpt3/20b", 1e-4)]
)
def test_the_rate_of_a_gpt_is_that_of_its_size(tmp_path: Path, name: str, rate: float) -> None:
    """`calculate_model_size_params`: below 0.25 B 6e-4, below 3 B 1.6e-4, below 25 B 1e-4."""
    assert base_of(search(tmp_path, name))["model"]["optim"]["lr"] == rate


def test_a_custom_configuration_brings_how_it_trains(tmp_path: Path) -> None:
    first = search(tmp_path, "gpt3/0.126b")
    write_candidates(first)
    text = (first.folder / base_name(first)).read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        re.sub(r"constant_steps: \d+", "constant_steps: 777", text)
        .replace("lr: 0.0006", "lr: 0.0005")
        .replace("dropout: 0.1", "dropout: 0.2")
    )
    again = base_of(search(tmp_path / "again", "gpt3/0.126b", custom_config=str(mine)))["model"]
    assert (again["optim"]["lr"], again["hidden_dropout"]) == (0.0005, 0.2)
    assert again["optim"]["sched"]["constant_steps"] == 777


def test_a_broken_pair_is_named(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data", a_text_document=1)
    (data / "a_text_document.bin").unlink()
    with pytest.raises(ConfigError, match=r"data_dir=.*a_text_document"):
        search(tmp_path, "gpt3/0.126b", f"data_dir={data}")


@pytest.mark.parametrize(("name", "rate"), [("gpt3/0.126b", 6e-4), ("t5/0.22b", 1e-4)])
def test_other_forms_train_the_same(tmp_path: Path, name: str, rate: float) -> None:
    data = corpus(tmp_path / "data", a_text_document=1)
    found = search(tmp_path, name, f"data_dir={data}")
    write_candidates(found)
    [recipe] = [path for path in write_other_forms(found) if path.name.endswith("nemo2.yaml")]
    values = read_yaml(recipe.read_text(), what="test")
    assert values["data"]["paths"] == ["1.0", f"{data}/a_text_document"]
    assert values["data"]["tokenizer"]["vocab_file"].startswith(f"{data}/bpe/vocab")
    assert values["optim"]["config"]["lr"] == rate and "ckpt" in values["log"]
