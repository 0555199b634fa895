"""What becomes of a training: `meshwright train status`, `logs`, `cancel` and `list`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import INTERRUPTED, JsonFlag, print_json
from meshwright.platforms.job import JobText
from meshwright.runs.training.folder import label_of, read_folder
from meshwright.runs.training.preflight import Finding
from meshwright.runs.training.session import (
    Start,
    TrainState,
    cancel_training,
    follow_logs,
    list_trainings,
    state_of,
    training_in,
)

__all__ = [
    "dry_record",
    "print_dry_run",
    "print_findings",
    "print_state",
    "state_line",
    "train_cancel",
    "train_list",
    "train_logs",
    "train_status",
]


@command
def train_status(
    folder: Path = argument(REQUIRED, "Of the training.", metavar="FOLDER"),
    json_output: JsonFlag = False,
) -> None:
    """Say how a training is, on whatever platform: its step, loss and rate, its newest checkpoint,
    and each of its jobs.

    The platform is asked for the jobs, their logs for the steps; nothing is changed. The rate is
    that of the last report, beside it what the plan predicts. A platform that does not answer is
    named, and no state is made up.

    Prints a few lines. Exit code 2: there is no training.

    Examples:

      meshwright train status train-llama3-8b-h100-64

      meshwright train status run --json

      meshwright train status run --json | jq .done_steps
    """
    print_state(state_of(training_in(folder)), json_output=json_output)


@command
def train_logs(
    folder: Path = argument(REQUIRED, "Of the training.", metavar="FOLDER"),
    follow: bool = option(
        False, "Go on printing until the job and those behind it have ended.", "--follow", "-f"
    ),
    job: int | None = option(None, "Number of a job [default: the last]."),
    stderr: bool = option(False, "What it prints on stderr; some platforms keep none apart."),
) -> None:
    """Print the log of a training's last job, or of any.

    On this machine and on Slurm the job itself writes the log; from Kubernetes and Base Command it
    is fetched whenever the job is looked at, every ten seconds with --follow.

    Prints the log as it is. Ctrl-C ends the printing and nothing else.

    Examples:

      meshwright train logs run

      meshwright train logs run --follow

      meshwright train logs run --job 1 --stderr
    """
    name = "stderr.log" if stderr else "stdout.log"
    try:
        for chunk in follow_logs(training_in(folder), number=job, name=name, follow=follow):
            sys.stdout.write(chunk)
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@command
def train_cancel(folder: Path = argument(REQUIRED, "Of the training.", metavar="FOLDER")) -> None:
    """End every job of a training that has not ended, those first that wait behind others.

    The platform asks the program to end and kills it some time later; the embedded trainer writes a
    checkpoint in between. Nothing is removed: the training goes on from its newest checkpoint by
    `meshwright train FOLDER`.

    Prints the numbers of the jobs. Exit code 2: there is no training.

    Examples:

      meshwright train cancel run

      meshwright train cancel train-llama3-8b-h100-64

      meshwright train cancel run && meshwright train status run
    """
    ended = cancel_training(training_in(folder))
    print(
        f"told to end: job {', '.join(map(str, ended))}" if ended else "no job of it runs or waits"
    )


@command
def train_list(
    root: Path = argument(
        Path("."),
        "Where to look, three levels deep.",
        show_default="(this folder)",
        metavar="[FOLDER]",
    ),
    json_output: JsonFlag = False,
) -> None:
    """List the trainings in and below a folder, with how each is.

    A training is a folder with train.yaml, whatever platform it runs on; each platform is asked for
    the jobs of its own.

    Prints a line for each: its folder, its last job's state, its step, loss and rate.

    Examples:

      meshwright train list

      meshwright train list /shared/runs

      meshwright train list --json
    """
    states = list_trainings(root)
    if json_output:
        print_json([state.to_dict() for state in states])
        return
    for state in states:
        last = state.jobs[-1].status.state if state.jobs else "no job"
        print(f"{state.folder}  {state.launcher}  {last}  {state_line(state)}")
    if not states:
        print(f"no training in {root}")


_MARKS = {"ok": "ok", "warning": "note", "problem": "STOP"}


def print_findings(
    start: Start, findings: Sequence[Finding], *, file: Any = None, quiet: bool = False
) -> None:
    """Print the plan that is taken, and preflight's findings; `quiet` leaves out what is well."""
    prepared, out = start.prepared, file or sys.stderr
    for note in start.notes:
        print(f"note: {note}", file=out)
    if not quiet:
        speed = start.plan["plans"][0]["tokens_per_s_per_gpu"]
        words = f"{prepared.step_s:.3g} s a step, {speed:,.0f} tokens/s per GPU by prediction"
        print(f"plan: {prepared.layout.words()}: {words}", file=out)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        if not quiet or finding.verdict != "ok":
            print(f"{_MARKS[finding.verdict]:4}  {finding.name:{width}}  {finding.words}", file=out)
    for note in prepared.exported.notes:
        print(f"note  {prepared.software.name:{width}}  {note}", file=out)


