"""Serving as it was measured: `meshwright serving measure`, `read`, `predict` and `validate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from meshwright.cli.flags import FORCE
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.serving.flags import Sending
from meshwright.cli.terminal import JsonFlag, print_json, tell, warn
from meshwright.platforms.files import check_ours, put_file, read_input
from meshwright.report.columns import Column, print_columns
from meshwright.report.serving_table import DEFINITIONS, load_lines
from meshwright.runs.loads.client import Target
from meshwright.runs.loads.measure import MeasuredLoad, measure_server
from meshwright.runs.loads.readers import ReadLoad, read_results
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.serving_answers import ServingAnswers, serving_predictions_csv
from meshwright.runs.measured.serving_plan import predict_as_planned
from meshwright.runs.measured.serving_predict import count_by_table, predict_serving
from meshwright.runs.measured.serving_rows import read_serving_table
from meshwright.values.errors import ConfigError, require_scorers
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright_truth.serving_score import ServingFigures

__all__ = ["measure", "predict", "read", "validate"]

_MARK = "Written by `meshwright serving validate`"
_ROWS_MARK = "source,row_id,ttft_ms"
"""How our own page and our own predictions begin."""


@command
def measure(
    url: str = argument(
        REQUIRED, "A server that speaks OpenAI's protocol: http://HOST:PORT", metavar="URL"
    ),
    sent: Given = fields_of(
        Sending,
        *("concurrency", "rate", "trace", "input_len", "output_len", "spread", "requests"),
        *("ttft", "tpot", "e2e"),
    ),
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
    seed: Given = fields_of(Sending, "seed"),
    json_output: JsonFlag = False,
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
    asked = Sending(**sent, **seed)
    loads = asked.loads()
    target = Target(url=url, model=model, vocab=vocab, key=_key(key_file), patience_s=patience)
    found = measure_server(target, loads, limits=asked.limits(), show=tell)
    _print_measured(found, json_output=json_output)
    if not all(one.figures.requests for one in found):
        raise typer.Exit(1)


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        lines = read_input(path).decode("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not a text'})"
        ) from None
    if not lines or not lines[0].strip():
        raise ConfigError(f"{path}: its first line should be a key, and is empty")
    return lines[0].strip()


def _print_measured(found: tuple[MeasuredLoad, ...], *, json_output: bool) -> None:
    for note in dict.fromkeys(note for one in found for note in one.notes):
        warn(note)
    if json_output:
        loads = [
            {"load": one.load.name, "figures": one.figures.to_dict(), "notes": list(one.notes)}
            for one in found
        ]
        print_json({"loads": loads})
        return
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


@command
def read(
    files: list[Path] = argument(
        REQUIRED, "What vllm bench serve, guidellm or aiperf wrote.", metavar="RESULT.json..."
    ),
    json_output: JsonFlag = False,
) -> None:
    """Read results of vllm bench serve, guidellm and aiperf in the figures of `meshwright serving
    measure`.

    The tools share words that mean different things: what guidellm and aiperf call inter-token
    latency is the TPOT of this table, and guidellm's time per output token, which has the first
    token in it, is not shown. Percentiles that a file lacks are dashes; with `vllm bench serve
    --save-detailed` all are computed from its requests.

    Prints a line per load: requests answered and failed, throughput, and mean and p99 of TTFT, TPOT
    and end-to-end time.

    Examples:

      meshwright serving read vllm-result.json

      meshwright serving read benchmarks.json profile_export_aiperf.json

      meshwright serving read results/*.json --json
    """
    found = [load for path in files for load in read_results(path)]
    _print_read(found, json_output=json_output)


def _print_read(found: list[ReadLoad], *, json_output: bool) -> None:
    if json_output:
        loads = [
            {
                "tool": load.tool,
                "file": load.file,
                "load": load.name,
                "figures": load.figures.to_dict(),
            }
            for load in found
        ]
        print_json({"loads": loads})
        return
    rows = [((load.tool, load.file, load.name), load.figures) for load in found]
    print("\n".join(load_lines(rows, names=("tool", "file", "load"))))
    print(f"\n{DEFINITIONS}")


@command
def predict(
    rows: list[Path] = argument(
        REQUIRED, "Tables of serving runs, one run per line.", metavar="ROWS.csv..."
    ),
    output: Path = option(
        REQUIRED, "Where the predictions go.", "--output", "-o", metavar="PREDICTIONS.csv"
    ),
    json_output: bool = option(
        False, "Print the counts as one JSON object for programs.", "--json"
    ),
    force: bool = FORCE,
) -> None:
    """Predict latency, throughput and memory for every serving run of a table.

    A row names model, chips, engine, layout, precision, lengths and load in the columns of the
    published serving runs; measured columns are never read and may be absent. Static batches are
    priced step by step; closed loops run request by request through the simulator; runs at an
    infinite rate and runs on two pools are priced in their steady state.

    Writes a line per row: source (the file's name without .csv), row_id, ttft_ms, tpot_ms,
    e2e_latency_ms, throughput_out_tok_s_per_gpu, memory_gb (GiB), oom; the ends of each figure's
    80 % interval (ttft_ms_low, ttft_ms_high, ...); fits (yes, at risk, no); and assumed, what the
    row does not tell and what was taken for it. A row that cannot be answered has blank figures.
    TPOT is (finish - first token) / (output tokens - 1); throughput is
    new tokens alone, per chip. Exit code 1 where nothing was answered.

    Examples:

      meshwright serving predict served.csv -o serving_predictions.csv

      meshwright serving predict inference_*.csv -o serving_predictions.csv

      meshwright serving predict served.csv -o serving_predictions.csv --json
    """
    check_ours(output, mark=_ROWS_MARK, force=force)
    tables = [read_serving_table(path) for path in rows]
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise ConfigError("two files of one name; predictions are told apart by the file's name")
    answers = predict_serving(tables)
    put_file(output, serving_predictions_csv(answers), mark=_ROWS_MARK, force=force)
    _print_predicted(tables, answers, output if json_output else None)
    if not answers.predictions:
        raise typer.Exit(1)


def _print_predicted(
    tables: list[TruthTable], answers: ServingAnswers, output: Path | None
) -> None:
    """Counts for people, or with the output's path as JSON."""
    reasons = answers.reasons
    counts = count_by_table(answers, tables)
    if output is not None:
        found = {
            name: {"rows": rows, "answered": n, "unanswered": reasons.get(name, {})}
            for name, (n, rows) in counts.items()
        }
        print_json({"output": str(output), "tables": found})
        return
    width = max(len(name) for name in counts)
    for name, (answered, rows) in counts.items():
        print(f"{name:<{width}}  {answered:>6} of {rows:>6} rows answered")
        for reason, number in reasons.get(name, {}).items():
            print(f"{'':<{width}}  {number:>6} not: {reason}")


@command
def validate(
    truth: list[Path] = argument(
        REQUIRED, "Tables of measured serving runs.", metavar="TRUTH.csv..."
    ),
    output: Path | None = option(
        None, "Also write the page with all figures.", "--output", "-o", metavar="PAGE.md"
    ),
    predictions: Path | None = option(
        None, "Score these predictions instead of making them.", metavar="CSV"
    ),
    json_output: JsonFlag = False,
    force: bool = FORCE,
) -> None:
    """Predict published serving runs and compare the predictions with what was measured.

    Errors are |predicted / measured - 1| of TTFT, TPOT, end-to-end latency, new tokens per second
    and chip, and memory; each cell holds mean / median (bias). Rank correlation and best tp say
    whether better configurations are told from worse ones.

    Prints a line per table, for dense models and those with experts apart, and for each engine and
    chip: first as `serving plan` prices the run, then with the configuration of the benchmark that
    ran it. With -o it writes the page docs/serving_accuracy.md.

    Examples:

      meshwright serving validate inference_*.csv

      meshwright serving validate inference_*.csv -o docs/serving_accuracy.md

      meshwright serving validate served.csv --predictions serving_predictions.csv --json
    """
    require_scorers()
    from meshwright_truth.serving_score import (
        guesses_of_answers,
        read_guesses,
        score_serving,
        serving_accuracy_page,
    )

    check_ours(output, mark=_MARK, force=force)
    tables = [read_serving_table(path) for path in truth]
    reasons: Mapping[str, Mapping[str, int]] = {}
    planned = None
    if predictions is not None:
        guesses = read_guesses(predictions)
    else:
        answers = predict_serving(tables)
        guesses, reasons = guesses_of_answers(answers), answers.reasons
        planned = _answered(score_serving(tables, guesses_of_answers(predict_as_planned(tables))))
    figures = score_serving(tables, guesses)
    if output is not None:
        page = serving_accuracy_page(figures, reasons, planned=planned)
        put_file(output, page, mark=_MARK, force=force)
    _print_errors(figures, reasons, planned=planned, as_json=json_output)


def _answered(figures: Mapping[str, ServingFigures]) -> dict[str, ServingFigures]:
    return {name: found for name, found in figures.items() if found.answered}


def _print_errors(
    figures: Mapping[str, ServingFigures],
    reasons: Mapping[str, Mapping[str, int]],
    *,
    planned: Mapping[str, ServingFigures] | None,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "tables": _plain(figures),
                "as_planned": None if planned is None else _plain(planned),
                "unanswered": reasons,
            }
        )
        return
    console = Console()
    if planned is not None:
        console.print("as `serving plan` prices it:", highlight=False)
        _print_figures(console, planned)
        console.print("\nwith the benchmark's own configuration:", highlight=False)
    _print_figures(console, figures)
    for name, found_reasons in reasons.items():
        for reason, count in found_reasons.items():
            console.print(
                f"{name}: {counted(count, 'row')} not answered: {reason}",
                highlight=False,
                markup=False,
                soft_wrap=not console.is_terminal,
            )


def _plain(figures: Mapping[str, ServingFigures]) -> dict[str, object]:
    return {name: found.to_dict() for name, found in figures.items()}


def _print_figures(console: Console, figures: Mapping[str, ServingFigures]) -> None:
    from meshwright_truth.serving_score import HEADINGS, cells_of

    columns = [
        Column(heading="table", justify="left"),
        *(Column(heading=heading) for heading in HEADINGS),
    ]
    lines = [(name, *cells_of(found)) for name, found in figures.items()]
    print_columns(console, columns, lines, more="--json has them")
