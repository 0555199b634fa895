"""Measured times of kernels and collectives per chip, by shape; numpy is loaded on the first
lookup.

The tables are made by `scripts/distil_operators.py` from measurements that NVIDIA publishes
(docs/operators.md, data/NOTICE). Every lookup takes numbers or arrays that broadcast, and returns
None where the chip or precision has no table. All times are of the kernel alone, on an idle chip in
short runs: no launch gaps of the host, no power limits of long training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from math import log, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, Unpack, get_args

from meshwright.values.errors import UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.chip import Chip
from meshwright.values.workload import Precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meshwright.values.hardware.grid import Floats, Grid, Lookup

__all__ = [
    "COLLECTIVES",
    "KV_READ_SHARE",
    "LOG_STEP",
    "NARROW_HEAD_GROWTH",
    "QUANTISE_PASSES",
    "TABLE_CHIPS",
    "ChipTables",
    "Collective",
    "Kin",
    "Mask",
    "Origin",
    "QuantisePass",
    "Role",
    "attention_backward_seconds",
    "attention_forward_seconds",
    "collective_seconds",
    "decode",
    "encode",
    "gemm_seconds",
    "kin",
    "mla_forward_seconds",
    "quantise_seconds",
    "read_tables",
    "reads_own_tables",
    "shipped",
    "table_facts",
    "tables_of",
]

Origin = Literal["profile", "tables", "kin"]
"""Measured by the user; shipped with the package for this chip; shipped for its kin, and scaled."""

LOG_STEP = 0.0005
"""Steps of log seconds that are stored, so that rounding moves a time by 0.025 % at most."""
_LOG_FLOOR = -18.0
"""Log seconds of the stored zero: 15 ns, below every kernel."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChipTables:
    """All tables of one chip."""

    grids: Mapping[str, Grid]
    """By name: `gemm/bf16`, `attention/bf16`, `collective/all_gather`, ..."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Source, versions, counts of rows, constants beside the grids."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where each grid is from; a name that is not here is the chip's own shipped one."""
    measured: frozenset[str] = frozenset()
    """Fields of the chip, and links of its node, that the user measured with these tables."""


def encode(log_seconds: Floats) -> NDArray[np.int16]:
    """Return steps of log seconds as differences along the first axis, which packs well."""
    import numpy as np

    steps = np.rint((log_seconds - _LOG_FLOOR) / LOG_STEP).astype(np.int64)
    packed = np.diff(steps, axis=0, prepend=0).astype(np.int64)
    packed[0] -= 32767
    assert packed.min() >= -32768, "below the stored range"
    assert packed.max() <= 32767, "above the stored range"
    return packed.astype(np.int16)


def decode(packed: NDArray[np.int16]) -> Floats:
    """Return log seconds of what `encode` made."""
    import numpy as np

    steps = packed.astype(np.int64)
    steps[0] += 32767
    return np.asarray(np.cumsum(steps, axis=0) * LOG_STEP + _LOG_FLOOR)


def read_tables(file: Traversable) -> ChipTables:
    """Read one .npz."""
    import numpy as np

    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        meta = json.loads(arrays["meta"].tobytes())
        grids = {name: _grid(arrays[name], meta["grids"][name]) for name in meta["grids"]}
    return ChipTables(grids=MappingProxyType(grids), meta=MappingProxyType(meta))


def _grid(packed: NDArray[np.int16], facts: Mapping[str, Any]) -> Grid:
    import numpy as np

    from meshwright.values.hardware.grid import Grid

    axes = tuple(np.log(np.asarray(points, dtype=np.float64)) for points in facts["points"])
    return Grid(log_axes=axes, log_seconds=decode(packed), growth=tuple(facts["growth"]))


@cache
def tables_of(chip: str) -> ChipTables | None:
    """Return the tables of a chip of the catalogue, None where there are none."""
    return shipped(f"{chip}.npz")


def shipped(name: str) -> ChipTables | None:
    """Read tables that the package brings along, None where there are none of that name."""
    file = files("meshwright").joinpath("values/hardware/data", name)
    return read_tables(file) if file.is_file() else None