def print_dry_run(start: Start) -> None:
    """Print every job of the chain to the letter, with the commands that would send them."""
    prepared = start.prepared
    jobs = list(_jobs(start))
    first = jobs[0][0]
    for number, text in jobs:
        folder = prepared.folder / "jobs" / str(number) / "job"
        if number == first:
            for file in prepared.job().files:
                print(f"==> {folder / file.name}\n{file.text}")
        print(f"==> {folder / text.file_name}\n{text.text}\nit would be sent by: {text.submit}\n")


def _jobs(start: Start) -> Iterator[tuple[int, JobText]]:
    """Yield number and text of the jobs to send now; numbers yet to come in angle brackets."""
    there, prepared = read_folder(start.prepared.folder), start.prepared
    first = max((job.number for job in there.jobs()), default=0) + 1 if there is not None else 1
    for number in range(
        first,
        first + prepared.at_once(done_steps=prepared.saved_steps, most=prepared.request.most_jobs),
    ):
        after = None if number == first else f"<the number of job {number - 1}>"
        yield (
            number,
            prepared.written(number=number, label=label_of(start.train_id, number), after=after),
        )


def dry_record(start: Start, findings: Sequence[Finding], *, with_jobs: bool) -> dict[str, Any]:
    """Return the object that `train --dry-run --json` prints."""
    prepared = start.prepared
    texts = [text for _, text in _jobs(start)] if with_jobs else []
    return {
        "training": str(prepared.folder),
        "request": prepared.request.to_dict(),
        "plan": start.plan["plans"][0],
        "findings": [asdict(finding) for finding in findings],
        "files": [{"name": file.name, "text": file.text} for file in prepared.job().files],
        "jobs": [
            {"file_name": text.file_name, "text": text.text, "submit": text.submit}
            for text in texts
        ],
    }


def state_line(state: TrainState) -> str:
    """Return how a training is, in a line."""
    done = "no step yet" if state.done_steps is None else f"step {state.done_steps:,}"
    of = "" if state.total_steps is None else f" of {state.total_steps:,}"
    loss = "" if state.last_loss is None else f", loss {state.last_loss:.4g}"
    speed = (
        ""
        if state.tokens_per_s is None
        else f", {state.tokens_per_s:,.0f} tokens/s (predicted {state.predicted_tokens_per_s:,.0f})"
    )
    return f"{done}{of}{loss}{speed}{'' if state.eta_s is None else f', {_time(state.eta_s)} left'}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_state(state: TrainState, *, json_output: bool) -> None:
    """Print how a training is, its jobs, and where its checkpoints and logs are."""
    if json_output:
        print_json(state.to_dict())
        return
    print(f"{state.folder}: {state.model} by {state.software} on {state.launcher}")
    print(state_line(state))
    if state.first_loss is not None and state.last_loss is not None:
        print(f"loss {state.first_loss:.4g} at first, {state.last_loss:.4g} now")
    saved = {None: "checkpoints are not seen from here", 0: "no checkpoint yet"}
    print(saved.get(state.saved_steps) or f"newest checkpoint: step {state.saved_steps:,}")
    for job in state.jobs:
        status = job.status
        print(
            f"job {job.note.number}:"
            f" {status.state}{f' ({status.reason})' if status.reason else ''},"
            f" {Path('jobs') / str(job.note.number)}"
        )
    if state.silent is not None:
        print(state.silent, file=sys.stderr)
    if state.decision is not None and state.decision.action in ("done", "stop"):
        print(f"{'done' if state.decision.action == 'done' else 'stopped'}: {state.decision.why}")
