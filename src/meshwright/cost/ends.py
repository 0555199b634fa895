"""The ends of the model: embedding on the first stage; head and loss on the last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.collectives import all_gather_s, all_reduce_s, reduce_scatter_s
from meshwright.cost.kernels import host_ends_s, kind_of_activations, own_s, streaming_s
from meshwright.cost.linear import linear
from meshwright.cost.operators import Site
from meshwright.cost.stages import Floats
from meshwright.values.models.spec import Block

__all__ = ["Ends", "padded_vocab", "price_ends"]

LOSS_PASSES_FUSED = 10.0
"""Bytes per logit of a fused cross-entropy forward and backward: read (2 + 2), write (2), and its
reductions' second read."""
LOSS_PASSES_UNFUSED = 36.0
"""Bytes per logit in separate kernels: cast (2 + 4), max (4), subtract (8), exponential and sum (8
+ 4), gradient (4 + 2)."""

SOFTMAX_BYTES = 4.0
"""Bytes per logit of the fp32 softmax that a loss keeps for its backward pass
(megatron/core/tensor_parallel/cross_entropy.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Time and memory of the ends for one micro batch, (U,)."""

    embedding_forward_s: Floats
    embedding_backward_s: Floats
    head_forward_s: Floats
    head_backward_s: Floats
    head_weight_s: Floats
    """Of `head_backward_s`, the gradient of the weights."""
    head_saved_bytes: Floats
    """Kept between the head's forward and backward."""
    loss_peak_bytes: Floats
    """Alive only while the loss is computed and the head works back."""
    loss_saved_bytes: Floats
    """Of it, kept until the loss's own backward pass."""


def padded_vocab(vocab: int, tp: Floats, multiple: int) -> Floats:
    """Vocabulary that the training software stores, (U,).

    Formula:  rounded up to a multiple of `multiple * tp`
    Units:    entries.
    Source:   Megatron-LM's `--make-vocab-size-divisible-by` (128).
    Valid:    `multiple` >= 1.
    Checked:  tests/cost/test_ends.py
    """
    unit = multiple * tp
    return np.ceil(vocab / unit) * unit


@makes("head", "memory.logits")
def price_ends(site: Site) -> Ends:
    """Price embedding, output head and cross-entropy.

    Formula:  embedding: gather and scatter of hidden elements, and passes over the whole table's
              gradient, which is made anew in each micro batch (written as zeros, read, added to the
              sum); head: a linear layer to the padded vocabulary / tp, and the passes of
              cross-entropy over the logits with three sums over tp; over tp the embedding's output
              and the head's input gradient are all-reduced, or with sequence parallelism scattered
              and gathered in each pass at each end. Memory of the loss: bytes per logit, and what
              the head's backward pass hands to autograd; a loss in tiles holds loss_tile logits at
              most, and multiplies by the head once more in the backward pass
    Units:    seconds, bytes; (U,).
    Source:   Megatron-LM (arXiv:1909.08053) section 3: parallel vocabulary and cross-entropy;
              torch's embedding_dense_backward.
    Valid:    one head; multi-token prediction repeats it.
    Checked:  tests/cost/test_ends.py
    """
    block = Block(
        kind="mlp", stream="decoder" if site.model.family == "encoder-decoder" else "main"
    )
    tokens, h = site.tokens(block), float(site.model.hidden)
    vocab = (
        padded_vocab(site.model.vocab, site.shapes.tp, site.stack.vocab_multiple) / site.shapes.tp
    )
    head = linear(site, "head", into=np.full_like(tokens, h), out=vocab, tokens=tokens)
    group = site.tp_group()
    gathered = np.ones_like(tokens) if site.stack.vocab_parallel_loss else site.shapes.tp
    logits = tokens * vocab * gathered
    size = tokens * h * site.activation_bytes
    split = site.shapes.sp > 0
    compute, tensor = site.stack.factors.compute, site.stack.factors.tensor
    half = tensor * reduce_scatter_s(group, size)  # as long as an all-gather
    whole = tensor * all_reduce_s(group, size)
    gather_logits_s = np.where(
        gathered > 1, all_gather_s(group, logits * site.activation_bytes), 0.0
    )
    sums_s = tensor * (3 * all_reduce_s(group, tokens * 4.0) + gather_logits_s)
    handed = vocab * h * site.stack.head_gradient_bytes * (not site.work.lora_rank)
    saved = (
        tokens / site.shapes.sequence_shards * h * (site.activation_bytes + site.saved_input_bytes)
    )
    lookup = _lookup_s(site, tokens, vocab)
    losses = _losses_s(site, tokens, vocab * gathered, logits)
    tiled = site.stack.loss_tile > 0
    held = np.minimum(logits, site.stack.loss_tile) if tiled else logits
    host, other_pass = _host_pair(site), np.where(split, half, 0.0)
    return Ends(
        embedding_forward_s=lookup[0] + np.where(split, half, whole),
        embedding_backward_s=lookup[1] + other_pass,
        head_forward_s=compute * head.forward_s + losses[0] + sums_s + other_pass + host[0],
        head_backward_s=compute * head.backward_s
        + losses[1]
        + compute * head.forward_s * tiled
        + np.where(split, half, whole)
        + host[1],
        head_weight_s=np.asarray(compute * head.weight_s),
        head_saved_bytes=saved,
        loss_peak_bytes=held * (site.activation_bytes + site.stack.logits_bytes) + handed,
        loss_saved_bytes=held * SOFTMAX_BYTES,
    )


