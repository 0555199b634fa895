"""JupyterLab beside the launcher's other stages: the job of the document, with a token."""

from __future__ import annotations

from dataclasses import replace

from meshwright.compat.launcher.jobs import Step, job_name
from meshwright.compat.launcher.line import Line
from meshwright.runs.workflows.spec import DataWords, NotebookWords, Vocabulary, WorkflowSpec
from meshwright.runs.workflows.stages import notebook_stage

__all__ = ["notebook_step"]


def notebook_step(line: Line, *, token: bool) -> Step:
    """Return JupyterLab on one node, in the folder of the data."""
    inside = line.platform.launcher in ("bcprun", "local")
    words = line.platform.job
    spec = WorkflowSpec(
        name="nemo",
        title="JupyterLab",
        folder=str(line.config["data_dir"]),
        corpus="slimpajama",
        shards=1,
        vocabulary=Vocabulary(vocab_file="", merge_file=""),
        data=DataWords(nodes=1, workers=1),
        notebook=NotebookWords(token=token),
        job=replace(words, image=None, mounts=()) if inside else words,
    )
    found = notebook_stage(spec)
    job = replace(
        found.job, name=job_name("nemo-notebook"), port=None if inside else found.job.port
    )
    return Step(name="notebook", does=found.does, job=job)
