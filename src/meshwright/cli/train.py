"""`meshwright train`: a plan as a full training on any platform."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from meshwright import api
from meshwright.cli.flags import HfFlag, JobFileFlag
from meshwright.cli.options import Given, argument, command, fields_of, layout_words, option
from meshwright.cli.terminal import INTERRUPTED, JsonFlag, QuietFlag, keep_quiet, print_json, tell
from meshwright.cli.train_jobs import dry_record, print_dry_run, print_findings, print_state
from meshwright.cli.train_missing import shown
from meshwright.cli.train_source import (
    Asked,
    asked_of,
    environment_of,
    job_of_flags,
    quota_bytes,
    settings_of,
)
from meshwright.platforms.job import JobOptions
from meshwright.report.plan_table import print_miss
from meshwright.runs.training.preflight import Finding, preflight, problems
from meshwright.runs.training.request import TrainRequest
from meshwright.runs.training.session import NothingFits, Start, start_training
from meshwright.search.request import PlanRequest

__all__ = ["train"]


@command
def train(
    plan: str | None = argument(
        None,
        "A file of `plan --json` (FILE#2: its second), a model, or a training.",
        metavar="PLAN|MODEL|FOLDER",
    ),
    output: Path | None = option(
        None, "The training [default: train-MODEL-CLUSTER].", "--output", "-o", metavar="DIR"
    ),
    tokens: str | None = option(None, "Length: 300B, 15T; or --steps."),
    steps: int | None = option(None, "Length in steps, instead of --tokens."),
    data: list[str] | None = option(
        None, "A corpus as .bin/.idx; several are a blend.", metavar="PREFIX[=WEIGHT]"
    ),
    tokenizer: str | None = option(
        None, "Of the software: a name or folder of Hugging Face, or a file."
    ),
    asked: Given = fields_of(TrainRequest),
    settings: list[str] | None = option(
        None, "A setting: learning_rate=1e-4.", "--setting", metavar="KEY=V"
    ),
    env: list[str] | None = option(
        None,
        "A variable of the program's environment; NAME alone, as for secrets: your shell's value.",
        metavar="NAME[=V]",
    ),
    follow: bool | None = option(
        None, "Stay, and send the next job behind each [default: local stays].", "--follow/--detach"
    ),
    verify_data: bool = option(False, "Read every byte of the data first."),
    quota: str | None = option(
        None, "Of the checkpoints' storage: 20TB [default: what is free].", metavar="SIZE"
    ),
    allow: list[str] | None = option(
        None, "Start in spite of what preflight says under this name.", metavar="FINDING"
    ),
    dry_run: bool = option(False, "Print what is found and what would be sent, and send nothing."),
    gpus: int | None = option(
        None, "With a plan: another number of GPUs; its replicas follow, its batch stays."
    ),
    case: Given = fields_of(
        PlanRequest,
        *("cluster", "seq_len", "gbs", "precision", "gpus_per_node", "stack", "calibration"),
        *("profile", "megatron_version", "attention", "max_memory_gib"),
        cluster="With a model: chips, such as h100:64, or local.",
        seq_len="With a model: tokens in one sequence.",
        gbs="With a model: global batch in sequences.",
        precision="With a model: of the matrix products [default: bf16 or else fp16].",
        stack="Software to predict [default: what runs, --to or the embedded trainer].",
    ),
    layout: str | None = layout_words(None, "With a model: the layout [default: the best]."),
    hf: HfFlag = None,
    job: JobFileFlag = None,
    options: Given = fields_of(
        JobOptions,
        *("start", "image", "mounts", "workdir", "account", "partition", "instance", "words"),
        *("cpus", "memory", "shared_memory", "priority", "order", "preempt", "min_timeslice"),
    ),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Train a plan to its last token: a job, or a chain of them, on a platform.

    Everything is looked at before a GPU is burnt: whether the plan divides and fits, the data, the
    vocabulary, the storage, the limits on time in their order, the image, the environment; nothing
    is changed. The software stops by its own clock before the platform's limit, late enough to
    train and early enough to write the last checkpoint, and the next job goes on from it.

    Prints what was found, what was sent, and with --follow how it goes. The same command, or
    `meshwright train FOLDER`, goes on where a training stopped. `train status`, `train logs`,
    `train cancel` and `train list` work the same on every platform. Exit code 1: preflight found a
    problem, nothing fits, or the training stopped short.

    Examples:

      meshwright train tiny-llama --cluster local --tokens 2M --data corpus/shard_00

      meshwright train plan.json --to megatron-lm --launcher slurm --time 5D --data /data/a=0.7 --data /data/b=0.3 --tokens 300B --dry-run

      meshwright train run --time 10h
    """  # noqa: E501
    asked |= {
        "quota_bytes": quota_bytes(quota),
        "environment": environment_of(env),
        "job": job_of_flags(job, options),
        "settings": settings_of(
            settings or [], tokens=tokens, steps=steps, data=data or [], tokenizer=tokenizer
        ),
    }
    found = asked_of(
        plan,
        {key: value for key, value in asked.items() if value not in (None, {})},
        case=case,
        hf=hf,
        layout=layout,
        gpus=gpus,
        output=output,
    )
    stay = follow if follow is not None else found.request.launcher == "local"
    _train(
        found,
        allow=allow or [],
        verify_data=verify_data,
        dry_run=dry_run,
        follow=stay,
        quiet=quiet,
        json_output=json_output,
    )


