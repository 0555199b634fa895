"""`meshwright serving tune`: prove by real engines under load which deployment serves best."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.cli.flags import GPUS_PER_NODE, HF, RUN_JOB, JobFileFlag, job_options
from meshwright.cli.options import Given, command, fields_of, option
from meshwright.cli.serving.flags import AXES, Sending, model_of, numbers
from meshwright.cli.study_view import dry_lines, end_lines, interruptible, serving_progress
from meshwright.cli.terminal import JsonFlag, QuietFlag, print_json, tell
from meshwright.runs.limits import StudyLimits
from meshwright.runs.loads.load import Load
from meshwright.runs.serving.tune import (
    PreparedServing,
    ServingStudy,
    default_serving_folder,
    prepare_serving_study,
    serving_place,
    tune_serving,
)
from meshwright.runs.tune import (
    StudyOptions,
)
from meshwright.search.request import PlanRequest
from meshwright.serving.request import ServingRequest
from meshwright.serving.settings import SETTINGS, read_setting
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["tune"]

_RUN_MINUTES = 30.0
"""An engine loads its weights and sees several loads in a run."""


@command
def tune(
    where: Given = fields_of(
        PlanRequest, "model", "cluster", cluster="Chips, such as h100:8, or local: what is here."
    ),
    engine: str = option("transformers", "transformers, vllm, sglang or trtllm."),
    model_path: str | None = option(
        None,
        "What the engine loads [default of transformers: random weights of the model's shape].",
        metavar="PATH",
    ),
    sent: Given = fields_of(
        Sending,
        *("concurrency", "rate", "trace", "input_len", "output_len", "spread", "requests"),
        *("ttft", "tpot", "e2e", "ttft_p99", "tpot_p99", "e2e_p99"),
        concurrency=(
            "Clients that each wait for their answer [default: 1,2,4,8; on GPUs 1,4,16,64]."
        ),
        input_len={"help": "Tokens of a prompt [default: 1024; on processors 128].", "usual": None},
        output_len={"help": "New tokens [default: 128; on processors 32].", "usual": None},
        ttft="Most milliseconds to the first token, mean.",
        tpot="Most milliseconds between later tokens, mean.",
        e2e="Most milliseconds of a whole request, mean.",
    ),
    latency: bool = option(
        False, "The shortest requests win, instead of the most new tokens a GPU."
    ),
    types: Given = fields_of(
        ServingRequest,
        *("weights", "cache"),
        weights="Types of weights to try, by commas [default: bf16; on processors fp32].",
        cache="Types of cache to try, by commas [default: as plan].",
    ),
    pins: list[str] | None = option(
        None,
        "Sizes that an axis may have, tp=1,2; or settings to try, as graphs=on,off.",
        "--set",
        metavar="AXIS=N[,N...]",
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
        tolerance="Stop when no deployment is better by more than this share.",
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
    gpus_per_node: int | None = GPUS_PER_NODE,
    hf: Path | None = HF,
    seed: Given = fields_of(Sending, "seed"),
    job: JobFileFlag = None,
    options: Given = RUN_JOB,
    dry_run: bool = option(False, "Print the deployments and the first job, and start nothing."),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
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
    if (cluster := where.get("cluster")) is None:
        raise ConfigError("give --cluster, such as h100:8 or local")
    spec = model_of(where.get("model"), hf)
    folder = output or default_serving_folder(spec, engine, cluster)
    place = serving_place(cluster, folder=folder, gpus_per_node=gpus_per_node)
    asked = Sending(**sent, **seed)
    axes, told = _split(pins or [])
    prepared = prepare_serving_study(
        spec,
        place,
        engine=engine,
        loads=_loads(asked, on_cores=place.on_cores),
        limits=asked.limits(),
        objective="latency" if latency else "throughput",
        weights=types.get("weights"),
        cache=types.get("cache"),
        pins=_pins(axes),
        settings={name: read_setting(name, text) for name, text in told},
        model_path=model_path,
        port=port,
        ready_s=60.0 * ready_minutes,
        patience_s=patience,
        extra=tuple(engine_words or ()),
    )
    usual = {"minutes_per_run": _RUN_MINUTES, "strategy": "grid" if place.on_cores else "predicted"}
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


def _loads(asked: Sending, *, on_cores: bool) -> tuple[Load, ...]:
    """Return loads; on processors by default those that a laptop answers in seconds."""
    if asked.trace is not None and (asked.input_len, asked.output_len) != (None, None):
        raise ConfigError(
            "--input-len and --output-len have no effect with --trace, which holds the lengths"
        )
    if on_cores:
        return asked.loads(lengths=(128, 32), clients=(1, 2, 4, 8))
    return asked.loads(lengths=(1024, 128), clients=(1, 4, 16, 64))


Words = list[tuple[str, str]]


def _split(words: list[str]) -> tuple[Words, Words]:
    """Tell axes of a deployment from settings of its engine; UnknownNameError for a word that is
    neither, ConfigError for one that is said twice."""
    pairs = [(axis.strip(), sizes) for axis, _, sizes in (word.partition("=") for word in words)]
    for at, (axis, _) in enumerate(pairs):
        if axis not in (*AXES, *SETTINGS):
            raise UnknownNameError("axis of a deployment", axis, (*AXES, *SETTINGS))
        if axis in dict(pairs[:at]):
            raise ConfigError(f"--set {axis}=: given twice; put its values into one, by commas")
    axes = [pair for pair in pairs if pair[0] in AXES]
    return axes, [pair for pair in pairs if pair[0] in SETTINGS]


def _pins(words: Words) -> dict[str, tuple[int, ...]]:
    """Read `tp=1,2`; ConfigError for what is no number."""
    return {
        axis: tuple(int(size) for size in numbers(f"--set {axis}=", sizes)) for axis, sizes in words
    }


def _run(prepared: PreparedServing, tuning: StudyOptions, *, quiet: bool) -> ServingStudy:
    if not quiet:
        tell(f"study: {tuning.folder}; {len(prepared.candidates.members)} deployments may be run")
    with interruptible():
        return tune_serving(prepared, tuning, show=serving_progress(quiet=quiet))


def _print(found: ServingStudy, *, json_output: bool) -> None:
    if json_output:
        print_json(found.to_dict())
        return
    print("\n".join(end_lines(found)))


def _print_dry(prepared: PreparedServing, tuning: StudyOptions) -> None:
    print("\n".join(dry_lines(prepared, tuning)))
