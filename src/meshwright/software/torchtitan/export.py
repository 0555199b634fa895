"""torchtitan 0.3: a module whose function returns the configuration, which took the place of
TOML."""

from __future__ import annotations

import ast
from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, TrainedLayers
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Code, python_call
from meshwright.software.torchtitan.settings import (
    ENVIRONMENT,
    WORDS,
    checkpoint,
    dataset,
    lr_scheduler,
    notes,
    recompute_mode,
    tokenizer_folder,
    training,
)
from meshwright.software.torchtitan.words import (
    TitanModel,
    layers_of_chunks,
    parallelism,
    titan_model,
)
from meshwright.values.errors import CannotExpress

__all__ = ["TORCHTITAN"]

_NAME = "torchtitan"
_MODULE = "meshwright_titan"
_FUNCTION = "training"
_CHUNKED = (
    "the loss runs over 8 chunks of tokens (ChunkedLossWrapper): its logits take an eighth of what"
    " is predicted"
)
_IMPORTS = (
    "from torchtitan.components.checkpoint import CheckpointManager",
    "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
    "from torchtitan.components.metrics import MetricsProcessor",
    "from torchtitan.components.optimizer import default_adamw, LRSchedulersContainer",
    "from torchtitan.config import CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
    "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
    "from torchtitan.models.common import Embedding, Linear, RMSNorm",
    "from torchtitan.trainer import Trainer",
)
_CONVERTERS = {
    "fp8": ("Float8LinearConverter", {"filter_fqns": ["lm_head", "router.gate"]}),
    "mxfp8": ("MXFP8LinearConverter", {"fqns": ["layers"]}),
    "nvfp4": ("NVFP4LinearConverter", {"fqns": ["layers"]}),
}
"""What quantizes the linear layers of each precision; the head and routers stay in bf16."""


def _write(plan: TrainingPlan) -> Exported:
    model = titan_model(plan, name=_NAME)
    converter = _converter(plan)
    imports = [
        *_IMPORTS,
        *([f"from torchtitan.components.quantization import {converter[0]}"] if converter else []),
    ]
    body = [
        f"def {_FUNCTION}() -> Trainer.Config:",
        "    spec = model()",
        f"    return {python_call('Trainer.Config', _config(plan), indent=1)}",
    ]
    text = "\n".join(
        [
            '"""Written by meshwright for torchtitan 0.3."""',
            "",
            *sorted({*imports, *_model_imports(model)}),
            "",
            "",
            *_model_lines(
                model, converter, mla_rope=plan.work.seq_len, compiled=plan.stack.launch_hidden > 0
            ),
            "",
            "",
            *body,
        ]
    )
    return Exported(
        target=_NAME,
        files=(ExportedFile(name=f"{_MODULE}.py", text=text + "\n"),),
        command=(
            *("-m", "torchtitan.train", "--module", _MODULE, "--config", _FUNCTION),
            *plan.settings.extra,
        ),
        environment=ENVIRONMENT,
        notes=(
            f"put the folder of {_MODULE}.py on PYTHONPATH",
            _started(plan),
            _CHUNKED,
            *notes(plan),
            *model.notes,
        ),
    )


def _started(plan: TrainingPlan) -> str:
    """The line of torchtitan's README, which its users start by."""
    [pool] = plan.cluster.pools
    chips, each = plan.cluster.num_chips, min(pool.node.chips_per_node, plan.cluster.num_chips)
    words = f"MODULE={_MODULE} CONFIG={_FUNCTION} ./run_train.sh"
    start = f"as torchtitan's README starts it, from a checkout: NGPU={each} {words}"
    if chips > each:
        start = f"{start} on one node; over {chips // each} nodes by the command of every rank"
    return f"{start}; NGPU={chips} COMM_MODE=fake_backend {words} checks it without GPUs"


def _converter(plan: TrainingPlan) -> tuple[str, dict[str, Any]] | None:
    precision = plan.work.precision
    if precision in ("bf16", "fp32"):
        return None
    if precision not in _CONVERTERS:
        words = (
            f"precision={precision}: linear layers run in fp32, bf16, fp8 (row-wise), mxfp8 or"
            " nvfp4"
        )
        raise CannotExpress(_NAME, words, nearest="precision=bf16")
    return _CONVERTERS[precision]


