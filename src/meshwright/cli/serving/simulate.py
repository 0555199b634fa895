"""`meshwright serving simulate`: what requests see of one deployment, with percentiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.serving.simulate import Requests

__all__ = ["simulate"]


def simulate(
    model: Annotated[
        str | None,
        typer.Argument(help="A model's name (`meshwright models` lists them), or its dims: layers=32,hidden=4096,...", show_default=False),
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="KIND:COUNT", help="Chips, such as h100:8, a YAML file, or local.")] = None,
    layout: Annotated[
        str, typer.Option(metavar="tp=8[,pp=..,ep=..,attention_dp=..]", help="One copy; the chips hold as many as fit.")
    ] = "tp=8",
    input_len: Annotated[int, typer.Option("--input-len", help="Mean tokens of a prompt.")] = 1024,
    output_len: Annotated[int, typer.Option("--output-len", help="Mean new tokens of an answer.")] = 1024,
    spread: Annotated[float, typer.Option(help="Lengths lie evenly within this share of the mean on both sides.")] = 0.2,
    rate: Annotated[float | None, typer.Option(metavar="REQ/S", help="Poisson arrivals at this mean rate.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Instead: this many clients, each waiting for its answer.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: a CSV with sent_s, input_len, output_len, one request per line.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests to send.")] = 1000,
    engine: Annotated[str, typer.Option(help="vllm, sglang, trtllm, fastertransformer or transformers.")] = "vllm",
    weights: Annotated[str, typer.Option(help="Type of the weights.")] = "bf16",
    cache: Annotated[str, typer.Option(help="Type of the cache.")] = "bf16",
    prefix_hits: Annotated[float, typer.Option(help="Share of every prompt that the prefix cache holds.")] = 0.0,
    speculate: Annotated[
        str | None, typer.Option(metavar="N,ACCEPTED", help="Tokens drafted per step by the model's own layers, and how many are right.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="Tokens of prompts in one iteration [default: the engine's].")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals and lengths.")] = 0,
    gpus_per_node: Annotated[int | None, typer.Option(help="Chips in one server [default: as the chip is sold].")] = None,
    hf: Annotated[Path | None, typer.Option(help="A Hugging Face config.json to take the model from.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")] = False,
) -> None:
    """Simulate requests on one deployment: TTFT, TPOT and end-to-end time, mean and percentiles.

    Every request goes through a queue, a cache with limited room and iterations that are priced from measured kernels: chunks of
    prompts beside running sequences, or before them, as the engine does. Copies of the model and attention ranks get requests in turn.

    Prints mean, p50, p90 and p99 of TTFT (from sending to the first token), TPOT ((finish - first token) / (output tokens - 1)) and
    end-to-end time over all requests, and new tokens per second over the whole run.

    Examples:

      meshwright serving simulate llama3.1-70b --cluster h100:8 --layout tp=4 --weights fp8 --rate 2 --input-len 4000 --output-len 500

      meshwright serving simulate llama3.1-8b --cluster l40s:1 --layout tp=1 --concurrency 32 --requests 500

      meshwright serving simulate llama3.1-8b --cluster h100:2 --layout tp=1 --trace requests.csv --json
    """
    from meshwright.cli.serving._request import request_of, worker_of
    from meshwright.serving.load import simulate_load

    asked, sent = _load(trace, rate, concurrency, requests, (input_len, output_len, spread), seed)
    request = request_of(
        model=model,
        hf=hf,
        cluster=cluster,
        gpus_per_node=gpus_per_node,
        engine=engine,
        chunk=chunk,
        input_len=max(asked.prompts),
        output_len=max(asked.outputs),
        limits_ms={},
        mode="aggregated",
        weights=weights,
        cache=cache,
        prefix_hits=prefix_hits,
        speculate=speculate,
        usd_per_hour=None,
    )
    found = simulate_load(request, worker=worker_of(layout), requests=asked, sent_s=sent, concurrency=concurrency)
    if json_output:
        import json

        print(json.dumps({"request": request.to_dict(), **found.to_dict(), "definitions": _definitions()}, indent=2))
        return
    from rich.console import Console

    from meshwright.report.serving_table import print_load

    print_load(found, Console())


def _definitions() -> dict[str, str]:
    from meshwright.serving.result import DEFINITIONS

    return {name: DEFINITIONS[name] for name in ("ttft", "tpot", "e2e", "throughput")}


_MOST = 10**7
"""Tokens of a prompt or an answer, and requests: beyond it a number is a slip."""


def _load(
    trace: Path | None, rate: float | None, concurrency: int | None, count: int, lengths: tuple[int, int, float], seed: int
) -> tuple[Requests, list[float] | None]:
    """Requests, and when they are sent (None: by clients that wait)."""
    import numpy as np

    from meshwright.errors import ConfigError
    from meshwright.loads.load import read_trace
    from meshwright.serving.simulate import Requests

    if sum(given is not None for given in (trace, rate, concurrency)) != 1:
        raise ConfigError("give one of --rate, --concurrency and --trace")
    if trace is not None:
        asks = read_trace(trace).asks
        requests = Requests(prompts=[ask.input_len for ask in asks], outputs=[ask.output_len for ask in asks])
        return requests, [ask.sent_s or 0.0 for ask in asks]
    mean_in, mean_out, spread = lengths
    for flag, value in (("--input-len", mean_in), ("--output-len", mean_out), ("--requests", count)):
        if not 1 <= value <= _MOST:
            raise ConfigError(f"{flag} {value}: expected 1 to {_MOST:,}")
    if not 0 <= spread < 1:
        raise ConfigError(f"--spread {spread}: expected 0 or more and less than 1")
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {rate}: expected a positive number of requests per second")
    rng = np.random.default_rng(seed)
    drawn = [np.maximum(np.rint(mean * (1 + spread * rng.uniform(-1, 1, count))), 1).astype(int).tolist() for mean in (mean_in, mean_out)]
    sent = None if rate is None else np.cumsum(rng.exponential(1 / rate, count)).tolist()
    return Requests(prompts=drawn[0], outputs=drawn[1]), sent
