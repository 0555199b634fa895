from __future__ import annotations

import csv
import importlib.resources

import pytest
from tests.software.examples import training_plan

from meshwright.software.defaults import complete_details, train_steps
from meshwright.software.plan import completed
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.workload import Workload


def test_completing_twice_changes_nothing_and_keeps_what_is_given() -> None:
    plan = training_plan(
        settings=TrainingSettings(
            learning_rate=1e-3, adam_beta2=0.999, data=(Dataset(path="/data/a"),)
        )
    )
    full = completed(plan)
    assert completed(full) == full
    assert (
        full.settings.learning_rate,
        full.settings.min_learning_rate,
        full.settings.adam_beta2,
    ) == (1e-3, 1e-4, 0.999)


def test_learning_rates_are_those_of_gpt3() -> None:
    # GPT-3 table 2.1: 125M 6e-4, 350M 3e-4 (with its 760M 2.5e-4), 2.7B 1.6e-4, 6.7B 1.2e-4, 13B
    # 1e-4, 175B 0.6e-4
    rates = {
        name: (
            completed(training_plan(name, layout="tp=1,mbs=1", seq_len=2048)).settings.learning_rate
        )
        for name in ("gpt3-126m", "gpt3-357m", "gpt3-6.7b", "gpt3-13b", "gpt3-175b")
    }
    assert rates == {
        "gpt3-126m": 6e-4,
        "gpt3-357m": 3e-4,
        "gpt3-6.7b": 1.2e-4,
        "gpt3-13b": 1e-4,
        "gpt3-175b": 0.6e-4,
    }


def test_a_run_is_as_long_as_chinchilla_would_have_it_and_short_on_mock_data() -> None:
    assert completed(training_plan()).settings.train_steps == 100
    real = completed(training_plan(settings=TrainingSettings(data=(Dataset(path="/data/a"),))))
    # Llama 3 8B's published parameters; 20 * 8,030,261,248 / (128 * 8192) = 153,165.1 steps
    assert (real.settings.train_steps, real.settings.train_tokens) == (153_166, None)
    assert real.settings.warmup_steps == 1531  # a hundredth of them
    assert train_steps(TrainingSettings(train_samples=1000), real.work) == 8  # 7.8 batches of 128


def test_details_follow_the_published_models() -> None:
    deepseek = complete_details(
        ModelDetails(), model=find_model("deepseek-v3"), work=Workload(seq_len=4096)
    )
    assert (
        deepseek.router_score,
        deepseek.router_balance,
        deepseek.router_groups,
        deepseek.routed_scale,
    ) == ("sigmoid", "bias", 8, 2.5)
    assert (
        complete_details(
            ModelDetails(), model=find_model("llama3-70b"), work=Workload(seq_len=4096)
        ).rope_base
        == 500000
    )
    assert (
        complete_details(
            ModelDetails(rope_base=1.0), model=find_model("llama3-70b"), work=Workload(seq_len=4096)
        ).rope_base
        == 1
    )
    assert (
        complete_details(
            ModelDetails(), model=find_model("gpt3-5b"), work=Workload(seq_len=2048)
        ).activation
        == "gelu"
    )


def test_every_row_of_details_names_known_models_once() -> None:
    table = importlib.resources.files("meshwright") / "software" / "model_details.csv"
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    names = [name for row in rows for name in row["models"].split()]
    assert len(names) == len(set(names))
    assert [name for name in names if find_model(name).name != name] == []
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"train_steps": 5, "train_tokens": 7},
            "train_steps=5 and train_tokens=7: give one of them",
        ),
        (
            {"learning_rate": 1e-4, "min_learning_rate": 1e-3},
            "min_learning_rate=0.001 is above learning_rate=0.0001",
        ),
        ({"split": (1, 2, 3, 4)}, "expected up to three shares"),
        ({"adam_beta1": 1.0}, "adam_beta1=1.0: expected a number from 0 to below 1"),
        ({"data": {"/a": -1}}, "data /a: weight=-1.0"),
        ({"train_steps": 0}, "train_steps=0"),
    ],
)
def test_impossible_settings_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingSettings.of(given)


def test_unknown_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="learning_rate"):
        TrainingSettings.of({"learing_rate": 1e-4})
    with pytest.raises(UnknownNameError, match="cosine"):
        TrainingSettings.of({"decay_style": "cosin"})
    with pytest.raises(UnknownNameError, match="squared-relu"):
        ModelDetails(activation="squared-rel")  # type: ignore[arg-type]


def test_data_may_be_written_as_paths_or_as_a_blend() -> None:
    one, two = Dataset(path="/a"), Dataset(path="/b", weight=3.0)
    assert TrainingSettings.of({"data": "/a"}).data == (one,)
    assert TrainingSettings.of({"data": {"/a": 1, "/b": 3}}).data == (one, two)
    assert TrainingSettings.of({"data": [one, ["/b", 3]]}).data == (one, two)
