"""Results of other load tools in our figures: `vllm bench serve`, guidellm and aiperf, each by what
its file says it is.

Formats: vLLM 0.32's benchmarks/serve.py; guidellm 0.8's benchmark/schemas (report version 2);
         aiperf 0.13's export_models.py (schema 1.4,
that of genai-perf before it). The three differ in words: guidellm's and aiperf's "inter token
latency" is our TPOT, a request's mean, and what guidellm calls "time per output token" has the
first token in it, which no figure of ours has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.platforms.files import MOST_BYTES, read_input
from meshwright.runs.loads.figures import Figures, Spread, spread_of
from meshwright.values.errors import ConfigError

__all__ = ["ReadLoad", "read_results"]

Tool = Literal["vllm bench", "guidellm", "aiperf"]
_MS = 1e-3
_UNKNOWN = Spread(mean=math.nan, p50=math.nan, p90=math.nan, p99=math.nan)
_UNITS = {
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
    "us": 1e-6,
    **dict.fromkeys(("ms", "milliseconds"), 1e-3),
    **dict.fromkeys(("sec", "s", "seconds"), 1.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadLoad:
    """One load of another tool's file."""

    tool: Tool
    file: str
    name: str
    """`concurrency=8`, `rate=2`, or the tool's own word for the load."""
    figures: Figures


