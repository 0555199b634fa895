"""`meshwright serving measure`: load a server that runs, and time its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.runs.loads.measure import MeasuredLoad

__all__ = ["measure"]


def measure(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="A server that speaks OpenAI's protocol: http://HOST:PORT",
            show_default=False,
        ),
    ],
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]", help="Clients that each wait for their answer [default: 1,2,4,8]."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="REQ/S[,...]", help="Instead: Poisson arrivals at these mean rates."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: a CSV with sent_s, input_len, output_len, one request per line.",
        ),
    ] = None,
    input_len: Annotated[int, typer.Option("--input-len", help="Mean tokens of a prompt.")] = 1024,
    output_len: Annotated[
        int, typer.Option("--output-len", help="Mean new tokens of an answer.")
    ] = 128,
    spread: Annotated[
        float, typer.Option(help="Lengths lie evenly within this share of the mean on both sides.")
    ] = 0.0,
    requests: Annotated[
        int | None, typer.Option(help="Requests of a load [default: 4 a client, or a minute's].")
    ] = None,
    ttft: Annotated[
        float | None,
        typer.Option(metavar="MS", help="A request is good with its first token in this time."),
    ] = None,
    tpot: Annotated[
        float | None,
        typer.Option(metavar="MS", help="And with this mean time between later tokens."),
    ] = None,
    e2e: Annotated[
        float | None, typer.Option(metavar="MS", help="And with its last token in this time.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model's name there [default: the first that the server lists]."),
    ] = None,
    vocab: Annotated[int, typer.Option(help="Prompts are random tokens below this.")] = 32000,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its first line is sent as the API's key.")
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="S", help="A request that says nothing for so long has failed.")
    ] = 600.0,
    seed: Annotated[int, typer.Option(help="Of arrivals, lengths and tokens.")] = 0,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for programs.")
    ] = False,
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
