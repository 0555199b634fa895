"""What is asked of a serving search."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Annotated, Any, Literal, cast, get_args

from meshwright.search.problem import dims_of
from meshwright.serving.clock import Drafting, Speculation
from meshwright.serving.engine import (
    CACHES,
    QUANTISATIONS,
    Cache,
    Engine,
    Weights,
    engine_names,
    find_engine,
    quantisation,
)
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Cluster
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.options import Option

__all__ = [
    "MODES",
    "Mode",
    "Objective",
    "ServingRequest",
    "check_context",
    "parse_speculation",
    "parse_words",
    "usual_weights",
]

Mode = Literal["aggregated", "disaggregated", "static"]
"""Prompts and answers on the same workers, a pool of workers for each, or whole batches."""
MODES: tuple[Mode, ...] = get_args(Mode)
Objective = Literal["throughput", "latency"]
"""Most new tokens a second and chip, or the shortest requests."""
USUAL_ENGINE = "vllm"
"""Of a request that names none."""


def parse_words(text: str) -> tuple[Any, ...]:
    """Read `bf16,fp8`."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_speculation(text: str) -> Speculation:
    """Read `3,1.4` and `3,1.4,eagle`."""
    drafted, _, rest = text.partition(",")
    accepted, _, given = rest.partition(",")
    method = given.strip() or "mtp"
    if method not in get_args(Drafting):
        raise UnknownNameError("way of drafting", method, get_args(Drafting))
    try:
        return Speculation(
            drafted=int(drafted), accepted=float(accepted), method=cast("Drafting", method)
        )
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--speculate {text!r}: expected tokens drafted and how many are right, such as 3,1.4"
        ) from None


