"""The workload of a row: sequence, precision, kernels, which weights learn."""

from __future__ import annotations

import re
from typing import cast

from meshwright.accuracy.cells import Cells, UnansweredError
from meshwright.accuracy.models import usual_seq_len
from meshwright.accuracy.notes import Notes
from meshwright.accuracy.tables import Rule, read_rules
from meshwright.hardware.chip import Chip
from meshwright.stack import find_stack
from meshwright.workload import AttentionKernel, Precision, Routing, Workload

__all__ = ["seq_len_of_row", "workload_of_row"]

_KERNELS: tuple[tuple[re.Pattern[str], AttentionKernel], ...] = (
    (re.compile(r"fused_softmax|core attention"), "fused-softmax"),
    (re.compile(r"flash_attention_1|flash-attention 1|triton attention"), "flash1"),
    (re.compile(r"^torch$|eager|unfused|local|naive"), "unfused"),
    (re.compile(r"flash|fused|cudnn|splash|sdpa|^te\b|xformers|pallas"), "flash"),
)
"""How kernels are named, the first that matches."""


def seq_len_of_row(cells: Cells, notes: Notes, framework: Rule) -> int:
    """Tokens in a sequence: the column, else a default that the notes name, else what the model's
    family is usually trained with.

    Fine-tuning by software that does not pad samples to that length sees theirs, unless its script
    packs them (MindSpeed-LLM's `_pack`).
    """
    given = cells.count("seq_len") or notes.seq_len or usual_seq_len(cells)
    if given is None:
        raise UnansweredError("seq_len: blank, and the model's family is not known")
    packed = re.search(r"_pack(?![a-z])", cells.words("notes"))
    tuned = (
        cells.words("task") in ("lora", "qlora", "sft")
        and framework["tuning_tokens"]
        and not packed
    )
    return min(given, int(framework["tuning_tokens"])) if tuned else given


def workload_of_row(
    cells: Cells, notes: Notes, framework: Rule, chip: Chip, *, seq_len: int, gbs: int
) -> Workload:
    """Return the workload."""
    return Workload(
        seq_len=seq_len,
        gbs=gbs,
        precision=_precision(cells, notes, framework, chip),
        attention=_attention(cells, notes, framework, chip, seq_len=seq_len),
        fused_norm=not cells.match("rmsnorm_kernel", r"default|unfused|eager|torch"),
        routing=(
            "typical"
            if cells.match("notes", r"real \(unbalanced\)")
            else cast("Routing", framework["routing"] or "balanced")
        ),
        dropout=framework["dropout"] == "1" and not _without_dropout(cells, notes),
        lora_rank=int(framework["lora_rank"]) if _frozen(cells) else 0,
    )


def _without_dropout(cells: Cells, notes: Notes) -> bool:
    """Whether the run is of a kind that has no dropout: Llama's kin, or a Megatron command of the
    rotary age (its own default is 0.1); context-parallel attention has none either."""
    rotary = notes.flags.get("position-embedding-type") in ("rope", "none")
    return cells.words("arch") in ("llama", "moe-gqa") or rotary or (cells.count("cp") or 1) > 1


def _frozen(cells: Cells) -> bool:
    """Whether all but adapters, or all but a projector between frozen models (LLaVA,
    arXiv:2304.08485, stage 1), stays as it is."""
    adapters = cells.words("task") in ("lora", "qlora") or cells.match(
        "notes", r"script flags: [^;]*\blora-r\b"
    )
    return bool(adapters or cells.match("model", r"(vlm|llava)\w*pretrain"))


def _precision(cells: Cells, notes: Notes, framework: Rule, chip: Chip) -> Precision:
    text = cells.words("precision")
    if not text and framework["precision"]:
        return cast("Precision", framework["precision"])
    if not text:
        return "bf16" if chip.bf16_flops_per_s else "fp16"
    rule = read_rules("precisions").first(f"{text} {notes.flags.get('fp8-recipe', '')}")
    if rule is None:
        raise UnansweredError("precision: not known")
    return cast("Precision", rule["precision"])


def _attention(
    cells: Cells, notes: Notes, framework: Rule, chip: Chip, *, seq_len: int
) -> AttentionKernel:
    """The kernel that the row names, else the software's usual one, `KERNEL` or `KERNEL to TOKENS`
    and flash attention of longer sequences; Megatron's keeps the scores on chips without flash
    attention, where torch has another kernel."""
    backend = notes.flags.get("attention-backend")
    if backend is not None:
        return "fused-softmax" if backend in ("unfused", "local") else "flash"
    if notes.flags.get("transformer-impl") == "local" and "use-flash-attn" not in notes.flags:
        return "fused-softmax"
    text = cells.words("attention_kernel")
    named = next((kernel for pattern, kernel in _KERNELS if pattern.search(text)), None)
    short, _, most = framework["attention"].partition(" to ")
    usual = cast("AttentionKernel", "flash" if most and seq_len > int(most) else short)
    keeps_scores = (
        usual == "flash"
        and not chip.has_flash_attention
        and find_stack(framework["stack"]).family == "megatron"
    )
    return named or ("fused-softmax" if keeps_scores else usual)
