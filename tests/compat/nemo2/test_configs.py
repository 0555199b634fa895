from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from tests.compat.nemo2.stand_ins import (
    Llama3Config145M,
    bert_recipe,
    llama_recipe,
    lora,
    t5_recipe,
    target,
)

from meshwright.compat.nemo2.configurator import AutoConfigurator, generate_configs
from meshwright.search.refine import reprice
from meshwright.software.contract import import_text
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.values.errors import ConfigError
from meshwright.values.models.params import model_params
from meshwright.values.text import write_yaml

TARGET_OF_LORA = "nemo.collections.llm.peft.lora.LoRA"
ONE: dict[str, Any] = {
    "tensor_parallel_sizes": [1],
    "pipeline_parallel_sizes": [1],
    "path_to_logs": "/logs",
}


def test_arguments_and_defaults_are_nemos() -> None:
    """Read from NeMo's nemo/collections/llm/tools/auto_configurator/runner.py of September 2025."""
    theirs = {
        **{"recipe": None, "path_to_logs": None, "mode": "pretrain", "gpu_memory_gb": 80},
        **{
            f"{axis}_sizes": "auto"
            for axis in ("tensor_parallel", "pipeline_parallel", "micro_batch")
        },
        **{"context_parallel_sizes": (1,), "expert_parallel_sizes": (1,)},
        **{
            "min_model_parallel_size": "auto",
            "max_model_parallel_size": "auto",
            "num_tokens_in_b": 1400,
            "tflops_per_gpu": 140,
        },
        **{
            "max_minutes_per_run": 30,
            "max_training_days": 2,
            "max_steps_per_run": 50,
            "vocab_size": 32000,
            "calculate_model_size": False,
        },
    }
    parameters = list(inspect.signature(AutoConfigurator).parameters.values())
    positional = {
        found.name: found.default
        for found in parameters
        if found.kind is found.POSITIONAL_OR_KEYWORD
    }
    assert positional == theirs and list(positional) == list(theirs)


def test_nemos_own_example_has_its_three_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = llama_recipe(Llama3Config145M, devices=1, seq_length=2048)
    recipe.data.global_batch_size = 16
    runner = AutoConfigurator(
        recipe=recipe,
        gpu_memory_gb=40,
        micro_batch_sizes=[1, 2, 4],
        max_training_days=1,
        max_steps_per_run=10,
        num_tokens_in_b=10,
        **ONE,
    )
    base, configs = generate_configs(runner)
    # 768*(2*32000 + 12*(2*768 + 2*384 + 3*2688)) + norms = 0.145e9, as NeMo calls it
    assert runner.model_size_in_b == pytest.approx(0.145, abs=0.005)
    assert {name.rpartition("_mbs_")[2] for name in configs} == {
        f"{mbs}_vp_None" for mbs in (1, 2, 4)
    } and len(configs) == 3
    for name, config in configs.items():
        mbs = int(name.rpartition("_mbs_")[2].partition("_")[0])
        assert name.startswith(f"llama_{runner.model_size_in_b:g}b_1nodes_tp_1_pp_1_cp_1_ep_1_")
        assert (config.data.micro_batch_size, config.data.global_batch_size) == (mbs, 16)
        assert (config.trainer.strategy.context_parallel_size, config.trainer.max_steps) == (1, 10)
        assert (config.log.log_dir, config.log.ckpt.save_last, config.resume) == (
            f"/logs/{name}",
            False,
            None,
        )
    assert (
        recipe.trainer.max_steps == base.trainer.max_steps == 100
        and recipe.data.micro_batch_size == 1
    )
    assert "parameter model in" in capsys.readouterr().out


def test_nemos_own_example_with_t5_calculates_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = t5_recipe(devices=1)
    recipe.data.global_batch_size = 16
    words: dict[str, Any] = {
        "gpu_memory_gb": 40,
        "micro_batch_sizes": [1, 2, 4],
        "max_training_days": 1,
        "max_steps_per_run": 10,
        **ONE,
    }
    runner = AutoConfigurator(recipe, num_tokens_in_b=10, calculate_model_size=True, **words)
    base, configs = generate_configs(runner)
    # 140 TFLOPS for a day over 8 FLOP x 10e9 tokens, by 1.15 as T5's days are
    assert runner.model_size_in_b == pytest.approx(140e12 * 86400 / (8 * 10e9) / 1e9, rel=0.02)
    for config in (base, *configs.values()):
        sized = config.model.config
        assert sized.encoder_num_layers == sized.num_layers == runner.model.num_layers
        assert (sized.gated_linear_unit, sized.ffn_hidden_size) == (
            runner.model.gated,
            runner.model.ffn,
        )
    assert len(configs) == 3 and all(
        config.data.seq_length_dec == 128 for config in configs.values()
    )
    assert "parameter model in" in capsys.readouterr().out


