"""A recipe of NeMo 2.0 as nemo_run writes it in YAML, read back into a model, a workload and a
layout."""

from __future__ import annotations

import re
from typing import Any

from meshwright.software.contract import BF16_GRADIENTS, Imported, ImportSource, Mended
from meshwright.software.megatron_core.layout import (
    read_context,
    read_ddp,
    read_parallel,
    read_recompute,
)
from meshwright.software.megatron_core.model import read_model, take_loss
from meshwright.software.mending import like_export
from meshwright.software.nemo2.encoders import encoder_kind, read_encoder
from meshwright.software.nemo2.export import ACTIVATION_TARGETS, NAME, NEMO2, WORDS
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import (
    Activation,
    ModelDetails,
    TokenizerKind,
    TrainingSettings,
)
from meshwright.software.text import Taken
from meshwright.software.words import blend, shares
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import find_stack
from meshwright.values.text import read_yaml
from meshwright.values.workload import Precision, Workload

__all__ = ["NEMO2_SOURCE"]

_SCALED = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}


def _read(text: str) -> Imported:
    words = Taken(read_yaml(text, what=NAME), what=NAME)
    model, details = _model(words)
    chips = words.count("trainer.devices", 1) * words.count("trainer.num_nodes", 1)
    layout = read_parallel(words, prefix="trainer.strategy.", what=NAME) | read_recompute(
        words, prefix="model.config."
    )
    if words.take("trainer.strategy.fsdp", None) == "megatron":
        words.put("trainer.strategy.ddp.use_megatron_fsdp", True)
    half = not words.flag("trainer.plugins.grad_reduce_in_fp32", True)
    words.take("trainer.strategy.ddp.grad_reduce_in_fp32", None)
    stack, precision = BF16_GRADIENTS[0] if half else "megatron", _precision(words)
    take_loss(words, find_stack(stack), precision, prefix="model.config.")
    if half:
        words.drop(
            {
                f"trainer.plugins.{name}": True
                for name in ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag")
            }
        )
    words.take("trainer.strategy.num_distributed_optimizer_instances", None)
    layout |= read_ddp(words, prefix="trainer.strategy.ddp.", layout=layout, num_chips=chips)
    layout["mbs"] = words.count("data.micro_batch_size", 1)
    work = Workload(
        seq_len=words.count("data.seq_length", 2048),
        decoder_seq_len=(
            words.count("data.seq_length_dec", 1) if words.has("data.seq_length_dec") else None
        ),
        gbs=words.count("data.global_batch_size", 8),
        precision=precision,
        dropout=bool(details.dropout),
        cp_comm_type=read_context(words, at="model.config.", cp=layout.get("cp", 1)),
    )
    settings = _settings(words)
    words.drop_under(_FIXED)
    return Imported(
        source=NAME,
        model=model,
        work=work,
        layout=layout,
        stack=stack,
        settings=settings,
        details=details,
        num_chips=chips,
        passed_through=tuple(f"{path}={value}" for path, value in words.left().items()),
    )


def _model(words: Taken) -> tuple[ModelSpec, ModelDetails]:
    target = words.text("model.config._target_", "")
    activation = _activation(words.take("model.config.activation_func._target_", None))
    if encoder_kind(target) is not None:
        return read_encoder(words, target, what=NAME, activation=activation)
    if words.has("model.config.num_layers"):
        if "Llama31" in target:
            words.put("model.config.rope_scaling", True)
            words.put(
                "model.config.rope_scaling_factor", words.number("model.config.scale_factor", 8.0)
            )
        if "DeepSeek" in target:
            words.put("model.config.multi_latent_attention", True)
        return read_model(words, prefix="model.config.", what=NAME, activation=activation)
    return find_model(_model_name(target)), ModelDetails()


def _model_name(target: str) -> str:
    """Return the model that a configuration class is called after: `Llama31Config70B` is
    llama3.1-70b, `MixtralConfig8x7B` mixtral-8x7b, `Qwen2Config1P5B` qwen2-1.5b, `Qwen2Config500M`
    qwen2-0.5b, `DeepSeekV3Config` deepseek-v3, `Phi3ConfigMini` phi3-mini."""
    match = re.fullmatch(
        r"([A-Za-z]+?)(V?\d?)(\d?)Config(\d+x\d+B|[\d_P]+[BM]|Mini)?(_?A\d+B)?",
        target.rpartition(".")[2],
    )
    if match is None:
        raise ConfigError(
            f"{NAME}: model.config._target_={target or 'missing'}: its dims are not in the file;"
            " give num_layers and the rest"
        )
    family, major, minor, size, active = (part or "" for part in match.groups())
    major = major.removeprefix("V")
    version = f"{major}.{minor}" if minor else major
    family = {"GPT": "gpt3"}.get(family, family.lower())
    sizes = (part.strip("_").replace("_", ".").replace("P", ".") for part in (size, active) if part)
    tail = "-".join(part.lower() for part in sizes)
    name = f"{family}{version}-{tail}" if tail else f"{family}-v{version}"
    # A size in millions may be one in billions by the model's own name.
    millions = re.fullmatch(r"(\d+)m", tail)
    if millions is None or _is_known(name):
        return name
    return f"{family}{version}-{int(millions[1]) / 1000:g}b"


