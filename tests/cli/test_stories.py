"""Llama-3.1-8B on two RTX 4090, and Qwen3-30B-A3B by its config.json on torchtitan: a user's
story each, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from meshwright.cli import run

HOME = ["plan", "llama3.1-8b", "--cluster", "rtx-4090:2", "--seq", "2048", "--gbs", "16"]
MOST_LINES, WIDTH = 25, 100
QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
"""Of Qwen/Qwen3-30B-A3B's config.json what says its shape."""


@pytest.mark.parametrize("way", ["lora", "qlora"])
def test_two_cards_at_home_end_in_a_plan_that_runs(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*HOME, "--finetune", way, "--export", str(tmp_path), "--to", "trl"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= MOST_LINES
    words = yaml.safe_load((tmp_path / "sft.yaml").read_text(encoding="utf-8"))
    assert words["model_name_or_path"] == "meta-llama/Llama-3.1-8B"
    assert words.get("load_in_4bit", False) == (way == "qlora")
    config = yaml.safe_load((tmp_path / "accelerate.yaml").read_text(encoding="utf-8"))
    assert config["num_processes"] == 2


def test_all_weights_fit_where_main_memory_suffices(capsys: pytest.CaptureFixture[str]) -> None:
    """16 bytes of 8.03e9 parameters are 119.7 GiB: more than 64, less than 192."""
    assert run([*HOME, "--finetune", "full"]) == 1
    said = capsys.readouterr().err
    assert "--host-memory-gib 128" in said
    assert "would fit: --finetune lora" in said
    assert run([*HOME, "--finetune", "full", "--host-memory-gib", "192", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]
    assert best["layout"]["offload"] == "weights"


def test_offloading_is_held_and_forbidden(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*HOME, "--finetune", "full", "--host-memory-gib", "192", "--set", "offload=none"]
    assert run(asked) == 1
    assert "leave the pins out: --set offload=..." in capsys.readouterr().err
    assert run([*HOME, "--finetune", "lora", "--set", "offload=weights", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {plan["layout"]["offload"] for plan in plans} == {"weights"}


def test_words_that_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*HOME, "--finetune", "full", "--lora-rank", "8"]) == 2
    assert "trains all weights" in capsys.readouterr().err
    assert run([*HOME, "--finetune", "qlora", "--stack", "fsdp"]) == 2
    assert "--stack" in capsys.readouterr().err


def test_explain_says_what_the_host_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """16 bytes of 8.03e9 parameters are 119.7 GiB."""
    layout = ["--layout", "mbs=2,sharding=zero3,recompute=full,offload=weights"]
    home = ["llama3.1-8b", *HOME[2:], "--finetune", "full", *layout]
    assert run(["explain", *home]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not their host: 119.7 GiB of a server's main memory, more than it has" in said
    assert run(["explain", *home, "--host-memory-gib", "192"]) == 0
    assert "not their host" not in capsys.readouterr().out


def test_some_chips_of_many_are_not_fine_tuned_on(capsys: pytest.CaptureFixture[str]) -> None:
    home = ["plan", "llama3.1-8b", "--cluster", "h100:16", "--num-gpus", "8", "--seq", "2048"]
    assert run([*home, "--finetune", "lora"]) == 2
    assert "type their number, such as --cluster h100:8" in capsys.readouterr().err
    assert run([*home, "--set", "offload=weights"]) == 2
    assert "leave it out" in capsys.readouterr().err


def test_a_mixture_by_its_config_goes_to_torchtitan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN), encoding="utf-8")
    asked = ["plan", "--hf", str(config), "--cluster", "h100:32", "--seq", "4096", "--gbs", "128"]
    to = ["--to", "torchtitan", "--export", str(tmp_path / "out"), "--set", "pp=1"]
    with monkeypatch.context() as patched:  # the refusal comes before any search
        patched.setattr("meshwright.api.plan", None)
        assert run([*asked, *to]) == 2
        assert "--leave-out aux_loss" in capsys.readouterr().err
        assert run([*asked, *to, "--leave-out", "foo"]) == 2
        assert "--leave-out foo: the plan does not set it" in capsys.readouterr().err
        assert run([*asked, "--leave-out", "aux_loss"]) == 2
        assert "without --export" in capsys.readouterr().err
    assert run([*asked, *to, "--leave-out", "aux_loss"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) <= MOST_LINES
    [written] = (tmp_path / "out").glob("*.py")
    compile(written.read_text(encoding="utf-8"), written.name, "exec")


def test_a_mixture_written_for_torchtitan_s_toml_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN), encoding="utf-8")
    asked = ["plan", "--hf", str(config), "--cluster", "h100:32", "--seq", "4096", "--gbs", "128"]
    to = ["--to", "torchtitan-toml", "--export", str(tmp_path / "out"), "--leave-out", "aux_loss"]
    assert run([*asked, *to, "--set", "pp=1", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["plans"][0]["layout"]
    [written] = (tmp_path / "out").glob("*.toml")
    assert (
        run(["plan", "--from", str(written), "--cluster", "h100:32", "--top", "1", "--json"]) == 0
    )
    read = json.loads(capsys.readouterr().out)["current"]["layout"]
    names = ("tp", "ep", "pp", "dp", "mbs", "gbs", "sharding", "recompute")
    assert {name: read[name] for name in names} == {name: best[name] for name in names}
