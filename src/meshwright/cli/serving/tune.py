"""`meshwright serving tune`: prove by real engines under load which deployment serves best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli.job_flags import RUN_JOB, JobFileFlag
from meshwright.cli.options import Given, argument, command, fields_of, option
from meshwright.cli.terminal import QuietFlag
from meshwright.runs.loop import StudyLimits

if TYPE_CHECKING:
    from meshwright.runs.serving.tune import PreparedServing, ServingStudy
    from meshwright.runs.tune import StudyOptions

__all__ = ["tune"]

_INTERRUPTED = 130
_RUN_MINUTES = 30.0
"""An engine loads its weights and sees several loads in a run."""


@command
def tune(
    model: str | None = argument(
        None,
        "A model's name (`meshwright models` lists them), or its dims: layers=32,hidden=4096,...",
    ),
    cluster: str | None = option(
        None, "Chips, such as h100:8, or local: what is here.", metavar="KIND:COUNT"
    ),
    engine: str = option("transformers", "transformers, vllm, sglang or trtllm."),
    model_path: str | None = option(
        None,
        "What the engine loads [default of transformers: random weights of the model's shape].",
        metavar="PATH",
    ),
    concurrency: str | None = option(
        None,
        "Clients that each wait for their answer [default: 1,2,4,8; on GPUs 1,4,16,64].",
        metavar="N[,N...]",
    ),
    rate: str | None = option(
        None, "Instead: Poisson arrivals at these mean rates.", metavar="REQ/S[,...]"
    ),
    trace: Path | None = option(
        None,
        "Instead: a CSV with sent_s, input_len, output_len, one request per line.",
        metavar="FILE",
    ),
    input_len: int | None = option(None, "Tokens of a prompt [default: 1024; on processors 128]."),
    output_len: int | None = option(None, "New tokens [default: 128; on processors 32]."),
    spread: float = option(0.0, "Lengths lie evenly within this share of the mean on both sides."),
    requests: int | None = option(None, "Requests of a load [default: 4 a client, or a minute's]."),
    ttft: float | None = option(None, "Most milliseconds to the first token, mean.", metavar="MS"),
    tpot: float | None = option(
        None, "Most milliseconds between later tokens, mean.", metavar="MS"
    ),
    e2e: float | None = option(None, "Most milliseconds of a whole request, mean.", metavar="MS"),
    latency: bool = option(
        False, "The shortest requests win, instead of the most new tokens a GPU."
    ),
    weights: str | None = option(
        None, "Types of weights to try, by commas [default: bf16; on processors fp32]."
    ),
    cache: str | None = option(None, "Types of cache to try, by commas [default: as plan]."),
    pins: list[str] | None = option(
        None, "Sizes that an axis may have: tp=1,2.", "--set", metavar="AXIS=N[,N...]"
    ),
    launcher: str = option("local", "What starts the runs: local, slurm, ... (docs/launchers.md)."),
    output: Path | None = option(
        None, "The study [default: serving-MODEL-...].", "--output", "-o", metavar="DIR"
    ),
    spent: Given = fields_of(
        StudyLimits,
        max_runs="Deployments to run, those of earlier starts included.",
        minutes_per_run=(
            "Minutes after which a run is ended, with what it has measured"
            f" [default: {_RUN_MINUTES:g}]."
        ),
        tolerance="Stop when no deployment is better by more than this share, with 90 %.",
        strategy="predicted, grid, random or optuna [default: predicted; on processors grid].",
    ),
    ready_minutes: float = option(15.0, "Minutes that an engine may take until it is ready."),
    patience: float = option(
        600.0, "A request that says nothing for so long has failed.", metavar="S"
    ),
    port: int | None = option(None, "The engine's port [default: one that is free]."),
    engine_words: list[str] | None = option(
        None,
        "A word for its command, checked against its options.",
        "--engine-word",
        metavar="WORD",
    ),
    gpus_per_node: int | None = option(None, "Chips in one server [default: as the chip is sold]."),
    hf: Path | None = option(None, "A Hugging Face config.json to take the model from."),
    seed: int = option(0, "Of arrivals, lengths and tokens."),
    job: JobFileFlag = None,
    options: Given = RUN_JOB,
    dry_run: bool = option(False, "Print the deployments and the first job, and start nothing."),
    quiet: QuietFlag = False,
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
) -> None:
    """Prove by real engines under load which deployment serves best.

    Deployments (tensor, pipeline and expert parallelism, types of weights and cache) are ranked by
    prediction. Each run starts an engine with one of them, waits until it is ready, sends it the
    loads one after the other and ends it; what it measures moves the belief in all others, until
    none is likely to be better. An engine that dies, hangs or refuses is a failed point and stops
    nothing.

    Everything is kept in the study's folder: the same command goes on after Ctrl-C or a crash, and
    repeats no finished run. One copy is measured; a cluster holds as many as its chips allow.
    Prints a line per load, predicted and measured. Exit code 1: no load of any deployment was
    measured within the limits.

    Examples:

      meshwright serving tune tiny-llama --cluster local

      meshwright serving tune llama3.1-8b --cluster h100:8 --engine vllm --model-path meta-llama/Llama-3.1-8B --ttft 500 --tpot 20

      meshwright serving tune llama3.1-70b --cluster h100:8 --engine sglang --model-path /models/70b --set tp=4,8 --launcher slurm --dry-run
    """  # noqa: E501
    from meshwright.cli.job_flags import job_options
    from meshwright.cli.serving.flags import limits_of, model_of
    from meshwright.runs.serving.tune import (
        default_serving_folder,
        prepare_serving_study,
        serving_place,
    )
    from meshwright.runs.tune import StudyOptions
    from meshwright.values.errors import ConfigError

    if cluster is None:
        raise ConfigError("give --cluster, such as h100:8 or local")
    spec = model_of(model, hf)
    folder = output or default_serving_folder(spec, engine, cluster)
    place = serving_place(cluster, folder=folder, gpus_per_node=gpus_per_node)
    limits = limits_of(ttft_ms=ttft, tpot_ms=tpot, e2e_ms=e2e)
    prepared = prepare_serving_study(
        spec,
        place,
        engine=engine,
        loads=_loads(
            place.on_cores,
            (input_len, output_len, spread, seed),
            concurrency,
            rate,
            trace,
            requests,
        ),
        limits=limits,
        objective="latency" if latency else "throughput",
        weights=_words(weights),
        cache=_words(cache),
        pins=_pins(pins or []),
        model_path=model_path,
        port=port,
        ready_s=60.0 * ready_minutes,
        patience_s=patience,
        extra=tuple(engine_words or ()),
    )
    usual = {
        "minutes_per_run": _RUN_MINUTES,
        "strategy": "grid" if place.on_cores else "predicted",
    }
    study = StudyLimits(**{**usual, **spent})
    tuning = StudyOptions(
        folder=folder, limits=study, launcher=launcher, job=job_options(job, options)
    )
    if dry_run:
        _print_dry(prepared, tuning)
        return
    found = _run(prepared, tuning, quiet=quiet)
    _print(found, json_output=json_output)
    if found.view.best is None:
        raise typer.Exit(1)


def _loads(
    on_cores: bool,
    lengths: tuple[int | None, int | None, float, int],
    concurrency: str | None,
    rate: str | None,
    trace: Path | None,
    requests: int | None,
) -> Any:
    """Return loads; on processors those that a laptop answers in seconds, unless others are asked
    for."""
    from meshwright.cli.serving.flags import loads_of
    from meshwright.runs.loads.load import Lengths
    from meshwright.values.errors import ConfigError

    input_len, output_len, spread, seed = lengths
    if trace is not None and (input_len is not None or output_len is not None):
        raise ConfigError(
            "--input-len and --output-len have no effect with --trace, which holds the lengths"
        )
    usual = (128, 32) if on_cores else (1024, 128)
    asked = Lengths(
        input_len=usual[0] if input_len is None else input_len,
        output_len=usual[1] if output_len is None else output_len,
        spread=spread,
        seed=seed,
    )
    default = (1, 2, 4, 8) if on_cores else (1, 4, 16, 64)
    return loads_of(
        lengths=asked,
        concurrency=concurrency,
        rate=rate,
        trace=trace,
        requests=requests,
        default=default,
    )


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


_AXES = ("tp", "pp", "ep", "attention_dp")


def _pins(words: list[str]) -> dict[str, tuple[int, ...]]:
    """Read `tp=1,2`; ConfigError for another axis, or what is no number."""
    from meshwright.cli.serving.flags import numbers
    from meshwright.values.errors import UnknownNameError

    found: dict[str, tuple[int, ...]] = {}
    for word in words:
        axis, _, sizes = word.partition("=")
        if axis not in _AXES:
            raise UnknownNameError("axis of a deployment", axis, _AXES)
        found[axis] = tuple(int(size) for size in numbers(f"--set {axis}=", sizes))
    return found


def _run(prepared: PreparedServing, tuning: StudyOptions, *, quiet: bool) -> ServingStudy:
    from meshwright.cli.serving.tune_view import progress
    from meshwright.runs.serving.tune import tune_serving
    from meshwright.runs.tune import Interrupted

    if not quiet:
        typer.echo(
            f"study: {tuning.folder}; {len(prepared.candidates.members)} deployments may be run",
            err=True,
        )
    try:
        return tune_serving(prepared, tuning, show=progress(quiet=quiet))
    except Interrupted as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_INTERRUPTED) from None


def _print(found: ServingStudy, *, json_output: bool) -> None:
    if json_output:
        import json

        print(json.dumps(found.to_dict(), indent=2))
        return
    from meshwright.cli.serving.tune_view import end_lines

    print("\n".join(end_lines(found)))


def _print_dry(prepared: PreparedServing, tuning: StudyOptions) -> None:
    from meshwright.cli.serving.tune_view import dry_lines

    print("\n".join(dry_lines(prepared, tuning)))
