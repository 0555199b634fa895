"""NeMo 2.0: a recipe for nemo_run in Python, and the same as its YAML.

A recipe is a tree of configurations: each node names what is called, and its arguments.
"""

from __future__ import annotations

import math
from typing import Any

from meshwright.software.contract import (
    BF16_GRADIENTS,
    EnvVar,
    Exported,
    ExportedFile,
    ExportTarget,
    TrainedLayers,
)
from meshwright.software.defaults import train_steps
from meshwright.software.megatron_core.layout import (
    context_words,
    ddp_words,
    parallel_words,
    recompute_words,
    tp_overlap,
    trained,
)
from meshwright.software.megatron_core.model import (
    loss_notes,
    loss_words,
    model_words,
    narrow_words,
)
from meshwright.software.megatron_lm.export import environment
from meshwright.software.nemo2.encoders import encoder_data, encoder_model
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Activation
from meshwright.software.text import Code, python_call
from meshwright.software.words import WordTable, chosen, require_one_of, split_shares
from meshwright.values.errors import CannotExpress
from meshwright.values.switches import release_key
from meshwright.values.text import read_yaml, write_yaml
from meshwright.values.workload import Precision, Workload

__all__ = [
    "ACTIVATION_TARGETS",
    "MEGATRON_TOKENIZERS",
    "NAME",
    "NEMO2",
    "PRECISIONS",
    "WORDS",
    "finetuned",
    "recipe",
    "recipe_values",
]


def finetuned(tree: dict[str, Any], *, restore_from: str, work: Workload) -> dict[str, Any]:
    """Return a pretraining recipe as one that fine-tunes from a checkpoint, with the workload's
    adapters; a rank of 0 trains all weights.

    As NeMo's `default_finetune_recipe` and `finetune_recipe` of September 2025 have it: SQuAD where
    no data are given, alpha twice the rank, and no distributed optimizer with adapters, which NeMo
    2.5 says does not work.
    """
    restore = {"_target_": "nemo.lightning.resume.RestoreConfig", "path": restore_from}
    found = {
        **tree,
        "_target_": "nemo.collections.llm.api.finetune",
        "resume": {"_target_": _RESUME, "restore_config": restore},
    }
    data = tree["data"]
    if data["_target_"].endswith("MockDataModule"):
        sizes = ("seq_length", "micro_batch_size", "global_batch_size")
        squad = {"_target_": "nemo.collections.llm.gpt.data.squad.SquadDataModule"}
        found["data"] = squad | {name: data[name] for name in sizes}
    if not work.lora_rank:
        return found
    lora = {
        "_target_": "nemo.collections.llm.peft.lora.LoRA",
        "target_modules": list(work.lora_targets),
        "dim": work.lora_rank,
        "alpha": 2 * work.lora_rank,
    }
    config = {**tree["optim"]["config"], "use_distributed_optimizer": False}
    return {**found, "peft": lora, "optim": {**tree["optim"], "config": config}}


