"""`meshwright tune`: prove by short real runs which layout is fastest."""

from __future__ import annotations

import sys
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
from meshwright.cli.layout_case import (
    AttentionFlag,
    CalibrationFlag,
    GpusPerNodeFlag,
    HfFlag,
    JsonFlag,
    MegatronVersionFlag,
    MemoryFlag,
    ProfileFlag,
    RunStackFlag,
)
from meshwright.cli.terminal import QuietFlag
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright.runs.trackers import Tracking
    from meshwright.runs.tune import Prepared, StudyResult, Tuning

__all__ = ["tune"]

_INTERRUPTED = 130


def tune(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's name, or its dims: layers=32,hidden=4096,...", show_default=False
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="KIND:COUNT", help="Chips, such as h100:16, or local: what is here."),
    ] = None,
    seq: Annotated[
        int | None,
        typer.Option(
            "--seq", "--seq-len", help="Tokens in one sequence [default on processors: 128]."
        ),
    ] = None,
    gbs: Annotated[
        int | None,
        typer.Option(
            help="Global batch in sequences, the same for every run [default on processors: 8]."
        ),
    ] = None,
    launcher: Annotated[
        str, typer.Option(help="What starts the runs: local, slurm, ... (docs/launchers.md).")
    ] = "local",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The study [default: tune-MODEL-CLUSTER]."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help=(
                "Software that trains, as `meshwright export --to` [default: the embedded trainer]."
            )
        ),
    ] = None,
    program: Annotated[
        str | None, typer.Option(metavar="PATH", help="With --to: where its program is.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--setting", metavar="KEY=V", help="With --to: a setting of the training."),
    ] = None,
    max_runs: Annotated[
        int, typer.Option(help="Runs of the study, those of earlier starts included.")
    ] = 8,
    max_steps_per_run: Annotated[
        int, typer.Option(help="Steps of a run; the first three are warm-up.")
    ] = 10,
    max_minutes_per_run: Annotated[
        float, typer.Option(help="Minutes after which a run is ended.")
    ] = 10.0,
    max_queue_minutes: Annotated[
        float, typer.Option(help="Minutes that a run may wait for its start.")
    ] = 60.0,
    parallel: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    budget_gpu_hours: Annotated[
        float | None, typer.Option(help="What the study may cost, in hours of one chip.")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Stop when no layout is faster by more than this share, with 90 % confidence."
        ),
    ] = 0.02,
    strategy: Annotated[str, typer.Option(help="predicted, grid, random or optuna.")] = "predicted",
    precision: Annotated[
        str | None, typer.Option(help="Of the matrix products [default: bf16, on processors fp32].")
    ] = None,
    pins: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=V[,V...]", help="Values that an axis may take: tp=1,2."),
    ] = None,
    hf: HfFlag = None,
    stack: RunStackFlag = None,
    calibration: CalibrationFlag = None,
    profile: ProfileFlag = None,
    megatron_version: MegatronVersionFlag = None,
    attention: AttentionFlag = None,
    max_memory_gib: MemoryFlag = None,
    gpus_per_node: GpusPerNodeFlag = None,
    request: Annotated[
        Path | None, typer.Option(help="A request in YAML or JSON; flags go before its values.")
    ] = None,
    job: JobFileFlag = None,
    image: ImageFlag = None,
    mounts: MountFlag = None,
    workdir: WorkdirFlag = None,
    account: AccountFlag = None,
    partition: PartitionFlag = None,
    instance: InstanceFlag = None,
    launcher_words: LauncherWordFlag = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write every run for `tensorboard --logdir DIR/tracking`."
        ),
    ] = False,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Send every run to this project of Weights & Biases."),
    ] = None,
    wandb_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --wandb: the key is its first line [default: wandb's own]."
        ),
    ] = None,
    wandb_offline: Annotated[
        bool, typer.Option("--wandb-offline", help="With --wandb: leave runs for `wandb sync`.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the candidates and the first job, and start nothing."
        ),
    ] = False,
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Prove by a few short real runs which layout is fastest.

    Layouts are ranked by prediction; the one that is expected to gain most, times the chance that
    it fits, is run for a few steps. What it measures moves the belief in all others, those like it
    most, and so on, until no other is likely to be faster by more than --tolerance. A run that
    fails is a result and stops nothing.

    Everything is kept in the study's folder: the same command goes on after Ctrl-C or a crash, and
    repeats no finished run. Prints runs that finished, the fastest first, with what was predicted,
    then those that failed, with why. Exit code 1: no run finished.

    Examples:

      meshwright tune tiny-llama --cluster local

      meshwright tune llama3-8b --cluster h100:16 --seq 8192 --gbs 128 --launcher slurm --partition gpu --max-runs 6

      meshwright tune llama3-8b --cluster h100:16 --seq 8192 --gbs 128 --to megatron-lm --program /opt/Megatron-LM/pretrain_gpt.py --dry-run
    """  # noqa: E501
    from meshwright import api
    from meshwright.cli.layout_case import file_name, model_words
    from meshwright.cli.request_files import read_request
    from meshwright.search.request import parse_pins

    given: dict[str, Any] = {
        **{
            "model": (
                None
                if request is not None and model is None and hf is None
                else model_words(model, hf)
            ),
            "cluster": cluster,
        },
        **{
            "seq_len": seq,
            "gbs": gbs,
            "precision": precision,
            "stack": stack,
            "megatron_version": megatron_version,
        },
        **{
            "calibration": file_name(calibration),
            "profile": file_name(profile),
            "attention": attention,
        },
        **{
            "max_memory_gib": max_memory_gib,
            "gpus_per_node": gpus_per_node,
            "pins": parse_pins(pins or []) or None,
        },
    }
    flags = {key: value for key, value in given.items() if value is not None}
    fields = {**(read_request(request) if request is not None else {}), **flags}
    limits = {
        **{
            "max_runs": max_runs,
            "parallel": parallel,
            "minutes_per_run": max_minutes_per_run,
            "queue_minutes": max_queue_minutes,
        },
        **{"budget_gpu_hours": budget_gpu_hours, "tolerance": tolerance, "strategy": strategy},
    }
    options = {
        **{
            "image": image,
            "mounts": mounts,
            "workdir": workdir,
            "account": account,
            "partition": partition,
        },
        **{"instance": instance, "words": launcher_words},
    }
    tuning = _tuning(
        fields,
        output=output,
        launcher=launcher,
        limits=limits,
        trial={
            "software": to,
            "program": program,
            "steps": max_steps_per_run,
            "settings": settings,
        },
        job=_job_options(job, options),
        tracking=_tracking(wandb, wandb_key_file, tensorboard=tensorboard, offline=wandb_offline),
    )
    prepared = api.prepare_study(fields, tuning)
    if dry_run:
        _print_dry(prepared, tuning)
        return
    result = _run(prepared, tuning, quiet=quiet)
    _print(result, json_output=json_output)
    if result.view.best is None:
        raise typer.Exit(1)


def _tuning(
    fields: dict[str, Any],
    *,
    output: Path | None,
    launcher: str,
    limits: dict[str, Any],
    trial: dict[str, Any],
    job: Any,
    tracking: Any,
) -> Tuning:
    """Check what is asked beside the request."""
    from meshwright.cli.export import read_settings
    from meshwright.runs.loop import StudyLimits
    from meshwright.runs.trial import OWN_TRAINER, Trial
    from meshwright.runs.tune import Tuning, default_folder
    from meshwright.values.errors import ConfigError

    if "model" not in fields or "cluster" not in fields:
        raise ConfigError(
            "tune needs a model such as llama3-8b and --cluster, such as h100:16 or local"
        )
    given = {
        **trial,
        "software": trial["software"] or OWN_TRAINER,
        "settings": read_settings(trial["settings"] or []),
    }
    folder = output or default_folder(fields)
    return Tuning(
        folder=folder,
        trial=Trial(**given),
        limits=StudyLimits(**limits),
        launcher=launcher,
        job=job,
        tracking=tracking,
    )


def _tracking(
    project: str | None, key_file: Path | None, *, tensorboard: bool, offline: bool
) -> Tracking:
    """Read where runs are shown; ConfigError where a word has no effect."""
    from meshwright.runs.trackers import Tracking, read_key
    from meshwright.values.errors import ConfigError

    if project is None and (key_file is not None or offline):
        raise ConfigError(
            f"{'--wandb-offline' if key_file is None else '--wandb-key-file'} has no effect without"
            " --wandb PROJECT"
        )
    key = None if key_file is None else read_key(key_file)
    return Tracking(
        tensorboard=tensorboard,
        wandb_project=project,
        wandb_mode="offline" if offline else "online",
        wandb_key=key,
    )


def _job_options(path: Path | None, flags: dict[str, Any]) -> Any:
    from meshwright.cli.job_flags import read_job_file
    from meshwright.platforms.job import JobOptions

    said = {key: value for key, value in flags.items() if value is not None}
    return JobOptions.of({**({} if path is None else read_job_file(path)), **said})


def _run(prepared: Prepared, tuning: Tuning, *, quiet: bool) -> StudyResult:
    from meshwright.cli.tune_view import progress
    from meshwright.runs.tune import Interrupted, run_study

    if not quiet:
        typer.echo(
            f"study: {tuning.folder}; {counted(len(prepared.candidates.members), 'layout')} may"
            " be run",
            err=True,
        )
    try:
        with progress(quiet=quiet) as show:
            return run_study(
                prepared,
                tuning,
                show=show,
                warn=lambda line: typer.echo(f"warning: {line}", err=True),
            )
    except Interrupted as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_INTERRUPTED) from None


def _print(result: StudyResult, *, json_output: bool) -> None:
    if json_output:
        import json

        print(json.dumps(result.to_dict(), indent=2))
        return
    from meshwright.cli.tune_view import print_result

    print_result(result.view)
    print(
        f"stopped: {result.view.stop}; {result.view.gpu_hours:.3g} GPU-hours"
        if result.view.stop
        else ""
    )
    if result.view.best is not None:
        print(
            f"best: --layout {result.view.best.layout.words()}; {result.folder / 'best.yaml'} and"
            f" {result.folder / 'best'} hold it"
        )
    else:
        print(
            "no run finished; each failure is above, and its output in the run's folder",
            file=sys.stderr,
        )


def _print_dry(prepared: Prepared, tuning: Tuning) -> None:
    from meshwright.runs.tune import first_job
    from meshwright.values.units import format_seconds

    for candidate in prepared.candidates.members[: tuning.limits.max_runs]:
        print(
            f"{format_seconds(candidate.predicted.step_s):>9}  {candidate.predicted.fits:8}"
            f" {candidate.layout.words()}"
        )
    candidate, choice, text = first_job(prepared, tuning)
    print(
        f"\nfirst: {candidate.layout.words()} ({choice.because})\n==>"
        f" {text.file_name}\n{text.text}\nit would be sent by: {text.submit}"
    )
