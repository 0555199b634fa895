from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.software.examples import training_plan

from meshwright import software
from meshwright.software.text import Taken
from meshwright.software.words import WordTable, field_of, require, require_one_of
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress

TABLES = sorted(
    f"software/{path.parent.name}/words.csv"
    for path in Path(software.__path__[0]).glob("*/words.csv")
)
PLANS = [training_plan(name, layout="tp=2,ep=8,mbs=1") for name in ("deepseek-v3", "mixtral-8x7b")]


@pytest.mark.parametrize("table", TABLES)
def test_each_word_holds_a_field_and_says_how_it_is_read(table: str) -> None:
    rows = package_rows(table)
    assert len({row["word"] for row in rows}) == len(rows)
    for row in rows:
        for plan in PLANS:
            field_of(plan, row["field"])
        if row["kind"]:
            read = getattr(Taken({}, what="test"), row["kind"])
            default = json.loads(row["default"] or "null")
            if row["kind"] != "take" and default != 0:
                assert read(row["word"], default) == default


def test_words_are_written_by_section_and_read_back() -> None:
    table = WordTable("software/nemo2/words.csv")
    plan = training_plan()
    assert table.written(plan, "optim.lr_scheduler.") == {"warmup_steps": None}
    words = Taken({"optim": {"config": {"lr": 2e-4}}, "other": 1}, what="test")
    assert table.read(words, "settings")["learning_rate"] == 2e-4
    assert words.left() == {"other": 1}


def test_a_part_that_is_not_there_is_not_refused() -> None:
    plan = training_plan("llama3-8b")
    require(plan, {"moe.shared_ffn": 0, "model.mla": None}, name="test")
    with pytest.raises(
        CannotExpress, match=r"test: model\.norm=rmsnorm: its models have layernorm"
    ):
        require(plan, {"model.norm": "layernorm"}, name="test")
    with pytest.raises(CannotExpress, match=r"test: tp=2: one alone; .* it takes: tp=1"):
        require_one_of(plan, "layout.tp", (1, 4), name="test", says="one alone")
