"""The list of models and the page of one, as values and on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.values.models.hf_configs import CONFIGS
from typer.testing import CliRunner

from meshwright.cli.catalogues import models
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import find_model, presets
from meshwright.values.models.params import model_info, model_params, models_info

app = typer.Typer()
app.command()(models)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_list_has_every_model() -> None:
    rows = models_info()
    assert [row.name for row in rows] == [preset.spec.name for preset in presets()]
    mixtral = next(row for row in rows if row.name == "mixtral-8x7b")
    assert (mixtral.params, mixtral.active_params, mixtral.difference_frac) == (
        46_702_792_704,
        12_879_925_248,
        0,
    )


def test_parts_of_a_model_sum_to_its_parameters() -> None:
    for preset in presets():
        info = model_info(preset.spec)
        assert sum(info.parts.values()) == info.params
        assert info.active_params == model_params(preset.spec).active
        assert info.published is not None and info.published.name == preset.spec.name


def test_shape_of_another_name_is_recognised() -> None:
    info = model_info(replace(find_model("mixtral-8x7b"), name="mine"))
    assert info.published is not None and info.published.name == "mixtral-8x7b"
    assert model_info(replace(find_model("mixtral-8x7b"), vocab=7)).published is None


def test_dims_hold_what_is_not_the_default() -> None:
    dims = model_info(find_model("nemotron-3-nano")).dims
    assert dims["hybrid.mamba_layers"] == 23
    assert dims["moe.top_k"] == 6
    assert "moe.first_dense_layers" not in dims and "name" not in dims and "tied" not in dims


def test_command_lists_and_shows() -> None:
    listed = run().stdout
    assert len(listed.splitlines()) > len(presets())
    assert max(len(line) for line in listed.splitlines()) <= 120
    assert "…" not in listed
    page = run("Mixtral-8x7B").stdout
    assert "46,702,792,704" in page and "12,879,925,248" in page and "arXiv:2401.04088" in page


def test_command_speaks_json() -> None:
    assert len(json.loads(run("--json").stdout)["models"]) == len(presets())
    one = json.loads(run("t5-11b", "--json").stdout)
    assert one["params"] == sum(one["parts"].values()) == 11_307_321_344
    assert one["dims"]["encoder_layers"] == 24


def test_command_reads_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gemma3-27b"]), encoding="utf-8")
    result = run("--hf", str(tmp_path), "--json")
    assert json.loads(result.stdout)["published"]["name"] == "gemma3-27b"
    assert "vision_config is left out" in result.stderr
    assert "the shape of gemma3-27b" in run("--hf", str(tmp_path)).stdout


def test_command_leaves_errors_to_the_main_program(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError):
        run("lama3")
    with pytest.raises(ConfigError, match="either a name or a config"):
        run("llama3-8b", "--hf", str(tmp_path))


def test_a_name_does_where_no_config_is(tmp_path: Path) -> None:
    result = run("--hf", "Qwen/Qwen3-8B", "--json")
    assert json.loads(result.stdout)["params"] == 8_190_735_360
    assert "no file here; the shape is qwen3-8b's" in result.stderr
    with pytest.raises(ConfigError, match=r"no file here, and .* did you mean 'qwen3-8b'"):
        run("--hf", "Qwen/Qwen3-8", "--json")
    with pytest.raises(ConfigError, match=r"nowhere\.json: no such file"):
        run("--hf", str(tmp_path / "nowhere.json"))


def test_a_config_whose_name_says_another_size_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "my-70b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama3-8b"]), encoding="utf-8")
    assert "my-70b: 8.03B parameters by its dims, but 70b says" in run("--hf", str(folder)).stderr
