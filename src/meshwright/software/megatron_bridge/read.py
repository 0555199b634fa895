"""A YAML of ConfigContainer overrides read back into a model, a workload and a layout."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, cast

from meshwright.search.started import started_stack
from meshwright.software.contract import (
    BF16_GRADIENTS,
    Imported,
    ImportSource,
    Mended,
    left_off,
)
from meshwright.software.megatron_bridge.export import MEGATRON_BRIDGE
from meshwright.software.megatron_bridge.sections import (
    DECAYS,
    NAME,
    RECIPES,
    TOKENIZERS,
    WORDS,
    read_mixed_precision,
    take_family,
)
from meshwright.software.megatron_bridge.start import take_start
from meshwright.software.megatron_core.layout import (
    read_context,
    read_ddp,
    read_parallel,
    read_recompute,
)
from meshwright.software.megatron_core.model import read_model, take_loss
from meshwright.software.mending import like_export
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Activation, Dataset, TrainingSettings
from meshwright.software.text import Taken
from meshwright.software.words import shares
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.stack import Feature, find_stack
from meshwright.values.text import read_yaml
from meshwright.values.workload import Precision, Workload

__all__ = ["BRIDGE_SOURCE"]


def _read(text: str) -> Imported:
    words = Taken(read_yaml(text, what=NAME), what=NAME)
    if not words.has("model.num_layers"):
        raise ConfigError(
            f"{NAME}: model.num_layers is not given: overrides of a recipe by name leave its dims"
            " to code; give the whole model"
        )
    words.drop({"train.eval_iters": 0})
    start = take_start(words)
    more_of_model, more_details = take_family(words)
    model, details = read_model(words, prefix="model.", what=NAME, activation=_activation(text))
    model, details = replace(model, **more_of_model), replace(details, **more_details)
    layout = read_parallel(words, prefix="model.", what=NAME) | read_recompute(
        words, prefix="model."
    )
    layout |= read_ddp(words, prefix="ddp.", layout=layout)
    precision, wide = _precision(words)
    words.take("ddp.grad_reduce_in_fp32", None)  # written over by the mixed precision's
    stack = "megatron" if wide else BF16_GRADIENTS[0]
    take_loss(words, find_stack(stack), precision, prefix="model.")
    given: frozenset[Feature] = frozenset(
        ("tp_overlap",) if words.flag("comm_overlap.tp_comm_overlap", False) else ()
    )
    plain = find_stack(stack) if start is None else started_stack(find_stack(stack), start)
    missing = left_off(
        plain.in_precision(precision),
        model,
        layout,
        switches={"tp_overlap": "comm_overlap.tp_comm_overlap"},
        given=given,
    )
    words.flag("optimizer.use_distributed_optimizer", True)
    sizes = WORDS.read(words, "layout")
    layout["mbs"] = sizes["mbs"]
    seq_len = words.count("dataset.sequence_length", words.count("dataset.seq_length", 4096))
    work = Workload(
        seq_len=seq_len,
        gbs=sizes["gbs"],
        precision=precision,
        dropout=bool(details.dropout),
        cp_comm_type=read_context(words, at="model.", cp=layout.get("cp", 1)),
    )
    return Imported(
        source=NAME,
        model=model,
        work=work,
        layout=layout,
        stack=stack,
        left_off=missing.features,
        start=start,
        settings=_settings(words),
        details=details,
        warnings=missing.warnings,
        passed_through=tuple(f"{path}={json.dumps(value)}" for path, value in words.left().items()),
    )


def _activation(text: str) -> Activation | None:
    """Return what an export's comment says of the activation function, for which YAML has no
    word."""
    match = re.search(
        r"^#.*activation_func \((silu|gelu|relu|squared-relu|quick-gelu)\)", text, re.MULTILINE
    )
    return cast("Activation", match[1]) if match is not None else None


def _precision(words: Taken) -> tuple[Precision, bool]:
    """Return the number format, and whether gradients are summed in fp32."""
    written = read_mixed_precision(words)
    given, wide = written or (words.text("mixed_precision", "bf16_mixed"), None)
    if given not in RECIPES:
        raise UnknownNameError("mixed_precision recipe", given, RECIPES)
    return RECIPES[given], given != "fp16_mixed" if wide is None else wide


def _settings(words: Taken) -> TrainingSettings:
    decay = words.text("scheduler.lr_decay_style", "cosine")
    styles = {name: ours for ours, name in DECAYS.items()}
    if decay not in styles:
        raise UnknownNameError("lr_decay_style", decay, styles)
    given = WORDS.read(words, "settings")
    words.drop(
        {
            "scheduler.start_weight_decay": given["weight_decay"],
            "scheduler.end_weight_decay": given["weight_decay"],
            "scheduler.lr_decay_iters": given["train_steps"],
        }
    )
    kind = words.text("tokenizer.tokenizer_type", "NullTokenizer")
    kinds = {name: ours for ours, name in TOKENIZERS.items()}
    if kind not in kinds:
        raise UnknownNameError("tokenizer_type", kind, kinds)
    words.take("tokenizer.vocab_size", None)
    words.take("checkpoint.ckpt_format", None)
    own: dict[str, Any] = {"decay_style": styles[decay], "tokenizer_kind": kinds[kind]}
    return TrainingSettings(**given, **own, **_data(words))


def _data(words: Taken) -> dict[str, Any]:
    blend, split = words.take("dataset.blend", None), words.take("dataset.split", None)
    if blend is None:
        return {}
    try:
        paths, weights = blend
        data = tuple(
            Dataset(path=path, weight=float(weight))
            for path, weight in zip(paths, weights or [1.0] * len(paths), strict=True)
        )
        return {"data": data, "split": shares(split)}
    except (TypeError, ValueError):
        raise ConfigError(
            f"{NAME}: dataset.blend, dataset.split: expected [[paths], [weights]] and shares such"
            " as 99,1,0"
        ) from None


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and "tensor_model_parallel_size:" in text
        and "\ntrain:" in f"\n{text}"
        and "\nmodel:" in f"\n{text}"
    )


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    del found
    return like_export(text, plan, target=MEGATRON_BRIDGE, read=_read)


BRIDGE_SOURCE = ImportSource(
    name=NAME,
    title="Megatron-Bridge's YAML",
    matches=_matches,
    read=_read,
    mend=_mended,
)