_RESUME = "nemo.lightning.resume.AutoResume"
NAME = "nemo2"
WORDS = WordTable("software/nemo2/words.csv")
ACTIVATION_TARGETS: dict[Activation, str] = {
    "silu": "torch.nn.functional.silu",
    "gelu": "torch.nn.functional.gelu",
    "relu": "torch.nn.functional.relu",
    "squared-relu": "megatron.core.activations.squared_relu",
}
_BF16 = {
    "precision": "bf16-mixed",
    "params_dtype": "torch.bfloat16",
    "pipeline_dtype": "torch.bfloat16",
    "autocast_enabled": False,
}
_FP16 = {
    "precision": "16-mixed",
    "params_dtype": "torch.float16",
    "pipeline_dtype": "torch.float16",
    "autocast_enabled": False,
}
PRECISIONS: dict[Precision, dict[str, Any]] = {
    "bf16": _BF16,
    "fp16": _FP16,
    "fp8": {**_BF16, "fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8-blockwise": {**_BF16, "fp8": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {**_BF16, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {**_BF16, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Arguments of MegatronMixedPrecision; dtypes by their names."""
_MODELS = "nemo.collections.llm.gpt.model."
_CLASSES = {
    "plain": ("base.GPTModel", "base.GPTConfig"),
    "stretched": ("llama.LlamaModel", "llama.Llama31Config"),
    "latent": ("deepseek.DeepSeekModel", "deepseek.DeepSeekConfig"),
}
"""Model and its configuration below _MODELS: of any decoder, with Llama 3.1's rotary scaling, with
latent attention."""
_STRATEGY = "nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy"
_DDP = "megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig"


def recipe(plan: TrainingPlan) -> dict[str, Any]:
    """Return the tree; `_target_` names a class, a text under `dtype` or `activation_func` a
    function or a dtype."""
    says = "recipes train from half-precision weights"
    require_one_of(plan, "work.precision", PRECISIONS, name=NAME, says=says)
    decoder = plan.model.family == "decoder"
    model = _decoder(plan) if decoder else encoder_model(plan, activation=_activation(plan))
    model["config"] |= {
        **_context(plan),
        **recompute_words(plan),
        **loss_words(plan.stack, plan.work.precision),
        **({"tp_comm_overlap": True} if tp_overlap(plan) else {}),
    }
    data, load = _data(plan), WORDS.written(plan, "resume.")
    return {
        "_target_": "nemo.collections.llm.api.pretrain",
        "_partial_": True,
        "model": model,
        "trainer": _trainer(plan),
        "data": data if decoder else encoder_data(plan, data),
        "log": _log(plan),
        "optim": _optim(plan),
        "resume": {
            "_target_": _RESUME,
            "resume_if_exists": True,
            "resume_ignore_no_checkpoint": True,
            **_given(load),
        },
    }


def _given(words: dict[str, Any]) -> dict[str, Any]:
    """Return the words that have a value."""
    return {word: value for word, value in words.items() if value is not None}


def _activation(plan: TrainingPlan) -> str:
    activation = plan.details.activation
    assert activation is not None
    if activation not in ACTIVATION_TARGETS:
        reason = f"details.activation={activation}: it has {', '.join(ACTIVATION_TARGETS)}"
        raise CannotExpress(NAME, reason, nearest="details.activation=gelu")
    return ACTIVATION_TARGETS[activation]


def _decoder(plan: TrainingPlan) -> dict[str, Any]:
    words = model_words(plan, name=NAME)
    scaled = plan.model.mla is None and words.pop("rope_scaling", False)
    kind = "latent" if plan.model.mla is not None else "stretched" if scaled else "plain"
    model_class, config_class = (f"{_MODELS}{name}" for name in _CLASSES[kind])
    if kind == "stretched":  # GPTConfig has no such field
        words["scale_factor"] = words.pop("rope_scaling_factor")
    elif "rope_scaling_factor" in words:
        reason = "rope_scaling with latent attention"
        raise CannotExpress(NAME, reason, nearest="rope_scaling unset")
    config = {
        "_target_": config_class,
        **words,
        "seq_length": plan.work.seq_len,
        "activation_func": _activation(plan),
    }
    return {"_target_": model_class, "config": config}


def _trainer(plan: TrainingPlan) -> dict[str, Any]:
    settings, chips = plan.settings, plan.cluster.num_chips
    devices = math.gcd(chips, plan.pool.node.chips_per_node)
    return {
        "_target_": "nemo.lightning.pytorch.trainer.Trainer",
        "accelerator": "gpu",
        "devices": devices,
        "num_nodes": chips // devices,
        "max_steps": train_steps(settings, plan.work),
        "accumulate_grad_batches": 1,
        "use_distributed_sampler": False,
        "log_every_n_steps": settings.log_interval,
        "limit_val_batches": settings.eval_steps,
        **({"val_check_interval": settings.eval_interval} if settings.eval_steps else {}),
        "plugins": {
            "_target_": "nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision",
            **PRECISIONS[plan.work.precision],
            "grad_reduce_in_fp32": plan.stack.gradient_bytes >= 4,
            **narrow_words(plan),
        },
        "strategy": _strategy(plan),
    }


def _context(plan: TrainingPlan) -> dict[str, Any]:
    """How context-parallel ranks exchange, a field of the model; its strategy makes no groups for
    two levels."""
    words = context_words(plan)
    if "hierarchical_context_parallel_sizes" in words:
        reason = "its strategy makes no groups for cp_comm_type=a2a+p2p"
        raise CannotExpress(NAME, reason, nearest="cp_comm_type=a2a or p2p")
    return words


_FIRST_SPLIT = "v2.4"
"""The first release whose MegatronStrategy has pipeline_model_parallel_layout
(nemo/lightning/pytorch/strategies/megatron_strategy.py)."""


def _require_split(plan: TrainingPlan) -> None:
    """Refuse uneven stages for a release that has no word for them."""
    release = plan.stack.release if plan.stack.name == "nemo" else ""
    if plan.layout.layers_per_stage is None or not release:
        return
    if release_key(release) < release_key(_FIRST_SPLIT):
        reason = f"NeMo {release} has no pipeline_model_parallel_layout, so its stages are even"
        raise CannotExpress(NAME, reason, nearest="even stages, or nemo@v2.4.0")


def _strategy(plan: TrainingPlan) -> dict[str, Any]:
    _require_split(plan)
    ddp = ddp_words(plan, name=NAME)
    fsdp = {"fsdp": "megatron"} if ddp.pop("use_megatron_fsdp", False) else {}
    instances = ddp.get("num_distributed_optimizer_instances", 1)
    words = {
        "_target_": _STRATEGY,
        **parallel_words(plan),
        **fsdp,
        "pipeline_dtype": PRECISIONS[plan.work.precision]["pipeline_dtype"],
        "gradient_as_bucket_view": True,
        "num_distributed_optimizer_instances": instances,
        "ddp": {"_target_": _DDP, **ddp},
    }
    return _given(words)


def _data(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    sizes = {
        "seq_length": plan.work.seq_len,
        "micro_batch_size": plan.layout.mbs,
        "global_batch_size": plan.layout.gbs,
    }
    tokenizer, base = _tokenizer(plan), "nemo.collections.llm.gpt.data."
    if not settings.data:
        return {"_target_": f"{base}mock.MockDataModule", **sizes, **tokenizer}
    return {
        "_target_": f"{base}pre_training.PreTrainingDataModule",
        "paths": [word for entry in settings.data for word in (str(entry.weight), entry.path)],
        **sizes,
        "split": split_shares(plan),
        **WORDS.written(plan, "data."),
        **tokenizer,
    }


_TOKENIZERS = {
    "huggingface": ("huggingface.auto_tokenizer.AutoTokenizer", "pretrained_model_name"),
    "sentencepiece": ("sentencepiece_tokenizer.SentencePieceTokenizer", "model_path"),
}


MEGATRON_TOKENIZERS: dict[str, str] = {
    "gpt2-bpe": "GPT2BPETokenizer",
    "bert-wordpiece": "BertWordPieceLowerCase",
}
"""Names of Megatron's tokenizers, which NeMo makes of a vocabulary's files."""


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    if settings.tokenizer_kind == "null":
        return {}
    if settings.tokenizer_kind in MEGATRON_TOKENIZERS:
        name = MEGATRON_TOKENIZERS[settings.tokenizer_kind]
        cased = {"encoder-decoder": "BertWordPieceCase"} if "Bert" in name else {}
        words = {
            "_target_": "nemo.collections.nlp.modules.common.tokenizer_utils.get_nmt_tokenizer",
            "library": "megatron",
            "model_name": cased.get(plan.model.family, name),
            "vocab_file": settings.vocab_file,
            "merges_file": settings.merge_file,
        }
        return {"tokenizer": _given(words)}
    says = f"this export has {', '.join((*_TOKENIZERS, *MEGATRON_TOKENIZERS))}"
    kind = chosen(_TOKENIZERS, plan, "settings.tokenizer_kind", name=NAME, says=says)
    target = f"nemo.collections.common.tokenizers.{kind[0]}"
    return {"tokenizer": {"_target_": target, kind[1]: plan.settings.tokenizer}}


_BEST = {
    "monitor": "val_loss",
    "mode": "min",
    "save_top_k": 10,
    "filename": "{model_name}--{val_loss:.2f}-{step}-{consumed_samples}",
}
"""The ten best by validation loss, named as NeMo's recipes name them
(nemo/collections/llm/recipes/log/default.py); without validation there is no such loss."""


def _log(plan: TrainingPlan) -> dict[str, Any]:
    """Checkpoints lie in the folder of the logs."""
    words = {"_target_": "nemo.lightning.nemo_logger.NeMoLogger", "name": "meshwright"}
    if plan.settings.save_dir is None:
        return words
    checkpoints = {
        "_target_": "nemo.lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
        **WORDS.written(plan, "log.ckpt."),
        **(_BEST if plan.settings.eval_steps else {}),
        "save_last": True,
    }
    return {**words, **WORDS.written(plan, "log."), "ckpt": checkpoints}


def _optim(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    styles, says = ("cosine", "constant"), "this export has cosine and constant"
    require_one_of(plan, "settings.decay_style", styles, name=NAME, says=says)
    constant = settings.decay_style == "constant"
    return {
        "_target_": "nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule",
        "config": {
            "_target_": "megatron.core.optimizer.optimizer_config.OptimizerConfig",
            "optimizer": "adam",
            **WORDS.written(plan, "optim.config."),
            "bf16": plan.work.precision != "fp16",
            "fp16": plan.work.precision == "fp16",
            "use_distributed_optimizer": plan.layout.sharding != "none",
        },
        "lr_scheduler": {
            "_target_": "nemo.lightning.pytorch.optim.lr_scheduler.CosineAnnealingScheduler",
            **WORDS.written(plan, "optim.lr_scheduler."),
            "constant_steps": 0,
            "min_lr": settings.learning_rate if constant else settings.min_learning_rate,
        },
    }


_SCRIPT = "meshwright_nemo.py"
_NAMED = ("activation_func", "params_dtype", "pipeline_dtype")
"""Arguments that are a function or a dtype, by its name."""


def _write(plan: TrainingPlan) -> Exported:
    tree = recipe(plan)
    text = write_yaml(recipe_values(tree))
    quiet = EnvVar(name="HF_HUB_OFFLINE", value="1", why="the tokenizer is read from its folder")
    local = (quiet,) if (plan.settings.tokenizer or "").startswith("/") else ()
    comment = "# Written by meshwright for NeMo 2.5: nemo llm pretrain --yaml recipe.yaml\n"
    vocabulary = "without a tokenizer NeMo's mock data take the vocabulary of GPT-2's"
    return Exported(
        target=NAME,
        files=(
            ExportedFile(name=_SCRIPT, text=_script(tree)),
            ExportedFile(name="recipe.yaml", text=comment + text),
        ),
        command=(_SCRIPT,),
        environment=(*environment(plan), *local),
        notes=(
            *loss_notes(plan),
            "run the script on every rank; `recipe()` is a run.Partial for an executor of nemo_run",
            *(() if plan.settings.data else (f"{vocabulary}; the model keeps its own",)),
        ),
    )


def recipe_values(value: Any, key: str = "") -> Any:
    """Return the tree as nemo_run writes it: functions and dtypes are targets that are not
    called."""
    if isinstance(value, dict):
        return {name: recipe_values(part, name) for name, part in value.items()}
    return {"_target_": value, "_call_": False} if key in _NAMED else value


def _script(tree: dict[str, Any]) -> str:
    targets = sorted({target.rpartition(".")[::2] for target in _targets(tree)})
    imports = [f"from {module} import {name}" for module, name in targets]
    return "\n".join(
        [
            '"""Written by meshwright for NeMo 2.5."""',
            "",
            "import nemo_run as run",
            "import torch",
            *imports,
            "",
            "",
            "def recipe() -> run.Partial:",
            f"    return {_config(tree, 1)}",
            "",
            "",
            'if __name__ == "__main__":',
            "    run.run(recipe(), direct=True)",
            "",
        ]
    )


def _targets(tree: dict[str, Any]) -> set[str]:
    """Return everything that the recipe names, dtypes left out."""
    found = {str(tree["_target_"])} | {
        str(value) for key, value in tree.items() if key == "activation_func"
    }
    for value in tree.values():
        if isinstance(value, dict):
            found |= _targets(value)
    return found


def _config(tree: dict[str, Any], indent: int) -> Code:
    arguments = {key: value for key, value in tree.items() if key not in ("_target_", "_partial_")}
    words = {
        key: _config(value, indent + 1) if isinstance(value, dict) else _named(key, value)
        for key, value in arguments.items()
    }
    call = python_call("", words, indent=indent)[2:]
    kind = "Partial" if "_partial_" in tree else "Config"
    target = str(tree["_target_"]).rpartition(".")[2]
    return Code(f"run.{kind}(\n{'    ' * (indent + 1)}{target},\n{call}")


def _named(key: str, value: Any) -> Any:
    if key not in _NAMED:
        return value
    is_dtype = value.startswith("torch.") and not value.startswith("torch.nn")
    return Code(value if is_dtype else value.rpartition(".")[2])


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Read the YAML, which the script equals node by node."""
    values = read_yaml(exported.files[1].text, what=NAME)
    config = values["model"]["config"]
    layers = config["num_layers"] + config.get("encoder_num_layers", 0)  # T5's are all on one stage
    return trained({**config, **values["trainer"]["strategy"], "num_layers": layers}, what=NAME)


NEMO2 = ExportTarget(
    name=NAME,
    title="NeMo 2.0",
    versions="NeMo 2.5, with nemo_run 0.5 and later",
    write=_write,
    trained_layers=_trained_layers,
    stacks=(*BF16_GRADIENTS, "megatron"),
)
