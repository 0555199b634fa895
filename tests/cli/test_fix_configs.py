"""`meshwright fix` on configuration files: torchtitan's TOML, nanotron's YAML, and NeMo's."""

from __future__ import annotations

import difflib
import json
import tomllib
from pathlib import Path

import pytest
import yaml

from meshwright.cli import run

Capture = pytest.CaptureFixture[str]

TITAN = """# my run
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 8   # crashed with 16
seq_len = 8192
steps = 1000
dataset = "c4"

# axes
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1  # tp
pipeline_parallel_degree = 1

[activation_checkpoint]
mode = 'none'  # ['none', 'selective', 'full']
"""
NANOTRON = """# Llama 8B on our cluster
general: {project: mine, run: llama-8b, seed: 42}
checkpoints:
  checkpoints_path: /data/ckpt   # big disk
model:
  dtype: bfloat16
  model_config:
    hidden_size: 4096
    intermediate_size: 14336
    is_llama_config: true
    num_attention_heads: 32
    num_hidden_layers: 32
    num_key_value_heads: 8
    vocab_size: 128256
optimizer:
  zero_stage: 1    # on
parallelism:
  dp: 4
  pp: 1
  tp: 4
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 4
  sequence_length: 8192
  train_steps: 100
"""
WORDS = {"titan.toml": (TITAN, ["--gbs", "128"]), "nano.yaml": (NANOTRON, [])}


def changed(old: str, new: str) -> tuple[list[str], list[str]]:
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    return [one[2:] for one in lines if one[0] == "-"], [one[2:] for one in lines if one[0] == "+"]


