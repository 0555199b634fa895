"""`meshwright launcher`: the line of NVIDIA's NeMo 1.x launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from meshwright.cli.flags import FORCE
from meshwright.cli.options import argument, command, option
from meshwright.cli.study_view import interruptible
from meshwright.cli.terminal import JsonFlag, print_json, tell
from meshwright.compat.launcher.data import data_steps
from meshwright.compat.launcher.jobs import Step
from meshwright.compat.launcher.line import Line, read_line
from meshwright.compat.launcher.notebook import notebook_step
from meshwright.compat.launcher.send import Sent, put_jobs, put_line, run_here, send, written_jobs
from meshwright.compat.launcher.training import train_step
from meshwright.compat.launcher.tree import write_conf as write_tree
from meshwright.values.units import counted

__all__ = ["launcher"]

_HERE = ("bcprun", "local")
"""Launchers whose jobs are run by this process."""


@command
def launcher(
    words: list[str] | None = argument(
        None, "Hydra words: training=gpt3/7b_improved.", metavar="KEY=VALUE..."
    ),
    config_dir: Path | None = option(
        None,
        "Your conf/; else that of launcher_scripts_path, or conf/ here.",
        metavar="DIR",
    ),
    write_conf: Path | None = option(
        None, "Write the tree of configurations there, and stop.", metavar="DIR"
    ),
    chip: str = option("a100-80", "Chip that training is priced on.", metavar="CHIP"),
    setup: str | None = option(
        None, "Bash that each node runs first: pip install /mount/data/meshwright.whl."
    ),
    no_token: bool = option(False, "JupyterLab lets anybody in who has its address."),
    output: Path = option(
        Path("launcher"), "Folder of what is sent.", "--output", "-o", metavar="DIR"
    ),
    dry_run: bool = option(False, "Print every job as it would be sent, and start nothing."),
    force: bool = FORCE,
    json_output: JsonFlag = False,
) -> None:
    """Prepare data and train by the line of NVIDIA's NeMo 1.x launcher (`main.py`).

    stages are data_preparation, training and notebook. SlimPajama, the Pile and one's own files are
    made by `meshwright data`; training is NeMo's own program with the configuration that is shown.
    Inside a job of Base Command (NGC_ARRAY_SIZE, bcprun) everything runs there. Outside, jobs are
    sent: on Slurm each behind the one before, elsewhere when that has ended well. The same line
    goes on where it was.

    Says what was put right: data that is not there, limits that kill before a checkpoint, nodes,
    batches. Prints what a step is predicted to take, and how far the time reaches. Exit code 1: a
    job failed; inside, its own code.

    Examples:

      meshwright launcher cluster_type=bcp stages=[training] training=gpt3/7b_improved training.trainer.num_nodes=8 training.trainer.max_time=4:23:30:00 data_dir=/mount/data base_results_dir=/mount/results cluster.workspace=ID --dry-run

      meshwright launcher cluster_type=bcp stages=[data_preparation] data_preparation=gpt/download_slim_pajama data_dir=/mount/data base_results_dir=/mount/results cluster.workspace=ID --dry-run

      meshwright launcher stages=[training] training=gpt3/5b data_dir=/lustre/data base_results_dir=/lustre/results cluster.partition=gpu --dry-run
    """  # noqa: E501
    if write_conf is not None:
        written = [str(path) for path in write_tree(write_conf, force=force)]
        typer.echo(json.dumps({"files": written}) if json_output else "\n".join(written))
        return
    line = read_line(words or [], config_dir=config_dir)
    asked = _Asked(line, chip=chip, setup=setup, token=not no_token)
    steps = asked.steps()
    folder = _folder(line, output)
    jobs = written_jobs(line, steps, folder)
    if json_output:
        print_json(asked.to_dict(jobs))
    else:
        asked.tell()
    if dry_run:
        if not json_output:
            _print(jobs)
        return
    put_line(words or [], folder)
    put_jobs(jobs)
    code = _start(asked, jobs, folder)
    if code:
        raise typer.Exit(code)


class _Asked:
    """A line's jobs, and what is said of them."""

    def __init__(self, line: Line, *, chip: str, setup: str | None, token: bool) -> None:
        self.line, self.chip, self.setup, self.token = line, chip, setup, token
        self.corrected, self.found = list(line.corrected), list[str]()

    def steps(self) -> list[Step]:
        """Return the jobs in the order of the stages."""
        steps, prepared = list[Step](), None
        for stage in self.line.stages:
            if stage == "data_preparation":
                prepared = data_steps(self.line, setup=self.setup)
                steps += prepared.steps
                self.corrected += prepared.corrected
            elif stage == "training":
                trained = train_step(self.line, prepared=prepared, chip=self.chip, setup=self.setup)
                steps.append(trained.step)
                self.corrected += trained.corrected
                self.found += trained.found
            else:
                steps.append(notebook_step(self.line, token=self.token))
        return steps

    def tell(self) -> None:
        """Say what was put right, found out and left without effect."""
        for text in self.corrected:
            tell(f"corrected: {text}")
        for text in self.found:
            tell(text)
        for text in self.line.platform.notes:
            tell(f"note: {text}")

    def to_dict(self, jobs: list[Sent]) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "launcher": self.line.platform.launcher,
            "corrected": self.corrected,
            "found": self.found,
            "notes": list(self.line.platform.notes),
            "jobs": [
                {
                    "name": job.step.name,
                    "does": job.step.does,
                    "nodes": job.step.job.nodes,
                    "file": str(job.folder / job.text.file_name),
                    "submit": job.text.submit,
                    "text": job.text.text,
                }
                for job in jobs
            ],
        }


def _folder(line: Line, output: Path) -> Path:
    """Where jobs are written: inside a job among the results, which all nodes see."""
    if line.platform.launcher in _HERE:
        return Path(str(line.config["base_results_dir"])) / "launcher"
    return output


def _print(jobs: list[Sent]) -> None:
    for job in jobs:
        nodes = counted(job.step.job.nodes, "node")
        print(f"==> {job.folder / job.text.file_name}  # {nodes}: {job.step.does}")
        print(job.text.text)


def _start(asked: _Asked, jobs: list[Sent], folder: Path) -> int:
    """Run or send the jobs; training is made anew when this line's data is there, to weigh it."""
    line = asked.line
    with interruptible():
        if line.platform.launcher not in _HERE:
            return send(line, jobs, tell)
        data = [job for job in jobs if job.step.is_data]
        if code := run_here(data, tell):
            return code
        rest = [job for job in jobs if not job.step.is_data]
        if data and rest:
            anew = _Asked(line, chip=asked.chip, setup=asked.setup, token=asked.token)
            rest = [job for job in written_jobs(line, anew.steps(), folder) if not job.step.is_data]
            put_jobs(rest)
            for text in [one for one in anew.corrected if one not in asked.corrected]:
                tell(f"corrected: {text}")
        return run_here(rest, tell)
