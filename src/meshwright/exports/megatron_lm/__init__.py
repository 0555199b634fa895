"""Megatron-LM: command lines written and read."""

from __future__ import annotations

from meshwright.exports._counted import BF16_GRADIENTS
from meshwright.exports.megatron_lm._read import matches, read
from meshwright.exports.megatron_lm._tables import NAME
from meshwright.exports.megatron_lm._write import trained_layers, write
from meshwright.exports.target import ExportTarget, ImportSource

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
)
