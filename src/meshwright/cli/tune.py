"""`meshwright tune`: prove by short real runs which layout is fastest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from meshwright import api
from meshwright.cli.export import read_settings
from meshwright.cli.flags import RUN_JOB, HfFlag, JobFileFlag, job_options, model_words
from meshwright.cli.options import Given, command, fields_of, option
from meshwright.cli.plan_files import read_request
from meshwright.cli.study_view import interruptible, print_result, progress
from meshwright.cli.terminal import (
    JsonFlag,
    QuietFlag,
    narrow_console,
    print_json,
    tell,
    warn,
)
from meshwright.report.explain_text import plain_table
from meshwright.runs.limits import StudyLimits
from meshwright.runs.trial import OWN_TRAINER, Trial
from meshwright.runs.tune import (
    Prepared,
    StudyResult,
    Tuning,
    default_folder,
    first_job,
    otherwise_than_told,
    run_study,
)
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted, format_seconds

if TYPE_CHECKING:
    from meshwright.runs.trackers import Tracking

__all__ = ["tune"]

_GROUP_SHOWN = 36
"""Characters of a group that a table shows; --json has all."""


@command
def tune(
    asked: Given = fields_of(
        PlanRequest,
        *("model", "cluster", "seq_len", "gbs", "precision", "pins", "stack", "calibration"),
        *("profile", "megatron_version", "attention", "max_memory_gib", "gpus_per_node"),
        "usd_per_hour",
        cluster="Chips, such as h100:16, or local: what is here.",
        seq_len="Tokens in one sequence [default on processors: 128].",
        gbs="Global batch in sequences, the same for every run [default on processors: 8].",
        precision="Of the matrix products [default: bf16, on processors fp32].",
        stack="Software to predict [default: what runs, --to or the embedded trainer].",
    ),
    hf: HfFlag = None,
    request: Path | None = option(None, "A request in YAML or JSON; flags go before its values."),
    launcher: str = option("local", "What starts the runs: local, slurm, ... (docs/launchers.md)."),
    output: Path | None = option(
        None, "The study [default: tune-MODEL-CLUSTER].", "--output", "-o", metavar="DIR"
    ),
    to: str | None = option(
        None, "Software that trains, as `meshwright export --to` [default: the embedded trainer]."
    ),
    program: str | None = option(None, "With --to: where its program is.", metavar="PATH"),
    settings: list[str] | None = option(
        None, "With --to: a setting of the training.", "--setting", metavar="KEY=V"
    ),
    limits: Given = fields_of(StudyLimits),
    max_steps_per_run: int = option(10, "Steps of a run; the first three are warm-up."),
    job: JobFileFlag = None,
    options: Given = RUN_JOB,
    tensorboard: bool = option(False, "Write every run for `tensorboard --logdir DIR/tracking`."),
    wandb: str | None = option(
        None, "Send every run to this project of Weights & Biases.", metavar="PROJECT"
    ),
    wandb_key_file: Path | None = option(
        None, "With --wandb: the key is its first line [default: wandb's own].", metavar="FILE"
    ),
    wandb_offline: bool = option(False, "With --wandb: leave runs for `wandb sync`."),
    mlflow: str | None = option(
        None, "Send every run to this experiment of MLFLOW_TRACKING_URI.", metavar="EXPERIMENT"
    ),
    replay: Path | None = option(
        None, "Measured runs that answer in place of a cluster.", metavar="TABLE.csv"
    ),
    group: str | None = option(None, "With --replay: one set of its runs alone."),
    dry_run: bool = option(False, "Print the candidates and the first job, and start nothing."),
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

    --replay takes every set of 8 or more measured runs of a table (columns of `meshwright predict`,
    measured ones too) that differ in layout alone, and says after how many runs one within 2 % of
    the fastest was measured, when the study would have stopped, how sure it was and what it lost.

    Examples:

      meshwright tune tiny-llama --cluster local

      meshwright tune llama3-8b --cluster h100:16 --seq 8192 --gbs 128 --launcher slurm --partition gpu --max-runs 6

      meshwright tune llama3-8b --cluster h100:16 --seq 8192 --gbs 128 --to megatron-lm --program /opt/Megatron-LM/pretrain_gpt.py --dry-run

      meshwright tune --replay truth/vtrain.csv
    """  # noqa: E501
    if replay is not None:
        _replay(replay, group, asked, StudyLimits(**limits), json_output=json_output)
        return
    if group is not None:
        raise ConfigError("--group has no effect without --replay TABLE.csv")
    if request is None or hf is not None:
        asked["model"] = model_words(asked.get("model"), hf)
    fields = {**(read_request(request) if request is not None else {}), **asked}
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
        job=job_options(job, options),
        tracking=_tracking(
            wandb, wandb_key_file, tensorboard=tensorboard, offline=wandb_offline, mlflow=mlflow
        ),
    )
    prepared = api.prepare_study(fields, tuning)
    if dry_run:
        _print_dry(prepared, tuning)
        return
    result = _run(prepared, tuning, quiet=quiet)
    _print(result, json_output=json_output)
    if result.view.best is None:
        raise typer.Exit(1)


def _replay(
    table: Path,
    group: str | None,
    asked: dict[str, Any],
    limits: StudyLimits,
    *,
    json_output: bool,
) -> None:
    """Print how a study of each set goes."""
    from meshwright.api import measured

    if asked:
        raise ConfigError(
            f"--replay takes everything from {table}: leave {', '.join(sorted(asked))} out"
        )
    found = measured.replay(
        table, group=group, tolerance=limits.tolerance, confidence=limits.confidence
    )
    if json_output:
        print_json({"sets": [one.to_dict() for one in found]})
        return
    shown = plain_table(
        f"{counted(len(found), 'set')} of {table.name}",
        "group",
        *("layouts", "runs to 2 %", "stopped after", "said", "lost"),
    )
    for one in found:
        reached = "-" if one.runs_to_2_percent is None else str(one.runs_to_2_percent)
        shown.add_row(
            one.group[:_GROUP_SHOWN],
            *(str(one.layouts), reached, str(one.stopped_after)),
            *(f"{one.stated_confidence:.0%}", f"{one.regret_frac:.1%}"),
        )
    narrow_console().print(shown)
    right = sum(one.regret_frac <= limits.tolerance for one in found)
    stopped = sum(one.stopped_after for one in found) / len(found)
    said = sum(one.stated_confidence for one in found) / len(found)
    print(
        f"\nstopped after {stopped:.2f} runs in the mean; {right} of {len(found)} with the best"
        f" within {limits.tolerance:.0%}, where {said:.0%} was said in the mean"
    )


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
    project: str | None,
    key_file: Path | None,
    *,
    tensorboard: bool,
    offline: bool,
    mlflow: str | None,
) -> Tracking:
    """Read where runs are shown; ConfigError where a word has no effect."""
    from meshwright.runs.trackers import Tracking, read_key

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
        mlflow_experiment=mlflow,
    )


def _run(prepared: Prepared, tuning: Tuning, *, quiet: bool) -> StudyResult:
    if not quiet:
        tell(
            f"study: {tuning.folder}; {counted(len(prepared.candidates.members), 'layout')} may"
            " be run"
        )
    with interruptible(), progress(quiet=quiet) as show:
        return run_study(prepared, tuning, show=show, warn=warn)


def _print(result: StudyResult, *, json_output: bool) -> None:
    if json_output:
        print_json(result.to_dict())
        return
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
    note = otherwise_than_told(result.view.records)
    if note is not None:
        print(f"note: {note}")


def _print_dry(prepared: Prepared, tuning: Tuning) -> None:
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
