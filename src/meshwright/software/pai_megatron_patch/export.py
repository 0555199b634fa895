"""Plans as command lines of Pai-Megatron-Patch: Megatron-LM's words, and the patch's own."""

from __future__ import annotations

import shlex

from meshwright.software.contract import (
    BF16_GRADIENTS,
    EnvVar,
    Exported,
    ExportedFile,
    ExportTarget,
)
from meshwright.software.megatron_lm.export import MEGATRON_LM
from meshwright.software.megatron_lm.other_core import at_core
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import require_one_of
from meshwright.values.errors import CannotExpress

__all__ = ["PAI"]

_NAME = "pai-megatron-patch"
_CORE = "0.13"
"""Version whose words the checkout Megatron-LM-250624 takes, on which most of the patch's examples
run."""
_PROGRAM = "examples/deepseek_v3/pretrain_deepseek.py"
"""The patch's program on Megatron-Core's GPT model with its block specifications: dense, experts
and latent attention."""
_BACKEND = "backends/megatron/Megatron-LM-250624"
_TOKENIZER_FLAGS = frozenset(
    {"--tokenizer-type", "--tokenizer-model", "--vocab-file", "--merge-file", "--load"}
)
"""The patch reads its tokenizer from the folder of --load instead."""


def _write(plan: TrainingPlan) -> Exported:
    _require_patched(plan)
    settings = plan.settings
    base = at_core(plan, core=_CORE, name=_NAME)
    folder = settings.tokenizer or ""
    patch = (
        *("--load", folder, *_tokenizer(plan), "--extra-vocab-size", "0"),
        *("--max-padding-length", str(plan.work.seq_len)),
        *("--train-mode", "pretrain", "--dataset", "MMAP"),
    )
    own = tuple(word for word in _without(base.command[1:]) if word not in settings.extra)
    words = (*own, *patch, *settings.extra)
    why = "the patch's modules, and the Megatron-LM that it was made for"
    environment = (EnvVar(name="PYTHONPATH", value=f".:{_BACKEND}", why=why), *base.environment)
    return Exported(
        target=_NAME,
        files=(ExportedFile(name="flags.txt", text=_lines(words)),),
        command=(_PROGRAM, *words),
        environment=environment,
        notes=(
            f"start it in a checkout of Pai-Megatron-Patch with its submodule {_BACKEND}",
            (
                "the tokenizer is read from the folder of --load; without a checkpoint there"
                " training starts from random weights"
            ),
        ),
    )


def _tokenizer(plan: TrainingPlan) -> tuple[str, ...]:
    """Return the patch's tokenizer: Qwen's is padded to a given size, the others' vocabulary is
    that of their files."""
    model, step = plan.model, 128 * plan.layout.tp
    if model.mla is not None:
        return ("--patch-tokenizer-type", "DeepSeekV2Tokenizer", "--padded-vocab-size", "0")
    if model.qk_norm or model.qkv_bias:
        padded = str(-(-model.vocab // step) * step)
        return ("--patch-tokenizer-type", "Qwen3Tokenizer", "--padded-vocab-size", padded)
    return ("--patch-tokenizer-type", "LLama3Tokenizer")


def _require_patched(plan: TrainingPlan) -> None:
    settings, model = plan.settings, plan.model
    if model.family != "decoder" or model.hybrid is not None:
        reason = (
            f"family={model.family}{' with mixers' if model.hybrid is not None else ''}: its"
            " program builds decoders of attention layers"
        )
        nearest = "a model with family=decoder, or --to megatron-lm"
        raise CannotExpress(_NAME, reason, nearest=nearest)
    says = "its examples have the distributed optimizer only"
    require_one_of(plan, "layout.sharding", ("zero1", "none"), name=_NAME, says=says)
    if settings.tokenizer_kind != "huggingface" or settings.tokenizer is None:
        reason = (
            f"tokenizer_kind={settings.tokenizer_kind}: it always reads a Hugging Face tokenizer,"
            " with mock data too"
        )
        raise CannotExpress(_NAME, reason, nearest="tokenizer=DIR of a Hugging Face tokenizer")
    if settings.load_dir not in (None, settings.tokenizer):
        reason = (
            f"load_dir={settings.load_dir} beside tokenizer={settings.tokenizer}: --load is the"
            " folder of both"
        )
        raise CannotExpress(_NAME, reason, nearest=f"tokenizer={settings.load_dir}")


def _without(words: tuple[str, ...]) -> list[str]:
    """Return a command line without the flags of Megatron-LM's own tokenizers and their values."""
    kept, dropping = [], False
    for word in words:
        if word.startswith("--"):
            dropping = word in _TOKENIZER_FLAGS
        if not dropping:
            kept.append(word)
    return kept


def _lines(words: tuple[str, ...]) -> str:
    """Return one flag with its values a line, each word as a shell reads it."""
    text = ""
    for word in map(shlex.quote, words):
        text += f"\n{word}" if word.startswith("--") and text else word if not text else f" {word}"
    return text + "\n"


PAI = ExportTarget(
    name=_NAME,
    title="Pai-Megatron-Patch",
    versions="Pai-Megatron-Patch of December 2025 on its Megatron-LM-250624",
    write=_write,
    trained_layers=MEGATRON_LM.trained_layers,
    stacks=("megatron", *BF16_GRADIENTS),
    takes_extra=True,
)
