"""Time of the kernels of an iteration on one rank, from the chip's tables or its nearest kin's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.collectives import all_reduce_s, group_of
from meshwright.cost.kernels import element_bytes, gemm_s, sustained_share
from meshwright.cost.mamba import SCAN_EFFICIENCY, SCAN_FLOPS_PER_S
from meshwright.serving.engine import Cache, Engine, Quantisation, Weights, cache_bytes
from meshwright.serving.recurrent import Recurrent, delta_rate
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Link, Pool
from meshwright.values.hardware.grid import Lookup
from meshwright.values.hardware.serving_tables import (
    SPREAD_TOKENS,
    cached_attention_seconds,
    cached_latent_seconds,
    engine_all_reduce_seconds,
    expert_layer_seconds,
    spread_expert_seconds,
)
from meshwright.values.hardware.tables import (
    Kin,
    attention_forward_seconds,
    collective_seconds,
    gemm_seconds,
    kin,
    mla_forward_seconds,
)
from meshwright.values.models.spec import MlaSpec
from meshwright.values.workload import Precision

__all__ = ["Floats", "Kernels"]

Floats = NDArray[np.float64]

DECODE_EFFICIENCY = 0.33
"""Share of the arithmetic peak that attention of single tokens reaches where no table tells it:
vector work on a cache, as the tables of H100 hold for 16 queries per key head."""


EXCHANGE_SHARE = 0.6
"""Share of the fast link's rate that large exchanges of tokens reach: 0.45 to 0.8 in the operator
tables of aiconfigurator-core 0.12 (DeepEP on H100, B200 and GB200, TensorRT-LLM's kernels on GB200;
1024 to 8192 tokens of 7168 values a rank)."""


DIRECT_SHARE = 0.7
"""Share of a link's rate that an engine's own all-reduce reaches at least: its kernels write into
their peers' memory, where NCCL's rings over PCIe reach 0.38. NCCL's topology search counts 24 GB/s
on a 16-lane slot of PCIe 4 (0.76); throughput of TensorRT-LLM on L40S and A100 PCIe
(inference_trtllm_docs) is 8 and 2 % below what 0.7 says, and 22 % above what 0.38 says."""
DIRECT_RAMP_BYTES = 512 * 1024.0
"""Message at which such a kernel reaches half of that. With the 16 KiB of NCCL's rings over PCIe
throughput of TensorRT-LLM on A100 PCIe is 10 % below what is said, with this 1 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The kernels of one engine on one pool of chips."""

    pool: Pool
    engine: Engine

    @property
    def chip(self) -> Chip:
        return self.pool.node.chip

    @property
    def kin(self) -> Kin:
        """Whose tables are read."""
        return kin(self.chip)

    def linear_s(self, weights: Weights, *, m: Floats, n: float, k: float) -> Floats:
        """Time of a linear layer of `m` tokens, its operand already in the product's precision.

        Formula:  the measured product's; weights narrower than the product (int4, int8, mxfp4) save
                  the reading of the rest, but not the arithmetic: max(t - saved bytes / bandwidth,
                  arithmetic at the best share, reading of what is left)
        Units:    seconds, the shape of `m`.
        Source:   `gemm_seconds`; weight-only kernels (Marlin, arXiv:2408.11743) reach the reading
                  of the narrow weights.
        Valid:    products that the chip has units for.
        Checked:  tests/serving/test_kernels.py
        """
        precision = self._precision(weights)
        whole = self._product_s(precision, m=m, n=n, k=k)
        stored = Quantisation.bytes_of(weights)
        if stored >= element_bytes(precision):
            return whole
        rate = self.chip.memory_bytes_per_s * self.chip.memory_efficiency
        work_rate = self.chip.peak_flops_per_s(precision) * self.chip.matmul_efficiency
        work_s = 2.0 * m * n * k / work_rate
        least = np.maximum(work_s, stored * n * k / rate) + self.chip.ramp_s
        return np.maximum(whole - (element_bytes(precision) - stored) * n * k / rate, least)

    def _precision(self, weights: Weights) -> Precision:
        """What products of such weights run in; fp32 stays what it is on chips without units for
        tf32, processors among them."""
        precision = Quantisation.product_of(weights)
        return "fp32" if precision == "tf32" and not self.chip.tf32_flops_per_s else precision

    def _product_s(self, precision: Precision, *, m: Floats, n: float, k: float) -> Floats:
        near = self.kin
        found = self._read(lambda: gemm_seconds(near.table, precision=precision, m=m, n=n, k=k))
        if found is None:
            wide, deep = np.full_like(m, n), np.full_like(m, k)
            return gemm_s(self.chip, m=m, n=wide, k=deep, precision=precision)
        read_s = element_bytes(precision) * n * k / self.chip.memory_bytes_per_s
        work_s = 2.0 * m * n * k / self.chip.peak_flops_per_s(precision)
        scale = np.where(work_s > read_s, near.compute_scale(precision), near.memory_scale)
        scaled = found.seconds * scale
        busy = np.minimum(work_s / scaled, 1.0)
        return scaled * (1.0 + busy * (1.0 / sustained_share(self.chip, precision) - 1.0))

    def prefill_attention_s(
        self,
        *,
        batch: Floats,
        new: Floats,
        context: Floats,
        heads: float,
        kv_heads: float,
        head_dim: float,
        window: int | None,
    ) -> Floats:
        """Time of causal attention of `new` tokens of each of `batch` prompts, `context` of whose
        tokens are in the cache.

        Formula:  the measured causal kernel on a sequence with as many pairs of tokens: s' =
                  sqrt(new^2 + 2 new context); a window leaves new * window pairs
        Units:    seconds.
        Source:   `attention_forward_seconds`; else pairs * 4 * head_dim FLOP at the chip's
                  attention efficiency.
        Valid:    one engine iteration; the paged cache is taken to be read as fast as a whole one.
        Checked:  tests/serving/test_kernels.py
        """
        same = _as_much_work(new, context, window)
        near = self.kin
        found = self._read(
            lambda: attention_forward_seconds(
                near.table,
                batch=batch,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=float(head_dim),
                sequence=same,
            )
        )
        if found is None:
            return self._attention_work_s(batch * heads * same**2 * head_dim * 2.0)
        return found.seconds * near.compute_scale("bf16")

    def prefill_latent_s(
        self, *, batch: Floats, new: Floats, context: Floats, heads: float, mla: MlaSpec
    ) -> Floats:
        """Time of the same for multi-head latent attention, keys and values rebuilt from the
        latent.

        Formula:  as prefill_attention_s
        Units:    seconds.
        Source:   `mla_forward_seconds`.
        Valid:    heads of DeepSeek V2's and V3's size; others by their work.
        Checked:  tests/serving/test_kernels.py
        """
        same = _as_much_work(new, context, None)
        near = self.kin
        width = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
        found = self._read(
            lambda: mla_forward_seconds(near.table, batch=batch, heads=heads, sequence=same)
        )
        if found is None:
            return self._attention_work_s(batch * heads * same**2 * width)
        return found.seconds * near.compute_scale("bf16") * width / _MEASURED_LATENT_WIDTH

    def _attention_work_s(self, flops: Floats) -> Floats:
        rate = self.chip.peak_flops_per_s("bf16") * self.chip.attention_forward_efficiency
        return flops / rate + self.chip.ramp_s

    def decode_attention_s(
        self,
        cache: Cache,
        *,
        batch: Floats,
        context: Floats,
        heads: float,
        kv_heads: float,
        head_dim: float,
    ) -> Floats:
        """Time of attention of one new token of each of `batch` sequences over a cache of `context`
        tokens each.

        Formula:  the engine's measured kernel; else max(bytes of the cache / bandwidth, arithmetic)
                  + ramp
        Units:    seconds.
        Source:   `cached_attention_seconds`.
        Valid:    equal contexts; time hangs on their sum, so the mean stands for unequal ones.
        Checked:  tests/serving/test_kernels.py
        """
        found = self._serving(
            lambda chip: cached_attention_seconds(
                chip,
                kernels=self.engine.kernels,
                stored=_stored(cache),
                head_dim=head_dim,
                group=heads / kv_heads,
                kv_sequences=batch * kv_heads,
                context=context,
            )
        )
        values = 2.0 * batch * kv_heads * context * head_dim
        if found is not None:
            return found
        return self._cache_s(cache, values, 2.0 * values * heads / kv_heads)

    def decode_latent_s(
        self, cache: Cache, *, batch: Floats, context: Floats, heads: float, mla: MlaSpec
    ) -> Floats:
        """Time of the same for multi-head latent attention.

        Formula:  as decode_attention_s; all heads read one latent
        Units:    seconds.
        Source:   `cached_latent_seconds`.
        Valid:    latents of DeepSeek's size; others by their size.
        Checked:  tests/serving/test_kernels.py
        """
        width = mla.kv_lora_rank + mla.qk_rope_head_dim
        found = self._serving(
            lambda chip: cached_latent_seconds(
                chip,
                kernels=self.engine.kernels,
                stored=_stored(cache),
                heads=heads,
                batch=batch,
                context=context,
            )
        )
        values = batch * context * width
        return found if found is not None else self._cache_s(cache, values, 4.0 * values * heads)

    def recurrent_prompt_s(self, layer: Recurrent, *, tokens: Floats, kind: str) -> Floats:
        """Time in which the tokens of prompts go through a layer's states, launches apart.

        Formula:  FLOPs / rate + passes over the inputs; the rate of the delta rule is measured by
                  engine and chip, else the least of the peak * SCAN_EFFICIENCY and SCAN_FLOPS_PER_S
        Units:    seconds, the shape of `tokens`.
        Source:   `serving/delta_rates.csv` (aiconfigurator-core 0.12); `cost.mamba` for scans.
        Valid:    prompts of several chunks.
        Checked:  tests/serving/test_recurrent.py
        """
        peak = self.chip.peak_flops_per_s("bf16")
        rate = min(peak * SCAN_EFFICIENCY, SCAN_FLOPS_PER_S)
        near = self.kin
        if kind == "delta" and near.relation in ("itself", "generation"):
            measured = delta_rate(self.engine.kernels, near.table.name)
            rate = rate if measured is None else measured / near.compute_scale("bf16")
        return tokens * layer.flops / rate + self.passes_s(2.0 * tokens * layer.inputs)

    def recurrent_step_s(self, layer: Recurrent, batch: Floats) -> Floats:
        """Time in which one new token of each of `batch` sequences goes through a layer's states.

        Formula:  2 * bytes of the states / bandwidth + ramp: each is read and written
        Units:    seconds, the shape of `batch`.
        Source:   roofline; the fused kernels reach 0.74 to 1.0 of the bandwidth in the tables of
                  aiconfigurator-core 0.12 (SGLang, vLLM and TensorRT-LLM on L40S to GB300).
        Valid:    states that do not stay in the chip's caches.
        Checked:  tests/serving/test_recurrent.py
        """
        return self.passes_s(2.0 * batch * layer.state_bytes) + self.chip.ramp_s

    def _cache_s(self, cache: Cache, values: Floats, flops: Floats) -> Floats:
        rate = self.chip.memory_bytes_per_s * self.chip.memory_efficiency
        read_s = cache_bytes(cache) * values / rate
        work_s = flops / (self.chip.peak_flops_per_s("bf16") * DECODE_EFFICIENCY)
        return np.maximum(read_s, work_s) + self.chip.ramp_s

    def experts_s(
        self,
        weights: Weights,
        *,
        per_expert: Floats,
        experts: float,
        hidden: float,
        inter: float,
        matrices: int,
    ) -> Floats:
        """Time of an expert layer on one rank that holds `experts` experts, each of which gets
        `per_expert` tokens on average.

        Formula:  the engine's measured kernel; else max(weights of the experts hit / bandwidth,
                  arithmetic at 60 % of the peak) + ramps, experts hit = experts * (1 -
                  exp(-per_expert))
        Units:    seconds.
        Source:   `expert_layer_seconds`; two matrices instead of three cost two thirds.
        Valid:    routing of trained models: some experts are liked more.
        Checked:  tests/serving/test_kernels.py
        """
        word = "bf16" if weights in ("fp16", "fp32", "int8") else weights
        other = weights == "mxfp4" and self.engine.mxfp4_kernels != "own"
        other = other and bool(self.chip.fp4_flops_per_s)
        whose = self.engine.mxfp4_kernels if other else self.engine.kernels
        found = self._serving(
            lambda chip: expert_layer_seconds(
                chip,
                kernels=whose,
                weights=word,
                tokens_per_expert=per_expert,
                experts=experts,
                hidden=hidden,
                inter=inter,
            )
        )
        if found is not None:
            return found * matrices / 3.0
        precision = self._precision(weights)
        hit = np.maximum(-experts * np.expm1(-per_expert), 1.0)
        rate = self.chip.memory_bytes_per_s * self.chip.memory_efficiency
        read_s = Quantisation.bytes_of(weights) * matrices * hit * hidden * inter / rate
        flops = 2.0 * matrices * per_expert * experts * hidden * inter
        work_s = flops / (0.6 * self.chip.peak_flops_per_s(precision))
        return np.maximum(read_s, work_s) + 2 * self.chip.ramp_s

    def spread_experts_s(
        self,
        weights: Weights,
        *,
        per_expert: Floats,
        experts: float,
        hidden: float,
        inter: float,
        matrices: int,
    ) -> Floats:
        """Time of the same where every rank has tokens of its own, which reach the experts through
        an exchange.

        Formula:  experts_s; up to SPREAD_TOKENS tokens on the rank the kernels of the low-latency
                  exchange where those are faster
        Units:    seconds.
        Source:   `spread_expert_seconds`: DeepEP's masked grouped products in SGLang, half the time
                  of others at 64 tokens an expert.
        Valid:    as experts_s.
        Checked:  tests/serving/test_kernels.py
        """
        size = {"experts": experts, "hidden": hidden, "inter": inter}
        plain = self.experts_s(weights, per_expert=per_expert, matrices=matrices, **size)
        few = self._serving(
            lambda chip: spread_expert_seconds(
                chip,
                kernels=self.engine.kernels,
                weights=weights,
                tokens_per_expert=per_expert,
                **size,
            )
        )
        if few is None:
            return plain
        fast = np.minimum(few * matrices / 3.0, plain)
        return np.where(per_expert * experts <= SPREAD_TOKENS, fast, plain)

    def all_reduce_s(self, *, ranks: int, buffer_bytes: Floats) -> Floats:
        """Time of one all-reduce over neighbouring ranks.

        Formula:  inside a fast domain the least of the engine's kernel, NCCL's and a ring at the
                  catalogue's rate (the measured L40S server reached 5 GB/s where published runs
                  need 12); else that ring
        Units:    seconds.
        Source:   `engine_all_reduce_seconds`, `collective_seconds`,
                  `cost.collectives.all_reduce_s`.
        Valid:    2 ranks or more; 0 for one.
        Checked:  tests/serving/test_kernels.py
        """
        if ranks == 1:
            return np.zeros_like(buffer_bytes)
        ring = np.asarray(all_reduce_s(group_of(ranks, 1, self._reducing_pool), buffer_bytes))
        if self.kin.relation != "itself" or ranks > self.pool.node.domain_size:
            return ring
        size: dict[str, Any] = {"ranks": float(ranks), "buffer_bytes": buffer_bytes}
        measured = [collective_seconds(self.chip, op="all_reduce", **size)]
        if self.engine.reduces_by == "own":
            kernels = self.engine.kernels
            measured.append(engine_all_reduce_seconds(self.chip.name, kernels=kernels, **size))
        known = [found.seconds for found in measured if found is not None]
        return np.asarray(np.minimum.reduce([ring, *known]))

    @property
    def _reducing_pool(self) -> Pool:
        node = self.pool.node
        if self.engine.reduces_by == "nccl" or node.domain_link.efficiency >= DIRECT_SHARE:
            return self.pool
        direct = replace(
            node.domain_link,
            efficiency=DIRECT_SHARE,
            pair_efficiency=None,
            full_rate_chips=None,
            half_message_bytes=DIRECT_RAMP_BYTES,
        )
        return replace(self.pool, node=replace(node, domain_link=direct))

    def exchange_s(self, *, ranks: int, token_bytes: Floats, copies: float) -> Floats:
        """Time until every token of a rank has reached the ranks of its experts.

        Formula:  as `cost.collectives.dispatch_s`: a token reaches size * (1 - (1 - 1 /
                  size)^copies) members and as many domains by the same rule, at EXCHANGE_SHARE of
                  the fast link's rate; a rank writes to all members at once, so that the latency is
                  that of one message inside a domain and of a tree over the domains, however many
                  members there are
        Units:    seconds.
        Source:   DeepEP, as there; inside a domain TensorRT-LLM's one- and two-sided exchanges over
                  NVLink on GB200, 4 to 64 ranks, and DeepEP on B200 and H100 (operator tables of
                  aiconfigurator-core 0.12: 12 to 22 us for few tokens at any number of ranks).
        Valid:    balanced routing.
        Checked:  tests/serving/test_kernels.py
        """
        if ranks == 1:
            return np.zeros_like(token_bytes)
        group, node = group_of(ranks, 1, self.pool), self.pool.node
        size, domains = float(group.size), float(np.ceil(group.size / group.local))
        members, visited = (n * (1.0 - (1.0 - 1.0 / n) ** copies) for n in (size, domains))
        share = float((group.local - 1) / group.local)
        rate = EXCHANGE_SHARE * float(group.local_bytes_per_s)
        inside = token_bytes * members * share / rate
        away = token_bytes * visited * (domains - 1.0) / domains
        outside = away / float(group.remote_bytes_per_s)
        hops = np.ceil(np.log2(domains)) * _hop_s(node.network_link)
        setup = node.domain_link.setup_s
        if domains > 1.0:
            setup = max(setup, node.network_link.setup_s)
        first_hop = _hop_s(node.domain_link) if group.local > 1 else 0.0
        return np.asarray(np.maximum(inside, outside) + setup + first_hop + hops)

    def passes_s(self, moved_bytes: Floats) -> Floats:
        """Time of element-wise work by the bytes that it reads and writes, launches apart.

        Formula:  bytes / (bandwidth * efficiency)
        Units:    seconds.
        Source:   roofline.
        Valid:    any size; small tensors stay in the cache and cost the kernel's own time.
        Checked:  tests/serving/test_kernels.py
        """
        return moved_bytes / (self.chip.memory_bytes_per_s * self.chip.memory_efficiency)

    def _serving(self, read: Callable[[str], Lookup | None]) -> Floats | None:
        """Read a serving table of the chip, or of one of its generation at this chip's
        bandwidth."""
        found = self._read(lambda: read(self.kin.table.name))
        return None if found is None else found.seconds * self.kin.memory_scale

    def _read(self, table: Callable[[], Lookup | None]) -> Lookup | None:
        """Read a table of the chip, or of one of its generation; others' are too far."""
        return table() if self.kin.relation in ("itself", "generation") else None


_MEASURED_LATENT_WIDTH = 192 + 128
"""Dims of a head's keys and values in the measured operator."""


def _hop_s(link: Link) -> float:
    """Time of a short message over a link."""
    return link.latency_s + link.half_message_bytes / (link.bytes_per_s * link.efficiency)


def _as_much_work(new: Floats, context: Floats, window: int | None) -> Floats:
    if window is not None:
        seen = np.minimum(new + context, window)
        return np.sqrt(np.minimum(new**2 + 2.0 * new * context, 2.0 * new * seen))
    return np.sqrt(new**2 + 2.0 * new * context)


def _stored(cache: Cache) -> str:
    return "fp8" if cache_bytes(cache) <= 1.0 else "bf16"
