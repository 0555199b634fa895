"""Hardware, stacks and models in round numbers, so that a worked test can be done on paper; nothing
here comes from presets."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from meshwright.cost.operators import Part, Site
from meshwright.cost.stages import distinct_shapes
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Link, Node, Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import MlaSpec, ModelSpec, MoeSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

CHIP = Chip(
    name="round",
    vendor="none",
    nominal_bytes=80e9,
    usable_bytes=80e9,
    memory_bytes_per_s=2e12,
    memory_efficiency=0.5,  # 1e12 bytes/s
    bf16_flops_per_s=1e15,
    fp8_flops_per_s=2e15,
    fp4_flops_per_s=4e15,
    fp32_flops_per_s=1e14,
    matmul_efficiency=0.8,
    sustained_share=0.5,  # 4e14 FLOP/s in bf16
    attention_forward_efficiency=0.5,
    attention_backward_efficiency=0.4,
    flash2_share=0.5,
    launch_s=5e-6,
    ramp_s=2e-6,
)
MEMORY_BYTES_PER_S = 1e12
MATMUL_FLOPS_PER_S = 4e14
FAST = Link(
    name="fast",
    bytes_per_s=500e9,
    efficiency=0.8,
    latency_s=1e-6,
    setup_s=10e-6,
    half_message_bytes=400e3,
)
"""400e9 bytes/s; a step of a ring takes 1 us and 400e3 / 400e9 = 1 us more."""
SLOW = Link(
    name="slow",
    bytes_per_s=50e9,
    efficiency=0.8,
    latency_s=4e-6,
    setup_s=20e-6,
    half_message_bytes=40e3,
)
"""40e9 bytes/s; a step takes 4 us and 40e3 / 40e9 = 1 us more."""
NODE = Node(chip=CHIP, chips_per_node=8, domain_size=8, domain_link=FAST, network_link=SLOW)
POOL = Pool(node=NODE, num_chips=4096)
RACK = Pool(node=replace(NODE, chips_per_node=4, domain_size=72), num_chips=4096)
"""72 chips in one domain, four to a tray."""
STACK = Stack(name="plain", vocab_multiple=1)
"""Nothing overlapped, nothing padded, everything fused."""
GPT = ModelSpec(
    name="gpt",
    num_layers=4,
    hidden=1024,
    ffn=4096,
    num_heads=16,
    num_kv_heads=16,
    head_dim=64,
    vocab=32000,
    gated=False,
    norm="layernorm",
    positions="learned",
    max_positions=2048,
)
LLAMA = ModelSpec(
    name="llama",
    num_layers=4,
    hidden=1024,
    ffn=3072,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    vocab=32000,
)
MOE = replace(
    LLAMA, name="experts", moe=MoeSpec(num_experts=8, top_k=2, expert_ffn=512, shared_ffn=256)
)
MLA = replace(
    LLAMA,
    name="latent",
    num_kv_heads=16,
    mla=MlaSpec(
        kv_lora_rank=128, q_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64
    ),
)
WORK = Workload(seq_len=2048)


def site(
    model: ModelSpec,
    work: Workload = WORK,
    *,
    stack: Stack = STACK,
    pool: Pool = POOL,
    **layout: Any,
) -> Site:
    """Return the place where parts of one layout are priced."""
    shapes, _ = distinct_shapes(Layouts.of([Layout(**layout)]))
    return Site(model=model, work=work, stack=stack, pool=pool, shapes=shapes)


def named(parts: list[Part] | tuple[Part, ...], name: str) -> Part:
    """Return the one part of this name."""
    (found,) = [part for part in parts if part.name == name]
    return found


def saved(part: Part) -> float:
    """Bytes that a part of a single layout keeps."""
    return (
        float(np.asarray(part.saved_bytes).item())
        if np.ndim(part.saved_bytes)
        else float(part.saved_bytes)
    )


def frozen(layouts: Layouts) -> Layouts:
    """Return the columns, closed to writing: a function that changes its argument raises."""
    for field in fields(layouts):
        column = getattr(layouts, field.name)
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return layouts
