"""Measured times of kernels and collectives per chip, by shape; numpy is loaded on the first
lookup.

The tables are made by `scripts/distil_operators.py` from measurements that NVIDIA publishes
(docs/operators.md, data/NOTICE). Every lookup takes numbers or arrays that broadcast, and returns
None where the chip or precision has no table. All times are of the kernel alone, on an idle chip in
short runs: no launch gaps of the host, no power limits of long training.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Literal, get_args

from meshwright.errors import UnknownNameError
from meshwright.hardware.tables._kin import TABLE_CHIPS, Kin, kin

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from meshwright.hardware.chip import Chip
    from meshwright.hardware.tables._grid import Floats, Grid, Lookup
    from meshwright.hardware.tables._store import ChipTables
    from meshwright.workload import Precision

__all__ = [
    "COLLECTIVES",
    "KV_READ_SHARE",
    "QUANTISE_PASSES",
    "TABLE_CHIPS",
    "Collective",
    "Kin",
    "Mask",
    "QuantisePass",
    "Role",
    "attention_backward_seconds",
    "attention_forward_seconds",
    "collective_seconds",
    "gemm_seconds",
    "grouped_gemm_seconds",
    "kin",
    "mla_forward_seconds",
    "quantise_seconds",
    "table_facts",
]

Collective = Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
Mask = Literal["causal", "full"]
QuantisePass = Literal["amax", "cast"]
"""amax: read 16-bit values, find the largest; cast: read 16-bit values, scale, write 8-bit ones."""
Role = Literal["forward", "dgrad", "wgrad", "main_grad", "main_grad_fused"]
"""Which product of a linear layer: the last three give the gradient of the weights, alone, then
added to a sum in fp32, or both at once."""
_ROLES: Mapping[Role, tuple[str, ...]] = {
    "forward": ("gemm",),
    "dgrad": ("gemm_dgrad", "gemm"),
    "wgrad": ("gemm_wgrad", "gemm"),
    "main_grad": ("gemm_main_grad", "gemm_wgrad", "gemm"),
    "main_grad_fused": ("gemm_main_grad_fused", "gemm_wgrad", "gemm"),
}
"""Tables to look in, in this order."""
QUANTISE_PASSES: tuple[QuantisePass, ...] = get_args(QuantisePass)

NARROW_HEAD_GROWTH = 0.86
"""Power of time in the head size below the narrowest measured: FlashAttention-2 on an A100 does 171
TFLOPS forward and backward at 64 a head where it does 189 at 128 (arXiv:2307.08691, figure 4,
causal, 16k)."""
KV_READ_SHARE = 1 / 3
"""Of what a byte of keys and values adds to a measured time, the part that the attention kernel
itself reads. The measured operators first copy keys and values into a cache, one read and one
write, and attention then reads them once."""


def table_facts(chip: str | Chip) -> Mapping[str, Any]:
    """Return what is known of a chip's tables: source, versions, counts of rows, fabric; empty
    where there are none."""
    tables = _tables(chip)
    return {} if tables is None else tables.meta


def gemm_seconds(
    chip: str | Chip,
    *,
    precision: Precision,
    m: Floats | float,
    n: Floats | float,
    k: Floats | float,
    role: Role = "forward",
) -> Lookup | None:
    """Time of one matrix product (m, k) x (k, n), operands already in that precision, 16-bit
    result.

    Formula:  interpolated from a table in log m, log n, log k; work grows with each beyond its end.
              A role without a table of its own takes the forward pass's
    Units:    seconds.
    Source:   docs/operators.md. 8- and 4-bit rows are measured with the quantisation of the left
              operand, which is taken off. fp16 is taken to run at bf16's time, mxfp8 at that of
              Blackwell's blockwise kernel; neither is in the source.
    Valid:    rows and columns as in the forward pass (both operands contiguous in k); only a user's
              profile has the other roles.
    Checked:  tests/hardware/test_tables.py
    """
    found = (_find(chip, family, precision, m, n, k) for family in _ROLES[role])
    return next((lookup for lookup in found if lookup is not None), None)


def grouped_gemm_seconds(
    chip: str | Chip,
    *,
    precision: Precision,
    tokens_per_expert: Floats | float,
    experts: Floats | float,
    hidden: Floats | float,
    inter: Floats | float,
) -> Lookup | None:
    """Time of the two grouped products of one gated expert layer on one rank, every local expert
    with as many tokens.

    Formula:  interpolated from a table in the logarithms; 6 * tokens_per_expert * experts * hidden
              * inter FLOP
    Units:    seconds. `experts` and `inter` are what this rank holds, after expert and tensor
              parallelism.
    Source:   docs/operators.md: fused CUTLASS (Hopper, Ada, Ampere) and DeepGEMM or CUTLASS
              (Blackwell) kernels, with the gather of tokens, the gated activation, the weighted
              sum, and in 8 and 4 bits the quantisation, all inside.
    Valid:    forward, balanced tokens.
    Checked:  tests/hardware/test_tables.py
    """
    return _find(chip, "experts", precision, tokens_per_expert, experts, hidden, inter)


def attention_forward_seconds(
    chip: str | Chip,
    *,
    batch: Floats | float,
    heads: Floats | float,
    kv_heads: Floats | float,
    head_dim: Floats | float,
    sequence: Floats | float,
    mask: Mask = "causal",
    precision: Precision = "bf16",
) -> Lookup | None:
    """Time of one fused attention forward, queries as long as keys.

    Formula:  core(head_dim, heads / kv_heads, batch * heads, sequence) + the kernel's read of keys
              and values; full attention, measured at one head size: that table * core(of this head
              size and group, s') / core(of that size, one head a group, s'), where s' = sqrt(2) *
              sequence gives the causal kernel as much work. Without such a table: core(s') * one
              constant per chip. Heads narrower than any measured take (head_dim / narrowest) **
              NARROW_HEAD_GROWTH of the narrowest's time
    Units:    seconds.
    Source:   docs/operators.md: FlashAttention 2 (A100, L40S), 3 (H100, H200), trtllm-gen kernels
              (Blackwell).
    Valid:    no window, no dropout, equal sequences.
    Checked:  tests/hardware/test_tables.py
    """
    return _attention(
        "attention",
        chip,
        precision,
        mask,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        sequence=sequence,
    )


def attention_backward_seconds(
    chip: str | Chip,
    *,
    batch: Floats | float,
    heads: Floats | float,
    kv_heads: Floats | float,
    head_dim: Floats | float,
    sequence: Floats | float,
    mask: Mask = "causal",
    precision: Precision = "bf16",
) -> Lookup | None:
    """Time of one fused attention backward, queries as long as keys; no shipped table has it.

    Formula:  as attention_forward_seconds
    Units:    seconds.
    Source:   a profile of the user's own chip (docs/profile.md).
    Valid:    no window, no dropout, equal sequences.
    Checked:  tests/hardware/test_profiled.py
    """
    family = "attention_backward"
    return _attention(
        family,
        chip,
        precision,
        mask,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        sequence=sequence,
    )


def _attention(
    family: str,
    chip: str | Chip,
    precision: Precision,
    mask: Mask,
    *,
    batch: Floats | float,
    heads: Floats | float,
    kv_heads: Floats | float,
    head_dim: Floats | float,
    sequence: Floats | float,
) -> Lookup | None:
    import numpy as np

    from meshwright.hardware.tables._grid import Lookup

    tables = _tables(chip)
    grid = None if tables is None else _grid_of(tables, f"{family}/{precision}")
    if tables is None or grid is None:
        return None
    narrow = np.minimum(1.0, head_dim / np.exp(grid.log_axes[0][0])) ** NARROW_HEAD_GROWTH
    kv_bytes = 2 * 2.0 * batch * sequence * kv_heads * head_dim
    read_s = KV_READ_SHARE * tables.meta["kv_s_per_byte"] * kv_bytes
    if mask == "causal":
        core = grid.lookup(head_dim, heads / kv_heads, batch * heads, sequence)
        return Lookup(seconds=core.seconds * narrow + read_s, extrapolated=core.extrapolated)
    as_much_work = sequence * sqrt(2)
    core = grid.lookup(head_dim, heads / kv_heads, batch * heads, as_much_work)
    full = _grid_of(tables, f"encoder_{family}/{precision}")
    if full is None:
        return Lookup(
            seconds=core.seconds * tables.meta["full_share"] * narrow + read_s,
            extrapolated=core.extrapolated,
        )
    like = grid.lookup(
        tables.meta["grids"][f"encoder_{family}/bf16"]["head_dim"], 1.0, batch * heads, as_much_work
    )
    measured = full.lookup(batch * heads, sequence)
    seconds = measured.seconds * core.seconds / like.seconds * narrow + read_s
    return Lookup(seconds=seconds, extrapolated=measured.extrapolated | core.extrapolated)


def mla_forward_seconds(
    chip: str | Chip, *, batch: Floats | float, heads: Floats | float, sequence: Floats | float
) -> Lookup | None:
    """Time of one causal multi-head latent attention forward in bf16, keys of 192 and values of
    128, as DeepSeek V3 trains it.

    Formula:  interpolated from a table in log (batch * heads), log sequence
    Units:    seconds. The measured operator also writes the latent cache, a few bytes per token.
    Source:   docs/operators.md.
    Valid:    128 and 64 value dimensions of DeepSeek V2 and V3; no window.
    Checked:  tests/hardware/test_tables.py
    """
    return _find(chip, "mla", "bf16", batch * heads, sequence)


def collective_seconds(
    chip: str | Chip, *, op: Collective, ranks: Floats | float, buffer_bytes: Floats | float
) -> Lookup | None:
    """Time of one NCCL collective among chips of one fast domain (`table_facts(chip)["fabric"]`).

    Formula:  interpolated from a table in log ranks, log bytes
    Units:    seconds; `buffer_bytes` as nccl-tests counts: the whole gathered, scattered, reduced
              or sent buffer of one rank.
    Source:   docs/operators.md: NCCL 2.27 to 2.29, 16-bit values.
    Valid:    2 to 8 ranks in one server, 2 to 4 on GB200 and GB300; more ranks take the time of the
              most measured, and say so.
    Checked:  tests/hardware/test_tables.py
    """
    if op not in COLLECTIVES:
        raise UnknownNameError("collective", op, COLLECTIVES)
    return _find(chip, "collective", op, ranks, buffer_bytes)


def quantise_seconds(
    chip: str | Chip, *, step: QuantisePass, elements: Floats | float
) -> Lookup | None:
    """Time of one pass of per-tensor fp8 quantisation over that many 16-bit values.

    Formula:  interpolated from a table in log elements
    Units:    seconds.
    Source:   docs/operators.md: amax by a plain reduction kernel, cast by a static per-tensor
              scale.
    Valid:    contiguous tensors; no transposed copy.
    Checked:  tests/hardware/test_tables.py
    """
    if step not in QUANTISE_PASSES:
        raise UnknownNameError("quantisation pass", step, QUANTISE_PASSES)
    return _find(chip, "quantise", step, elements)


def _find(chip: str | Chip, family: str, kind: str, *arguments: Floats | float) -> Lookup | None:
    tables = _tables(chip)
    grid = None if tables is None else _grid_of(tables, f"{family}/{kind}")
    return None if grid is None else grid.lookup(*arguments)


def _grid_of(tables: ChipTables, name: str) -> Grid | None:
    return tables.grids.get(tables.meta["same"].get(name, name))


def _tables(chip: str | Chip) -> ChipTables | None:
    """The tables that a chip brings along, else the shipped ones of its name."""
    from meshwright.hardware.tables._store import tables_of

    if isinstance(chip, str):
        return tables_of(chip)
    return tables_of(chip.name) if chip.tables is None else chip.tables
