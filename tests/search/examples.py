"""Problems and layouts that several tests look at."""

from __future__ import annotations

from typing import Any

from meshwright.search.problem import Problem, resolve
from meshwright.search.request import PlanRequest
from meshwright.search.rules.check import complete_layout, explicit_layers
from meshwright.values.layout import Layout, parse_layout


def problem(model: str = "llama3-70b", cluster: str = "h100:256", **fields: Any) -> Problem:
    """Of Megatron-Core's own defaults, which no recipe changes."""
    usual = {"seq_len": 8192, "gbs": 512, "stack": "megatron"}
    return resolve(PlanRequest.of({**usual, **fields, "model": model, "cluster": cluster}))


def layout(words: str, asked: Problem) -> Layout:
    found = complete_layout(parse_layout(words), asked.setting.case)
    return explicit_layers(found, asked.setting.model)


CASES = {
    "dense": ("tp=8,pp=4,mbs=1", problem()),
    "too large": ("tp=4,pp=4,mbs=2", problem()),
    "far too large": ("tp=1,pp=1,mbs=8", problem(cluster="h100:64")),
    "experts": ("tp=2,ep=8,pp=2", problem("mixtral-8x7b", "h100:64", seq_len=4096, gbs=256)),
    "latent attention": (
        "tp=1,pp=16,ep=64,vpp=2",
        problem("deepseek-v3", "h800:2048", seq_len=4096, gbs=2048),
    ),
    "fsdp": ("mbs=1", problem("llama3-8b", "h100:8", gbs=32, stack="fsdp")),
    "encoder-decoder": ("tp=2,mbs=4", problem("t5-3b", "a100-80:16", seq_len=512, gbs=256)),
    "selective": ("tp=4,pp=4,mbs=1,recompute=selective,recompute_modules=layernorm", problem()),
}
"""Layouts that keep the rules, each with its problem."""