def read_results(path: Path) -> tuple[ReadLoad, ...]:
    """Read the loads of a file; ConfigError where it is of none of the tools, or holds no load."""
    try:
        content = json.loads(read_input(path, most=4 * MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise ConfigError(
            f"{path}: no JSON; expected a result of `vllm bench serve`, guidellm or aiperf"
        ) from None
    for tool, is_its, read in _READERS:
        if isinstance(content, dict) and is_its(content):
            try:
                found = tuple(
                    ReadLoad(tool=tool, file=path.name, name=name, figures=figures)
                    for name, figures in read(content)
                )
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise ConfigError(
                    f"{path}: a file of {tool} without what it should hold ({type(error).__name__}:"
                    f" {error})"
                ) from None
            if not found:
                raise ConfigError(f"{path}: a file of {tool} without a load")
            return found
    raise ConfigError(f"{path}: no result of `vllm bench serve`, guidellm or aiperf")


def _vllm(content: Mapping[str, Any]) -> Iterable[tuple[str, Figures]]:
    asked, rate = content.get("max_concurrency"), content.get("request_rate")
    name = f"concurrency={asked}" if asked else f"rate={float(rate or math.inf):g}"
    details, errors = _vllm_details(content), [one for one in content.get("errors") or () if one]
    figures = Figures(
        requests=int(content["completed"]),
        failed=int(content.get("failed") or len(errors)),
        duration_s=float(content["duration"]),
        prompt_tokens=int(content["total_input_tokens"]),
        output_tokens=int(content["total_output_tokens"]),
        ttft_s=details.get("ttft") or _vllm_spread(content, "ttft"),
        tpot_s=details.get("tpot") or _vllm_spread(content, "tpot"),
        itl_s=details.get("itl") or _vllm_spread(content, "itl"),
        e2e_s=details.get("e2el") or _vllm_spread(content, "e2el"),
        good_per_s=_number(content.get("request_goodput")),
        first_error=str(errors[0]) if errors else None,
    )
    yield name, figures


def _vllm_spread(content: Mapping[str, Any], word: str) -> Spread:
    theirs = ("mean", "median", "p90", "p99")
    return _spread([content.get(f"{name}_{word}_ms") for name in theirs], _MS)


def _spread(values: Iterable[Any], scale: float) -> Spread:
    """Of the mean and three percentiles in another unit."""
    names = ("mean", "p50", "p90", "p99")
    return Spread(**{ours: _scaled(one, scale) for ours, one in zip(names, values, strict=True)})


def _vllm_details(content: Mapping[str, Any]) -> dict[str, Spread]:
    """Percentiles from the requests themselves, where the file was written with --save-detailed."""
    if not {"ttfts", "itls", "output_lens"} <= set(content):
        return {}
    errors = content.get("errors") or [""] * len(content["ttfts"])
    good = [index for index, error in enumerate(errors) if not error]
    ttfts, itls, lens = content["ttfts"], content["itls"], content["output_lens"]
    tails = {index: sum(itls[index]) for index in good}
    return {
        "ttft": spread_of(ttfts[index] for index in good),
        "tpot": spread_of(tails[index] / (lens[index] - 1) for index in good if lens[index] > 1),
        "itl": spread_of(gap for index in good for gap in itls[index]),
        "e2el": spread_of(ttfts[index] + tails[index] for index in good),
    }


def _guidellm(content: Mapping[str, Any]) -> Iterable[tuple[str, Figures]]:
    for benchmark in content["benchmarks"]:
        metrics, strategy = benchmark["metrics"], benchmark["config"]["strategy"]
        totals = metrics["request_totals"]
        figures = Figures(
            requests=int(totals["successful"]),
            failed=int(totals["errored"]),
            duration_s=float(benchmark["duration"]),
            prompt_tokens=round(_total(metrics["prompt_token_count"])),
            output_tokens=round(_total(metrics["output_token_count"])),
            ttft_s=_summary(metrics["time_to_first_token_ms"], _MS),
            tpot_s=_summary(metrics["inter_token_latency_ms"], _MS),
            itl_s=_UNKNOWN,
            e2e_s=_summary(metrics["request_latency"], 1.0),
            good_per_s=_good(metrics.get("request_goodput")),
        )
        kind = str(strategy.get("kind") or strategy.get("type_") or "load")
        yield _load_name(strategy, _GUIDELLM) or kind, figures


_GUIDELLM = {"streams": "concurrency", "rate": "rate", "max_concurrency": "concurrency"}


def _load_name(told: Mapping[str, Any], words: Mapping[str, str]) -> str | None:
    """The load in our words by the first key that is told; None where none is."""
    values = ((word, told.get(key)) for key, word in words.items())
    return next((f"{word}={value:g}" for word, value in values if value is not None), None)


def _summary(metric: Mapping[str, Any], scale: float) -> Spread:
    found = metric["successful"]
    tails = [found["percentiles"][name] for name in ("p50", "p90", "p99")]
    return _spread([found["mean"], *tails], scale)


def _total(metric: Mapping[str, Any]) -> float:
    return float(metric["successful"]["total_sum"])


def _good(metric: Mapping[str, Any] | None) -> float | None:
    if not metric or not metric.get("successful"):
        return None
    return _number(metric["successful"]["mean"])


def _aiperf(content: Mapping[str, Any]) -> Iterable[tuple[str, Figures]]:
    if content.get("is_complete") is False:
        raise ValueError(f"the run is not complete: {content.get('incomplete_reason')}")

    def spread(name: str) -> Spread:
        metric = content.get(name)
        if metric is None:
            return _UNKNOWN
        values = [metric.get(word) for word in ("avg", "p50", "p90", "p99")]
        return _spread(values, _UNITS[str(metric["unit"]).lower()])

    def scalar(name: str) -> float | None:
        metric = content.get(name)
        return None if metric is None else _number(metric.get("avg"))

    requests = scalar("request_count") or 0.0
    seconds = spread("benchmark_duration").mean
    if math.isnan(seconds):
        seconds = requests / (scalar("request_throughput") or math.nan)
    outputs = scalar("total_osl") or requests * (scalar("output_sequence_length") or 0.0)
    prompts = scalar("total_isl") or requests * (scalar("input_sequence_length") or 0.0)
    figures = Figures(
        requests=int(requests),
        failed=int(scalar("error_request_count") or 0),
        duration_s=seconds,
        prompt_tokens=round(prompts),
        output_tokens=round(outputs),
        ttft_s=spread("time_to_first_token"),
        tpot_s=spread("inter_token_latency"),
        itl_s=spread("inter_chunk_latency"),
        e2e_s=spread("request_latency"),
        good_per_s=scalar("goodput"),
    )
    yield _aiperf_name(content.get("input_config") or {}), figures


def _aiperf_name(config: Mapping[str, Any]) -> str:
    """Of the newer form, whose last phase is the measured one, or the older with a generator."""
    phases = config.get("phases")
    last = phases[-1] if isinstance(phases, list) and phases else None
    told = last or config.get("loadgen")
    if not isinstance(told, Mapping):
        return "load"
    numbers = {key: value for key, value in told.items() if isinstance(value, int | float)}
    return _load_name(numbers, _AIPERF) or "load"


_AIPERF = {"concurrency": "concurrency", "rate": "rate", "request_rate": "rate"}


def _scaled(value: Any, scale: float) -> float:
    return math.nan if value is None else float(value) * scale


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _is_aiperf(content: Mapping[str, Any]) -> bool:
    return "aiperf_version" in content or isinstance(content.get("time_to_first_token"), dict)


_Content = Mapping[str, Any]
_Read = Callable[[_Content], Iterable[tuple[str, Figures]]]
_READERS: tuple[tuple[Tool, Callable[[_Content], bool], _Read], ...] = (
    ("guidellm", lambda content: isinstance(content.get("benchmarks"), list), _guidellm),
    ("aiperf", _is_aiperf, _aiperf),
    ("vllm bench", lambda content: {"completed", "total_output_tokens"} <= set(content), _vllm),
)
"""What tells a tool's file, and what reads it."""
