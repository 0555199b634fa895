"""MaxText's configurations as its repository has them (benchmarks/maxtext_*_model_configs.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scripts.recipes.maxtext import maxtext_rows

from meshwright.search.started import started
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model
from meshwright.values.remat_recipes import find_remat
from meshwright.values.stack import find_stack


@pytest.mark.parametrize(
    ("model", "gpu", "inputs", "kept"),
    [
        ("llama3.1-70b", "tpu-v6e", True, True),  # decoder_layer_input, projections: offload
        ("llama2-70b", "tpu-v6e", False, True),  # qkv_proj_offloaded in five of seven
        ("llama3-8b", "tpu-v6e", False, False),  # full
        ("llama3.1-405b", "tpu-v5p", False, True),  # context, mlpwo: offload
    ],
)
def test_what_waits_in_host_memory(model: str, gpu: str, inputs: bool, kept: bool) -> None:
    found = find_remat(model=model, gpu=gpu)
    assert found is not None and found.release == "tpu-recipes-v0.1.5"
    assert (found.offloads_inputs, found.offloads_kept) == (inputs, kept)
    start = started(
        find_stack("maxtext"),
        model=find_model(model),
        chip=find_chip(gpu),
        precision="bf16",
        num_chips=256,
    )
    assert (start.stack.offloads_inputs, start.stack.offloads_kept) == (inputs, kept)
    assert f"maxtext tpu-recipes-v0.1.5, its benchmark of {model} on {gpu}" in start.words


def test_without_a_benchmark_nothing_waits() -> None:
    plain = find_stack("maxtext")
    found = started(
        plain,
        model=find_model("qwen3-235b-a22b"),
        chip=find_chip("tpu-v6e"),
        precision="bf16",
        num_chips=256,
    )
    assert (found.stack, found.words) == (plain, "")


_CONFIGS = """
a = add(MaxTextModel(model_name="x", model_type="llama3.1-8b", tuning_params={
    "per_device_batch_size": 4, "remat_policy": "custom", "decoder_layer_input": "offload",
    "out_proj": "device", "max_target_length": 8192}, xla_flags=FLAGS + MORE))
b = add(MaxTextModel(model_name="y", model_type="default", tuning_params={"remat_policy": "full"}))
"""


def test_the_script_reads_a_release_without_running_it(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "maxtext_v5e_model_configs.py").write_text(_CONFIGS, encoding="utf-8")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    for tag in ("tpu-recipes-v0.1.10", "tpu-recipes-v0.1.9", "other-v1.0.0"):
        subprocess.run(["git", "-C", str(tmp_path), "tag", tag], check=True)
    rows, failed = maxtext_rows(tmp_path)
    assert failed == []
    assert [row["release"] for row in rows] == ["tpu-recipes-v0.1.9", "tpu-recipes-v0.1.10"]
    kept = ("model", "gpu", "mbs", "seq_len", "remat_policy", "offloaded", "on_device")
    wanted = ["llama3.1-8b", "tpu-v5e", "4", "8192", "custom", "decoder_layer_input", "out_proj"]
    assert [rows[0][name] for name in kept] == wanted


_RECIPE = """
MAXTEXT_ARGS="\\
model_name=llama3.1-405b \\
per_device_batch_size=3 \\
remat_policy=custom \\
decoder_layer_input=offload \\
mlpwo=offload \\
key_proj=device \\
max_target_length=8192 \\
run_name=x"
"""


def test_scripts_of_tpu_recipes_are_read_too(tmp_path: Path) -> None:
    maxtext, recipes = tmp_path / "maxtext", tmp_path / "tpu-recipes"
    folder = recipes / "training" / "ironwood" / "llama3.1-405b" / "8k-bf16-tpu7x-4x8x8"
    for root, path, text in (
        (maxtext, maxtext / "README.md", ""),
        (recipes, folder / "run_recipe.sh", _RECIPE),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
            subprocess.run(["git", "-C", str(root), *words], check=True)
    [row], failed = maxtext_rows(maxtext, recipes)
    assert failed == [] and row["release"].startswith("tpu-recipes@")
    kept = ("gpu", "precision", "seq_len", "offloaded", "on_device")
    wanted = ["tpu-v7x", "bf16", "8192", "decoder_layer_input mlpwo", "key_proj"]
    assert [row[name] for name in kept] == wanted


@pytest.mark.parametrize(("precision", "outputs"), [("bf16", True), ("fp8", False)])
def test_number_formats_have_their_own(precision: str, outputs: bool) -> None:
    """Llama 3.1 405B on Ironwood (training/ironwood): mlpwo waits on the host in bf16 alone."""
    found = find_remat(model="llama3.1-405b", gpu="tpu-v7x", precision=precision, seq_len=8192)
    assert found is not None and found.offloads_inputs
    assert found.offloads_outputs == outputs


def test_the_recipe_for_the_nearest_length_counts() -> None:
    """Llama 3.1 70B on Ironwood: mlpwo stays on the device in that of 131,072 tokens alone."""
    kept = [
        found.source
        for seq_len in (8192, 131072)
        if (found := find_remat(model="llama3.1-70b", gpu="tpu-v7x", seq_len=seq_len))
    ]
    assert ["128k-" in source for source in kept] == [False, True]
