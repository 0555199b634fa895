"""What waits on a server's host: optimizer states, gradients and weights in main memory or on NVMe
drives; what moving and updating them there takes."""

from __future__ import annotations

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.frozen import frozen_weight_bytes
from meshwright.cost.stages import Floats
from meshwright.cost.states import EIGHT_BIT_MOMENTS, PAGED, data_shards, split
from meshwright.cost.weights import StageParams
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layouts
from meshwright.values.models.adapters import trainable_share
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = [
    "HOST_ADAM_BYTES",
    "HOST_MEMORY_SHARE",
    "NVME_STATE_PASSES",
    "hosted_bytes",
    "hosted_update_s",
    "paged_s",
    "weights_from_host_s",
]

HOST_ADAM_BYTES = 30.0
"""Bytes of main memory per parameter that Adam updates on a host: read gradient, weight and two
moments, write weight and moments, all in fp32 (28), and the half-precision copy (2), as DeepSpeed's
and torch's fused CPU kernels do in one pass (csrc/adam/cpu_adam_impl.cpp;
aten/src/ATen/native/cpu/FusedAdamKernel.cpp)."""
HOST_MEMORY_SHARE = 0.8
"""Of the peak of a host's memory channels, what such a pass reaches. Assumed, within 25 %: STREAM's
usual share."""
NVME_STATE_PASSES = 2.0
"""States that lie on drives are read for the update and written back (ZeRO-Infinity,
arXiv:2104.07857, section 5.2.2)."""


def _ranks_a_host(layouts: Layouts, pool: Pool) -> Floats:
    """Ranks that share one host, (N,).

    Formula:  min(chips_per_node, chips of the layout)
    Source:   definition.
    """
    return np.minimum(pool.node.chips_per_node, layouts.num_chips).astype(np.float64)


def _link_bytes_per_s(pool: Pool) -> float:
    """Rate of a chip's link to its host, one way; no limit where nobody said."""
    return pool.node.chip.host_bytes_per_s or np.inf


def _drive_bytes_per_s(layouts: Layouts, pool: Pool) -> Floats:
    """A rank's part of the drives' rate, (N,); no limit where nothing lies on them.

    Formula:  nvme_bytes_per_s / ranks of a host
    Source:   ZeRO-Infinity (arXiv:2104.07857), section 6: ranks read their parts at the same time.
    """
    host = pool.node.host
    rate = np.inf if host is None else host.nvme_bytes_per_s
    return np.where(layouts.on_nvme, rate / _ranks_a_host(layouts, pool), np.inf)


def hosted_bytes(
    layouts: Layouts,
    params: StageParams,
    *,
    model: ModelSpec,
    work: Workload,
    stack: Stack,
    pool: Pool,
) -> tuple[Floats, Floats]:
    """Bytes that the fullest host keeps in main memory, and on its drives, (N,) each.

    Formula:  ranks of a host * (updated * trainable * (weight + moments + gradient) + weights that
              wait too) * host_buffers; weight and gradient are 4 bytes where the software keeps
              fp32 weights, else 2 and gradient_bytes; with `-nvme` all but the buffers lies on
              drives; moments that are paged wait in main memory
    Units:    bytes.
    Source:   ZeRO-Offload (arXiv:2101.06840), section 4.1; DeepSpeed's
              estimate_zero2_model_states_mem_needs: 16 bytes a parameter, times 1.5 for buffers;
              torch's CPUOffloadPolicy keeps shards, gradients and states as they are.
    Valid:    Adam; the stage that holds most.
    Checked:  tests/cost/test_host.py
    """
    shards, learning = data_shards(layouts, stack), trainable_share(model, work)
    updated = split(params, shards.optimizer).max(axis=1) * learning
    held = split(params, shards.weights).max(axis=1)
    each = max(stack.master_bytes, 2.0) + stack.moment_bytes
    states = updated * (each + max(stack.gradient_bytes, stack.master_bytes))
    beside = 2.0 if stack.zero3_weights == "master-and-half" else 0.0
    if work.lora_rank:
        beside = frozen_weight_bytes(work, stack, pool.node.chip)
    kept = layouts.hosted * states + layouts.hosts_weights * held * beside
    paged = (layouts.optimizer == PAGED) * updated * EIGHT_BIT_MOMENTS
    buffers = np.where(layouts.on_nvme, stack.host_buffers - 1.0, stack.host_buffers)
    ranks = _ranks_a_host(layouts, pool)
    return ranks * (kept * buffers + paged), ranks * np.where(layouts.on_nvme, kept, 0.0)


