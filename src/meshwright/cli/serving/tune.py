"""`meshwright serving tune`: prove by real engines under load which deployment serves best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.job_flags import (
    AccountFlag,
    ImageFlag,
    InstanceFlag,
    JobFileFlag,
    LauncherWordFlag,
    MountFlag,
    PartitionFlag,
    WorkdirFlag,
)
from meshwright.cli.terminal import QuietFlag

if TYPE_CHECKING:
    from meshwright.runs.serving.tune import PreparedServing, ServingStudy, ServingTuning

__all__ = ["tune"]

_INTERRUPTED = 130


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            help=(
                "A model's name (`meshwright models` lists them), or its dims:"
                " layers=32,hidden=4096,..."
            ),
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="KIND:COUNT", help="Chips, such as h100:8, or local: what is here."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="transformers, vllm, sglang or trtllm.")
    ] = "transformers",
    model_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help=(
                "What the engine loads [default of transformers: random weights of the model's"
                " shape]."
            ),
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N[,N...]",
            help="Clients that each wait for their answer [default: 1,2,4,8; on GPUs 1,4,16,64].",
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
    input_len: Annotated[
        int | None,
        typer.Option("--input-len", help="Tokens of a prompt [default: 1024; on processors 128]."),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option("--output-len", help="New tokens [default: 128; on processors 32]."),
    ] = None,
    spread: Annotated[
        float, typer.Option(help="Lengths lie evenly within this share of the mean on both sides.")
    ] = 0.0,
    requests: Annotated[
        int | None, typer.Option(help="Requests of a load [default: 4 a client, or a minute's].")
    ] = None,
    ttft: Annotated[
        float | None, typer.Option(metavar="MS", help="Most milliseconds to the first token, mean.")
    ] = None,
    tpot: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Most milliseconds between later tokens, mean."),
    ] = None,
    e2e: Annotated[
        float | None, typer.Option(metavar="MS", help="Most milliseconds of a whole request, mean.")
    ] = None,
    latency: Annotated[
        bool,
        typer.Option(
            "--latency", help="The shortest requests win, instead of the most new tokens a GPU."
        ),
    ] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Types of weights to try, by commas [default: bf16; on processors fp32]."
        ),
    ] = None,
    cache: Annotated[
        str | None, typer.Option(help="Types of cache to try, by commas [default: as plan].")
    ] = None,
    pins: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="AXIS=N[,N...]", help="Sizes that an axis may have: tp=1,2."),
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="What starts the runs: local, slurm, ... (docs/launchers.md).")
    ] = "local",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The study [default: serving-MODEL-...]."
        ),
    ] = None,
    max_runs: Annotated[
        int, typer.Option(help="Deployments to run, those of earlier starts included.")
    ] = 8,
    max_minutes_per_run: Annotated[
        float, typer.Option(help="Minutes after which a run is ended, with what it has measured.")
    ] = 30.0,
    max_queue_minutes: Annotated[
        float, typer.Option(help="Minutes that a run may wait for its start.")
    ] = 60.0,
    ready_minutes: Annotated[
        float, typer.Option(help="Minutes that an engine may take until it is ready.")
    ] = 15.0,
    patience: Annotated[
        float, typer.Option(metavar="S", help="A request that says nothing for so long has failed.")
    ] = 600.0,
    parallel: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    budget_gpu_hours: Annotated[
        float | None, typer.Option(help="What the study may cost, in hours of one chip.")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Stop when no deployment is better by more than this share, with 90 %."),
    ] = 0.02,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="predicted, grid, random or optuna [default: predicted; on processors grid].",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The engine's port [default: one that is free].")
    ] = None,
    engine_words: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-word",
            metavar="WORD",
            help="A word for its command, checked against its options.",
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="Chips in one server [default: as the chip is sold].")
    ] = None,
    hf: Annotated[
        Path | None, typer.Option(help="A Hugging Face config.json to take the model from.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals, lengths and tokens.")] = 0,
    job: JobFileFlag = None,
    image: ImageFlag = None,
    mounts: MountFlag = None,
    workdir: WorkdirFlag = None,
    account: AccountFlag = None,
    partition: PartitionFlag = None,
    instance: InstanceFlag = None,
    launcher_words: LauncherWordFlag = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the deployments and the first job, and start nothing."
        ),
    ] = False,
    quiet: QuietFlag = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for programs.")
    ] = False,
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
    from meshwright.cli.serving.flags import limits_of, model_of
    from meshwright.runs.loop import StudyLimits
    from meshwright.runs.serving.tune import (
        ServingTuning,
        default_serving_folder,
        prepare_serving_study,
        serving_place,
    )
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
    study = StudyLimits(
        max_runs=max_runs,
        parallel=parallel,
        minutes_per_run=max_minutes_per_run,
        queue_minutes=max_queue_minutes,
        budget_gpu_hours=budget_gpu_hours,
        tolerance=tolerance,
        strategy=strategy or ("grid" if place.on_cores else "predicted"),  # type: ignore[arg-type]  # checked there
    )
    said = {
        "image": image,
        "mounts": mounts,
        "workdir": workdir,
        "account": account,
        "partition": partition,
    }
    options = _job_options(job, {**said, "instance": instance, "words": launcher_words})
    tuning = ServingTuning(folder=folder, limits=study, launcher=launcher, job=options)
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


def _job_options(path: Path | None, flags: dict[str, Any]) -> Any:
    from meshwright.cli.job_flags import read_job_file
    from meshwright.platforms.job import JobOptions

    said = {key: value for key, value in flags.items() if value is not None}
    return JobOptions.of({**({} if path is None else read_job_file(path)), **said})


def _run(prepared: PreparedServing, tuning: ServingTuning, *, quiet: bool) -> ServingStudy:
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


def _print_dry(prepared: PreparedServing, tuning: ServingTuning) -> None:
    from meshwright.cli.serving.tune_view import dry_lines

    print("\n".join(dry_lines(prepared, tuning)))
