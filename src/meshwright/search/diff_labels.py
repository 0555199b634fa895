"""What a difference between two plans means for the run: one row per field and condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["LABELS", "LABEL_ROWS", "Label", "LabelRow", "When", "rows_of"]

Label = Literal[
    "execution only", "reshard the checkpoint", "changes data order", "changes training"
]
"""Mildest first. `execution only`: the same checkpoint continues and the same numbers come out, up
to rounding; `reshard the checkpoint`: the same training, but what ranks store must be cut anew;
`changes data order`: the same samples, met by other ranks or in other groups; `changes training`:
another loss curve."""
LABELS: tuple[Label, ...] = get_args(Label)
When = Literal["always", "experts", "sharded"]
"""`experts`: the model has experts, or either side spreads them; `sharded`: either side shards
states over data parallel ranks, and not surely over as many as the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRow:
    """One thing that follows when a field differs."""

    field: str
    label: Label
    reason: str
    when: When = "always"


_SAME_SLICES = "what ranks store stays the same; sums may round in another order"
_SHARDS = "optimizer states are cut over dp * cp ranks"
_REDONE = (
    "the backward pass runs parts of the forward again and gets the same numbers, random masks"
    " included"
)

LABEL_ROWS: tuple[LabelRow, ...] = (
    # Layout
    LabelRow(
        field="tp",
        label="reshard the checkpoint",
        reason="matrices are cut into another number of slices",
    ),
    LabelRow(
        field="sp",
        label="execution only",
        reason=f"norms and residuals work on slices of the sequence; {_SAME_SLICES}",
    ),
    LabelRow(
        field="cp",
        label="execution only",
        reason=f"each rank reads another part of the sequence; {_SAME_SLICES}",
    ),
    LabelRow(field="cp", label="reshard the checkpoint", reason=_SHARDS, when="sharded"),
    LabelRow(field="ep", label="reshard the checkpoint", reason="experts live on other ranks"),
    LabelRow(
        field="etp",
        label="reshard the checkpoint",
        reason="experts are cut into another number of slices",
    ),
    LabelRow(field="pp", label="reshard the checkpoint", reason="layers move to other stages"),
    LabelRow(
        field="vpp",
        label="reshard the checkpoint",
        reason="chunks go round the stages, so a stage holds other layers",
    ),
    LabelRow(
        field="dp",
        label="changes data order",
        reason=(
            "a step reads the same samples, dealt to other ranks; a sampler that shuffles within"
            " each rank (Megatron's cyclic) also draws other batches"
        ),
    ),
    LabelRow(field="dp", label="reshard the checkpoint", reason=_SHARDS, when="sharded"),
    LabelRow(
        field="sharding",
        label="reshard the checkpoint",
        reason="optimizer states, gradients or weights are cut over other ranks",
    ),
    LabelRow(
        field="shard_size",
        label="reshard the checkpoint",
        reason="one copy is cut over another number of ranks",
    ),
    LabelRow(
        field="mbs",
        label="changes data order",
        reason=(
            "a step reads the same samples, grouped into other micro batches; a loss that averages"
            " per micro batch over masked tokens weighs them otherwise"
        ),
    ),
    LabelRow(
        field="mbs",
        label="changes training",
        reason="load-balancing loss and expert capacity are counted within one micro batch",
        when="experts",
    ),
    LabelRow(
        field="gbs",
        label="changes training",
        reason="more or fewer steps for the same tokens; the learning rate belongs to the batch",
    ),
    LabelRow(field="gbs", label="changes data order", reason="a step takes another run of samples"),
    LabelRow(field="recompute", label="execution only", reason=_REDONE),
    LabelRow(field="recompute_method", label="execution only", reason=_REDONE),
    LabelRow(field="recompute_layers", label="execution only", reason=_REDONE),
    LabelRow(field="recompute_modules", label="execution only", reason=_REDONE),
    LabelRow(
        field="schedule",
        label="execution only",
        reason="micro batches run in another order; their gradients add up to the same sum",
    ),
    LabelRow(
        field="layers_per_stage",
        label="reshard the checkpoint",
        reason="layers move to other stages",
    ),
    # Workload
    LabelRow(
        field="seq_len",
        label="changes training",
        reason="the model sees longer or shorter contexts, and another count of tokens a step",
    ),
    LabelRow(
        field="seq_len",
        label="changes data order",
        reason="documents are cut at other places, so the sample index is built anew",
    ),
    LabelRow(
        field="decoder_seq_len", label="changes training", reason="targets have another length"
    ),
    LabelRow(
        field="precision",
        label="changes training",
        reason="linear layers round otherwise; scaling states of low precision come or go",
    ),
    LabelRow(
        field="attention",
        label="execution only",
        reason="another kernel for the same function; sums round in another order",
    ),
    LabelRow(
        field="routing",
        label="execution only",
        reason="an assumption of the estimate, not of the run",
    ),
    LabelRow(
        field="fused_norm", label="execution only", reason="another kernel for the same function"
    ),
    LabelRow(
        field="dropout",
        label="changes training",
        reason="activations are masked at random, or no longer",
    ),
    LabelRow(field="lora_rank", label="changes training", reason="other weights learn"),
    # The rest of a request
    LabelRow(field="model", label="changes training", reason="another model"),
    LabelRow(
        field="stack",
        label="reshard the checkpoint",
        reason="another software's checkpoint: convert it",
    ),
    LabelRow(
        field="cluster",
        label="execution only",
        reason="the same program on other chips; kernels may round otherwise",
    ),
)
"""Source of the data rows: Megatron-LM's samplers. The sequential one deals consecutive runs of mbs
samples to the ranks in turn, so step k reads samples [k gbs, (k + 1) gbs) under any dp and mbs; the
cyclic one shuffles a bucket per rank, whose size depends on both."""


def rows_of(field: str, *, conditions: frozenset[When]) -> tuple[LabelRow, ...]:
    """Return what follows when `field` differs, under these conditions."""
    return tuple(
        row
        for row in LABEL_ROWS
        if row.field == field and (row.when == "always" or row.when in conditions)
    )