def _is_known(name: str) -> bool:
    try:
        find_model(name)
    except UnknownNameError:
        return False
    return True


def _activation(target: Any) -> Activation | None:
    return next((name for name, known in ACTIVATION_TARGETS.items() if known == target), None)


def _precision(words: Taken) -> Precision:
    at = "trainer.plugins."
    given = words.text(f"{at}precision", "bf16-mixed")
    fp8, recipe = words.take(f"{at}fp8", None), words.take(f"{at}fp8_recipe", "delayed")
    fp4 = words.take(f"{at}fp4", None)
    words.take(f"{at}fp4_recipe", None)
    if fp4:
        return "nvfp4"
    if fp8:
        if recipe not in _SCALED:
            raise ConfigError(f"{NAME}: fp8_recipe={recipe}: expected {', '.join(_SCALED)}")
        return _SCALED[recipe]  # type: ignore[return-value]  # values of the table are precisions
    known: dict[str, Precision] = {"bf16-mixed": "bf16", "16-mixed": "fp16", "32": "fp32"}
    if given not in known:
        raise ConfigError(f"{NAME}: trainer.plugins.precision={given}: expected {', '.join(known)}")
    return known[given]


def _settings(words: Taken) -> TrainingSettings:
    given = WORDS.read(words, "settings")
    rate = given["learning_rate"]
    least = words.number("optim.lr_scheduler.min_lr", rate / 10)
    constant = least == rate
    tokenizer, kind = _tokenizer(words)
    return TrainingSettings(
        **given,
        min_learning_rate=None if constant else least,
        decay_style="constant" if constant else "cosine",
        tokenizer=tokenizer,
        tokenizer_kind=kind,
        vocab_file=words.take("data.tokenizer.vocab_file", None),
        merge_file=words.take("data.tokenizer.merges_file", None),
        **_data(words),
    )


def _data(words: Taken) -> dict[str, Any]:
    paths, split = words.take("data.paths", None), words.take("data.split", None)
    if paths is None:
        return {}
    try:
        given = [paths] if isinstance(paths, str) else list(paths)
        numbered = re.fullmatch(r"[0-9.e+-]+", str(given[0])) if given else None
        weighted = len(given) > 1 and len(given) % 2 == 0 and numbered is not None
        return {"data": blend(given, alone=not weighted), "split": shares(split)}
    except (TypeError, ValueError):
        raise ConfigError(
            f"{NAME}: data.paths, data.split: expected weights and paths in turn, and shares such"
            " as 99,1,0"
        ) from None


def _tokenizer(words: Taken) -> tuple[str | None, TokenizerKind | None]:
    words.take("data.tokenizer._target_", None)
    words.take("data.tokenizer.library", None)
    called = words.take("data.tokenizer.model_name", None)
    if called is not None:
        return None, "bert-wordpiece" if str(called).startswith("Bert") else "gpt2-bpe"
    name = words.take("data.tokenizer.pretrained_model_name", None)
    file = words.take("data.tokenizer.model_path", None)
    return (name, "huggingface") if name else (file, "sentencepiece") if file else (None, None)


_PARTS = ("", "model.", "trainer.", "data.", "log.", "optim.", "resume.", "trainer.strategy.")
_FIXED = (
    *(f"{part}_target_" for part in (*_PARTS, "trainer.strategy.ddp.")),
    *("_partial_", "trainer.accelerator", "trainer.accumulate_grad_batches"),
    *("trainer.use_distributed_sampler", "trainer.plugins", "trainer.strategy.pipeline_dtype"),
    *("trainer.strategy.gradient_as_bucket_view", "log.name", "log.ckpt", "optim.config"),
    *("optim.lr_scheduler", "model.config.activation_func", "model.config.tp_comm_overlap"),
    *("resume.resume_if_exists", "resume.resume_ignore_no_checkpoint"),
)
"""What every recipe says, and no plan holds."""


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and "_target_:" in text
        and ("MegatronStrategy" in text or "nemo.collections.llm" in text)
    )


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    del found
    return like_export(text, plan, target=NEMO2, read=_read)


NEMO2_SOURCE = ImportSource(
    name=NAME,
    title="NeMo 2.0's YAML",
    matches=_matches,
    read=_read,
    mend=_mended,
)
