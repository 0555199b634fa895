from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.software.examples import training_plan
from tests.software.frameworks import check_golden, check_round_trip, expressible, plans

from meshwright.software.contract import export_plan, import_text
from meshwright.software.nemo1.export import NEMO1, NEMO1_SCRIPT
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.text import read_yaml


def nemo_plan(
    model: Any = "llama3-8b",
    cluster: str = "h100:64",
    layout: str = "tp=2,pp=2,mbs=1",
    **given: Any,
) -> TrainingPlan:
    return training_plan(model, cluster, layout, **{"seq_len": 2048, **given})


SETTINGS = TrainingSettings(
    data=(Dataset(path="/data/web"), Dataset(path="/data/code", weight=0.5)),
    tokenizer="/tok/llama3",
    save_dir="/out",
    load_dir="/old.nemo",
    train_steps=5000,
    seed=7,
)
GOLDEN = {
    "dense": lambda: nemo_plan(settings=SETTINGS),
    "gpt": lambda: nemo_plan(
        "gpt3-5b", "a100-80:16", "tp=2,mbs=2,recompute=selective,recompute_modules=core_attn"
    ),
    "experts": lambda: nemo_plan("mixtral-8x7b", "h100:128", "tp=2,ep=8,pp=4,vpp=2,mbs=1"),
    "long-context": lambda: nemo_plan(
        "llama2-7b", "h100:16", "cp=8,mbs=1,recompute=full", seq_len=131072, gbs=16
    ),
    "fp8": lambda: nemo_plan("gpt3-175b", "h100:64", "tp=8,pp=8,vpp=2,mbs=1", precision="fp8"),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=NEMO1), case)


