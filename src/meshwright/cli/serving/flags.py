"""From flags to a serving request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from meshwright.cli.options import Given, fields_of, option
from meshwright.cli.terminal import tell_notes
from meshwright.platforms.given import cluster_from_flag, read_hf_config
from meshwright.runs.loads.figures import Limits
from meshwright.runs.loads.load import Lengths, Load, closed_loop, poisson, read_trace
from meshwright.search.request import PlanRequest
from meshwright.serving.engine import Engine, Worker, find_engine
from meshwright.serving.request import ServingRequest, parse_words
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.options import Option

__all__ = [
    "AXES",
    "CHUNK",
    "ENGINE",
    "PLACE",
    "Sending",
    "model_of",
    "numbers",
    "request_of",
    "worker_of",
]


PLACE: Any = fields_of(
    PlanRequest, "model", "cluster", cluster="Chips, such as h100:8, a YAML file, or local."
)
ENGINE: Any = option("vllm", "vllm, sglang, trtllm, fastertransformer or transformers.")
CHUNK: Any = option(None, "Tokens of prompts in one iteration [default: the engine's].")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sending:
    """The requests that a command sends, and what makes an answer good, as its flags say it."""

    concurrency: Annotated[
        str | None,
        Option("Clients that each wait for their answer [default: 1,2,4,8].", metavar="N[,N...]"),
    ] = None
    rate: Annotated[
        str | None, Option("Instead: Poisson arrivals at these mean rates.", metavar="REQ/S[,...]")
    ] = None
    trace: Annotated[
        Path | None,
        Option(
            "Instead: a CSV of sent_s, input_len, output_len, or a file that `serving plan` reads.",
            metavar="FILE",
            read=Path,
        ),
    ] = None
    input_len: Annotated[int | None, Option("Mean tokens of a prompt.", usual=1024)] = None
    output_len: Annotated[int | None, Option("Mean new tokens of an answer.", usual=128)] = None
    spread: Annotated[
        float, Option("Lengths lie evenly within this share of the mean on both sides.", usual=0.0)
    ] = 0.0
    requests: Annotated[
        int | None, Option("Requests of a load [default: 4 a client, or a minute's].")
    ] = None
    ttft: Annotated[
        float | None, Option("A request is good with its first token in this time.", metavar="MS")
    ] = None
    tpot: Annotated[
        float | None, Option("And with this mean time between later tokens.", metavar="MS")
    ] = None
    e2e: Annotated[float | None, Option("And with its last token in this time.", metavar="MS")] = (
        None
    )
    ttft_p99: Annotated[
        float | None, Option("Most milliseconds to the first token, p99.", metavar="MS")
    ] = None
    tpot_p99: Annotated[
        float | None, Option("Most milliseconds between later tokens, p99.", metavar="MS")
    ] = None
    e2e_p99: Annotated[
        float | None, Option("Most milliseconds of a whole request, p99.", metavar="MS")
    ] = None
    seed: Annotated[int, Option("Of arrivals, lengths and tokens.", usual=0)] = 0

    def loads(
        self, *, lengths: tuple[int, int] = (1024, 128), clients: tuple[int, ...] = (1, 2, 4, 8)
    ) -> tuple[Load, ...]:
        """Return the loads: clients, rates or a trace; ConfigError for two of them. Lengths and
        numbers of clients stand for what was not said."""
        asked = Lengths(
            input_len=lengths[0] if self.input_len is None else self.input_len,
            output_len=lengths[1] if self.output_len is None else self.output_len,
            spread=self.spread,
            seed=self.seed,
        )
        if sum(given is not None for given in (self.concurrency, self.rate, self.trace)) > 1:
            raise ConfigError("give one of --concurrency, --rate and --trace")
        if self.trace is not None:
            if self.requests is not None:
                raise ConfigError(
                    "--requests has no effect with --trace, which names every request"
                )
            return (read_trace(self.trace, seed=self.seed),)
        if self.rate is not None:
            rates = numbers("--rate", self.rate)
            return tuple(poisson(rate, asked, requests=self.requests) for rate in rates)
        named = self.concurrency
        counts = clients if named is None else numbers("--concurrency", named)
        if fraction := next((count for count in counts if count != int(count)), None):
            raise ConfigError(f"--concurrency {fraction:g}: expected whole numbers of clients")
        return tuple(closed_loop(int(count), asked, requests=self.requests) for count in counts)

    def limits(self) -> Limits:
        """Return limits in seconds; ConfigError for one that is no positive number."""
        names = [f"{name}{part}" for name in ("ttft", "tpot", "e2e") for part in ("", "_p99")]
        given = {name: getattr(self, name) for name in names}
        for name, value in given.items():
            if value is not None and not 0 < value < float("inf"):
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} {value:g}: expected a positive number of milliseconds")
        return Limits(
            **{f"{name}_s": None if value is None else value / 1e3 for name, value in given.items()}
        )


def numbers(flag: str, text: str) -> list[float]:
    """Read `1,2,4`; ConfigError where one is no positive number, or is there twice."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < float("inf") for value in found):
        raise ConfigError(f"{flag} {text}: expected positive numbers such as 1,2,4")
    if len(set(found)) < len(found):
        raise ConfigError(f"{flag} {text}: a number occurs twice")
    return found


def request_of(
    place: Given,
    *,
    hf: Path | None,
    gpus_per_node: int | None,
    engine: str,
    chunk: int | None,
    **fields: Any,
) -> ServingRequest:
    """Return the request that flags make; ConfigError where one of them is wrong."""
    if "cluster" not in place:
        raise ConfigError("give --cluster, such as h100:8")
    return ServingRequest(
        model=model_of(place.get("model"), hf),
        cluster=cluster_from_flag(place["cluster"], gpus_per_node=gpus_per_node),
        engine=_engine(engine, chunk),
        **fields,
    )


def model_of(name: str | None, hf: Path | None) -> ModelSpec:
    """Return the named model, or the one of a config.json."""
    if (name is None) == (hf is None):
        raise ConfigError("give a model's name, or --hf config.json, and not both")
    if hf is None:
        return named_model(name or "")
    reading = read_hf_config(hf)
    tell_notes(reading.notes)
    return reading.spec


def _engine(name: str, chunk: int | None) -> Engine:
    engine = find_engine(name)
    if chunk is None:
        return engine
    if not engine.chunk_tokens:
        raise ConfigError(f"--chunk {chunk}: {engine.name} runs whole prompts")
    if chunk < 1:
        raise ConfigError(f"--chunk {chunk}: expected 1 token or more")
    return replace(engine, chunk_tokens=chunk)


def worker_of(text: str) -> Worker:
    """Read `tp=4,pp=2`."""
    sizes: dict[str, int] = {}
    for word in parse_words(text):
        name, _, size = (part.strip() for part in word.partition("="))
        if name not in AXES:
            raise UnknownNameError("axis", name, AXES)
        if not size.isdigit():
            raise ConfigError(f"--layout {text!r}: {name}={size}: expected a whole number")
        sizes[name] = int(size)
    return Worker(**sizes)


AXES = ("tp", "pp", "ep", "attention_dp")
"""Of a worker."""
