"""`meshwright workflow`: every job from a corpus to a trained model, for one platform."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.cli.export import Delivery, read_settings
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json, tell, tell_notes
from meshwright.platforms.job import JobOptions
from meshwright.runs.workflows import render
from meshwright.runs.workflows.spec import plain_spec
from meshwright.values.text import write_yaml
from meshwright.values.units import counted

__all__ = ["workflow"]


@command
def workflow(
    spec: str = argument(REQUIRED, "slimpajama-8b, or a file like it.", metavar="NAME|FILE.yaml"),
    words: list[str] | None = argument(
        None, "Go before its values: train.time=3D.", metavar="[KEY.SUB=V]..."
    ),
    launcher: str = option(
        "bcp", "bcp, bcprun, slurm, k8s-jobset, runai, lepton, sky, pai-dlc.", metavar="PLATFORM"
    ),
    delivery: Given = fields_of(Delivery),
    spec_only: bool = option(False, "Print the description in YAML, to change it.", "--spec"),
    blend: Path | None = option(
        None, "Weights by tokens: tokens/blend.json of `preprocess`.", metavar="FILE"
    ),
    no_token: bool = option(False, "JupyterLab lets anybody in who has its address."),
    job: Given = fields_of(JobOptions, "image", "mounts", "account", "partition", "instance"),
    json_output: JsonFlag = False,
) -> None:
    """Write every job of a work flow for one platform, checked: download, verify, extract, concat,
    preprocess, train, JupyterLab.

    One description makes the jobs of all platforms. Each node logs to a file of its own, the exit
    code is the program's, and what a job needs is looked for before it starts. Checked are mounts,
    node counts, memory, weights, limits and length.

    Writes a folder for each job, and prints what was checked. Exit code 1, and nothing is written,
    where a check fails.

    Examples:

      meshwright workflow slimpajama-8b --mount workspace=ID:/mount/data --instance dgxa100.80g.8.norm -o jobs

      meshwright workflow slimpajama-8b --launcher slurm --mount /lustre/slimpajama:/mount/data --partition gpu -o jobs

      meshwright workflow slimpajama-8b --spec > mine.yaml
    """  # noqa: E501
    values = [(key, value) for word in words or [] for key, value in read_settings([word]).items()]
    values += [(f"job.{key}", value) for key, value in job.items()]
    if no_token:
        values.append(("notebook.token", False))
    if spec_only:
        print(write_yaml(plain_spec(spec, words=values)), end="")
        return
    found = render.workflow(spec, launcher=launcher, blend=blend, words=values)
    _deliver(found, Delivery(**delivery), json_output=json_output)


def _deliver(found: render.Workflow, delivery: Delivery, *, json_output: bool) -> None:
    if json_output:
        print_json(found.to_dict())
    else:
        tell(f"{found.title}: {counted(len(found.jobs), 'job')} for {found.launcher}")
        for check in found.checks:
            tell(f"{'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.found}")
        tell_notes(found.notes)
    if not found.passed:
        raise typer.Exit(1)
    if json_output and (delivery.output is None or delivery.dry_run):
        return
    delivery.deliver(found.files())
    if not json_output:
        if found.submit_all is not None:
            tell(f"all of them, each behind the one before: `bash {found.submit_all.name}`")
        for job in found.jobs:
            tell(f"{job.folder}: {counted(job.nodes, 'node')}, {job.does}; `{job.text.submit}`")
