"""Deployments by prediction: `meshwright serving plan` and `simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from meshwright.cli.flags import GPUS_PER_NODE, HF
from meshwright.cli.options import Given, command, fields_of, option
from meshwright.cli.serving.flags import CHUNK, ENGINE, PLACE, request_of, worker_of
from meshwright.cli.serving.fleet import (
    check_traced,
    check_untraced,
    only_aggregated,
    plan_traced,
)
from meshwright.cli.terminal import JsonFlag, print_json, search_progress
from meshwright.report.serving_table import print_load, print_miss, print_serving_plan
from meshwright.runs.loads.load import Lengths, closed_loop, poisson, read_trace
from meshwright.serving.load import simulate_load
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import DEFINITIONS
from meshwright.serving.search import plan as search
from meshwright.serving.simulate import Requests
from meshwright.serving.traffic import TrafficAsked
from meshwright.values.errors import ConfigError

__all__ = ["plan", "simulate"]


@command
def plan(
    place: Given = PLACE,
    input_len: int | None = option(None, "Tokens of a prompt [default: 1024]."),
    output_len: int | None = option(None, "New tokens of an answer [default: 1024]."),
    trace: Path | None = option(
        None,
        "Instead: requests as they came, Azure's, Mooncake's or OpenTelemetry's; finds the fleet.",
        metavar="FILE",
    ),
    traffic: Given = fields_of(TrafficAsked),
    layout: str | None = option(
        None, "With --trace: this copy alone.", metavar="tp=8[,pp=..,ep=..,attention_dp=..]"
    ),
    limits: Given = fields_of(ServingRequest, "ttft_s", "tpot_s", "e2e_s"),
    latency: bool = option(False, "Rank by the time of a request instead of throughput."),
    rates: Given = fields_of(ServingRequest, "target_rate", "rate", "fastest"),
    engine: str = ENGINE,
    choices: Given = fields_of(
        ServingRequest, *("modes", "weights", "cache", "concurrency", "cached_share", "speculation")
    ),
    chunk: int | None = CHUNK,
    top: int = option(10, "Deployments to print.", min=1),
    price: Given = fields_of(ServingRequest, "usd_per_chip_hour"),
    gpus_per_node: int | None = GPUS_PER_NODE,
    hf: Path | None = HF,
    json_output: JsonFlag = False,
) -> None:
    """Find deployments of a model: how to cut it, how many copies, how many requests at once.

    Every worker that holds the model (tensor, pipeline and expert parallelism, attention on every
    chip; types of weights and of cache) is priced at every load from measured kernels of the chosen
    engine: iterations of prompts and running sequences in their steady state. Disaggregated
    deployments pair workers for prompts with workers for answers, as many as match. Nothing that
    you give is changed; several modes or types are given with commas between them.

    Prints deployments that keep the limits, best first: requests under way, TTFT, TPOT and
    end-to-end time (means), new tokens/s per GPU and per user, cost per million new tokens, and
    memory; then the Pareto front, and the 80 % interval of every figure of the first. Of
    deployments that the model cannot tell apart the simplest is first: one pool before two, tp
    before pp. Where nothing keeps the limits, the nearest on each axis, exit
    code 1. With --rate the best few are simulated request by request: p50, p90 and p99 of each
    time.

    With --trace the requests of a file go through copies behind a router, with prefix caches where
    the file names blocks of prompts. Prints the smallest fleet that keeps the limits in every hour,
    what requests see, its cost per day and per million new tokens, and the copies by hour.

    Examples:

      meshwright serving plan llama3.1-70b --cluster h100:8 --input-len 4000 --output-len 1000 --ttft 2000 --tpot 30

      meshwright serving plan deepseek-v3 --cluster h200:16 --input-len 8192 --output-len 1024 --engine sglang --latency

      meshwright serving plan llama3.1-8b --cluster l40s:8 --input-len 1000 --output-len 200 --target-rate 20 --json

      meshwright serving plan llama3.1-70b --cluster h100:64 --trace conversation.jsonl --router cache-aware --ttft-p99 5000
    """  # noqa: E501
    if trace is None:
        check_untraced(traffic, layout)
    else:
        lengths = {"input_len": input_len, "output_len": output_len, "latency": latency}
        check_traced({**lengths, **rates, "concurrency": choices.get("concurrency")})
        choices = {**choices, "modes": only_aggregated(choices.get("modes"))}
    request = request_of(
        place,
        hf=hf,
        gpus_per_node=gpus_per_node,
        engine=engine,
        chunk=chunk,
        input_len=1 if trace else 1024 if input_len is None else input_len,
        output_len=1 if trace else 1024 if output_len is None else output_len,
        objective="latency" if latency else "throughput",
        **limits,
        **rates,
        **choices,
        **price,
    )
    if trace is not None:
        plan_traced(request, trace=trace, asked=traffic, layout=layout, json_output=json_output)
        return
    with search_progress("pricing deployments", quiet=False) as progress:
        found = search(request, progress=progress)
    if json_output:
        print_json({"request": request.to_dict(), **found.to_dict()})
    elif found.options:
        print_serving_plan(found, Console(), top=top)
    else:
        print_miss(found, Console())
    if not found.options:
        raise typer.Exit(1)


@command
def simulate(
    place: Given = PLACE,
    layout: str = option(
        "tp=8",
        "One copy; the chips hold as many as fit.",
        metavar="tp=8[,pp=..,ep=..,attention_dp=..]",
    ),
    input_len: int | None = option(None, "Mean tokens of a prompt [default: 1024]."),
    output_len: int | None = option(None, "Mean new tokens of an answer [default: 1024]."),
    spread: float | None = option(
        None, "Lengths lie evenly within this share of the mean on both sides [default: 0.2]."
    ),
    rate: float | None = option(None, "Poisson arrivals at this mean rate.", metavar="REQ/S"),
    concurrency: int | None = option(
        None, "Instead: this many clients, each waiting for its answer."
    ),
    trace: Path | None = option(
        None,
        "Instead: a CSV of sent_s, input_len, output_len, or a file that `serving plan` reads.",
        metavar="FILE",
    ),
    requests: int | None = option(None, "Requests to send [default: 1000]."),
    engine: str = ENGINE,
    types: Given = fields_of(
        ServingRequest,
        *("weights", "cache", "cached_share", "speculation"),
        weights={"help": "Type of the weights.", "usual": "bf16"},
        cache={"help": "Type of the cache.", "usual": "bf16"},
    ),
    chunk: int | None = CHUNK,
    seed: int | None = option(None, "Of arrivals and lengths [default: 0]."),
    gpus_per_node: int | None = GPUS_PER_NODE,
    hf: Path | None = HF,
    json_output: JsonFlag = False,
) -> None:
    """Simulate requests on one deployment: TTFT, TPOT and end-to-end time, mean and percentiles.

    Every request goes through a queue, a cache with limited room and iterations that are priced
    from measured kernels: chunks of prompts beside running sequences, or before them, as the engine
    does. Copies of the model and attention ranks get requests in turn.

    Prints mean, p50, p90 and p99 of TTFT (from sending to the first token), TPOT ((finish - first
    token) / (output tokens - 1)) and end-to-end time over all requests, and new tokens per second
    over the whole run.

    Examples:

      meshwright serving simulate llama3.1-70b --cluster h100:8 --layout tp=4 --weights fp8 --rate 2 --input-len 4000 --output-len 500

      meshwright serving simulate llama3.1-8b --cluster l40s:1 --layout tp=1 --concurrency 32 --requests 500

      meshwright serving simulate llama3.1-8b --cluster h100:2 --layout tp=1 --trace requests.csv --json
    """  # noqa: E501
    said = {
        "requests": requests,
        "input_len": input_len,
        "output_len": output_len,
        "spread": spread,
        "seed": seed,
    }
    asked, sent = _load(trace, rate, concurrency, said)
    request = request_of(
        place,
        hf=hf,
        gpus_per_node=gpus_per_node,
        engine=engine,
        chunk=chunk,
        input_len=max(asked.prompts),
        output_len=max(asked.outputs),
        modes=("aggregated",),
        **types,
    )
    found = simulate_load(
        request, worker=worker_of(layout), requests=asked, sent_s=sent, concurrency=concurrency
    )
    if json_output:
        print_json({"request": request.to_dict(), **found.to_dict(), "definitions": _definitions()})
        return
    print_load(found, Console())


def _definitions() -> dict[str, str]:
    return {name: DEFINITIONS[name] for name in ("ttft", "tpot", "e2e", "throughput")}


def _load(
    trace: Path | None, rate: float | None, concurrency: int | None, said: dict[str, Any]
) -> tuple[Requests, list[float] | None]:
    """Requests, and when they are sent (None: by clients that wait), drawn as `said` says."""
    if sum(given is not None for given in (trace, rate, concurrency)) != 1:
        raise ConfigError("give one of --rate, --concurrency and --trace")
    given = {name: value for name, value in said.items() if value is not None}
    if trace is not None:
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{flags}: of no effect with --trace, which names every request")
        load = read_trace(trace)
    else:
        asked = {**_USUAL, **given}
        count, lengths = asked.pop("requests"), Lengths(**asked)
        load = (
            poisson(rate, lengths, requests=count)
            if rate is not None
            else closed_loop(concurrency or 0, lengths, requests=count)
        )
    requests = Requests(
        prompts=[ask.input_len for ask in load.asks], outputs=[ask.output_len for ask in load.asks]
    )
    return requests, None if load.clients is not None else [ask.sent_s or 0.0 for ask in load.asks]


_USUAL: dict[str, Any] = {
    "requests": 1000,
    "input_len": 1024,
    "output_len": 1024,
    "spread": 0.2,
    "seed": 0,
}
"""What is drawn where flags say nothing."""
