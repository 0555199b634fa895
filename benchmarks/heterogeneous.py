"""How long plans over several kinds of chips take, and how near to the best they are proven to be.

    python benchmarks/heterogeneous.py [--clusters 200] [--seed 0]

Prints seconds of processor time beside their limits for four sizes of cluster, then the gaps of
random clusters: two to three kinds of chips, 16 to 1,536 of them, models from 8B to 70B.
"""

from __future__ import annotations

import argparse
import os
import random
from time import process_time

from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.request import PlanRequest

CASES = (
    ("256 chips of two kinds", {"cluster": "a800:128,h800:160", "num_gpus": 256, "gbs": 512}, 1.0),
    ("2,048 of two kinds", {"cluster": "a800:1024,h800:1024", "gbs": 2048}, 1.0),
    ("1,048,576 of two kinds", {"cluster": "a800:524288,h800:524288", "gbs": 16384}, 2.0),
    (
        "1,048,576 of four kinds",
        {"cluster": "a800:262144,h800:262144,h100:262144,a100-80:262144", "gbs": 16384},
        10.0,
    ),
)
CHIPS = ("a100-40", "a100-80", "a800", "h100", "h200", "h800", "l40s", "mi300x")
MODELS = ("llama3-8b", "llama2-13b", "llama3-70b", "mixtral-8x7b")


def plan(fields: dict[str, object]) -> tuple[float, float, float | None]:
    """Return processor seconds, the gap, and the step of the best plan."""
    start = process_time()
    result = search_mixed_plans(
        PlanRequest.of({"model": "llama2-70b", "seq_len": 4096, "top": 3, **fields})
    )
    assert result.proof is not None
    return (
        process_time() - start,
        result.proof.gap_frac,
        result.plans[0].step_s if result.plans else None,
    )


def random_cluster(draw: random.Random) -> dict[str, object]:
    """A cluster of two or three kinds, a model and a batch."""
    kinds = draw.sample(CHIPS, draw.choice((2, 2, 3)))
    counts = [8 * draw.choice((1, 2, 4, 8, 12, 16, 32, 64)) for _ in kinds]
    cluster = ",".join(f"{kind}:{count}" for kind, count in zip(kinds, counts, strict=True))
    return {
        "cluster": cluster,
        "model": draw.choice(MODELS),
        "gbs": draw.choice((64, 128, 256, 512, 1024)),
    }


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(f"{os.cpu_count()} cores; processor time, imports not counted")
    plan({"cluster": "a800:8,h800:8", "gbs": 16})
    for words, fields, limit_s in CASES:
        seconds, gap, _ = plan(fields)
        print(
            f"{words:<26} {seconds:7.2f} s   limit {limit_s:5.1f}   ratio {seconds / limit_s:.2f}  "
            f" gap {gap:.3%}",
            flush=True,
        )
    if not asked.clusters:
        return
    draw = random.Random(asked.seed)
    found = [plan(random_cluster(draw)) for _ in range(asked.clusters)]
    gaps = [gap for _, gap, step_s in found if step_s is not None]
    seconds = sorted(took for took, _, _ in found)
    closed = sum(gap == 0 for gap in gaps)
    print(
        f"{len(found)} random clusters, {len(gaps)} with a plan that fits: gap 0 in {closed}"
        f" ({closed / max(1, len(gaps)):.1%})"
    )
    print(
        f"largest gap {max(gaps, default=0.0):.3%}; seconds: median"
        f" {seconds[len(seconds) // 2]:.2f}, most {seconds[-1]:.2f}"
    )


if __name__ == "__main__":
    main()
