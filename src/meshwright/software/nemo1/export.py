"""The NeMo 1.x launcher: `conf/training/meshwright/plan.yaml`, in the words of its GPT
configurations."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, TrainedLayers
from meshwright.software.megatron_core.layout import recompute_words, tp_overlap
from meshwright.software.megatron_core.model import POSITIONS, model_words
from meshwright.software.megatron_lm.export import environment
from meshwright.software.nemo1.encoders import bert_model, require_bert, require_t5, t5_model
from meshwright.software.nemo1.training import NAME, WORDS, exp_manager, optimizer, trainer
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Activation
from meshwright.software.words import chosen, require, require_one_of, split_shares
from meshwright.values.errors import CannotExpress
from meshwright.values.text import read_yaml, write_yaml
from meshwright.values.workload import Precision

__all__ = [
    "ACTIVATIONS",
    "NAME",
    "NEMO1",
    "NEMO1_SCRIPT",
    "NULL_VOCABULARY",
    "PRECISIONS",
    "SAME_NAMES",
    "TOKENIZERS",
    "WORDS",
    "launcher_values",
    "trained_by",
]

PRECISIONS: dict[Precision, str] = {"bf16": "bf16", "fp16": "16", "fp32": "32", "fp8": "bf16"}
ACTIVATIONS: dict[tuple[bool, Activation], str] = {
    (True, "silu"): "fast-swiglu",
    (True, "gelu"): "fast-geglu",
    (True, "relu"): "fast-reglu",
    (False, "gelu"): "gelu",
    (False, "squared-relu"): "squared-relu",
}
TOKENIZERS = {
    "huggingface": "huggingface",
    "sentencepiece": "sentencepiece",
    "gpt2-bpe": "megatron",
    "null": "megatron",
}
NULL_VOCABULARY = "meshwright_vocab_size"
"""The vocabulary comes from the tokenizer in NeMo 1.x; this word of ours keeps the model's, NeMo
does not read it."""
_POSITIONS = {**POSITIONS, "alibi": "alibi"}
SAME_NAMES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "position_embedding_type", "share_embeddings_and_output_weights"),
    *("layernorm_epsilon", "hidden_dropout", "attention_dropout", "init_method_std", "rotary_base"),
    *("num_moe_experts", "moe_router_topk", "moe_router_load_balancing_type", "moe_aux_loss_coeff"),
    *("moe_grouped_gemm", "moe_token_dispatcher_type", "moe_expert_capacity_factor"),
    *("moe_pad_expert_input_to_capacity", "window_size"),
)
"""Fields that NeMo 1.x calls as Megatron-Core does."""


def _write(plan: TrainingPlan) -> Exported:
    values = launcher_values(plan)
    comment = (
        "# Written by meshwright for the NeMo 1.x launcher (24.05 to 24.07): put it under"
        " launcher_scripts/conf/training/meshwright/.\n"
    )
    sets = "the configuration of the launcher sets data_dir and base_results_dir"
    return Exported(
        target=NAME,
        files=(
            ExportedFile(
                name="conf/training/meshwright/plan.yaml", text=comment + write_yaml(values)
            ),
        ),
        command=(
            *("launcher_scripts/main.py", "training=meshwright/plan", "stages=[training]"),
            *plan.settings.extra,
        ),
        runs_on="once",
        environment=environment(plan),
        notes=(
            "the launcher writes and sends the job itself, by its own cluster configuration",
            f"the vocabulary is the tokenizer's; {sets}",
        ),
    )


def launcher_values(plan: TrainingPlan) -> dict[str, Any]:
    """Return the sections of a `training` configuration; CannotExpress where NeMo 1.x has no words
    for the plan."""
    _require_expressible(plan)
    return {
        "run": {
            "name": "meshwright",
            "results_dir": "${base_results_dir}/${.name}",
            "time_limit": "0-12:00:00",
            "dependency": "singleton",
        },
        "trainer": trainer(plan, precision=PRECISIONS[plan.work.precision]),
        "exp_manager": exp_manager(plan),
        "model": _model(plan),
    }


_PLAIN = {
    "model.mla": None,
    "model.mtp_layers": 0,
    "model.qk_norm": False,
    "moe.shared_ffn": 0,
    "moe.first_dense_layers": 0,
    "moe.layer_frequency": 1,
}
_PLAIN_DETAILS = {
    "details.router_score": "softmax",
    "details.routed_scale": None,
    "details.router_groups": None,
    "details.router_top_groups": None,
    "details.rope_scaling": None,
}


def _require_expressible(plan: TrainingPlan) -> None:
    model, layout = plan.model, plan.layout
    if _is_legacy(plan):
        _require_legacy(plan)
    require(
        plan,
        {**_PLAIN, "moe.expert_ffn": model.ffn, **_PLAIN_DETAILS},
        name=NAME,
        reason="{path}={given}: NeMo 1.x has {has}",
        nearest="a model with {path}={has}, or --to nemo2",
    )
    if layout.layers_per_stage is not None:
        sizes = range(layout.pp, model.total_layers + 1)
        even = next(size for size in sizes if model.total_layers % size == 0)
        reason = "NeMo 1.x splits the layers evenly over stages and chunks"
        raise CannotExpress(NAME, reason, nearest=f"pp={even} with vpp=1")
    if plan.model.moe is not None and layout.ep > 1:
        says = f"experts are cut as all else is, by tp={layout.tp}"
        require_one_of(plan, "layout.etp", (layout.tp, None), name=NAME, says=says)
    says = "its torch FSDP goes with none of Megatron-Core's models"
    require_one_of(plan, "layout.sharding", ("zero1", "none"), name=NAME, says=says)
    if layout.recompute == "selective" and layout.recompute_modules != ("core_attn",):
        modules = "+".join(layout.recompute_modules)
        reason = f"recompute_modules={modules}: selective recompute is of the core attention"
        raise CannotExpress(NAME, reason, nearest="recompute_modules=core_attn")
    chosen(PRECISIONS, plan, "work.precision", name=NAME)


def _is_legacy(plan: TrainingPlan) -> bool:
    """Whether it takes NeMo 1.x's own GPT instead of Megatron-Core's, which has no ALiBi and would
    leave positions out in silence."""
    return plan.model.positions == "alibi"


def _require_legacy(plan: TrainingPlan) -> None:
    """NeMo 1.x's own GPT (megatron_gpt_model.py, language_model.py and attention.py of v1.23).

    One softmax over whole scores, no grouped queries, no experts; its flash attention takes biases
    with one development build of Triton alone, and is left out.
    """
    model, work = plan.model, plan.work
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("work.attention", work.attention, "fused-softmax"),
        ("cp", plan.layout.cp, 1),
        ("model.num_kv_heads", model.num_kv_heads, model.num_heads),
        ("model.moe", model.moe and "experts", None),
        ("model.window", model.window, None),
        ("precision", "fp8" if work.precision == "fp8" else "bf16", "bf16"),
    )
    for path, given, has in wanted:
        if given != has:
            reason = f"{path}={given} with ALiBi: NeMo 1.x's own GPT has {has}"
            raise CannotExpress(NAME, reason, nearest=f"{path}={has}")


def _model(plan: TrainingPlan) -> dict[str, Any]:
    if plan.model.family == "decoder":
        return {
            "mcore_gpt": not _is_legacy(plan),
            **_common(plan),
            **_gpt(plan),
            **_recompute(plan),
            **_training(plan),
        }
    t5 = plan.model.family == "encoder-decoder"
    (require_t5 if t5 else require_bert)(plan)
    own = (t5_model if t5 else bert_model)(plan, recompute=_recompute(plan))
    rest = _training(plan)
    data = {**rest["data"], **own["data"]}
    return {**_common(plan), **own, **rest, "data": data}


def _common(plan: TrainingPlan) -> dict[str, Any]:
    """What all families call by the same names."""
    layout = plan.layout
    return {
        "micro_batch_size": layout.mbs,
        "global_batch_size": layout.gbs,
        "rampup_batch_size": None,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "sequence_parallel": layout.sp,
        "make_vocab_size_divisible_by": 128,
        NULL_VOCABULARY: plan.model.vocab,
        "megatron_amp_O2": plan.work.precision in ("bf16", "fp16", "fp8"),
        "gradient_as_bucket_view": True,
    }


def _training(plan: TrainingPlan) -> dict[str, Any]:
    words = WORDS.written(plan, "model.")
    return {
        "seed": words["seed"],
        "resume_from_checkpoint": words["resume_from_checkpoint"],
        "tokenizer": _tokenizer(plan),
        "optim": optimizer(plan, legacy=_is_legacy(plan)),
        "data": _data(plan),
    }


def _gpt(plan: TrainingPlan) -> dict[str, Any]:
    model, layout, legacy = plan.model, plan.layout, _is_legacy(plan)
    bias, fp8 = model.linear_bias, plan.work.precision == "fp8"
    words = model_words(plan, name=NAME, positions=_POSITIONS)
    words.pop("gated_linear_unit")
    activation = ACTIVATIONS.get((model.gated, plan.details.activation or "gelu"))
    if activation is None:
        reason = (
            f"activation={plan.details.activation} with gated={model.gated}: it has"
            f" {', '.join(ACTIVATIONS.values())}"
        )
        raise CannotExpress(NAME, reason, nearest="details.activation=gelu")
    return {
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "context_parallel_size": layout.cp,
        **({"expert_model_parallel_size": layout.ep} if model.moe is not None else {}),
        "encoder_seq_length": plan.work.seq_len,
        "max_position_embeddings": plan.work.seq_len,
        **{name: words[name] for name in SAME_NAMES if name in words},
        "normalization": model.norm,
        "bias": bias,
        **({"qkv_bias": True} if model.qkv_bias and not bias else {}),
        "activation": activation,
        "rotary_percentage": words.get("rotary_percent", 1.0),
        "transformer_engine": not legacy,
        "fp8": fp8,
        "fp8_e4m3": False,
        "fp8_hybrid": fp8,
        "use_flash_attention": not legacy,
        "ub_tp_comm_overlap": not legacy and tp_overlap(plan),
        "overlap_p2p_comm": layout.vpp > 1,
        "batch_p2p_comm": layout.vpp == 1,
        **({"bias_activation_fusion": bias, "bias_dropout_add_fusion": bias} if legacy else {}),
    }


def _recompute(plan: TrainingPlan) -> dict[str, Any]:
    words = recompute_words(
        plan, longest=plan.model.total_layers // (plan.layout.pp * plan.layout.vpp)
    )
    return {
        "activations_checkpoint_granularity": words.get("recompute_granularity"),
        "activations_checkpoint_method": words.get("recompute_method"),
        "activations_checkpoint_num_layers": words.get("recompute_num_layers"),
    }


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    settings, family = plan.settings, plan.model.family
    kind, name = settings.tokenizer_kind, settings.tokenizer
    if family != "decoder" and kind in ("bert-wordpiece", "null"):
        cased = "Case" if family == "encoder-decoder" else "LowerCase"
        return {
            "library": "megatron",
            "type": f"BertWordPiece{cased}",
            "model": None,
            "vocab_file": settings.vocab_file or "${data_dir}/bpe/vocab.txt",
            "merge_file": None,
        }
    library = chosen(
        TOKENIZERS,
        plan,
        "settings.tokenizer_kind",
        name=NAME,
        says=f"this export has {', '.join(TOKENIZERS)}",
    )
    if library == "huggingface":
        return {"library": library, "type": name, "use_fast": True}
    if library == "sentencepiece":
        return {"library": library, "type": None, "model": name, "sentencepiece_legacy": False}
    return {
        "library": library,
        "type": "GPT2BPETokenizer",
        "model": None,
        "delimiter": None,
        "vocab_file": settings.vocab_file or "${data_dir}/bpe/vocab.json",
        "merge_file": settings.merge_file or "${data_dir}/bpe/merges.txt",
    }


def _data(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    return {
        "data_impl": "mmap" if settings.data else "mock",
        "splits_string": split_shares(plan),
        "seq_length": plan.work.seq_len,
        "skip_warmup": True,
        "num_workers": 2,
        "dataloader_type": "single",
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "index_mapping_dir": None,
        "data_prefix": [word for entry in settings.data for word in (entry.weight, entry.path)],
    }


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    return trained_by(read_yaml(exported.files[0].text, what=NAME)["model"])


def trained_by(model: dict[str, Any]) -> TrainedLayers:
    """NeMo 1.x demands an even split, and trains `num_layers // pp` of each stage; T5's decoder
    begins at the split rank."""
    pp = model["pipeline_model_parallel_size"]
    if "encoder" in model:
        return TrainedLayers(chunks=_sides(model, pp))
    chunks = pp * (model["virtual_pipeline_model_parallel_size"] or 1)
    return TrainedLayers(chunks=(model["num_layers"] // chunks,) * chunks)


def _sides(model: dict[str, Any], pp: int) -> tuple[int, ...]:
    encoder, decoder = int(model["encoder"]["num_layers"]), int(model["decoder"]["num_layers"])
    if pp == 1:
        return (encoder + decoder,)
    split = int(model["pipeline_model_parallel_split_rank"])
    return (encoder // split,) * split + (decoder // (pp - split),) * (pp - split)


NEMO1 = ExportTarget(
    name=NAME,
    title="NeMo 1.x launcher",
    versions=(
        "NeMo-Framework-Launcher 24.05 to 24.12, NeMo 1.23 and 2.0 with its 1.x configurations"
    ),
    write=_write,
    trained_layers=_trained_layers,
    stacks=("megatron",),
    takes_extra=True,
)


_SCRIPT = "nemo1-script"
_SCRIPTS = "/opt/NeMo/examples/nlp/language_modeling"
"""Where NVIDIA's containers `nvcr.io/nvidia/nemo:23.05` to `24.09` have them."""
_PROGRAMS = {
    "decoder": "megatron_gpt_pretraining",
    "encoder": "megatron_bert_pretraining",
    "encoder-decoder": "megatron_t5_pretraining",
}
_LAUNCHER_WORDS = {
    "${data_dir}": "${oc.env:DATA_DIR,data}",
    "${training.run.results_dir}/results": "results",
}
"""Values that the launcher's own configuration holds, and what stands for them without it."""


