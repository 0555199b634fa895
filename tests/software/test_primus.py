"""Primus's configurations: written over its presets, read with them, and edited in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.software.examples import training_plan
from tests.software.frameworks import (
    check_golden,
    expressible,
    megatron_plans,
    plans,
    rebuilt,
    run_loader,
    write_exports,
)

from meshwright.api.fixing import fix_run
from meshwright.software.contract import export_plan, import_text
from meshwright.software.megatron_lm.words import flags
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.primus.export import PRIMUS
from meshwright.software.primus.presets import flags_of, keys, model_presets, preset_of, values_of
from meshwright.software.primus.read import PRIMUS_SOURCE, read_primus
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError, UnknownNameError
from meshwright.values.text import read_yaml

REAL = TrainingSettings(
    data=(Dataset(path="/data/web"), Dataset(path="/data/code", weight=0.5)),
    tokenizer="Qwen/Qwen3-8B",
    train_samples=10_000,
    save_dir="/out",
)


def primus_plan(
    model: Any = "llama3.1-8b",
    cluster: str = "mi300x:64",
    layout: str = "tp=2,pp=2,mbs=1",
    **given: Any,
) -> TrainingPlan:
    return training_plan(model, cluster, layout, **{"stack": "primus", **given})


GOLDEN: dict[str, Callable[[], TrainingPlan]] = {
    "dense": primus_plan,
    "data": lambda: primus_plan("qwen3-8b", settings=REAL),
    "experts": lambda: primus_plan("mixtral-8x7b", layout="tp=2,ep=8,etp=1,pp=4,vpp=2,mbs=1"),
    "latent": lambda: primus_plan(
        "deepseek-v2", layout="ep=16,pp=4,mbs=1,recompute=full", precision="fp8"
    ),
    "uneven": lambda: primus_plan(
        "llama3-70b", layout="tp=8,pp=4,mbs=1,layers_per_stage=21+20+20+19", precision="fp8"
    ),
    "no-preset": lambda: primus_plan(
        "gpt3-5b", layout="tp=2,mbs=1", seq_len=2048, precision="mxfp8", cluster="mi355x:8"
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=PRIMUS), case)


def overrides(plan: TrainingPlan) -> dict[str, Any]:
    text = export_plan(plan, target=PRIMUS).files[0].text
    found: dict[str, Any] = read_yaml(text, what="primus")["modules"]["pre_trainer"]["overrides"]
    return found


@pytest.mark.parametrize("case", GOLDEN)
def test_every_key_is_one_of_the_release(case: str) -> None:
    """A key that Primus lacks would be passed over in silence."""
    preset = model_presets()[preset_of(GOLDEN[case]().model.name)]
    for name in overrides(GOLDEN[case]()):
        assert name in keys() or name in preset, name


def test_presets_that_train_otherwise_are_undone() -> None:
    """pre_trainer.yaml of v26.5.1 fine-tunes, and trains 1,000 steps with a warm-up of 40."""
    there = {name: key.usual for name, key in keys().items()}
    assert (there["finetune"], there["train_iters"], there["lr_warmup_iters"]) == (True, 1000, 40)
    assert (there["sequence_parallel"], there["swiglu"], there["dataloader_type"]) == (
        True,
        True,
        "cyclic",
    )
    written = overrides(primus_plan("qwen3-8b", layout="mbs=1", settings=REAL))
    assert written["finetune"] is False
    assert written["train_iters"] is None
    assert (written["train_samples"], written["lr_warmup_iters"]) == (10_000, 0)
    assert written["sequence_parallel"] is False
    assert written["dataloader_type"] is None
    gpt3 = overrides(primus_plan("gpt3-5b", layout="tp=2,mbs=1", seq_len=2048))
    assert (gpt3["swiglu"], gpt3["add_bias_linear"]) == (False, True)
    assert gpt3["untie_embeddings_and_output_weights"] is False


def test_epsilon_has_the_name_that_megatron_reads() -> None:
    """Presets say norm_epsilon, which is no argument of the Megatron-LM that Primus names."""
    assert keys()["norm_epsilon"].flag == ""
    assert keys()["layernorm_epsilon"].flag == "--norm-epsilon"
    assert overrides(primus_plan("qwen3-8b"))["layernorm_epsilon"] == 1e-6


def test_data_is_named_as_its_hook_asks() -> None:
    """Without train_data_path Primus makes a corpus of its own before the start."""
    written = overrides(GOLDEN["data"]())
    assert written["train_data_path"] == "1 /data/web 0.5 /data/code"
    assert written["mock_data"] is False
    assert not written.keys() & {"data_path", "split"}
    shares = replace(REAL, split=(90.0, 10.0, 0.0))
    with pytest.raises(CannotExpress, match="validation from files of their own"):
        export_plan(primus_plan("qwen3-8b", settings=shares), target=PRIMUS)


@pytest.mark.parametrize(("ep", "units"), [(8, 64), (16, 32)])
def test_experts_go_through_its_deepep(ep: int, units: int) -> None:
    written = overrides(primus_plan("qwen3-30b-a3b", layout=f"ep={ep},mbs=1", seq_len=4096))
    assert written["use_turbo_deepep"] is True
    assert written["enable_primus_turbo"] is True
    there = {name: key.usual for name, key in keys().items()} | written
    assert (there["turbo_deepep_num_cu"], there["moe_router_dtype"]) == (units, "fp32")
    assert there["moe_shared_expert_overlap"] is False


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (lambda: primus_plan("bert-110m", layout="mbs=1", seq_len=512), "decoders of attention"),
        (lambda: primus_plan("llama3-8b", precision="tf32"), "no such format"),
        (lambda: primus_plan("llama3-8b", layout="tp=2,pp=2,mbs=1", lora_rank=8), "lora"),
    ],
)
def test_refusals(plan: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        export_plan(plan(), target=PRIMUS)


@settings(max_examples=30, deadline=None)
@given(
    plan=plans(
        models=("llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"),
        stack="primus",
        shardings=("none", "zero1", "zero3"),
        recomputes=("", "recompute=full", "recompute=selective,recompute_modules=layernorm"),
    )
)
def test_round_trip(plan: TrainingPlan) -> None:
    exported = expressible(plan, PRIMUS)
    found = import_text(exported.files[0].text, source=PRIMUS_SOURCE)
    again, wanted = completed(rebuilt(found, plan)), completed(plan)
    assert replace(again.model, name=wanted.model.name) == wanted.model
    assert again.layout == wanted.layout
    assert again.work == replace(wanted.work, attention=again.work.attention)
    assert again.settings == wanted.settings
    assert found.warnings == ()
    assert found.passed_through == ()


@given(words=st.dictionaries(st.sampled_from(sorted(flags())), st.integers(2, 9), max_size=6))
def test_flags_and_keys_say_the_same(words: dict[str, int]) -> None:
    """A flag of one number comes back from its key."""
    known = {key.flag: key for key in keys().values() if key.flag}
    asked = {
        flag: (str(number),)
        for flag, number in words.items()
        if flags()[flag].kind == "one" and flag in known and known[flag].megatron != number
    }
    back = flags_of(values_of(asked))
    assert dict(zip(back[::2], back[1::2], strict=True)) == {
        flag: value for flag, (value,) in asked.items()
    }


PUBLISHED = """
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml  # a preset
    overrides:
      micro_batch_size: 8
      global_batch_size: 512
      seq_length: 8192
      max_position_embeddings: 8192
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      overlap_grad_reduce: true
      mock_data: true
      # losses
      cross_entropy_fusion_impl: "te"
      cross_entropy_loss_fusion: true
      gradient_accumulation_fusion: false
      wandb_project: mine