def _limit(what: str, name: str) -> Option:
    """A limit that people give in milliseconds."""
    help_ = f"Most milliseconds {what}, mean."
    return Option(help_, (name,), metavar="MS", kind=float, read=lambda given: given / 1e3)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingRequest:
    """One question to the search; None of a limit is no limit, None of a choice is every choice."""

    model: ModelSpec
    cluster: Cluster
    engine: Engine
    input_len: int
    output_len: int
    ttft_s: Annotated[float | None, _limit("to the first token", "--ttft")] = None
    tpot_s: Annotated[float | None, _limit("between later tokens", "--tpot")] = None
    e2e_s: Annotated[float | None, _limit("of a whole request", "--e2e")] = None
    objective: Objective = "throughput"
    fastest: Annotated[
        bool, Option("Put the fastest first, also where a simpler one is as good as we can tell.")
    ] = False
    """Without it the simplest of those that tie with the best is first."""
    target_rate: Annotated[
        float | None, Option("Rank by the fewest GPUs that carry this rate.", metavar="REQ/S")
    ] = None
    """Requests per second that the deployment must carry; the fewest chips win."""
    rate: Annotated[
        float | None,
        Option(
            "Poisson arrivals at this mean rate: rank by the time of a request, with percentiles.",
            metavar="REQ/S",
        ),
    ] = None
    """Requests per second that arrive at random on all chips; the shortest requests win, and
    percentiles are simulated."""
    modes: Annotated[
        tuple[Mode, ...],
        Option(
            "Of aggregated, disaggregated, static: which to search, by commas.",
            ("--mode",),
            kind=str,
            read=parse_words,
            usual="aggregated,disaggregated",
        ),
    ] = ("aggregated", "disaggregated")
    weights: Annotated[
        tuple[Weights, ...] | None,
        Option(
            "Types of weights to try, by commas [default: the checkpoint's, else 16 bits].",
            kind=str,
            read=parse_words,
        ),
    ] = None
    cache: Annotated[
        tuple[Cache, ...] | None,
        Option(
            "Types of cache to try, by commas [default: 16 bits, fp8 with narrow weights].",
            kind=str,
            read=parse_words,
        ),
    ] = None
    cached_share: Annotated[
        float,
        Option("Share of every prompt that the prefix cache holds.", ("--prefix-hits",), usual=0.0),
    ] = 0.0
    speculation: Annotated[
        Speculation | None,
        Option(
            "Tokens drafted per step, how many are right, and how: mtp (usual), eagle or ngram.",
            ("--speculate",),
            metavar="N,ACCEPTED[,WAY]",
            kind=str,
            read=parse_speculation,
        ),
    ] = None
    concurrency: Annotated[
        int | None, Option("Requests under way per worker [default: searched].")
    ] = None
    """None searches them."""
    usd_per_chip_hour: Annotated[
        float | None, Option("Price of one chip [default: the catalogue's].", ("--usd-per-hour",))
    ] = None
    """None takes the catalogue's."""

    @classmethod
    def of(
        cls,
        *,
        model: str | ModelSpec,
        cluster: str | Cluster,
        engine: str | Engine = USUAL_ENGINE,
        **fields: Any,
    ) -> ServingRequest:
        """Return the request of some words: `of(model="llama3-70b", cluster="h100:8",
        input_len=1000, output_len=500)`.

        ConfigError for a name that is unknown, a field that does not exist, and one that is
        missing.
        """
        own = [field.name for field in dataclass_fields(cls)]
        for name in fields:
            if name not in own:
                raise UnknownNameError("field of a serving request", name, own)
        if missing := [name for name in ("input_len", "output_len") if name not in fields]:
            raise ConfigError(
                f"a serving request needs {' and '.join(missing)}, such as {missing[0]}=1000"
            )
        return cls(
            model=named_model(model) if isinstance(model, str) else model,
            cluster=parse_cluster(cluster) if isinstance(cluster, str) else cluster,
            engine=find_engine(engine) if isinstance(engine, str) else engine,
            **fields,
        )

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if not 1 <= getattr(self, name) <= _LONGEST:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 to {_LONGEST} tokens")
        check_context(self.model, input_len=self.input_len, output_len=self.output_len)
        check_amounts(self, _POSITIVE)
        if not 0 <= self.cached_share < 1:
            raise ConfigError(
                f"prefix hit share {self.cached_share}: expected 0 or more and less than 1"
            )
        for what, words, known in (
            ("quantisation", self.weights, QUANTISATIONS),
            ("type of cache", self.cache, CACHES),
            ("mode", self.modes, MODES),
        ):
            for word in words or ():
                if word not in known:
                    raise UnknownNameError(what, word, known)
        for chip in (pool.node.chip for pool in self.cluster.pools):
            if self.engine.vendors and chip.vendor not in self.engine.vendors:
                others = ", ".join(name for name in engine_names() if not find_engine(name).vendors)
                raise ConfigError(
                    f"{self.engine.name} runs on chips of {' and '.join(self.engine.vendors)}"
                    f" alone, not on {chip.name} of {chip.vendor}; engines that do: {others}"
                )
        drafts = self.speculation is not None and self.speculation.method == "mtp"
        if drafts and not self.model.mtp_layers:
            raise ConfigError(
                f"{self.model.name} has no layers for multi-token prediction, which drafting needs;"
                " name another way behind the numbers, such as --speculate 3,1.4,eagle"
            )
        if "static" in self.modes and (self.cached_share or self.speculation is not None):
            given = f"prefix hit share {self.cached_share}" if self.cached_share else "speculation"
            raise ConfigError(
                f"{given} has no effect on static batches, which are modelled without; leave the"
                " mode static out"
            )
        if self.target_rate is not None and self.objective == "latency":
            raise ConfigError(
                "give one of target_rate and latency: the fewest chips that carry the rate win, or"
                " the shortest requests"
            )
        if self.rate is not None:
            self._check_rate()
        if self.model.family != "decoder" and self.modes != ("static",):
            raise ConfigError(
                f"{self.model.name} is no decoder: static batches alone are modelled (--mode"
                " static)"
            )

    def _check_rate(self) -> None:
        if "static" in self.modes:
            raise ConfigError(
                "arrivals at a rate are simulated with continuous batching; leave the mode"
                " static out"
            )
        for name in ("target_rate", "concurrency"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"give one of rate and {name}: with arrivals at a rate as many requests are"
                    " under way as they make"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return what was asked in plain types, for an answer's heading and its readers."""
        nodes = {}
        for pool in self.cluster.pools:
            size = {"gpus_per_node": pool.node.chips_per_node, "chips": pool.num_chips}
            nodes[pool.node.chip.name] = {"vendor": pool.node.chip.vendor, **size}
        limits = {name: getattr(self, name) for name in _POSITIVE}
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "engine": self.engine.name,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "objective": self.objective,
            "modes": list(self.modes),
            "weights": None if self.weights is None else list(self.weights),
            "cache": None if self.cache is None else list(self.cache),
            "cached_share": self.cached_share,
            **limits,
            "dims": dims_of(self.model),
            "nodes": nodes,
            "drafted": None if self.speculation is None else self.speculation.drafted,
            "drafted_by": None if self.speculation is None else self.speculation.method,
        }


def check_context(model: ModelSpec, *, input_len: int, output_len: int) -> None:
    """Raise ConfigError for a request that is longer than the model's context."""
    longest, asked = model.longest_tokens, input_len + output_len
    if longest is None or asked <= longest:
        return
    fits = (
        f"type --input-len {longest - output_len}"
        if output_len < longest
        else f"type --input-len and --output-len of {longest} tokens together"
    )
    raise ConfigError(
        f"input_len={input_len} and output_len={output_len} are {asked:,} tokens, beyond the"
        f" {longest:,} of {model.name}'s context; {fits}, or give --hf a config.json with a longer"
        " max_position_embeddings or rope_scaling"
    )


_LONGEST = 2**24
_POSITIVE = ("ttft_s", "tpot_s", "e2e_s", "target_rate", "rate", "concurrency", "usd_per_chip_hour")


def usual_weights(model: ModelSpec, chip: Chip) -> Weights:
    """Return the type of weights where the user names none: that of the published checkpoint, or 16
    bits where it is not known or the chip has no units for it."""
    half: Weights = "bf16" if chip.bf16_flops_per_s else "fp16"
    if model.checkpoint is None or model.checkpoint in ("fp32", "bf16", "fp16"):
        return half
    try:
        quantisation(model.checkpoint, model).check(chip)
    except ConfigError:
        return half
    return model.checkpoint