def test_t5_runs_under_no_pipeline_and_bert_does() -> None:
    words: dict[str, Any] = {
        "path_to_logs": "/logs",
        "pipeline_parallel_sizes": [1, 2],
        "micro_batch_sizes": [1],
        "limit_search_runs": 8,
    }
    t5 = AutoConfigurator(t5_recipe(nodes=2), context_parallel_sizes="auto", **words)
    # 32000 x 768 words, 512 positions; 12 layers of 4 h^2 + 2 x 4 h^2 in the encoder and 4 h^2 more
    # in the decoder; biases and norms
    assert model_params(t5.model).total == pytest.approx(
        768 * 32512 + 12 * (12 + 16) * 768**2, rel=0.005
    )
    assert (t5.given.work.decoder_seq_len, t5.problem.setting.work.decoder_seq_len) == (128, 128)
    assert {(chosen.layout.pp, chosen.layout.cp) for chosen in t5.chosen} == {(1, 1)}
    bert = AutoConfigurator(bert_recipe(nodes=2), **words)
    # and BERT's transform, pooler and second head, of which Megatron's has the first alone
    assert model_params(bert.model).total == pytest.approx(
        768 * 32512 + 12 * 12 * 768**2 + 2 * 768**2, rel=0.005
    )
    assert {chosen.layout.pp for chosen in bert.chosen} == {1, 2} and bert.model.token_types == 0
    _, configs = generate_configs(bert)
    assert all(
        name.startswith("bert_0.11b_2nodes_") and config.data.global_batch_size == 32
        for name, config in configs.items()
    )


