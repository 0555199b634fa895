"""Single values of TOML, YAML and JSON texts changed in their own text."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml

from meshwright.values.edited import Format, edited_values, smallest
from meshwright.values.errors import ConfigError

TOML = """# mine
[training]
batch = 8   # crashed with 16
mode = 'none'  # or 'full'

# axes
[parallelism]
tp = 1
"""
YAML = """# mine
general: {run: a, seed: 1}
parallelism:
  dp: 4    # servers
  tp_mode: 'ALL_REDUCE'
  pp:
# the end
tokens:
  mbs: 2"""
JSON = (
    '{\n\t"stage": 1,\n\t"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},\n\t"mbs": 4\n}\n'
)
TEXTS: dict[Format, str] = {"toml": TOML, "yaml": YAML, "json": JSON}


@pytest.mark.parametrize(
    ("form", "values", "old", "new"),
    [
        ("toml", {"training.batch": 2}, "batch = 8   #", "batch = 2   #"),
        ("toml", {"training.mode": "full"}, "'none'  # or", "'full'  # or"),
        ("toml", {"training.gbs": 64}, "or 'full'\n", "or 'full'\ngbs = 64\n"),
        ("toml", {"parallelism.cp": 2}, "tp = 1\n", "tp = 1\ncp = 2\n"),
        ("toml", {"compile.enable": True}, "tp = 1\n", "tp = 1\n\n[compile]\nenable = true\n"),
        ("toml", {"training.batch": None}, "batch = 8   # crashed with 16\n", ""),
        ("yaml", {"parallelism.dp": 8}, "dp: 4    #", "dp: 8    #"),
        ("yaml", {"parallelism.tp_mode": "REDUCE_SCATTER"}, "'ALL_REDUCE'", "'REDUCE_SCATTER'"),
        ("yaml", {"parallelism.pp": 2}, "pp:\n", "pp: 2\n"),
        ("yaml", {"parallelism.engine": "afab"}, "  pp:\n", "  pp:\n  engine: afab\n"),
        ("yaml", {"tokens.gbs": 16}, "  mbs: 2", "  mbs: 2\n  gbs: 16"),
        (
            "yaml",
            {"optimizer.zero.stage": 1},
            "mbs: 2",
            "mbs: 2\noptimizer:\n  zero:\n    stage: 1",
        ),
        ("yaml", {"general.seed": None}, "{run: a, seed: 1}", "{run: a}"),
        ("yaml", {"parallelism.dp": None}, "  dp: 4    # servers\n", ""),
        ("json", {"stage": 3}, '"stage": 1', '"stage": 3'),
        ("json", {"bf16.enabled": True}, '"mbs": 4', '"mbs": 4,\n\t"bf16": {"enabled": true}'),
        ("json", {"optimizer.params.eps": 1e-8}, "1e-4}", '1e-4, "eps": 1e-08}'),
        ("json", {"stage": None}, '"stage": 1,\n\t', ""),
        ("json", {"mbs": None}, ',\n\t"mbs": 4', ""),
    ],
)
def test_only_the_value_changes(
    form: Format, values: dict[str, object], old: str, new: str
) -> None:
    text = TEXTS[form]
    assert text.count(old) == 1
    assert edited_values(text, values, form=form) == text.replace(old, new)


def test_what_is_said_already_changes_nothing() -> None:
    assert edited_values(TOML, {"training.batch": 8, "parallelism.x": None}, form="toml") == TOML


def test_an_anchor_that_is_used_elsewhere_is_left_alone() -> None:
    text = "a: &same {size: 1}\nb: *same\n"
    with pytest.raises(ConfigError, match=r"a\.size is to say 2, .* change it by hand"):
        edited_values(text, {"a.size": 2}, form="yaml")


def test_edits_read_back() -> None:
    wanted = {"training.batch": 2, "new.deep": 5}
    found = tomllib.loads(edited_values(TOML, wanted, form="toml"))
    assert (found["training"]["batch"], found["new"]["deep"]) == (2, 5)
    many = {"a.b.c": "x y", "general.seed": 3}
    assert yaml.safe_load(edited_values(YAML, many, form="yaml"))["a"]["b"]["c"] == "x y"
    assert json.loads(edited_values(JSON, {"a.b": [1, 2]}, form="json"))["a"] == {"b": [1, 2]}


def test_values_that_are_not_needed_are_left_out() -> None:
    values = {"stage": 2, "mbs": 8, "extra": 1}
    text = smallest(JSON, values, form="json", same=lambda tried: json.loads(tried)["mbs"] == 8)
    assert text == JSON.replace('"mbs": 4', '"mbs": 8')
