"""Loss curves of the trainer's layouts against that of one process: every axis alone, every pair of
axes, uneven stages, experts.

    python -m benchmarks.trainer_curves [--only WORDS] [--processes 2]

Needs torch; the whole list takes about half an hour on two cores. Prints for each layout the
largest difference of the loss over 20 steps in fp32, and exits with 1 where one is above 1e-4. A
few of them are tests (tests/trainer/test_same_mathematics.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from tests.trainer.curves import MODELS, curves

WITHIN = 1e-4
AT_ONCE = 6
"""Layouts in one group of processes."""
AXES: dict[str, tuple[str, ...]] = {
    "data": ("dp=2", "dp=2,sharding=zero1", "dp=2,sharding=zero2", "dp=2,sharding=zero3"),
    "tensor": ("tp=2", "tp=2,sp=1"),
    "context": ("cp=2", "cp=2:ring"),
    "pipeline": (
        "pp=2",
        "pp=2,vpp=2",
        "pp=2,schedule=gpipe",
        "pp=2,schedule=zero-bubble",
        "pp=2,vpp=2,schedule=zero-bubble",
    ),
}
REFUSED = (("zero2", "pp="), ("zero3", "zero-bubble"))
"""Words that the trainer does not take together."""
UNEVEN = {
    2: ["dense:pp=2,layers=3+1", "dense:pp=2,layers=1+3,schedule=zero-bubble"],
    3: ["dense:pp=3,layers=1+2+1", "tied:pp=3,layers=2+1+1"],
}
RECOMPUTED = [
    "dense:dp=2,sharding=zero2,recompute=full",
    "dense:dp=2,sharding=zero3,recompute=full,recompute_method=block,recompute_layers=1",
    "dense:dp=2,recompute=selective,recompute_modules=core_attn+layernorm+mlp",
    "dense:tp=2,recompute=selective,recompute_modules=ops",
    "mla:tp=2,sp=1,recompute=selective,recompute_modules=mla_up_proj+mlp_act",
    "moe:tp=2,sp=1,ep=2,etp=1,recompute=selective,recompute_modules=moe_act+shared_experts",
    "dense:pp=2,schedule=zero-bubble,recompute=full",
]
COMPILED = [
    "dense:dp=2,sharding=zero3:compile",
    "dense:cp=2:compile",
    "mla:cp=2:compile",
    "dense:pp=2:compile",
    "dense:pp=2,vpp=2,recompute=full:compile",
    "moe:dp=2,ep=2:compile",
]
EXPERTS = {
    2: [
        "moe:dp=2,ep=2",
        "moe:dp=2,sharding=zero3",
        "moe:tp=2,sp=1",
        "moe:cp=2,ep=2",
        "moe:cp=2:ring",
        "moe:pp=2",
        "moe:pp=2,vpp=2,schedule=zero-bubble",
    ],
    4: [
        "moe:dp=4,mbs=1,ep=2,sharding=zero3",
        "moe:dp=2,tp=2,sp=1,ep=2,etp=1,sharding=zero1",
        "moe:dp=2,tp=2,sp=1,ep=2",
        "moe:dp=2,cp=2,ep=4,sharding=zero3",
        "moe:dp=2,cp=2,ep=2:ring",
        "moe:dp=2,pp=2,ep=2,sharding=zero1",
        "moe:tp=2,sp=1,pp=2",
        "moe:tp=2,sp=1,cp=2,ep=4,etp=1",
        "moe:cp=2,pp=2,ep=2,schedule=zero-bubble",
    ],
}
OTHER_MODELS = ("tp=2,sp=1", "cp=2", "cp=2:ring", "pp=2", "pp=2,vpp=2,schedule=zero-bubble")


def cases() -> Iterator[tuple[int, str]]:
    """Processes and layout of each."""
    for choices in AXES.values():
        yield from ((2, _joined("dense", words)) for words in choices)
    for first, second in combinations(AXES.values(), 2):
        for pair in product(first, second):
            if not any(
                all(any(word in words for words in pair) for word in refused) for refused in REFUSED
            ):
                yield 4, _joined("dense", *pair)
    yield 4, "dense:dp=4,mbs=1,sharding=hybrid,shard_size=2"
    yield 4, "dense:cp=4:ring"
    yield from (
        (processes, case)
        for group in (UNEVEN, {2: RECOMPUTED}, EXPERTS, {2: COMPILED})
        for processes, some in group.items()
        for case in some
    )
    yield from (
        (2, _joined(model, words))
        for model in MODELS
        if model not in ("dense", "moe")
        for words in OTHER_MODELS
    )


def _joined(model: str, *words: str) -> str:
    plain = ",".join(word.removesuffix(":ring") for word in words)
    return f"{model}:{plain}" + (":ring" if any(word.endswith(":ring") for word in words) else "")


def differences(
    processes: int, some: list[str], alone: dict[str, Any]
) -> Iterator[tuple[str, float]]:
    """The largest difference of the loss of each layout."""
    for case, found in zip(some, curves(processes, some), strict=True):
        expected = alone[case.partition(":")[0]]
        yield (
            case,
            max(
                abs(ours["loss"] - theirs["loss"])
                for ours, theirs in zip(found, expected, strict=True)
            ),
        )


def main() -> int:
    """Run, print, and say whether all agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="layouts that contain these words")
    parser.add_argument("--processes", type=int, help="layouts of as many processes")
    given = parser.parse_args()
    wanted = [
        (count, case)
        for count, case in cases()
        if given.only in case and given.processes in (None, count)
    ]
    models = sorted({case.partition(":")[0] for _, case in wanted})
    alone = dict(zip(models, curves(1, [f"{model}:" for model in models]), strict=True))
    worst = 0.0
    for count in sorted({count for count, _ in wanted}):
        some = [case for number, case in wanted if number == count]
        for start in range(0, len(some), AT_ONCE):
            for case, off in differences(count, some[start : start + AT_ONCE], alone):
                print(f"{count}  {off:.1e}  {case}", flush=True)
                worst = max(worst, off)
    print(f"{len(wanted)} layouts, the largest difference is {worst:.1e}")
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
