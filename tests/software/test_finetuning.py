"""Exports of fine-tuning: every key is one that the released program accepts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.software.examples import training_plan

from meshwright.software.contract import Exported, export_plan
from meshwright.software.registry import find_target
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import named_model

FILES = {
    "trl": "sft.yaml",
    "axolotl": "axolotl.yaml",
    "llamafactory": "train.yaml",
    "torchtune": "torchtune.yaml",
    "nemo-automodel": "automodel.yaml",
}
LAYOUTS = {
    "trl": ("mbs=1,sharding=none,recompute=full", "mbs=2,sharding=zero3,offload=weights"),
    "axolotl": ("mbs=1,sharding=none,recompute=full", "mbs=2,sharding=zero3,offload=weights"),
    "llamafactory": (
        "mbs=1,sharding=none,recompute=full",
        "mbs=2,sharding=zero2,offload=optimizer",
        "mbs=2,sharding=zero3,recompute=full,offload=weights-nvme",
    ),
    "torchtune": ("mbs=2,sharding=zero3,offload=weights", "mbs=1,sharding=zero3,recompute=full"),
    "nemo-automodel": ("mbs=1,sharding=zero2", "mbs=1,sharding=none,recompute=full"),
}
CASES = [(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts]


def exported(name: str, layout: str, finetune: str = "lora", **given: Any) -> Exported:
    plan = training_plan(
        given.pop("model", "llama3.1-8b"),
        given.pop("cluster", "rtx-4090:2"),
        layout,
        stack=name,
        finetune=finetune,
        seq_len=2048,
        gbs=16,
        **given,
    )
    return export_plan(plan, target=find_target(name))


def words_of(found: Exported, name: str) -> dict[str, Any]:
    [text] = [file.text for file in found.files if file.name == FILES[name]]
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def keys_of(tree: dict[str, Any], known: set[str], prefix: str = "") -> set[str]:
    """Keys, and those of inner mappings where the table has inner keys of them."""
    found = {prefix + key for key in tree}
    for key, value in tree.items():
        inner = f"{prefix}{key}."
        if isinstance(value, dict) and any(each.startswith(inner) for each in known):
            found |= keys_of(value, known, inner)
    return found


@pytest.mark.parametrize(("name", "layout"), CASES)
@pytest.mark.parametrize("finetune", ["full", "lora"])
@pytest.mark.parametrize("sample_len", [None, 512])
def test_every_key_is_one_that_the_program_has(
    name: str, layout: str, finetune: str, sample_len: int | None
) -> None:
    """`software/*/options.csv` holds the keys of the released parsers
    (scripts/distil_finetune_keys.py)."""
    known = {
        row["option"] for row in package_rows(f"software/{name.replace('-', '_')}/options.csv")
    }
    words = words_of(exported(name, layout, finetune, sample_len=sample_len), name)
    assert keys_of(words, known) <= known


@pytest.mark.parametrize("name", ["trl", "axolotl", "llamafactory"])
@pytest.mark.parametrize("optimizer", ["adam", "adam-8bit", "paged-adam-8bit"])
def test_qlora_and_narrow_optimizers_are_written(name: str, optimizer: str) -> None:
    layout = f"mbs=1,sharding=none,optimizer={optimizer}"
    words = words_of(exported(name, layout, "qlora"), name)
    key = "optimizer" if name == "axolotl" else "optim"
    names = {
        "adam": "adamw_torch_fused",
        "adam-8bit": "adamw_bnb_8bit",
        "paged-adam-8bit": "paged_adamw_8bit",
    }
    assert words[key] == names[optimizer]
    if name == "llamafactory":
        assert (words["quantization_bit"], words["quantization_type"]) == (4, "nf4")
    else:
        assert words["load_in_4bit"] is True


@pytest.mark.parametrize("name", [name for name in FILES if name != "nemo-automodel"])
def test_batches_and_lengths_are_the_plan_s(name: str) -> None:
    words = words_of(exported(name, LAYOUTS[name][-1]), name)
    mbs = {"axolotl": "micro_batch_size", "torchtune": "batch_size"}
    length = {
        "trl": lambda: words["max_length"],
        "axolotl": lambda: words["sequence_len"],
        "llamafactory": lambda: words["cutoff_len"],
        "torchtune": lambda: words["tokenizer"]["max_seq_len"],
    }
    batch = words[mbs.get(name, "per_device_train_batch_size")]
    assert batch * words["gradient_accumulation_steps"] * 2 == 16
    assert length[name]() == 2048


def test_adapters_stand_where_the_plan_has_them() -> None:
    given: dict[str, Any] = {"lora_rank": 8, "lora_targets": ["linear_qkv", "linear_proj"]}
    layout = "mbs=1,sharding=none"
    trl = words_of(exported("trl", layout, **given), "trl")
    assert (trl["lora_r"], trl["lora_alpha"]) == (8, 16)
    assert trl["lora_target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    tune = words_of(exported("torchtune", "mbs=1,sharding=zero3", **given), "torchtune")
    assert tune["model"]["_component_"] == "torchtune.models.llama3_1.lora_llama3_1_8b"
    assert tune["model"]["lora_attn_modules"] == ["q_proj", "k_proj", "v_proj", "output_proj"]
    assert tune["model"]["apply_lora_to_mlp"] is False


def test_torchtune_names_its_recipe_and_qlora_on_one_card() -> None:
    several = exported("torchtune", "mbs=1,sharding=zero3", "full")
    assert several.command[:5] == (
        "tune",
        "run",
        "--nproc_per_node",
        "2",
        "full_finetune_distributed",
    )
    one = exported("torchtune", "mbs=1,sharding=zero3", "qlora", cluster="rtx-4090:1")
    assert one.command[2] == "lora_finetune_single_device"
    words = words_of(one, "torchtune")
    assert words["model"]["_component_"].endswith("qlora_llama3_1_8b")


def test_automodel_has_sizes_of_groups_and_patterns_of_layers() -> None:
    given: dict[str, Any] = {"lora_rank": 8, "lora_targets": ["linear_qkv", "linear_fc2"]}
    found = exported(
        "nemo-automodel", "mbs=2,sharding=hybrid,shard_size=2", cluster="h100:8", **given
    )
    assert found.command == ("-m", "nemo_automodel.cli.app", "automodel.yaml")
    words = words_of(found, "nemo-automodel")
    assert words["step_scheduler"]["global_batch_size"] == 16
    assert words["step_scheduler"]["local_batch_size"] == 2
    assert words["distributed"]["dp_replicate_size"] == 4  # 8 ranks in groups of 2
    assert words["peft"]["target_modules"] == ["*q_proj", "*k_proj", "*v_proj", "*down_proj"]
    assert (words["peft"]["dim"], words["dataset"]["seq_length"]) == (8, 2048)
    plain = exported("nemo-automodel", "mbs=1,sharding=none,recompute=none", "full")
    whole = words_of(plain, "nemo-automodel")
    assert "peft" not in whole
    assert whole["distributed"] == {"strategy": "ddp", "activation_checkpointing": False}
    kept = words_of(exported("nemo-automodel", "mbs=1,sharding=zero2"), "nemo-automodel")
    assert kept["distributed"]["reshard_after_forward"] is False
    packed = exported("nemo-automodel", "mbs=1,sharding=zero3", sample_len=512)
    assert words_of(packed, "nemo-automodel")["packed_sequence"]["packed_sequence_size"] == 2048
    with pytest.raises(ConfigError, match="pp=2"):
        exported("nemo-automodel", "pp=2,mbs=1", cluster="h100:8")


def test_what_waits_on_the_host_is_written() -> None:
    found = exported("trl", "mbs=2,sharding=zero3,offload=weights", "full")
    [text] = [file.text for file in found.files if file.name == "accelerate.yaml"]
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_offload_params"] is True
    axolotl = words_of(exported("axolotl", "mbs=2,sharding=zero3,offload=weights"), "axolotl")
    assert axolotl["fsdp_config"]["offload_params"] is True
    found = exported("llamafactory", "mbs=2,sharding=zero3,offload=weights-nvme", "full")
    [text] = [file.text for file in found.files if file.name == "ds_config.json"]
    zero = yaml.safe_load(text)["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_param"]["device"] == zero["offload_optimizer"]["device"] == "nvme"


def test_what_they_cannot_express_is_refused() -> None:
    data = (Dataset(path="a/b"), Dataset(path="c/d"))
    with pytest.raises(ConfigError, match="2 datasets"):
        exported("trl", "mbs=1,sharding=none", settings=TrainingSettings(data=data))
    with pytest.raises(ConfigError, match="which weights to start from"):
        exported("trl", "mbs=1,sharding=none", model="llama-1800b")
    with pytest.raises(ConfigError, match="adapters beside experts"):
        exported("trl", "mbs=1,sharding=none", model="qwen3-30b-a3b")
    with pytest.raises(ConfigError, match="no frozen weights in four bits"):
        exported("fsdp", "mbs=1", "qlora")


def test_weights_to_start_from_are_models_of_the_catalogue() -> None:
    rows = package_rows("software/base_models.csv")
    assert all("/" in row["repository"] and row["source"] for row in rows)
    assert {named_model(row["model"]).name for row in rows} == {row["model"] for row in rows}
    builders = package_rows("software/torchtune/builders.csv")
    assert {named_model(row["model"]).name for row in builders} == {r["model"] for r in builders}
    assert parse_cluster("4060-ti:2").pools[0].node.chip.name == "rtx-4060-ti"
