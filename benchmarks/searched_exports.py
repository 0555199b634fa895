"""Can every plan that is searched for a training software be written for it?

`python benchmarks/searched_exports.py [TARGET ...]` plans each model on each cluster with the stack
of each export target and writes the ten best plans for it. A refusal that names the model, or what
no plan says (data, tokenizer), is the model's or the user's; one that names the layout is a fault
of the search, which should not have offered it.

2026-11-21, 14 models and clusters, 140 plans a target: megatron-lm, megatron-bridge, nemo2,
nanotron and torchtitan-toml refuse no layout, torchtitan the two that cut experts by tp (its TOML
form takes them). NeMo 1.x has no uneven stages; DeepSpeed and Accelerate as Transformers' trainer
starts them have no tensor, pipeline, context or expert parallelism, while their stacks do:
`meshwright export MODEL --to ...` takes the best plan that they can run.
"""

from __future__ import annotations

import argparse
from collections import Counter

import meshwright
from meshwright.software.registry import TARGETS, find_target
from meshwright.values.errors import CannotExpress, MeshwrightError

CASES = (
    ("llama3-8b", "h100:8", 8192, 64),
    ("llama3-8b", "h100:8", 32768, 16),
    ("llama3-8b", "a100-40:32", 8192, 64),
    ("llama2-7b", "a100:16", 4096, 128),
    ("llama3-70b", "h100:64", 8192, 128),
    ("llama3-70b", "a100:128", 4096, 256),
    ("gpt3-175b", "a100:256", 2048, 512),
    ("mixtral-8x7b", "h100:32", 4096, 128),
    ("qwen3-30b-a3b", "h100:16", 4096, 128),
    ("deepseek-v3", "h200:256", 4096, 1024),
    ("qwen2.5-7b", "l40s:16", 4096, 64),
    ("gemma2-9b", "h100:16", 4096, 64),
    ("llama3-8b", "mi300x:16", 8192, 64),
    ("llama2-13b", "v100-32:16", 2048, 128),
)
"""(model, cluster, tokens in a sequence, batch)."""
PLANS = 10


def main() -> None:
    """Print, for each target, how many plans it writes and why it refuses the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "targets", nargs="*", default=[target.name for target in TARGETS], metavar="TARGET"
    )
    for name in parser.parse_args().targets:
        outcomes = Counter(outcome for case in CASES for outcome in outcomes_of(name, *case))
        print(f"{name}: {outcomes.pop('written', 0)} written")
        for reason, count in outcomes.most_common():
            print(f"  {count:4d}  {reason}")


def outcomes_of(target: str, model: str, cluster: str, seq_len: int, gbs: int) -> list[str]:
    """Return `written` or the reason of the refusal, for each plan."""
    asked = {
        "model": model,
        "cluster": cluster,
        "seq_len": seq_len,
        "stack": find_target(target).stacks[0],
    }
    try:
        plans = meshwright.plan(gbs=gbs, top=PLANS, **asked).plans
    except MeshwrightError as error:
        return [f"{model} on {cluster}: no plan: {error}"]
    return [outcome_of(target, plan.layout.words(), asked) for plan in plans]


def outcome_of(target: str, layout: str, asked: dict[str, object]) -> str:
    """Write one plan."""
    try:
        meshwright.export(layout, to=target, **asked)
    except CannotExpress as error:
        return error.reason
    return "written"


if __name__ == "__main__":
    main()
