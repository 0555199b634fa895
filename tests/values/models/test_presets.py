"""The table of models: counts against publications, names, and a golden list."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.values.errors import UnknownNameError
from meshwright.values.models.catalogue import Preset, find_model, find_preset, presets
from meshwright.values.models.params import model_params

GOLDEN = Path(__file__).with_name("presets.golden")
EXACT_WITHIN = 0.005
WITH_THEIR_DIMS = re.compile(
    r".*[:(].*|.*\bhidden\b.*|ci-.*|custom-moe-.*|llama-like-.*|llama3-arch-.*|moe-\d+x-.*|gpt2?-\d+l-.*|gpt-(1b|2b|4b|8b|16b|70b|177b|462b)|gpt3-15b"
)
"""Names in the published runs that are no public model; the rows give the dims."""
NO_MODEL_SPEC = re.compile(
    r"deepseek-v4-.*|qwen3-next-.*|.*Qwen3\.5-.*|qwen35-.*|.*vl-.*|vlm_.*|neva_.*|mamba2-.*|flux-.*|wan-.*|transgan-.*"
)
"""Models that a ModelSpec can't hold: several media, linear attention, sparse attention, no
language model at all."""


def golden() -> str:
    return "".join(
        f"{preset.spec.name:<24}{model_params(preset.spec).total / 1e9:>12.4g}\n"
        for preset in presets()
    )


def test_counts_are_the_golden_ones() -> None:
    told = (
        "name and billions of parameters; to accept what changed: python -m"
        " tests.values.models.test_presets > tests/values/models/presets.golden"
    )
    assert golden() == GOLDEN.read_text(encoding="utf-8"), told


@pytest.mark.parametrize(
    "preset",
    [preset for preset in presets() if preset.published_kind == "exact"],
    ids=lambda preset: preset.spec.name,
)
def test_exact_counts_are_reproduced(preset: Preset) -> None:
    assert model_params(preset.spec).total == pytest.approx(
        preset.published_params, rel=EXACT_WITHIN
    )


def test_counts_published_to_the_last_digit() -> None:
    counts = {
        "gpt2": 124_439_808,
        "llama2-7b": 6_738_415_616,
        "llama3-8b": 8_030_261_248,
        "llama3.1-405b": 405_853_388_800,
        "mixtral-8x7b": 46_702_792_704,
        "mixtral-8x22b": 140_620_634_112,
        "gemma2-27b": 27_227_128_320,
        "gemma3-1b": 999_885_952,
        "qwen2-57b": 57_408_558_592,
        "qwen3-235b-a22b": 235_093_634_560,
        "deepseek-v2": 235_741_434_880,
        "gpt-oss-120b": 116_829_156_672,
        "falcon-40b": 41_303_293_952,
        "falcon-180b": 179_522_565_120,
        "t5-11b": 11_307_321_344,
        "mt5-xxl": 12_921_057_280,
        "bert-large": 336_226_108,
        "chatglm3-6b": 6_243_584_000,
        "baichuan2-13b": 13_896_668_160,
    }
    assert {name: model_params(find_model(name)).total for name in counts} == counts


@pytest.mark.parametrize(
    "preset",
    [preset for preset in presets() if preset.published_kind == "nominal"],
    ids=lambda preset: preset.spec.name,
)
def test_nominal_sizes_are_near(preset: Preset) -> None:
    far = {"gpt3-1b-improved": 0.42, "bert-20b": 0.11}  # so called by their publishers
    assert model_params(preset.spec).total == pytest.approx(
        preset.published_params, rel=far.get(preset.spec.name, 0.07)
    )


def test_active_parameters_as_published() -> None:
    billions = {
        "mixtral-8x7b": 12.9,
        "qwen3-30b-a3b": 3.3,
        "qwen3-235b-a22b": 22.2,
        "deepseek-v2": 21.4,
        "gpt-oss-120b": 5.7,
        "llama4-maverick": 17,
        "nemotron-3-nano": 3.6,
        "dbrx": 36.5,
    }
    found = {name: model_params(find_model(name)).active / 1e9 for name in billions}
    assert found == pytest.approx(billions, rel=0.025)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama3_70b", "llama3-70b"),
        ("Llama-3-70B", "llama3-70b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama3.1-8b"),
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "llama3.1-70b"),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("mistralai/Mistral-Large-Instruct-2411", "mistral-large-123b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama3.1-70b"),
        ("LLaMA v3.1 405B", "llama3.1-405b"),
        ("llama31-405b", "llama3.1-405b"),
        ("llama-30b", "llama-33b"),
        ("gpt3_5b", "gpt3-5b"),
        ("gpt-neo-2.7B", "gpt-neo-2.7b"),
        ("mixtral-8x7b-instruct", "mixtral-8x7b"),
        ("Mistral 7B", "mistral-7b"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
        ("qwen3-30b_a3b", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("t5-base", "t5-base"),
        ("mt-nlg-530b", "gpt3-530b"),
        ("nemotronh-8b", "nemotron-h-8b"),
        ("maxtext-16B", "maxtext-16b"),
        ("moonlight-16b", "moonlight-16b-a3b"),
    ],
)
def test_names_are_found_as_people_write_them(spelling: str, name: str) -> None:
    assert find_model(spelling).name == name


@pytest.mark.parametrize(
    "spelling", ["t5-28b", "llama3-170b", "gpt-17b", "", "-", "llama", "7b", "llama3-70b-"]
)
def test_digits_are_never_joined_or_guessed(spelling: str) -> None:
    if spelling == "llama3-70b-":
        assert find_model(spelling).name == "llama3-70b"
        return
    with pytest.raises(UnknownNameError):
        find_model(spelling)


def test_unknown_names_get_advice() -> None:
    with pytest.raises(
        UnknownNameError, match=r"'lama3-70b' is no known model; did you mean 'llama3-70b'"
    ):
        find_model("lama3-70b")


def test_names_and_aliases_all_find_their_row() -> None:
    for preset in presets():
        for word in (preset.spec.name, preset.spec.name.replace("-", "_").upper(), *preset.aliases):
            assert find_preset(word) is preset


def test_rows_are_complete() -> None:
    for preset in presets():
        words = (preset.spec.name, *preset.aliases)
        assert all(word == word.lower() and " " not in word for word in words), words
        assert len(words) == len(set(words)), words
        assert preset.source and preset.series and preset.published_params > 0
        assert preset.published_kind in ("exact", "nominal")


def test_models_of_the_published_runs_are_known(truth_dir: Path) -> None:
    names = set()
    for table in sorted(truth_dir.glob("*.csv")):
        with table.open(encoding="utf-8", newline="") as lines:
            names |= {row.get("model") or "" for row in csv.DictReader(lines)}
    unknown = []
    for name in sorted(names - {""}):
        if not WITH_THEIR_DIMS.fullmatch(name) and not NO_MODEL_SPEC.fullmatch(name):
            try:
                find_model(name)
            except UnknownNameError:
                unknown.append(name)
    assert unknown == []


def test_reading_is_light() -> None:
    code = (
        "import sys; from meshwright.values.models.catalogue import find_model;"
        " find_model('llama3-70b'); print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"numpy", "pydantic", "yaml", "json", "importlib.resources"}.isdisjoint(loaded)


if __name__ == "__main__":
    print(golden(), end="")