def fixed(path: Path, capsys: Capture, *words: str) -> dict[str, object]:
    assert run(["fix", str(path), *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", WORDS)
def test_a_configuration_that_does_not_fit_changes_by_a_few_values(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    path, (text, words) = tmp_path / name, WORDS[name]
    path.write_text(text, encoding="utf-8")
    on = ["--cluster", "h100:16", *words]
    found = fixed(path, capsys, *on, "--write")
    before = found["before"]
    assert isinstance(before, dict)
    assert before["fits"] == "no"
    assert found["fits"] == "yes"
    after = path.read_text(encoding="utf-8")
    gone, come = changed(text, after)
    assert 1 <= len(come) <= 4
    assert len(gone) <= 2
    assert [line for line in text.splitlines() if "#" in line and line not in gone] == [
        line for line in after.splitlines() if "#" in line and line not in come
    ]
    again = fixed(path, capsys, *on)
    assert again["diff"] == ""
    assert again["layout"] == found["layout"]


def test_the_micro_batch_alone_mends_nanotron(tmp_path: Path, capsys: Capture) -> None:
    """The batch is 4 * 8 * 4 = 128 sequences before and after."""
    path = tmp_path / "nano.yaml"
    path.write_text(NANOTRON, encoding="utf-8")
    fixed(path, capsys, "--cluster", "h100:16", "--write")
    was, now = (yaml.safe_load(one) for one in (NANOTRON, path.read_text(encoding="utf-8")))
    tokens, parallel = now.pop("tokens"), now["parallelism"]
    before = was.pop("tokens")
    assert now == was
    rounds = tokens["batch_accumulation_per_replica"]
    assert tokens["micro_batch_size"] * rounds * parallel["dp"] == 128
    assert tokens["micro_batch_size"] < before["micro_batch_size"]


def test_more_servers_are_more_replicas(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "nano.yaml"
    small = NANOTRON.replace("micro_batch_size: 4", "micro_batch_size: 1")
    path.write_text(small, encoding="utf-8")
    fixed(path, capsys, "--cluster", "h100:32", "--write")
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert found["parallelism"]["dp"] == 8
    # 4 replicas of 8 micro batches: half as many micro batches on twice the replicas
    assert found["tokens"]["batch_accumulation_per_replica"] == 4


def test_a_pipeline_is_cut_as_torchtitan_cuts_it_where_that_is_even(
    tmp_path: Path, capsys: Capture
) -> None:
    """32 layers with one for each end are 34, 17 a stage: 16 layers each, without a word more."""
    path = tmp_path / "titan.toml"
    path.write_text(TITAN, encoding="utf-8")
    pins = ["--set", "pp=2", "--set", "vpp=1", "--set", "mbs=1", "--set", "cp=1"]
    split = ["--set", "layers_per_stage=16+16"]
    fixed(path, capsys, "--cluster", "h100:16", "--gbs", "128", *pins, *split, "--write")
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    assert found["parallelism"]["pipeline_parallel_degree"] == 2
    assert "module_fqns_per_model_part" not in found["parallelism"]
    assert found["training"]["dataset"] == "c4"


def test_a_layout_at_risk_is_taken_where_no_other_fits(tmp_path: Path, capsys: Capture) -> None:
    """All but the micro batch is held: one sequence needs a part of what is kept free."""
    path = tmp_path / "titan.toml"
    path.write_text(TITAN, encoding="utf-8")
    held = [
        word
        for pin in ("recompute=none", "tp=1", "pp=1", "cp=1", "sharding=zero3")
        for word in ("--set", pin)
    ]
    found = fixed(path, capsys, "--cluster", "h100:16", "--gbs", "128", *held)
    assert found["fits"] == "at risk"
    assert any("at risk" in str(note) for note in found["notes"])  # type: ignore[attr-defined]


def test_chunks_without_their_schedule_are_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "titan.toml"
    text = TITAN.replace(
        "pipeline_parallel_degree = 1",
        "pipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 9",
    )
    path.write_text(text, encoding="utf-8")
    assert run(["fix", str(path), "--cluster", "h100:16", "--gbs", "128"]) == 2
    assert "Interleaved1F1B" in capsys.readouterr().err


def test_a_batch_that_follows_from_the_replicas_is_kept(tmp_path: Path, capsys: Capture) -> None:
    """torchtitan takes local_batch_size sequences from each of 16 replicas: 128 in all."""
    path = tmp_path / "titan.toml"
    path.write_text(TITAN, encoding="utf-8")
    found = fixed(path, capsys, "--cluster", "h100:16", "--write")
    assert "gbs=128" in str(found["layout"])
    after = tomllib.loads(path.read_text(encoding="utf-8"))["training"]
    assert after["global_batch_size"] == 128


@pytest.mark.parametrize(
    ("target", "name", "nodes"),
    [
        ("megatron-bridge", "overrides.yaml", None),
        ("nemo2", "recipe.yaml", "num_nodes: 2"),
        ("nemo1", "conf/training/meshwright/plan.yaml", "num_nodes: 2"),
    ],
)
def test_files_of_nemo_and_bridge_keep_all_but_the_layout(
    target: str, name: str, nodes: str | None, tmp_path: Path, capsys: Capture
) -> None:
    """The micro batch does not fit one server, and the file was for two."""
    words = ["--cluster", "h100:16", "--seq", "8192", "--gbs", "64", "--layout", "tp=4,mbs=4"]
    assert run(["export", "llama3-8b", *words, "--to", target, "-o", str(tmp_path)]) == 0
    path = tmp_path / name
    old = path.read_text(encoding="utf-8")
    old = old.replace("micro_batch_size: 4", "micro_batch_size: 64  # mine")
    path.write_text(old, encoding="utf-8")
    capsys.readouterr()
    assert run(["fix", str(path), "--cluster", "h100:8", "--write"]) == 0
    new = path.read_text(encoding="utf-8")
    gone = {line.strip() for line in set(old.splitlines()) - set(new.splitlines())}
    allowed = ("micro_batch_size", "model_parallel_size", "context_parallel", "sequence_parallel")
    assert gone >= {"micro_batch_size: 64  # mine", *([] if nodes is None else [nodes])}
    assert all(line.startswith((*allowed, "tensor", "num_nodes")) for line in gone)
    assert "  # mine" in new
    assert len(new.splitlines()) == len(old.splitlines())
    assert run(["why-oom", str(path), "--cluster", "h100:8"]) == 0
    assert "fits: yes" in capsys.readouterr().out