def _write_script(plan: TrainingPlan) -> Exported:
    program = _PROGRAMS[plan.model.family]
    extra = [word.removeprefix("training.") for word in plan.settings.extra]
    values = {name: section for name, section in launcher_values(plan).items() if name != "run"}
    values["trainer"]["max_time"] = None  # of the job, which says it on the command line
    head = {"name": values["exp_manager"]["name"], "restore_from_path": None}
    comment = f"# Written by meshwright for {program}.py of NeMo 1.20 to 1.23 and 2.0.\n"
    text = comment + write_yaml({**head, **_without_launcher(values)})
    return Exported(
        target=_SCRIPT,
        files=(ExportedFile(name="plan.yaml", text=text),),
        command=(f"{_SCRIPTS}/{program}.py", "--config-dir=.", "--config-name=plan", *extra),
        environment=environment(plan),
        notes=(
            "the script's place is that of NVIDIA's containers up to nemo:24.09",
            "the vocabulary is the tokenizer's; DATA_DIR is the folder that its files lie in",
        ),
    )


def _without_launcher(value: Any) -> Any:
    """Return a value with nothing in it that only the launcher could resolve."""
    if isinstance(value, dict):
        return {key: _without_launcher(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_launcher(entry) for entry in value]
    if isinstance(value, str):
        for word, own in _LAUNCHER_WORDS.items():
            value = value.replace(word, own)
    return value


NEMO1_SCRIPT = ExportTarget(
    name=_SCRIPT,
    title="NeMo 1.x pretraining script",
    versions="NeMo 1.20 to 1.23, and 2.0 with its 1.x configurations",
    write=_write_script,
    trained_layers=_trained_layers,
    stacks=("megatron",),
    takes_extra=True,
)