def _train(
    found: Asked,
    *,
    allow: list[str],
    verify_data: bool,
    dry_run: bool,
    follow: bool,
    quiet: bool,
    json_output: bool,
) -> None:
    """Look, and send what is to be sent."""
    missing: list[str] = []
    try:
        if dry_run:
            start, missing = shown(found)
        else:
            start = api.prepare_training(found.request, folder=found.folder, layout=found.layout)
    except NothingFits as error:
        _print_miss(error)
        raise typer.Exit(1) from None
    findings = preflight(start.prepared, look="full" if verify_data else "quick")
    stops = problems(findings, allow=allow)
    if dry_run:
        _print_dry(
            start,
            findings,
            missing,
            with_jobs=not stops,
            json_output=json_output,
        )
    else:
        print_findings(start, findings, quiet=quiet)
    if stops:
        names = ", ".join(dict.fromkeys(finding.name for finding in stops))
        tell(f"nothing is sent: {names}; --allow NAME starts in spite of a finding")
        raise typer.Exit(1)
    if dry_run:
        return
    try:
        state = start_training(
            start.prepared,
            plan=start.plan,
            machine=start.machine,
            follow=follow,
            say=keep_quiet if quiet else tell,
        )
    except KeyboardInterrupt:
        again = (
            f"`meshwright train {found.folder}` follows it again, `meshwright train cancel"
            f" {found.folder}` ends it"
        )
        tell(f"what was sent goes on without us; {again}")
        raise typer.Exit(INTERRUPTED) from None
    print_state(state, json_output=json_output)
    if state.decision is not None and state.decision.action == "stop":
        raise typer.Exit(1)


def _print_dry(
    start: Start,
    findings: Sequence[Finding],
    missing: list[str],
    *,
    with_jobs: bool,
    json_output: bool,
) -> None:
    if json_output:
        print_json({**dry_record(start, findings, with_jobs=with_jobs), "missing": missing})
        return
    for text in missing:
        print(f"missing: {text}")
    print_findings(start, findings, file=sys.stdout)
    print()
    if with_jobs:
        print_dry_run(start)


def _print_miss(error: NothingFits) -> None:
    """Say why nothing can be trained; the search has the counts by reason where no layout fits."""
    if error.result.plans:
        tell(str(error))
        return
    print_miss(error.result, Console(stderr=True))
