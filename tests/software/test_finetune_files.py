"""Files of TRL, Axolotl, LLaMA-Factory and torchtune, as their makers' examples have them, are read
and edited in their own text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwright.api.fixing import fix_run
from meshwright.cli import run
from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, import_text
from meshwright.software.registry import find_source
from meshwright.values.errors import ConfigError
from meshwright.values.workload import LORA_TARGETS

LLAMAFACTORY = """### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all

### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 8192  # long
preprocessing_num_workers: 16

### train
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
disable_gradient_checkpointing: true
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
"""
AXOLOTL = """base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_modules:
  - gate_proj
  - down_proj
  - up_proj
  - q_proj
  - v_proj
  - k_proj
  - o_proj
sequence_len: 2048
sample_packing: true
gradient_accumulation_steps: 2
micro_batch_size: 32   # mine
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: false
fsdp_version: 2
fsdp_config:
  offload_params: false
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
  state_dict_type: FULL_STATE_DICT
  reshard_after_forward: true
  activation_checkpointing: false
"""
TRL = """# mine
model_name_or_path: Qwen/Qwen3-8B
dataset_name: trl-lib/Capybara
max_length: 4096
use_peft: true
lora_r: 32
lora_target_modules: all-linear
per_device_train_batch_size: 16
gradient_accumulation_steps: 1
gradient_checkpointing: false
learning_rate: 2.0e-4
bf16: true
"""
TORCHTUNE = """output_dir: out/llama3_1_8B/lora
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: Meta-Llama-3.1-8B-Instruct/original/tokenizer.model
  max_seq_len: null
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
batch_size: 16
gradient_accumulation_steps: 8  # Use to increase effective batch size
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 3e-4
enable_activation_checkpointing: False  # True reduces memory
enable_activation_offloading: False
dtype: bf16
"""
TEXTS = {
    "llamafactory": LLAMAFACTORY,
    "axolotl": AXOLOTL,
    "trl": TRL,
    "torchtune": TORCHTUNE,
}


def read(name: str, **beside: Any) -> Imported:
    text = TEXTS[name]
    source = find_source("train.yaml", text)
    assert source.name == name
    return import_text(text, source=source, beside=Beside(**beside))


def test_llama_factory_s_yaml_is_read() -> None:
    """Its makers' example of LoRA, without checkpoints and at four times the length."""
    found = read("llamafactory")
    assert (found.model.name, found.work.seq_len) == ("llama3-8b", 8192)
    assert (found.work.lora_rank, found.work.lora_targets) == (8, LORA_TARGETS)
    assert found.layout == {
        "mbs": 4,
        "recompute": "none",
        "optimizer": "adam",
        "sharding": "none",
    }
    assert found.replica_batch == 8
    assert (found.settings.learning_rate, found.settings.decay_style) == (1e-4, "cosine")


def test_axolotl_s_yaml_is_read() -> None:
    found = read("axolotl")
    assert (found.model.name, found.work.seq_len, found.replica_batch) == ("llama3.2-1b", 2048, 64)
    assert set(found.work.lora_targets) == set(LORA_TARGETS)
    assert (found.layout["sharding"], found.layout["offload"]) == ("zero3", "none")
    assert any("--sample-len" in words for words in found.warnings)


def test_trl_s_yaml_is_read_with_accelerate_s_beside_it() -> None:
    alone = read("trl")
    assert (alone.model.name, alone.layout["sharding"]) == ("qwen3-8b", "none")
    assert "no accelerate.yaml beside it" in alone.warnings[0]
    section = {"fsdp_version": 2, "fsdp_activation_checkpointing": True}
    beside = yaml.safe_dump({"distributed_type": "FSDP", "fsdp_config": section})
    layout = read("trl", files={"accelerate.yaml": beside}).layout
    assert (layout["sharding"], layout["recompute"], layout["mbs"]) == ("zero3", "full", 16)


def test_torchtune_s_yaml_is_read() -> None:
    with pytest.raises(ConfigError, match="add --seq"):
        read("torchtune")
    found = read("torchtune", seq_len=4096)
    assert (found.model.name, found.replica_batch) == ("llama3.1-8b", 128)
    assert found.work.lora_targets == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    assert found.settings.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("name", "given", "micro", "rounds"),
    [
        (
            "trl",
            {"cluster": "h100:2"},
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
        ),
        (
            "torchtune",
            {"cluster": "a100-40:2", "seq_len": 8192},
            "batch_size",
            "gradient_accumulation_steps",
        ),
        ("axolotl", {"cluster": "rtx-4090:2"}, "micro_batch_size", "gradient_accumulation_steps"),
    ],
)
def test_a_file_that_does_not_fit_is_edited_in_its_own_text(
    name: str, given: dict[str, Any], micro: str, rounds: str, tmp_path: Path
) -> None:
    """The batch of a step stays, and so does every line that says nothing of the layout."""
    path, text = tmp_path / "train.yaml", TEXTS[name]
    path.write_text(text, encoding="utf-8")
    fixed = fix_run(path, given)
    assert fixed is not None and fixed.before is not None
    assert (fixed.before.verdict, fixed.quote.verdict) == ("no", "yes")
    old, new = yaml.safe_load(text), yaml.safe_load(fixed.text)
    assert new[micro] * new[rounds] == old[micro] * old[rounds]
    lines = [(a, b) for a, b in zip(text.splitlines(), fixed.text.splitlines(), strict=True)]
    assert 1 <= sum(a != b for a, b in lines) <= 3
    assert [a.partition("#")[2] for a, _ in lines] == [b.partition("#")[2] for _, b in lines]


def test_a_model_that_nobody_knows_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(TRL.replace("Qwen/Qwen3-8B", "me/tuned-thing"), encoding="utf-8")
    where = [str(path), "--cluster", "h100:2"]
    assert run(["fix", *where]) == 2
    assert "the shape of me/tuned-thing is not known here" in capsys.readouterr().err
    assert run(["fix", *where, "--model", "qwen3-8b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] == "yes"


def test_a_file_of_fine_tuning_is_planned_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(TRL, encoding="utf-8")
    out = tmp_path / "out"
    asked = ["plan", "--from", str(path), "--cluster", "h100:2", "--top", "1", "--json"]
    assert run([*asked, "--export", str(out)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["request"]["finetune"], answer["request"]["lora_rank"]) == ("lora", 32)
    words = yaml.safe_load((out / "sft.yaml").read_text(encoding="utf-8"))
    assert (words["model_name_or_path"], words["lora_r"]) == ("Qwen/Qwen3-8B", 32)
    assert words["learning_rate"] == 2e-4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRL.replace("max_length: 4096", "max_length: abc"), "sequences of 'abc' tokens"),
        (TRL.replace(": all-linear", ": 5"), "layers with adapters: 5"),
        (AXOLOTL.partition("fsdp_config:")[0] + "fsdp_config: 5\n", "fsdp_config=5"),
        ("distributed_type: FSDP\nfsdp_config: 3\n", "fsdp_config: expected keys and values"),
        (
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: [1]\n",
            "sharding_strategy",
        ),
    ],
)
def test_values_of_a_wrong_kind_are_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        import_text(text, source=find_source("train.yaml", text))