def _config(plan: TrainingPlan) -> dict[str, Any]:
    graphs = {"disable_cuda_graphs": True}  # they take no pipeline, nor plain expert parallelism
    adam = WORDS.written(plan, "optimizer.")
    betas = (adam.pop("beta1"), adam.pop("beta2"))
    cross_entropy = python_call(
        "CrossEntropyLoss.Config", {"global_vocab_size": plan.model.vocab}, indent=3
    )
    # the one for FlexAttention's masks
    balancer = {"context_parallel_load_balancer": "ptrr"} if plan.layout.cp > 1 else {}

    def call(function: str, values: dict[str, Any]) -> Code:
        return Code(python_call(function, values, indent=2))

    recompute = {
        "none": Code("None"),
        "full": Code("FullAC.Config()"),
        "selective": Code("SelectiveAC.Config()"),
    }
    return {
        "model_spec": Code("spec"),
        "hf_assets_path": tokenizer_folder(plan, name=_NAME),
        "dump_folder": plan.settings.save_dir or "./outputs",
        "loss": call("ChunkedLossWrapper.Config", {"loss_fn": Code(cross_entropy)}),
        "metrics": call("MetricsProcessor.Config", WORDS.written(plan, "metrics.")),
        "optimizer": call("default_adamw", {**adam, "betas": betas}),
        "lr_scheduler": call("LRSchedulersContainer.Config", lr_scheduler(plan, name=_NAME)),
        "training": call("TrainingConfig", {**training(plan, name=_NAME), **graphs}),
        "dataloader": call("HuggingFaceTextDataLoader.Config", dataset(plan, name=_NAME)),
        "parallelism": call("ParallelismConfig", {**parallelism(plan, form="python"), **balancer}),
        "checkpoint": call("CheckpointManager.Config", checkpoint(plan)),
        "activation_checkpoint": recompute[recompute_mode(plan, name=_NAME)],
        "compile": call(
            "CompileConfig",
            {"enable": plan.stack.launch_hidden > 0, "components": ["model", "loss"]},
        ),
        "debug": call("DebugConfig", WORDS.written(plan, "debug.")),
    }


_QWEN = ("parallelize_qwen3", "Qwen3StateDictAdapter")
_LAYERS = {
    ("llama3", False): (
        *("llama3", "Llama3Model", "_build_llama3_layers"),
        *("parallelize_llama", "Llama3StateDictAdapter"),
    ),
    ("qwen3", False): ("qwen3", "Qwen3Model", "_build_qwen3_layers", *_QWEN),
    ("qwen3", True): ("qwen3", "Qwen3Model", "_build_qwen3_moe_layers", *_QWEN),
    ("deepseek_v3", True): (
        *("deepseek_v3", "DeepSeekV3Model", "_build_dsv3_layers"),
        *("parallelize_deepseekv3", "DeepSeekV3StateDictAdapter"),
    ),
}
"""(model, whether it has experts): torchtitan's folder, class, function that builds the layers,
parallelizer and adapter of checkpoints."""


_INITS = ("_EMBEDDING_INIT", "_LINEAR_INIT", "_NORM_INIT")


def _model_imports(model: TitanModel) -> list[str]:
    folder, cls, layers, parallelize, adapter = _LAYERS[model.kind, model.moe is not None]
    own = (cls, layers, parallelize, adapter)
    names = sorted((*own, *_INITS, "pipeline_llm", "ModelSpec"))
    rope = "CosSinRoPE" if model.kind == "qwen3" else "ComplexRoPE"
    hook = "from torchtitan.components.optimizer import register_moe_load_balancing_hook"
    return [
        f"from torchtitan.models.{folder} import {', '.join(names)}",
        f"from torchtitan.models.common import {rope}",
        *([hook] if model.moe else []),
    ]


def _model_lines(
    model: TitanModel,
    converter: tuple[str, dict[str, Any]] | None,
    *,
    mla_rope: int,
    compiled: bool,
) -> list[str]:
    """Return a function that builds the model from its dims."""
    folder, cls, layers, parallelize, adapter = _LAYERS[model.kind, model.moe is not None]
    dims = model.dims
    embedding = {
        "num_embeddings": dims["vocab_size"],
        "embedding_dim": dims["dim"],
        "param_init": Code("_EMBEDDING_INIT"),
    }
    head = {
        "in_features": dims["dim"],
        "out_features": dims["vocab_size"],
        "param_init": Code("_LINEAR_INIT"),
    }
    norm = {"normalized_shape": dims["dim"], "param_init": Code("_NORM_INIT")}
    config = {
        "dim": dims["dim"],
        "vocab_size": dims["vocab_size"],
        "enable_weight_tying": dims.get("enable_weight_tying", False),
        "tok_embeddings": Code(python_call("Embedding.Config", embedding, indent=2)),
        "norm": Code(python_call("RMSNorm.Config", norm, indent=2)),
        "lm_head": Code(python_call("Linear.Config", head, indent=2)),
        "layers": Code(python_call(layers, _layer_words(model, mla_rope), indent=2)),
    }
    hook = "register_moe_load_balancing_hook" if model.moe else "None"
    spec = {
        "name": folder,
        "flavor": "meshwright",
        "model": Code("config"),
        "parallelize_fn": Code(parallelize),
        "pipelining_fn": Code("pipeline_llm"),
        "post_optimizer_build_fn": Code(hook),
        "state_dict_adapter": Code(adapter),
    }
    return [
        "def model() -> ModelSpec:",
        f"    config = {python_call(f'{cls}.Config', config, indent=1)}",
        *_changes(model),
        *_conversion(converter, compiled=compiled),
        f"    return {python_call('ModelSpec', spec, indent=1)}",
    ]


