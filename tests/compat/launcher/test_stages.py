"""The jobs that a line makes, and what it puts right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.platforms.executors.harness import inside_base_command

from meshwright.compat.launcher.data import Prepared, data_steps, file_numbers
from meshwright.compat.launcher.line import read_line
from meshwright.compat.launcher.training import Trained, train_step
from meshwright.values.errors import ConfigError

BCP = ("cluster_type=bcp", "data_dir=/mount/data", "base_results_dir=/mount/results")
TRAIN = (*BCP, "stages=[training]", "training=gpt3/7b_improved", "training.trainer.num_nodes=8")
DAY_S = 86_400


def prepared(*words: str) -> Prepared:
    return data_steps(read_line([*BCP, "stages=[data_preparation]", *words]), setup=None)


def trained(*words: str, of: Prepared | None = None) -> Trained:
    return train_step(read_line([*TRAIN, *words]), prepared=of, chip="a100-80", setup=None)


def names(found: Prepared) -> list[str]:
    return [one.name.rpartition("-")[2] for one in found.steps]


def test_slim_pajama_by_its_switches() -> None:
    choice, on = "data_preparation=gpt/download_slim_pajama", "data_preparation.{}=True"
    assert names(prepared(choice)) == ["download", "verify", "extract"]
    whole = prepared(choice, on.format("concat_slim_pajama"), on.format("preprocess_data"))
    assert names(whole) == ["download", "verify", "extract", "concat", "preprocess"]
    assert whole.prefixes is not None and len(whole.prefixes) == 74
    extract = whole.steps[2].job.command[-1]
    assert "meta.redpajama_set_name=RedPajamaCommonCrawl,RedPajamaC4," in extract
    assert "RedPajamaBook" not in extract and "--consume" not in extract
    removing = prepared(choice, on.format("rm_downloaded"))
    assert "--consume" in removing.steps[2].job.command[-1]


def test_the_pile_has_the_launchers_names() -> None:
    found = prepared("data_preparation.file_numbers=0,3,5-7")
    assert names(found) == ["download", "extract", "preprocess"]
    assert found.prefixes is not None
    assert found.prefixes[1] == "/mount/data/my-gpt3_03_text_document"
    assert "/07.jsonl.zst" in found.steps[0].job.command[-1]
    bert = prepared("data_preparation=bert/download_bert_pile", "data_preparation.file_numbers=0")
    assert bert.prefixes == ("/mount/data/my-bert_00_text_sentence",)
    assert (
        "/mount/data/bert-large-cased-vocab.txt /mount/data/vocab.txt"
        in (bert.steps[0].job.command[-1])
    )
    llama = prepared("data_preparation=llama/download_llama_pile")
    assert (
        "/mount/data/llama/tokenizer.model /mount/data/llama/llama_tokenizer.model"
        in (llama.steps[0].job.command[-1])
    )


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2", [0, 1, 2]), ("7", [7]), ("5-6,0,5", [0, 5, 6])]
)
def test_numbers_of_files(text: str, numbers: list[int]) -> None:
    assert file_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-2-3"])
def test_numbers_of_no_file(text: str) -> None:
    with pytest.raises(ConfigError, match="expected numbers and ranges, such as 0,3,5-7"):
        file_numbers(text)


CUSTOM = "data_preparation=generic/custom_dataset"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([CUSTOM], r"train_tokenizer_args.input: expected a text file"),
        (
            [CUSTOM, "data_preparation.train_tokenizer=False"],
            "raw_dataset_files=.*expected files of JSON lines",
        ),
        (
            [
                CUSTOM,
                "data_preparation.train_tokenizer=False",
                "data_preparation.raw_dataset_files=/nowhere",
            ],
            "the folder is not to be seen from here; name its files",
        ),
        (
            ["data_preparation.download_the_pile=False", "data_preparation.preprocess_data=False"],
            "every step is switched off",
        ),
    ],
)
def test_what_a_preparation_lacks(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prepared(*words)


def test_ones_own_files_and_tokenizer_reach_the_training() -> None:
    files = "data_preparation.raw_dataset_files=[/mount/data/a.jsonl,/mount/data/b.jsonl]"
    words = (CUSTOM, files, "data_preparation.train_tokenizer_args.input=/mount/data/t.txt")
    found = prepared(*words)
    assert names(found) == ["tokenizer", "preprocess"]
    assert "--vocab_size=8000" in found.steps[0].job.command[-1]
    step = trained(*words, of=found)
    model = step.config["model"]
    place = "/mount/data/custom_dataset"
    assert model["tokenizer"]["model"] == f"{place}/bpe/custom_sp_tokenizer.model"
    assert model["tokenizer"]["library"] == "sentencepiece"
    assert model["data"]["data_prefix"] == [
        *(0.5, f"{place}/preprocessed/a.jsonl_text_document"),
        *(0.5, f"{place}/preprocessed/b.jsonl_text_document"),
    ]
    said = " ".join(step.corrected)
    assert "all alike until their tokens are known" in said and "with which this line's" in said
    kept = trained(*words, "training.model.tokenizer.model=/mine.model", of=found)
    assert kept.config["model"]["tokenizer"]["model"] == "/mine.model"


def test_a_limit_that_would_kill_before_a_checkpoint_is_moved() -> None:
    """The configuration's own: time_limit of 1 day, max_time of 5 days 23.5 hours."""
    step = trained("training.trainer.max_time=4:23:30:00")
    assert step.step.job.time_limit_s == 5 * DAY_S
    assert "training.run.time_limit=1-00:00:00 is 5-00:00:00" in step.corrected[0]
    step = trained("training.run.time_limit=2-00:00:00")
    assert step.step.job.time_limit_s == 2 * DAY_S
    assert step.config["trainer"]["max_time"] == "01:23:30:00"
    both = ("training.run.time_limit=2-00:00:00", "training.trainer.max_time=4:23:30:00")
    with pytest.raises(ConfigError, match=r"killed before it saves; max_time=01:23:30:00 would do"):
        trained(*both)


