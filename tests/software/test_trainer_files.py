"""What trainers are configured with is read as it is meant, and edited by as little as does it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from meshwright.api.fixing import Fixed, fix_run
from meshwright.cli import run
from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, import_text
from meshwright.software.registry import find_source
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model

LLAMA = Beside(model=find_model("llama3-8b"), seq_len=4096)
DEEPSPEED = """{
\t"bf16": {"enabled": true},
\t"zero_optimization": {
\t\t"stage": 1,
\t\t"overlap_comm": true
\t},
\t"train_batch_size": 128,
\t"train_micro_batch_size_per_gpu": 8,
\t"gradient_accumulation_steps": 2
}
"""
ACCELERATE = """# ours
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false  # faster
  fsdp_offload_params: false
mixed_precision: bf16
num_processes: 8
"""


def read(name: str, text: str, beside: Beside = LLAMA) -> Imported:
    return import_text(text, source=find_source(name, text), beside=beside)


def fixed(name: str, text: str, folder: Path, **given: object) -> Fixed:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    asked = {"cluster": "h100:8", **given}
    found = fix_run(path, asked)
    assert found is not None
    return found


def test_deepspeed_s_json_is_read() -> None:
    found = read("ds_config.json", DEEPSPEED)
    assert found.layout == {"sharding": "zero1", "offload": "none", "mbs": 8, "gbs": 128}
    assert (found.work.precision, found.replica_batch, found.stack) == ("bf16", 16, "deepspeed")
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "nvme"}}
    text = json.dumps({"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto"})
    layout = read("ds.json", text).layout
    assert (layout["sharding"], layout["offload"], layout["mbs"]) == ("zero3", "weights-nvme", 1)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", DEEPSPEED.replace('"stage": 1', '"stage": 4'), "stage=4: expected 0 to 3"),
        ("a.json", DEEPSPEED.replace(": 8,", ': "x",'), "train_micro_batch_size_per_gpu='x'"),
        ("a.json", DEEPSPEED[:-3], "no JSON"),
        ("a.yaml", ACCELERATE.replace("FSDP", "TPU"), "distributed_type=TPU"),
        ("a.yaml", ACCELERATE.replace("bf16", "int4"), "mixed_precision=int4"),
    ],
)
def test_a_broken_file_is_named(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(name, text)


@pytest.mark.parametrize(("name", "text"), [("a.json", DEEPSPEED), ("a.yaml", ACCELERATE)])
def test_what_no_file_says_is_asked_for(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="--model llama3-8b or --hf"):
        read(name, text, Beside(seq_len=4096))
    with pytest.raises(ConfigError, match="add --seq"):
        read(name, text, Beside(model=LLAMA.model))


def test_deepspeed_s_json_is_edited_in_its_own_text(tmp_path: Path) -> None:
    """ZeRO-1 keeps 16 GB of weights and gradients each beside 8 sequences: too much; DeepSpeed
    demands that the three batch sizes agree."""
    found = fixed("ds.json", DEEPSPEED, tmp_path, model="llama3-8b", seq_len=4096)
    assert found.before is not None and found.before.verdict == "no"
    assert found.quote.verdict == "yes"
    words = json.loads(found.text)
    assert words["train_batch_size"] == 128
    micro, rounds = words["train_micro_batch_size_per_gpu"], words["gradient_accumulation_steps"]
    assert micro * rounds * 8 == 128
    assert words["zero_optimization"]["overlap_comm"] is True
    assert found.text.count("\t") == DEEPSPEED.count("\t")


def test_accelerate_s_yaml_is_read_and_edited(tmp_path: Path) -> None:
    layout = read("accelerate.yaml", ACCELERATE).layout
    assert layout == {"mbs": 1, "sharding": "zero2", "offload": "none"}
    found = fixed("a.yaml", ACCELERATE, tmp_path, model="llama3-8b", seq_len=4096, gbs=64)
    assert "  fsdp_reshard_after_forward: true  # faster\n" in found.text
    assert found.text.startswith("# ours\ncompute_environment: LOCAL_MACHINE\n")
    assert found.quote.verdict == "yes"
    with pytest.raises(ConfigError, match="add --gbs 8, which is 1 on each of 8 ranks"):
        fixed("b.yaml", ACCELERATE, tmp_path, model="llama3-8b", seq_len=4096)


def test_accelerate_s_deepspeed_section_is_read() -> None:
    section = {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "none"}
    words = {"distributed_type": "DEEPSPEED", "deepspeed_config": section}
    found = read("a.yaml", yaml.safe_dump(words | {"mixed_precision": "bf16"}))
    assert (found.layout["sharding"], found.layout["offload"]) == ("zero3", "optimizer")
    assert found.stack == "deepspeed"


def test_the_model_is_given_by_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ds.json"
    path.write_text(DEEPSPEED, encoding="utf-8")
    where = ["--cluster", "h100:8", "--seq", "4096"]
    assert run(["why-oom", str(path), *where]) == 2
    assert "--model llama3-8b" in capsys.readouterr().err
    assert run(["why-oom", str(path), *where, "--model", "llama3-8b"]) == 0
    assert '+		"stage": ' in capsys.readouterr().out
    assert run(["plan", "llama3-8b", "--from", str(path), *where, "--json", "--top", "1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["current"]["layout"]["sharding"] == "zero1"