def _layer_words(model: TitanModel, longest: int) -> dict[str, Any]:
    dims, moe = model.dims, model.moe
    width = dims["qk_rope_head_dim"] if model.kind == "deepseek_v3" else dims["head_dim"]
    rope: dict[str, Any] = {"dim": width, "max_seq_len": longest, "theta": dims["rope_theta"]}
    if dims.get("rope_scaling"):
        rope |= {"scaling": "llama", "scaling_factor": dims["rope_scaling"]}
    rope_class = "CosSinRoPE" if model.kind == "qwen3" else "ComplexRoPE"
    words = {
        "n_layers": dims["n_layers"],
        "dim": dims["dim"],
        "n_heads": dims["n_heads"],
        "attn_backend": "flex",
    }
    words["rope"] = Code(python_call(f"{rope_class}.Config", rope, indent=3))
    if model.kind == "llama3":
        return {**words, "n_kv_heads": dims["n_kv_heads"], "hidden_dim": dims["hidden_dim"]}
    if model.kind == "qwen3":
        words |= {"n_kv_heads": dims["n_kv_heads"], "head_dim": dims["head_dim"]}
        if moe is None:
            return {**words, "hidden_dim": dims["hidden_dim"]}
        _require_qwen_router(moe)
        experts = {
            "moe_hidden_dim": moe["expert_ffn"],
            "num_experts": moe["num_experts"],
            "top_k": moe["top_k"],
        }
        return {**words, **experts, "moe_comm_backend": "standard"}
    assert moe is not None
    latent = (
        *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        "n_dense_layers",
    )
    return {
        **words,
        **{name: dims[name] for name in latent},
        "mscale": 1.0,
        "dense_hidden_dim": dims["inter_dim"],
        "moe_hidden_dim": moe["expert_ffn"],
        "num_experts": moe["num_experts"],
        "num_shared_experts": moe["num_shared_experts"],
        "router_top_k": moe["top_k"],
        "router_score_func": moe["score_func"],
        "router_num_expert_groups": moe["num_expert_groups"],
        "router_num_limited_groups": moe["num_limited_groups"],
        "router_route_scale": moe["route_scale"],
        "router_route_norm": moe["route_norm"],
        "moe_comm_backend": "standard",
        "non_blocking_capacity_factor": None,
    }


def _require_qwen_router(moe: dict[str, Any]) -> None:
    """Refuse what the function for Qwen3's experts has no word for."""
    has = {"num_shared_experts": 0, "score_func": "softmax", "route_scale": 1.0}
    for name, value in {**has, "num_expert_groups": None}.items():
        if moe[name] != value:
            reason = f"{name}={moe[name]} without latent attention"
            raise CannotExpress(_NAME, reason, nearest=f"{name}={value}, or torchtitan-toml")


def _changes(model: TitanModel) -> list[str]:
    """Return lines that set what the functions for layers have no word for."""
    lines = [
        "    for _, norm, _, _ in config.traverse(RMSNorm.Config):",
        f"        norm.eps = {model.dims['norm_eps']!r}",
    ]
    inside = []
    if model.kind == "qwen3" and not model.dims["qk_norm"]:
        inside.append("        layer.attention.qk_norm = None")
    if model.moe is not None and model.moe["load_balance_coeff"] is None:
        inside += [
            "        if layer.moe is not None:",
            "            layer.moe.load_balance_coeff = None",
        ]
    return [*lines, *(["    for layer in config.layers:", *inside] if inside else [])]


def _conversion(converter: tuple[str, dict[str, Any]] | None, *, compiled: bool) -> list[str]:
    if converter is None:
        return []
    name, words = converter
    return [
        "    config ="
        f" {python_call(f'{name}.Config', {**words, 'model_compile_enabled': compiled}, indent=1)}.build().convert(config)"  # noqa: E501
    ]


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Read the module's calls: the layers that are built, and the chunks that they are cut into."""
    words = {
        word.arg: ast.literal_eval(word.value)
        for node in ast.walk(ast.parse(exported.files[0].text))
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg in ("n_layers", "module_fqns_per_model_part")
    }
    parts = words.get("module_fqns_per_model_part")
    return TrainedLayers(chunks=(words["n_layers"],) if parts is None else layers_of_chunks(parts))


TORCHTITAN = ExportTarget(
    name=_NAME,
    title="torchtitan",
    versions="torchtitan 0.3.0 (Python configuration; see torchtitan-toml for 0.2)",
    write=_write,
    trained_layers=_trained_layers,
    stacks=("torchtitan", "fsdp"),
    takes_extra=True,
)