def test_nodes_that_divide_no_batch_are_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"40 GPUs do not divide.*num_nodes=2 or 4 or 8 would do"):
        trained("training.trainer.num_nodes=5")


def test_inside_all_nodes_are_taken_and_no_more(tmp_path: Path) -> None:
    words = [word for word in TRAIN if "num_nodes" not in word]
    with inside_base_command(tmp_path, nodes=4):
        found = train_step(read_line(words), prepared=None, chip="a100-80", setup=None)
        assert found.step.job.nodes == 4 and found.step.job.time_limit_s is None
        assert "num_nodes=16 is 4, the nodes that are here" in found.corrected[0]
        with pytest.raises(ConfigError, match="num_nodes=8: 4 nodes are here"):
            train_step(read_line(TRAIN), prepared=None, chip="a100-80", setup=None)


def test_a_key_of_weights_and_biases_is_in_no_script() -> None:
    step = trained(
        "training.exp_manager.create_wandb_logger=True", "wandb_api_bcp_secret_key=WANDB_TOKEN"
    )
    assert step.step.job.secrets == ("WANDB_API_KEY",)
    assert "the program reads WANDB_API_KEY" in " ".join(step.corrected)


def test_what_the_time_reaches_is_said() -> None:
    first, second = trained("training.trainer.max_time=4:23:30:00").found
    assert first.startswith("predicted on a100-80: ") and "it fits" in first
    assert second.startswith("one job of max_time=4:23:30:00 reaches step ")


def test_a_checkpoint_that_is_there_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gpt_7b_improved" / "results" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "megatron_gpt--val_loss=2.1-step=4000-consumed_samples=2048000-last").mkdir()
    words = [f"base_results_dir={tmp_path}"]
    assert "goes on from megatron_gpt--val_loss=2.1-step=4000" in trained(*words).found[-1]
    off = "training.exp_manager.resume_if_exists=False"
    assert "resume_if_exists=False begins anew" in trained(*words, off).found[-1]
