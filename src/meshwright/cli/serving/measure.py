"""`meshwright serving measure`: load a server that runs, and time its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright.cli.options import REQUIRED, argument, command, option

if TYPE_CHECKING:
    from meshwright.runs.loads.measure import MeasuredLoad

__all__ = ["measure"]


@command
def measure(
    url: str = argument(
        REQUIRED, "A server that speaks OpenAI's protocol: http://HOST:PORT", metavar="URL"
    ),
    concurrency: str | None = option(
        None, "Clients that each wait for their answer [default: 1,2,4,8].", metavar="N[,N...]"
    ),
    rate: str | None = option(
        None, "Instead: Poisson arrivals at these mean rates.", metavar="REQ/S[,...]"
    ),
    trace: Path | None = option(
        None,
        "Instead: a CSV with sent_s, input_len, output_len, one request per line.",
        metavar="FILE",
    ),
    input_len: int = option(1024, "Mean tokens of a prompt."),
    output_len: int = option(128, "Mean new tokens of an answer."),
    spread: float = option(0.0, "Lengths lie evenly within this share of the mean on both sides."),
    requests: int | None = option(None, "Requests of a load [default: 4 a client, or a minute's]."),
    ttft: float | None = option(
        None, "A request is good with its first token in this time.", metavar="MS"
    ),
    tpot: float | None = option(
        None, "And with this mean time between later tokens.", metavar="MS"
    ),
    e2e: float | None = option(None, "And with its last token in this time.", metavar="MS"),
    model: str | None = option(
        None, "The model's name there [default: the first that the server lists]."
    ),
    vocab: int = option(32000, "Prompts are random tokens below this."),
    key_file: Path | None = option(
        None, "Its first line is sent as the API's key.", metavar="FILE"
    ),
    patience: float = option(
        600.0, "A request that says nothing for so long has failed.", metavar="S"
    ),
    seed: int = option(0, "Of arrivals, lengths and tokens."),
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
) -> None:
    """Measure a server under load: TTFT, TPOT, time between tokens, end-to-end time, throughput and
    goodput.

    Prompts are random token ids of exactly the length that is asked for, each another, so that no
    prefix cache helps; answers are asked to have their full length. Fields that a server refuses
    (ignore_eos, min_tokens, stream_options, temperature), token ids, or the endpoint
    /v1/completions are left out one after the other, and what that means is said on stderr.

    Prints a line per load: requests answered and failed, requests and new tokens per second, mean
    and p99 of TTFT, TPOT and end-to-end time, and with limits the good requests per second. Exit
    code 1: a load had no request answered.

    Examples:

      meshwright serving measure http://127.0.0.1:8000 --input-len 1024 --output-len 128

      meshwright serving measure http://127.0.0.1:8000 --rate 1,2,4 --ttft 2000 --tpot 50 --json

      meshwright serving measure http://127.0.0.1:8000 --trace requests.csv --model meta-llama/Llama-3.1-8B-Instruct
    """  # noqa: E501
    from meshwright.cli.serving.flags import limits_of, loads_of
    from meshwright.runs.loads.client import Target
    from meshwright.runs.loads.load import Lengths
    from meshwright.runs.loads.measure import measure_server

    lengths = Lengths(input_len=input_len, output_len=output_len, spread=spread, seed=seed)
    loads = loads_of(
        lengths=lengths,
        concurrency=concurrency,
        rate=rate,
        trace=trace,
        requests=requests,
        default=(1, 2, 4, 8),
    )
    target = Target(url=url, model=model, vocab=vocab, key=_key(key_file), patience_s=patience)
    limits = limits_of(ttft_ms=ttft, tpot_ms=tpot, e2e_ms=e2e)
    found = measure_server(
        target, loads, limits=limits, show=lambda name: typer.echo(name, err=True)
    )
    _print(found, json_output=json_output)
    if not all(one.figures.requests for one in found):
        raise typer.Exit(1)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    from meshwright.values.errors import ConfigError

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not a text'})"
        ) from None
    if not lines or not lines[0].strip():
        raise ConfigError(f"{path}: its first line should be a key, and is empty")
    return lines[0].strip()


def _print(found: tuple[MeasuredLoad, ...], *, json_output: bool) -> None:
    for note in dict.fromkeys(note for one in found for note in one.notes):
        typer.echo(f"warning: {note}", err=True)
    if json_output:
        import json

        loads = [
            {"load": one.load.name, "figures": one.figures.to_dict(), "notes": list(one.notes)}
            for one in found
        ]
        print(json.dumps({"loads": loads}, indent=2))
        return
    from meshwright.report.serving_table import DEFINITIONS, load_lines

    print(
        "\n".join(load_lines([((one.load.name,), one.figures) for one in found], names=("load",)))
    )
    for one in found:
        if one.figures.failed:
            print(
                f"{one.load.name}: {one.figures.failed} requests failed, the first with:"
                f" {one.figures.first_error}"
            )
    print(f"\n{DEFINITIONS}")
