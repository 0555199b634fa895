"""How large and how long: `meshwright size` and `estimate`."""

from __future__ import annotations

import json

import typer

from meshwright import api
from meshwright.cli.flags import (
    CLUSTER,
    EVALUATION,
    FAILURES,
    POWER,
    WHERE,
    HfFlag,
    model_words,
    price_per_chip,
    training_of,
)
from meshwright.cli.options import REQUIRED, Given, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, narrow_console, print_page
from meshwright.report.plan_table import print_miss
from meshwright.report.sizing_text import estimate_lines, size_lines
from meshwright.search.request import PlanRequest
from meshwright.sizing.estimate import Limits, RunEstimate
from meshwright.values.units import DAY_S, parse_duration, parse_tokens

__all__ = ["estimate", "size"]


@command
def size(
    cluster: Given = CLUSTER,
    days: str = option(
        REQUIRED, "Longest that the training may take: 30, 30d, 4w.", metavar="TIME"
    ),
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
        **cluster,
        days=_days(days),
        series=series or "gpt3",
        tokens=None if tokens is None else parse_tokens(tokens, name="--tokens"),
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


def _days(text: str) -> float:
    """Read a number of days, or a time with its unit."""
    try:
        return float(text)
    except ValueError:
        return parse_duration(text, name="--days") / DAY_S


@command
def estimate(
    where: Given = WHERE,
    tokens: str = option(REQUIRED, "To train on: 300B, 15T."),
    hf: HfFlag = None,
    deadline: str | None = option(None, "Longest that the run may take: 30D, 12h.", metavar="TIME"),
    max_cost: float | None = option(None, "USD that the run may cost."),
    usd_per_node_hour: float | None = option(
        None, "USD per node and hour, instead of --usd-per-hour."
    ),
    evaluation: Given = EVALUATION,
    failures: Given = FAILURES,
    power: Given = POWER,
    tflops: float | None = option(
        None, "Of one chip, for the closed form [default: 45 % of its bf16 peak]."
    ),
    how: Given = fields_of(
        PlanRequest,
        *("gbs", "usd_per_hour", "pins", "gpus_per_node", "precision", "routing", "stack"),
        *("calibration", "profile"),
    ),
    json_output: JsonFlag = False,
) -> None:
    """Estimate how long a model trains on a cluster, and what that costs.

    The best plan gives the step; tokens over the batch give the steps. Evaluations, checkpoints,
    lost work and restarts come on top: failures strike at random, more often the more chips there
    are, and checkpoints are written as often as pays (Daly 2006). Energy is the chips' power limit
    with the server's and the building's share, over the wall time.

    Prints days with their 80 % interval and parts, cost, energy and carbon, the plan, and the
    closed form of NVIDIA's AutoConfigurator beside it. Where the run breaks --deadline or
    --max-cost the exit code is 1, and other numbers of the same chips are shown.

    Examples:

      meshwright estimate llama3-70b --cluster h100:1024 --seq 8192 --gbs 1024 --tokens 15T

      meshwright estimate gpt3-175b --cluster a100-80:1024 --seq 2048 --gbs 1536 --tokens 300B --deadline 30D

      meshwright estimate llama3-8b --cluster h100:64 --seq 8192 --tokens 1T --usd-per-node-hour 24 --max-cost 100000 --json
    """  # noqa: E501
    training = training_of(
        parse_tokens(tokens, name="--tokens"), evaluation=evaluation, failures=failures, power=power
    )
    if usd_per_node_hour is not None:
        how["usd_per_hour"] = price_per_chip(
            per_chip=how.get("usd_per_hour"),
            per_node=usd_per_node_hour,
            cluster=where["cluster"],
            gpus_per_node=how.get("gpus_per_node"),
        )
    model = model_words(where.pop("model", None), hf)
    limits = Limits(
        wall_s=None if deadline is None else float(parse_duration(deadline, name="--deadline")),
        usd=max_cost,
    )
    request = PlanRequest.of({"model": model, **where, **how, "top": 1})
    found = api.estimate(request, training=training, limits=limits, tflops=tflops)
    _print(found, json_output=json_output)
    if found.plan is None or found.broken:
        raise typer.Exit(1)


def _print(found: RunEstimate, *, json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps(found.to_dict()))
    elif found.plan is None:
        print_miss(found.result, narrow_console())
    else:
        print_page(estimate_lines(found), indent=12)
