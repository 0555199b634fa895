"""Recipes of NeMo 2.0 without NeMo: objects that answer as fiddle's Buildables do."""

from __future__ import annotations

import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any


class Built:
    """`run.Config(target, **arguments)`: attributes read as given, else as the default of the
    target."""

    def __init__(self, target: Any, **arguments: Any) -> None:
        object.__setattr__(self, "__fn_or_cls__", target)
        object.__setattr__(self, "__arguments__", arguments)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.__arguments__:
            return self.__arguments__[name]
        target = self.__fn_or_cls__
        for field in fields(target) if is_dataclass(target) else ():
            if field.name == name and field.default is not MISSING:
                return field.default
        raise AttributeError(f"No parameter {name!r} has been set")

    def __setattr__(self, name: str, value: Any) -> None:
        target = self.__fn_or_cls__
        if is_dataclass(target) and name not in {field.name for field in fields(target)}:
            raise AttributeError(f"No parameter named {name!r} exists")
        self.__arguments__[name] = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Built:
        return Built(self.__fn_or_cls__, **copy.deepcopy(self.__arguments__, memo))


def target(path: str) -> Any:
    """Return a class of a name that no module here has."""
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module})


@dataclass
class Llama3Config145M:
    """As in NeMo's own example of its AutoConfigurator: a user's class with dims of its own."""

    num_layers: int = 12
    hidden_size: int = 768
    num_attention_heads: int = 16
    num_query_groups: int = 8
    ffn_hidden_size: int = 2688
    gated_linear_unit: bool = True
    add_bias_linear: bool = False
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    normalization: str = "RMSNorm"
    position_embedding_type: str = "rope"
    share_embeddings_and_output_weights: bool = False
    seq_length: int = 8192


LLAMA3_8B = target("nemo.collections.llm.gpt.model.llama.Llama3Config8B")


T5_220M = target("nemo.collections.llm.t5.model.t5.T5Config220M")
BERT_BASE = target("nemo.collections.llm.bert.model.bert.MegatronBertBaseConfig")


def t5_recipe(*, nodes: int = 1, devices: int = 8) -> Built:
    """`llm.t5_220m.pretrain_recipe(...)`: 512 tokens in, 128 out."""
    recipe = llama_recipe(T5_220M, nodes=nodes, devices=devices, seq_length=512)
    recipe.data = Built(
        target("nemo.collections.llm.t5.data.mock.MockDataModule"),
        seq_length=512,
        seq_length_dec=128,
        global_batch_size=512,
    )
    recipe.trainer.strategy.context_parallel_size = 1
    return recipe


def bert_recipe(*, nodes: int = 1, devices: int = 8) -> Built:
    """`llm.bert_110m.pretrain_recipe(...)`."""
    recipe = llama_recipe(BERT_BASE, nodes=nodes, devices=devices)
    recipe.data = Built(
        target("nemo.collections.llm.bert.data.mock.BERTMockDataModule"),
        seq_length=512,
        global_batch_size=32,
    )
    recipe.trainer.strategy.context_parallel_size = 1
    return recipe


def llama_recipe(
    config: Any = LLAMA3_8B, *, peft: Any = None, nodes: int = 1, devices: int = 8, **dims: Any
) -> Built:
    """`llm.llama3_8b.pretrain_recipe(num_nodes=nodes, num_gpus_per_node=devices)` in what matters
    here."""
    strategy = Built(
        target("nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy"),
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        context_parallel_size=2,
        ddp=Built(
            target("megatron.core.distributed.DistributedDataParallelConfig"),
            use_distributed_optimizer=True,
        ),
    )
    plugins = Built(
        target("nemo.lightning.pytorch.plugins.MegatronMixedPrecision"), precision="bf16-mixed"
    )
    trainer = Built(
        target("nemo.lightning.pytorch.trainer.Trainer"),
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        plugins=plugins,
        max_steps=100,
    )
    more = {} if peft is None else {"peft": peft}
    return Built(
        target(
            "nemo.collections.llm.api.pretrain"
            if peft is None
            else "nemo.collections.llm.api.finetune"
        ),
        model=Built(
            target("nemo.collections.llm.gpt.model.llama.LlamaModel"), config=Built(config, **dims)
        ),
        trainer=trainer,
        data=Built(
            target("nemo.collections.llm.gpt.data.mock.MockDataModule"),
            seq_length=2048,
            global_batch_size=64,
            micro_batch_size=1,
        ),
        log=Built(
            target("nemo.lightning.NeMoLogger"),
            ckpt=Built(target("nemo.lightning.ModelCheckpoint"), save_last=True),
        ),
        optim=Built(target("nemo.lightning.MegatronOptimizerModule")),
        resume=Built(target("nemo.lightning.AutoResume")),
        **more,
    )


def lora(dim: int) -> Built:
    """`run.Config(LoRA, dim=dim)`."""
    return Built(target("nemo.collections.llm.peft.lora.LoRA"), dim=dim)
