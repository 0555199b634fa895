"""`meshwright size`: the largest model that trains in a given time."""

from __future__ import annotations

import json

import typer

from meshwright import api
from meshwright.cli.job_flags import EVALUATION, FAILURES, training_of
from meshwright.cli.layout_case import ClusterFlag, JsonFlag
from meshwright.cli.options import REQUIRED, Given, command, fields_of, option
from meshwright.cli.terminal import print_page
from meshwright.report.sizing_text import size_lines
from meshwright.search.request import PlanRequest
from meshwright.values.units import parse_count

__all__ = ["size"]


@command
def size(
    cluster: ClusterFlag,
    days: float = option(REQUIRED, "Longest that the training may take."),
    tokens: str | None = option(
        None, "To train on: 300B, 15T [default: 20 a parameter, compute-optimal]."
    ),
    series: str | None = option(
        None, "Whose shapes: gpt3, llama3, t5, mixtral, qwen3-moe ... [default: gpt3]."
    ),
    tflops: float | None = option(
        None, "Of one chip, for the closed form [default: 45 % of its bf16 peak]."
    ),
    batch: Given = fields_of(
        PlanRequest, "seq_len", "gbs", seq_len="Tokens in one sequence [default: 2048]."
    ),
    vocab: int | None = option(None, "Entries of the vocabulary [default: the series']."),
    evaluation: Given = EVALUATION,
    failures: Given = FAILURES,
    how: Given = fields_of(
        PlanRequest, "gpus_per_node", "precision", "stack", "calibration", "profile"
    ),
    json_output: JsonFlag = False,
) -> None:
    """Find the largest model that a cluster trains in some days.

    Two answers stand side by side. The closed form of NVIDIA's AutoConfigurator: 8 FLOP per
    parameter and token at one figure of TFLOPS. And ours: shapes of a published series, each
    planned in full, the largest whose best layout fits and makes the deadline with evaluations,
    checkpoints and failures. Shapes are within 2 % of a size and are chosen to shard well.

    Prints both sizes with their constants, days with an 80 % interval, the plan, the shape,
    settings by documented rules, the compute-optimal size of Chinchilla, and how the answer moves
    with days and chips. Exit code 1 where no size makes it.

    Examples:

      meshwright size --cluster a100-80:160 --days 5 --tokens 300B --tflops 140

      meshwright size --cluster h100:512 --days 30 --series llama3 --seq 8192

      meshwright size --cluster h200:64 --days 7 --tokens 1T --series mixtral --json
    """
    training = training_of(1, evaluation=evaluation, failures=failures)  # --tokens, or the size's
    found = api.size(
        cluster=cluster,
        days=days,
        series=series or "gpt3",
        tokens=None if tokens is None else parse_count(tokens, name="tokens"),
        training=training,
        tflops=tflops,
        vocab=vocab,
        **batch,
        **how,
    )
    if json_output:
        print(json.dumps(found.to_dict()))
    else:
        print_page(size_lines(found), indent=13)
    if found.best is None:
        raise typer.Exit(1)