"""


def test_a_configuration_is_read_with_its_presets() -> None:
    found = read_primus(PUBLISHED)
    assert (found.stack, found.told, found.num_chips) == ("primus", (), None)
    assert (found.model.num_layers, found.model.num_kv_heads, found.model.ffn) == (32, 8, 14336)
    # mock data without vocab_size: 131,072 words and NullTokenizer's end of document
    assert found.model.vocab == 131_073
    wanted = {"tp": 1, "pp": 1, "mbs": 8, "gbs": 512, "sharding": "zero1", "sp": False}
    assert {name: found.layout[name] for name in wanted} == wanted
    assert found.settings.adam_beta2 == 0.999
    assert found.passed_through == ("--wandb-project", "mine")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("framework: megatron", "framework: torchtitan", "framework=torchtitan"),
        ("llama3.1_8B.yaml", "llama9_8B.yaml", "llama"),
        ("micro_batch_size: 8", "micro_batch_size: many", "micro_batch_size many"),
    ],
)
def test_what_cannot_be_read_is_said_in_its_words(old: str, new: str, says: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=says) as caught:
        read_primus(PUBLISHED.replace(old, new))
    assert "--" not in str(caught.value)


def test_keys_that_no_release_has_are_named() -> None:
    found = read_primus(PUBLISHED.replace("wandb_project: mine", "tensor_parallel: 2"))
    assert "tensor_parallel: no key of Primus, which passes it over" in found.warnings


def test_fix_edits_the_keys_of_the_layout(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(PUBLISHED, encoding="utf-8")
    fixed = fix_run(path, {"cluster": "mi300x:8"})
    assert fixed is not None
    assert fixed.before is not None and fixed.before.verdict == "no"
    assert fixed.quote.verdict == "yes"
    old, new = PUBLISHED.splitlines(), fixed.text.splitlines()
    assert set(old) - set(new) == {"      micro_batch_size: 8"}
    assert len(new) == len(old)
    assert read_primus(fixed.text).layout["mbs"] == fixed.layout.mbs


def test_primus_accepts_what_is_written(tmp_path: Path) -> None:
    assert write_exports(megatron_plans("primus"), PRIMUS, tmp_path) >= 40
    run_loader(
        "primus_yaml.py",
        tmp_path,
        variable="MESHWRIGHT_PRIMUS",
        what="torch and the requirements of Primus and Megatron-LM",
    )


@pytest.mark.parametrize(
    ("extra", "said"), [(("loud",), "no flag"), (("--odd", "1"), "key of Primus")]
)
def test_words_that_primus_would_not_read_are_refused(extra: tuple[str, ...], said: str) -> None:
    """`--bf16 loud` would make the word bf16's value, and an odd key nothing at all."""
    plan = primus_plan(settings=TrainingSettings(extra=extra))
    with pytest.raises(ConfigError, match=said):
        export_plan(plan, target=PRIMUS)


def test_words_that_it_reads_are_written() -> None:
    plan = primus_plan(settings=TrainingSettings(extra=("--log-params-norm",)))
    found = export_plan(plan, target=PRIMUS)
    assert "log_params_norm: true" in found.files[0].text