@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"layout": "pp=2,mbs=1,layers_per_stage=17+15"}, "evenly", "pp=2"),
        ({"layout": "mbs=1,sharding=zero3"}, "sharding=zero3", "sharding=zero1"),
        (
            {"layout": "tp=2,mbs=1,recompute=selective,recompute_modules=mlp"},
            "core attention",
            "core_attn",
        ),
        ({"model": "mixtral-8x7b", "layout": "tp=2,ep=8,etp=1,mbs=1"}, "etp=1", "etp=2"),
        ({"model": "deepseek-v2-lite", "layout": "ep=8,mbs=1"}, "latent attention", "--to nemo2"),
        ({"model": "qwen3-8b"}, "qk_norm=True", "--to nemo2"),
        ({"model": "llama3.1-8b"}, "rope_scaling=8.0", "--to nemo2"),
        ({"precision": "mxfp8"}, "precision=mxfp8", "precision=bf16"),
        (
            {"settings": TrainingSettings(decay_style="inverse-square-root")},
            "decay_style=inverse-square-root",
            "decay_style=cosine",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    changed: dict[str, Any], reason: str, nearest: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        export_plan(nemo_plan(**changed), target=NEMO1)
    assert reason in caught.value.reason
    assert nearest in caught.value.nearest


@given(
    plans(
        models=("llama3-8b", "gpt3-5b", "gpt3-20b", "llama2-70b", "mixtral-8x7b"),
        stack="megatron",
        shardings=("none", "zero1"),
        recomputes=(
            "",
            "recompute=full",
            "recompute=full,recompute_method=block,recompute_layers=2",
            "recompute=selective",
        ),
    )
)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_a_plan_is_read_back_from_yaml(plan: TrainingPlan) -> None:
    expressible(plan, NEMO1)
    check_round_trip(plan, target=NEMO1, source=NEMO1_SOURCE)


def test_data_tokenizer_and_folders_are_read_back() -> None:
    check_round_trip(GOLDEN["dense"](), target=NEMO1, source=NEMO1_SOURCE)


PUBLISHED = """
trainer: {num_nodes: 16, devices: 8, precision: bf16, max_steps: 75000, gradient_clip_val: 1.0}
model:
  micro_batch_size: 4
  global_batch_size: 2048
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 24
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  kv_channels: null
  activations_checkpoint_granularity: selective
  tokenizer: {library: megatron, type: GPT2BPETokenizer, vocab_file: "${data_dir}/bpe/vocab.json"}
  optim: {name: distributed_fused_adam, lr: 1.6e-4, betas: [0.9, 0.95], sched: {warmup_steps: 115, min_lr: 1.6e-5}}
  data: {seq_length: 2048, data_prefix: [1.0, /data/pile], splits_string: "99,1,0"}
  onnx_safe: false
"""  # noqa: E501


def test_a_configuration_of_the_launchers_own_is_read() -> None:
    # NeMo's 5b.yaml: 24 layers, hidden 4096, feed-forward 4 * 4096, GPT-2's vocabulary; 16 nodes of
    # 8
    found = import_text(PUBLISHED, source=NEMO1_SOURCE)
    model = found.model
    assert (model.num_layers, model.hidden, model.ffn, model.head_dim, model.vocab) == (
        24,
        4096,
        16384,
        128,
        50257,
    )
    assert (model.positions, model.max_positions, model.gated, model.linear_bias) == (
        "learned",
        2048,
        False,
        True,
    )
    assert (found.num_chips, found.layout["mbs"], found.work.gbs, found.layout["recompute"]) == (
        128,
        4,
        2048,
        "selective",
    )
    assert found.passed_through == ("training.model.onnx_safe=False",)
    assert "50257" in found.warnings[0]


def test_the_vocabulary_is_that_of_the_model_that_a_tokenizer_is_called_after() -> None:
    text = PUBLISHED.replace(
        "library: megatron, type: GPT2BPETokenizer",
        "library: huggingface, type: mistralai/Mixtral-8x7B-v0.1",
    )
    found = import_text(
        text.replace(
            "data: {seq_length: 2048", "data: {seq_length: '${training.model.encoder_seq_length}'"
        ),
        source=NEMO1_SOURCE,
    )
    assert (found.model.vocab, found.work.seq_len) == (32000, 2048)
    assert "Mixtral" in found.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden_size: 4096", "hidden_size: ${oc.env:H}", "expected a whole number"),
        ("precision: bf16", "precision: int4", "trainer.precision=int4"),
        ("library: megatron", "library: mystery", "meshwright_vocab_size"),
        ("betas: [0.9, 0.95]", "betas: [0.9]", "expected two numbers"),
        ("num_layers: 24", "encoder: {num_layers: 24}", "only GPT models"),
    ],
)
def test_yaml_that_no_plan_describes_is_refused_in_one_line(
    old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        import_text(PUBLISHED.replace(old, new), source=NEMO1_SOURCE)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="model: trainer:\n {}[]-1a|&*${.}", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        import_text(text, source=NEMO1_SOURCE)


def written(plan: TrainingPlan, target: Any = NEMO1) -> dict[str, Any]:
    return dict(read_yaml(export_plan(plan, target=target).files[0].text, what="test"))


def test_t5_has_two_sides_and_a_split_in_the_middle() -> None:
    given = written(
        nemo_plan(
            "t5-23b", "a100-80:320", "tp=8,pp=4,mbs=4", seq_len=512, gbs=1920, decoder_seq_len=128
        )
    )
    model = given["model"]
    assert model["pipeline_model_parallel_split_rank"] == 2
    assert model["encoder"] == model["decoder"]
    assert (
        model["encoder"]["num_layers"],
        model["encoder"]["hidden_size"],
        model["encoder"]["kv_channels"],
    ) == (36, 5120, 64)
    assert (model["encoder"]["activation"], model["encoder"]["position_embedding_type"]) == (
        "swiglu",
        "learned_absolute",
    )
    assert (model["data"]["seq_length"], model["data"]["seq_length_dec"]) == (512, 128)
    assert (given["exp_manager"]["name"], model["tokenizer"]["type"]) == (
        "megatron_t5",
        "BertWordPieceCase",
    )


def test_t5_recomputes_by_blocks_of_a_stage() -> None:
    layout = "tp=8,pp=4,mbs=4,recompute=full,recompute_method=block,recompute_layers=5"
    side = written(nemo_plan("t5-23b", "a100-80:320", layout, seq_len=512, gbs=1920))["model"][
        "encoder"
    ]
    assert (side["activations_checkpoint_method"], side["activations_checkpoint_num_layers"]) == (
        "block",
        5,
    )


def test_bert_has_its_heads_and_chunks() -> None:
    model = written(
        nemo_plan("bert-20b", "a100-80:512", "tp=4,pp=2,vpp=12,mbs=8", seq_len=512, gbs=2048)
    )["model"]
    assert (
        model["num_layers"],
        model["virtual_pipeline_model_parallel_size"],
        model["bert_binary_head"],
    ) == (48, 12, True)
    assert model["tokenizer"]["type"] == "BertWordPieceLowerCase"


@pytest.mark.parametrize(
    ("model", "layout", "reason"),
    [("t5-2.8b", "pp=3,mbs=4", "first half"), ("t5-3b", "mbs=4", "activation=")],
)
def test_what_t5_has_no_words_for(model: str, layout: str, reason: str) -> None:
    if model == "t5-3b":
        plan = nemo_plan(
            model,
            "a100-80:48",
            layout,
            seq_len=512,
            gbs=192,
            details=ModelDetails(activation="squared-relu"),
        )
    else:
        plan = nemo_plan(model, "a100-80:48", layout, seq_len=512, gbs=192)
    with pytest.raises(CannotExpress, match=reason):
        export_plan(plan, target=NEMO1)


@pytest.mark.parametrize(
    ("model", "program"),
    [("llama3-8b", "megatron_gpt"), ("bert-4b", "megatron_bert"), ("t5-2.8b", "megatron_t5")],
)
def test_the_script_needs_no_launcher(model: str, program: str) -> None:
    plan = nemo_plan(model, "a100-80:32", "tp=2,mbs=2", seq_len=512)
    exported = export_plan(plan, target=NEMO1_SCRIPT)
    assert exported.command[0].endswith(f"/{program}_pretraining.py") and exported.command[1:] == (
        "--config-dir=.",
        "--config-name=plan",
    )
    direct, launched = written(plan, NEMO1_SCRIPT), written(plan)
    assert "run" not in direct and direct["name"] == program
    # the launcher writes the job and so its limit; the script's is the job's own
    assert direct["trainer"] == {**launched["trainer"], "max_time": None}
    assert (
        "${data_dir}" not in exported.files[0].text and "${training" not in exported.files[0].text
    )
    assert direct["model"]["optim"] == launched["model"]["optim"]


def test_checkpoints_are_the_best_by_validation_loss_and_the_last() -> None:
    """As all of the launcher's `conf/training/*` have them; without validation the newest."""
    validated = TrainingSettings(data=(Dataset(path="/d/a"),), eval_steps=5, save_dir="/s")
    same = replace(validated, eval_interval=500, save_interval=500, train_steps=2000)
    kept = written(nemo_plan(settings=same))["exp_manager"]["checkpoint_callback_params"]
    assert (kept["monitor"], kept["mode"], kept["save_top_k"], kept["save_last"]) == (
        "val_loss",
        "min",
        10,
        True,
    )
    assert kept["filename"] == "megatron_gpt--{val_loss:.2f}-{step}-{consumed_samples}"
    assert "every_n_train_steps" not in kept  # saved behind each validation, by its loss
    other = written(nemo_plan(settings=replace(same, save_interval=100)))["exp_manager"]
    assert other["checkpoint_callback_params"]["every_n_train_steps"] == 100
    none = written(nemo_plan(settings=TrainingSettings()))["exp_manager"]
    assert none["checkpoint_callback_params"]["monitor"] == "step"


def test_no_validation_is_later_than_the_last_step() -> None:
    short = TrainingSettings(data=(Dataset(path="/d/a"),), train_steps=50, eval_interval=2000)
    assert written(nemo_plan(settings=short))["trainer"]["val_check_interval"] == 50


def test_a_rate_along_a_line_is_t5s_schedule() -> None:
    plan = nemo_plan(settings=TrainingSettings(decay_style="linear", warmup_steps=3))
    schedule = written(plan)["model"]["optim"]["sched"]
    # WarmupAnnealing takes no constant_steps (nemo/core/optim/lr_scheduler.py)
    assert schedule == {"name": "WarmupAnnealing", "warmup_steps": 3, "min_lr": schedule["min_lr"]}
    check_round_trip(plan, target=NEMO1, source=NEMO1_SOURCE)


def test_biases_of_queries_keys_and_values_alone() -> None:
    """As the launcher's `conf/training/qwen2/*` and `chatglm/*` have them."""
    plan = nemo_plan("qwen2-7b", "h100:8", "tp=2,mbs=1")
    assert written(plan)["model"]["qkv_bias"] is True and written(plan)["model"]["bias"] is False
    check_round_trip(plan, target=NEMO1, source=NEMO1_SOURCE)


def test_further_words_go_with_the_command() -> None:
    plan = nemo_plan(settings=TrainingSettings(extra=("training.model.nsys_profile.enabled=True",)))
    assert export_plan(plan, target=NEMO1).command[-1] == "training.model.nsys_profile.enabled=True"
    assert export_plan(plan, target=NEMO1_SCRIPT).command[-1] == "model.nsys_profile.enabled=True"


def alibi_plan(layout: str = "tp=2,pp=1,mbs=1", **given: Any) -> TrainingPlan:
    words = {"seq_len": 4096, "gbs": 64, "attention": "fused-softmax", **given}
    return training_plan("baichuan2-13b", "a100-80:8", layout, **words)


def test_alibi_takes_the_gpt_that_has_it() -> None:
    """Megatron-Core's leaves positions out in silence. NeMo v1.23 stops at fusions of absent biases
    (mlp.py, attention.py)."""
    values = read_yaml(export_plan(alibi_plan(), target=NEMO1).files[0].text, what="test")["model"]
    named = (
        "mcore_gpt",
        "transformer_engine",
        "position_embedding_type",
        "use_flash_attention",
        "bias",
    )
    assert [values[name] for name in named] == [False, False, "alibi", False, False]
    assert not values["bias_activation_fusion"] and not values["bias_dropout_add_fusion"]
    assert values["optim"]["name"] == "distributed_fused_adam"
    assert values["num_query_groups"] == values["num_attention_heads"] == 40


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (
            {"attention": "flash"},
            "work.attention=flash with ALiBi: NeMo 1.x's own GPT has fused-softmax",
        ),
        ({"layout": "tp=2,cp=2,mbs=1"}, "cp=2 with ALiBi"),
        ({"precision": "fp8"}, "precision=fp8"),
    ],
)
def test_what_goes_without_alibi(plan: dict[str, Any], reason: str) -> None:
    cluster = {"precision": "bf16", **plan}
    layout = cluster.pop("layout", "tp=2,pp=1,mbs=1")
    given = training_plan(
        "baichuan2-13b",
        "h100:8",
        layout,
        **{"seq_len": 4096, "gbs": 64, "attention": "fused-softmax", **cluster},
    )
    with pytest.raises(CannotExpress) as caught:
        export_plan(given, target=NEMO1)
    assert reason in str(caught.value)