@makes("optimizer")
def hosted_update_s(layouts: Layouts, updated: Floats, *, pool: Pool, stack: Stack) -> Floats:
    """Seconds that an update on the host takes in place of one on the chip, (N,); `updated` are the
    parameters whose states a rank has.

    Formula:  updated * ranks of a host * HOST_ADAM_BYTES / (memory_bytes_per_s *
              HOST_MEMORY_SHARE) + updated * (gradient_bytes + 2) / host link, where weights do not
              wait there too; + updated * NVME_STATE_PASSES * (weight + moments) / a rank's part of
              the drives
    Units:    seconds per step.
    Source:   ZeRO-Offload (arXiv:2101.06840), section 4.2, with nothing of it hidden: gradients
              leave, the host updates, halves come back; ZeRO-Infinity (arXiv:2104.07857).
    Valid:    Adam that the host's vector units run in one pass.
    Checked:  tests/cost/test_host.py
    """
    host = pool.node.host
    if host is None or not layouts.hosted.any():
        return np.zeros(len(layouts))
    rate = host.memory_bytes_per_s * HOST_MEMORY_SHARE / _ranks_a_host(layouts, pool)
    sent = np.where(layouts.hosts_weights, 0.0, stack.gradient_bytes + 2.0)
    seconds = updated * (HOST_ADAM_BYTES / rate + sent / _link_bytes_per_s(pool))
    states = NVME_STATE_PASSES * (max(stack.master_bytes, 2.0) + stack.moment_bytes)
    return np.asarray(seconds + updated * states / _drive_bytes_per_s(layouts, pool))


@makes("optimizer")
def paged_s(layouts: Layouts, updated: Floats, *, pool: Pool) -> Floats:
    """Seconds in which paged moments come to the chip and leave it again, (N,).

    Formula:  updated * 2 * bytes of 8-bit moments / host link
    Units:    seconds per step.
    Source:   QLoRA (arXiv:2305.14314), section 3, Paged Optimizers: pages of unified memory move
              when the chip needs the room, here always.
    Valid:    paged optimizers alone, else 0.
    Checked:  tests/cost/test_host.py
    """
    moved = (layouts.optimizer == PAGED) * updated * 2.0 * EIGHT_BIT_MOMENTS
    return np.asarray(moved / _link_bytes_per_s(pool))


@makes("fsdp_comm")
def weights_from_host_s(
    layouts: Layouts, shard_params: Floats, bytes_each: float, *, pool: Pool
) -> Floats:
    """Seconds in which a rank's part of a layer's weights comes from the host, or its gradients go
    there, (N,); 0 where they do not wait there.

    Formula:  shard_params * bytes_each / min(host link, a rank's part of the drives)
    Units:    seconds per layer, pass and micro batch.
    Source:   ZeRO-Infinity (arXiv:2104.07857), section 6.1: each rank loads its own part, over its
              own link; torch's CPUOffloadPolicy copies shards before they are gathered.
    Valid:    fully sharded weights.
    Checked:  tests/cost/test_host.py
    """
    rate = np.minimum(_link_bytes_per_s(pool), _drive_bytes_per_s(layouts, pool))
    return np.asarray(np.where(layouts.hosts_weights, shard_params * bytes_each / rate, 0.0))