TABLE_CHIPS: tuple[str, ...] = (
    "a100-80",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "h100",
    "h200",
    "l40s",
    "rtx-pro-6000",
)
"""Chips with tables of their own, by their names in the catalogue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kin:
    """Whose tables to read for a chip, and how to scale them."""

    chip: Chip
    table: Chip
    relation: Literal["itself", "generation", "vendor", "stranger"]
    """itself: measured. generation: the same kernels on another size of chip. vendor: the same
    libraries, another architecture. stranger: only the shape of the surface is borrowed."""

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """How much an estimate that rests on it may claim."""
        if self.relation == "itself":
            return "high"
        return "medium" if self.relation == "generation" else "low"

    @property
    def note(self) -> str:
        """One line for people; empty where the chip has its own tables."""
        return (
            f"{self.chip.name} has no measured operators: the efficiencies of {self.table.name} at"
            f" {self.chip.name}'s peaks ({self.relation})"
            if self.relation != "itself"
            else ""
        )

    def compute_scale(self, precision: Precision) -> float:
        """Factor on times that arithmetic bounds: the kin's peak over what this chip makes of its
        own; ConfigError without such a unit."""
        if self.table is self.chip:
            return 1.0
        return self.table.peak_flops_per_s(precision) / (
            self.chip.peak_flops_per_s(precision) * self.chip.kin_speed
        )

    @property
    def memory_scale(self) -> float:
        """Factor on times that memory bounds: the kin's bandwidth over this chip's."""
        return self.table.memory_bytes_per_s / self.chip.memory_bytes_per_s


@cache
def kin(chip: Chip) -> Kin:
    """Return whose tables a chip reads: its own, else the nearest by generation, vendor, peaks."""
    if chip.tables is not None:
        return Kin(chip=chip, table=chip, relation="itself")
    if chip.name in TABLE_CHIPS:
        return Kin(chip=chip, table=find_chip(chip.name), relation="itself")
    candidates = [find_chip(name) for name in TABLE_CHIPS]
    family = [one for one in candidates if chip.generation and one.generation == chip.generation]
    if family:
        return Kin(chip=chip, table=_nearest(chip, family), relation="generation")
    maker = [other for other in candidates if other.vendor == chip.vendor]
    if maker:
        return Kin(chip=chip, table=_nearest(chip, maker), relation="vendor")
    return Kin(chip=chip, table=_nearest(chip, candidates), relation="stranger")


def reads_own_tables(chip: Chip) -> bool:
    """Whether a chip's products are those measured on it or on a chip of its generation."""
    return kin(chip).relation in ("itself", "generation")


def _nearest(chip: Chip, others: Iterable[Chip]) -> Chip:
    """The least distance in log arithmetic peak and log bandwidth; the first of equals."""

    def distance(other: Chip) -> float:
        bandwidth = log(other.memory_bytes_per_s / chip.memory_bytes_per_s)
        return abs(log(_peak(other) / _peak(chip))) + abs(bandwidth)

    return min(others, key=distance)


def _peak(chip: Chip) -> float:
    half = chip.bf16_flops_per_s or chip.fp16_flops_per_s
    return half or chip.tf32_flops_per_s or chip.fp32_flops_per_s or 1.0


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
    """Return what is known of a chip's tables: source, versions, rows, fabric; else empty."""
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
    Checked:  tests/values/hardware/test_tables.py
    """
    found = (_find(chip, family, precision, m, n, k) for family in _ROLES[role])
    return next((lookup for lookup in found if lookup is not None), None)


class AttentionShape(TypedDict):
    """One fused attention, queries as long as keys."""

    batch: Floats | float
    heads: Floats | float
    kv_heads: Floats | float
    head_dim: Floats | float
    sequence: Floats | float
    mask: NotRequired[Mask]
    """causal where it is not said."""
    precision: NotRequired[Precision]
    """bf16 where it is not said."""


def attention_forward_seconds(chip: str | Chip, **shape: Unpack[AttentionShape]) -> Lookup | None:
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
    Checked:  tests/values/hardware/test_tables.py
    """
    return _attention("attention", chip, **shape)


def attention_backward_seconds(chip: str | Chip, **shape: Unpack[AttentionShape]) -> Lookup | None:
    """Time of one fused attention backward, queries as long as keys; no shipped table has it.

    Formula:  as attention_forward_seconds
    Units:    seconds.
    Source:   a profile of the user's own chip (docs/profile.md).
    Valid:    no window, no dropout, equal sequences.
    Checked:  tests/values/hardware/test_profiled.py
    """
    return _attention("attention_backward", chip, **shape)


def _attention(
    family: str,
    chip: str | Chip,
    *,
    mask: Mask = "causal",
    precision: Precision = "bf16",
    batch: Floats | float,
    heads: Floats | float,
    kv_heads: Floats | float,
    head_dim: Floats | float,
    sequence: Floats | float,
) -> Lookup | None:
    import numpy as np

    from meshwright.values.hardware.grid import Lookup

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
        seconds = core.seconds * tables.meta["full_share"] * narrow + read_s
        return Lookup(seconds=seconds, extrapolated=core.extrapolated)
    its_dim = tables.meta["grids"][f"encoder_{family}/bf16"]["head_dim"]
    like = grid.lookup(its_dim, 1.0, batch * heads, as_much_work)
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
    Checked:  tests/values/hardware/test_tables.py
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
    Checked:  tests/values/hardware/test_tables.py
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
    Checked:  tests/values/hardware/test_tables.py
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

    if isinstance(chip, str):
        return tables_of(chip)
    return tables_of(chip.name) if chip.tables is None else chip.tables
