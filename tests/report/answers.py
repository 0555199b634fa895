"""What commands print with --json, small and by hand, for tests of reports."""

from __future__ import annotations

from typing import Any

__all__ = ["LAYOUT", "plan_answer", "plan_of"]

LAYOUT: dict[str, Any] = {
    **{
        "tp": 4,
        "sp": True,
        "cp": 1,
        "ep": 1,
        "etp": None,
        "pp": 2,
        "vpp": 1,
        "dp": 2,
        "sharding": "zero1",
        "shard_size": None,
    },
    **{
        "mbs": 1,
        "gbs": 64,
        "recompute": "none",
        "recompute_method": "uniform",
        "recompute_layers": None,
        "recompute_modules": [],
    },
    **{"schedule": "1f1b", "layers_per_stage": None},
}
TIME = {"matmul": 1.5, "attention": 0.0, "tp_comm": 0.3, "bubble": 0.2}
MEMORY = {"weights": 10.0, "activations": 30.0, "logits": 0.0}


def plan_of(rank: int, *, longer_s: float = 0.0, **axes: Any) -> dict[str, Any]:
    """One plan of 2 s and 40 GiB, the bubble by so much longer."""
    time = {**TIME, "bubble": TIME["bubble"] + longer_s}
    step_s = sum(time.values())
    return {
        "rank": rank,
        "layout": {**LAYOUT, **axes},
        "step_s": step_s,
        "tokens_per_s_per_gpu": 64 * 8192 / step_s / 16,
        "mfu": 0.45 * 2 / step_s,
        "tflops_per_gpu": 445.0 * 2 / step_s,
        "fits": "yes",
        "interval": {"step_s": [0.8 * step_s, 1.5 * step_s], "peak_memory_gib": [32.0, 60.0]},
        "peak_memory_gib": [40.0, 38.0],
        "time": time,
        "memory": dict(MEMORY),
        "provenance": {
            "pipeline": "event simulation",
            "kernels": "measured products of h100",
            "shares": {
                "profile": 0.0,
                "profile_extrapolated": 0.0,
                "tables": 0.75,
                "kin": 0.0,
                "formula": 0.25,
            },
            "error": "80 % of published runs took between x0.9 and x1.1 of the prediction",
            "memory_error": "80 % of published runs needed between x0.9 and x1.2 of the prediction",
            "close": None,
            "causal_mfu": 0.42,
            "tokens_per_dollar": 1e6,
            "tokens_per_joule": 2.0,
            "beats_next": "-100 ms pipeline bubble" if rank == 1 else "",
        },
    }


def plan_answer(*plans: dict[str, Any], **request: Any) -> dict[str, Any]:
    """What `plan` prints."""
    asked = {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 8192, "gbs": 64, **request}
    return {
        "request": asked,
        "plans": list(plans),
        "rejected": {
            "memory: more than a chip has": 1200,
            "rule: gbs is divisible by mbs * dp": 34,
        },
        "search": {"layouts": 5000, "seconds": 0.25, "exhaustive": True, "bound_gap": 0.0},
    }