def _lookup_s(site: Site, tokens: Floats, vocab: Floats) -> tuple[Floats, Floats]:
    """Rows of the embedding gathered, and scattered into a gradient of the whole table, forward and
    backward.

    Formula:  compute factor times: rows = 3 * tokens * hidden * activation_bytes as one pass;
              backward 2 * rows + vocab * hidden * (2 * activation_bytes + 2 * gradient_bytes) /
              memory rate, the table's part without adapters
    Units:    seconds per micro batch and rank, (U,).
    Source:   torch's embedding_dense_backward makes the table's gradient anew: counted as zeros
              written, read, added to a sum that is read and written. The third pass over rows, and
              twice as many backward, are assumed.
    """
    h, compute = float(site.model.hidden), site.stack.factors.compute
    gather_s = compute * site.streaming(tokens * h * 3 * site.activation_bytes)
    table_bytes = (
        vocab
        * h
        * (2 * site.activation_bytes + 2 * site.stack.gradient_bytes)
        * (not site.work.lora_rank)
    )
    table_s = compute * streaming_s(site.pool.node.chip, table_bytes)
    return _measured_pair(site, "embedding", (tokens, h, vocab), (gather_s, gather_s * 2 + table_s))


def _losses_s(site: Site, tokens: Floats, width: Floats, logits: Floats) -> tuple[Floats, Floats]:
    """Passes of cross-entropy over so many logits a token, half of them in each direction.

    Formula:  compute factor * logits * LOSS_PASSES_FUSED (or LOSS_PASSES_UNFUSED) / memory rate / 2
    Units:    seconds per micro batch and rank, (U,).
    Source:   counting at these constants; halves are assumed.
    """
    loss_bytes = LOSS_PASSES_FUSED if site.stack.cross_entropy_fused else LOSS_PASSES_UNFUSED
    passed_s = streaming_s(site.pool.node.chip, logits * loss_bytes)
    loss_s = site.stack.factors.compute * passed_s / 2
    return _measured_pair(site, "cross_entropy", (tokens, width), (loss_s, loss_s))


def _measured_pair(
    site: Site, name: str, shape: tuple[Floats | float, ...], formula: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Forward and backward of an operator from the user's profile, where the embedded trainer runs
    torch's own; else as given.

    Formula:  compute factor * the profile's seconds at this shape
    Units:    seconds per micro batch and rank, (U,).
    Source:   docs/profile.md.
    """
    if not site.stack.embedded:
        return formula
    chip, kind = site.pool.node.chip, kind_of_activations(site.work.precision)
    forward, backward = (own_s(chip, f"{name}{way}/{kind}", *shape) for way in ("", "_backward"))
    scale = site.stack.factors.compute
    return formula if forward is None or backward is None else (scale * forward, scale * backward)


def _host_pair(site: Site) -> tuple[Floats, Floats]:
    """Host time of both ends, forward and backward; on a GPU it hides behind the kernels of large
    models and counts for small ones alone, which their layers say already: 0 there."""
    nothing = np.zeros_like(site.shapes.tp)
    chip = site.pool.node.chip
    if not (site.stack.embedded and chip.is_processor):
        return nothing, nothing
    forward, backward = (
        host_ends_s(chip, site.shapes, ""),
        host_ends_s(chip, site.shapes, "_backward"),
    )
    return nothing if forward is None else forward, nothing if backward is None else backward
