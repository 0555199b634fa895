from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.software.examples import training_plan
from tests.software.frameworks import check_golden

from meshwright.software.contract import export_plan
from meshwright.software.pai_megatron_patch.export import PAI
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import CannotExpress

TOKENIZER = TrainingSettings(tokenizer="/ckpt/model")
REAL = TrainingSettings(
    data=(Dataset(path="/data/web"), Dataset(path="/data/code", weight=0.5)),
    tokenizer="/ckpt/model",
    load_dir="/ckpt/model",
    save_dir="/out",
)


def pai_plan(
    model: Any = "qwen3-8b", cluster: str = "h100:64", layout: str = "tp=2,pp=2,mbs=1", **given: Any
) -> TrainingPlan:
    return training_plan(
        model, cluster, layout, **{"settings": TOKENIZER, "seq_len": 4096, **given}
    )


GOLDEN = {
    "dense": lambda: pai_plan(settings=REAL),
    "experts": lambda: pai_plan("mixtral-8x7b", "h100:128", "tp=2,ep=8,etp=1,pp=4,vpp=2,mbs=1"),
    "latent": lambda: pai_plan("deepseek-v2", "h100:64", "ep=16,pp=4,mbs=1,recompute=full"),
    "uneven": lambda: pai_plan(
        "llama3-70b", "h100:64", "tp=8,pp=4,mbs=1,layers_per_stage=21+20+20+19", precision="fp8"
    ),
    "long-context": lambda: pai_plan(
        "llama3.1-8b", "h100:16", "tp=2,cp=8,mbs=1", seq_len=131072, gbs=16
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=PAI), case)


def test_the_tokenizer_is_the_patchs_and_the_vocabulary_padded() -> None:
    command = export_plan(pai_plan(), target=PAI).command
    words = dict(itertools.pairwise(command))
    # 151936 = 593.5 * 256: padded to 594 * 256
    assert (words["--padded-vocab-size"], words["--load"], words["--max-padding-length"]) == (
        "152064",
        "/ckpt/model",
        "4096",
    )
    assert "--tokenizer-type" not in words
    assert words["--train-mode"] == "pretrain"


def test_extra_words_come_last_and_once() -> None:
    extra = TrainingSettings(tokenizer="/ckpt/model", extra=("--no-load-optim",))
    command = export_plan(pai_plan(settings=extra), target=PAI).command
    assert command.count("--no-load-optim") == 1
    assert command[-1] == "--no-load-optim"


@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        (
            {"settings": TrainingSettings()},
            "always reads a Hugging Face tokenizer",
            "tokenizer=DIR",
        ),
        (
            {"settings": TrainingSettings(tokenizer="/a", load_dir="/b")},
            "--load is the folder of both",
            "tokenizer=/b",
        ),
        ({"layout": "mbs=1,sharding=zero3"}, "sharding=zero3", "sharding=zero1"),
        (
            {"model": "t5-2.8b", "layout": "tp=2,mbs=1", "seq_len": 512},
            "family=encoder-decoder",
            "--to megatron-lm",
        ),
        ({"model": "gpt-oss-20b", "layout": "ep=8,mbs=1"}, "core 0.13", "--to megatron-lm"),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    changed: dict[str, Any], reason: str, nearest: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        export_plan(pai_plan(**changed), target=PAI)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest
