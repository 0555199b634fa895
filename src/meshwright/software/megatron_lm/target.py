"""Megatron-LM's target and source, of the parts of this folder."""

from __future__ import annotations

from meshwright.software.contract import BF16_GRADIENTS, ExportTarget, ImportSource
from meshwright.software.megatron_lm.export import trained_layers, write
from meshwright.software.megatron_lm.read import matches, read
from meshwright.software.megatron_lm.words import NAME

__all__ = ["MEGATRON_LM", "MEGATRON_LM_SOURCE"]

MEGATRON_LM = ExportTarget(
    name=NAME,
    title="Megatron-LM",
    versions="core 0.12 to 0.20; T5 and BERT to 0.17.1",
    write=write,
    trained_layers=trained_layers,
    stacks=("megatron", *BF16_GRADIENTS, "megatron-no-overlap"),
    takes_extra=True,
)

MEGATRON_LM_SOURCE = ImportSource(
    name=NAME,
    title="a Megatron-LM command line",
    matches=matches,
    read=read,
    last=True,
)
