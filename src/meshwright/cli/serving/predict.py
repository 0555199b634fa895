"""`meshwright serving predict`: latency and throughput of the serving runs that tables describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright.cli.options import REQUIRED, argument, command, option

if TYPE_CHECKING:
    from meshwright.runs.measured.serving_predict import ServingAnswers
    from meshwright.runs.measured.serving_rows import ServingTable

__all__ = ["predict"]


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
) -> None:
    """Predict latency, throughput and memory for every serving run of a table.

    A row names model, chips, engine, layout, precision, lengths and load in the columns of the
    published serving runs; measured columns are never read and may be absent. Static batches are
    priced step by step; closed loops run request by request through the simulator; runs at an
    infinite rate and runs on two pools are priced in their steady state.

    Writes a line per row: source (the file's name without .csv), row_id, ttft_ms, tpot_ms,
    e2e_latency_ms, throughput_out_tok_s_per_gpu, memory_gb (GiB), oom; a row that cannot be
    answered has blank figures. TPOT is (finish - first token) / (output tokens - 1); throughput is
    new tokens alone, per chip. Exit code 1 where nothing was answered.

    Examples:

      meshwright serving predict served.csv -o serving_predictions.csv

      meshwright serving predict inference_*.csv -o serving_predictions.csv

      meshwright serving predict served.csv -o serving_predictions.csv --json
    """
    from meshwright.runs.measured.serving_predict import predict_serving, serving_predictions_csv
    from meshwright.runs.measured.serving_rows import read_serving_table
    from meshwright.values.errors import ConfigError

    tables = [read_serving_table(path) for path in rows]
    names = [table.name for table in tables]
    if len(set(names)) < len(names):
        raise ConfigError("two files of one name; predictions are told apart by the file's name")
    answers = predict_serving(tables)
    try:
        output.write_text(serving_predictions_csv(answers), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    _print(tables, answers, output if json_output else None)
    if not answers.predictions:
        raise typer.Exit(1)


def _print(tables: list[ServingTable], answers: ServingAnswers, output: Path | None) -> None:
    """Counts for people, or with the output's path as JSON."""
    import json

    from meshwright.runs.measured.serving_predict import count_by_table

    reasons = answers.reasons
    counts = count_by_table(answers, tables)
    if output is not None:
        found = {
            name: {"rows": rows, "answered": n, "unanswered": reasons.get(name, {})}
            for name, (n, rows) in counts.items()
        }
        print(json.dumps({"output": str(output), "tables": found}, indent=2))
        return
    width = max(len(name) for name in counts)
    for name, (answered, rows) in counts.items():
        print(f"{name:<{width}}  {answered:>6} of {rows:>6} rows answered")
        for reason, number in reasons.get(name, {}).items():
            print(f"{'':<{width}}  {number:>6} not: {reason}")