def test_a_mapping_comes_back_as_mappings_that_read_back() -> None:
    yaml: dict[str, Any] = {
        "_target_": "nemo.collections.llm.api.pretrain",
        "model": {
            "_target_": "nemo.LlamaModel",
            "config": {"_target_": "nemo.collections.llm.gpt.model.llama.Llama3Config8B"},
        },
        "trainer": {
            "devices": 8,
            "num_nodes": 2,
            "strategy": {"ddp": {"use_distributed_optimizer": True}},
        },
        "data": {"seq_length": 10240, "global_batch_size": 48},
    }
    runner = AutoConfigurator(yaml, "/logs", context_parallel_sizes="auto", limit_search_runs=4)
    _, configs = generate_configs(runner)
    assert 1 <= len(configs) <= 4
    for config in configs.values():
        strategy, data = config["trainer"]["strategy"], config["data"]
        size = (
            strategy["tensor_model_parallel_size"]
            * strategy["pipeline_model_parallel_size"]
            * strategy["context_parallel_size"]
        )
        assert 16 % size == 0 and data["global_batch_size"] == 48
        assert 48 % (16 // size * data["micro_batch_size"]) == 0
        assert config["data"]["seq_length"] == 10240
    assert "strategy" in yaml["trainer"] and "micro_batch_size" not in yaml["data"]


def test_a_name_gives_whole_recipes() -> None:
    runner = AutoConfigurator(
        "llama3_8b",
        seq_length=8192,
        global_batch_size=128,
        num_nodes=2,
        chip="h100",
        limit_search_runs=3,
        **ONE | {"tensor_parallel_sizes": "auto"},
    )
    base, configs = generate_configs(runner)
    for name, config in configs.items():
        read = import_text(write_yaml(config), source=NEMO2_SOURCE)
        assert (
            read.model.num_layers,
            read.work.gbs,
            read.num_chips,
            read.settings.train_steps,
        ) == (32, 128, 16, 50)
        assert f"_tp_{read.layout['tp']}_pp_1_cp_1_ep_1_mbs_{read.layout['mbs']}_" in name
        assert config["trainer"]["callbacks"][0]["_target_"].endswith(
            "TimingCallback"
        )  # else no step time is ever printed
        assert config["trainer"]["max_time"] == "00:00:30:00"
    assert base["trainer"]["max_steps"] == round(1400e9 / (128 * 8192))


def test_fine_tuning_with_adapters_takes_less_memory_and_is_written_as_such() -> None:
    words: dict[str, Any] = {
        "seq_length": 2048,
        "global_batch_size": 32,
        "mode": "finetune",
        "restore_from": "nemo://llama",
        **ONE,
    }
    adapters = AutoConfigurator("llama3-8b", lora_rank=16, micro_batch_sizes=[1], **words)
    whole = AutoConfigurator("llama3-8b", lora_rank=0, micro_batch_sizes=[1], **words)
    held = [
        reprice(runner.problem, [whole.chosen[0].layout])[0].memory_bytes
        for runner in (adapters, whole)
    ]
    states = [memory["gradients"] + memory["optimizer"] for memory in held]
    # all weights: 4 bytes of gradient, and 12 of master weight and moments over 8 ranks; adapters:
    # a hundredth of the weights
    assert states[1] - states[0] == pytest.approx(8.03e9 * (4 + 12 / 8) * 0.99, rel=0.05)
    assert held[0]["weights"] == held[1]["weights"] == pytest.approx(8.03e9 * 2, rel=0.01)
    [config] = generate_configs(adapters)[1].values()
    assert config["_target_"] == "nemo.collections.llm.api.finetune"
    assert (config["peft"]["_target_"], config["peft"]["dim"], config["peft"]["alpha"]) == (
        TARGET_OF_LORA,
        16,
        32,
    )
    assert config["resume"]["restore_config"]["path"] == "nemo://llama"
    assert (
        config["data"]["_target_"].endswith("SquadDataModule")
        and not config["optim"]["config"]["use_distributed_optimizer"]
    )
    [config] = generate_configs(whole)[1].values()
    assert "peft" not in config and config["optim"]["config"]["use_distributed_optimizer"]


def test_a_recipe_that_fine_tunes_keeps_its_checkpoint_and_its_rank() -> None:
    runner = AutoConfigurator(llama_recipe(peft=lora(32)), mode="finetune", **ONE)
    assert runner.given.work.lora_rank == 32 and runner.problem.setting.work.lora_rank == 32
    _, configs = generate_configs(runner)
    assert all(config.resume is not None and config.peft.dim == 32 for config in configs.values())


def test_the_size_that_the_days_allow() -> None:
    recipe = llama_recipe(nodes=20)
    runner = AutoConfigurator(
        recipe,
        "/logs",
        calculate_model_size=True,
        num_tokens_in_b=300,
        max_training_days=5,
        limit_search_runs=1,
    )
    assert runner.model_size_in_b == pytest.approx(4.03, rel=0.025)  # 160 GPUs, 140 TFLOPS
    base, _ = generate_configs(runner)
    assert (base.model.config.num_layers, base.model.config.hidden_size) == (
        runner.model.num_layers,
        runner.model.hidden,
    )


def test_cards_by_their_memory() -> None:
    recipe = llama_recipe()
    assert AutoConfigurator(recipe, "/logs", gpu_memory_gb=141).card.chip == "h200"
    card = AutoConfigurator(recipe, "/logs", gpu_memory_gb=64).card
    assert (card.chip, card.max_memory_gib) == ("a100-80", 64)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"recipe": None}, "recipe: missing"),
        ({"recipe": "llama3-8b"}, "a name alone has no batch"),
        ({"recipe": 7}, "expected a recipe of NeMo 2.0"),
        ({"recipe": {"model": {}}}, "recipe: has no model.config"),
        (
            {
                "recipe": llama_recipe(
                    target("nemo.collections.llm.bert.model.bert.BertConfig"), num_layers=12
                )
            },
            "hidden_size: missing",
        ),
        (
            {"recipe": llama_recipe(target("nemo.collections.llm.t5.model.t5.T5Config220B"))},
            "did you mean 'T5Config220M'",
        ),
        ({"path_to_logs": None}, "path_to_logs: missing"),
        ({"mode": "finetuning"}, "'finetuning' is no known mode; did you mean 'finetune'"),
        ({"tensor_parallel_sizes": [0]}, "tensor_parallel_sizes=[0]: expected 'auto' or a list"),
        ({"max_steps_per_run": 5}, "max_steps_per_run=5: expected a whole number of 10 or more"),
        ({"gpu_memory_gb": 1000}, "no card is known with as much"),
        ({"seq_length": 4096}, "the recipe says them"),
        ({"restore_from": "x"}, "of no effect here"),
        ({"mode": "finetune", "calculate_model_size": True}, "calculate_model_size"),
        (
            {"recipe": "llama3-8b", "seq_length": 9, "global_batch_size": 8, "mode": "finetune"},
            "restore_from: missing",
        ),
    ],
)
def test_arguments_that_cannot_be(words: dict[str, Any], said: str) -> None:
    given = {"recipe": llama_recipe(), "path_to_logs": Path("/logs"), **words}
    with pytest.raises(ConfigError) as caught:
        AutoConfigurator(**given)
    assert said in str(caught.value)


def test_bounds_that_leave_nothing_say_so() -> None:
    runner = AutoConfigurator(
        llama_recipe(), min_model_parallel_size=3, max_model_parallel_size=3, **ONE
    )
    with pytest.raises(ConfigError, match="model parallelism 1: the bounds are 3 and 3"):
        generate_configs(runner)
