"""Folders of trainings made by hand: two jobs, the second of which does ten steps again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.report.answers import plan_answer, plan_of

from meshwright.runs.training.folder import JobNote, TrainFolder, open_folder
from meshwright.runs.training.request import TrainRequest

__all__ = ["LINE", "training_folder"]

LINE = (
    " iteration {step:8d}/     100 | consumed samples: {samples:12d} | elapsed time per iteration"
    " (ms): {ms:.1f} | learning rate: 1.0E-04 | global batch size:    64 | lm loss: {loss:.6E} |"
    " loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | number of nan"
    " iterations:   0 |\n"
)


def training_folder(folder: Path) -> TrainFolder:
    """Write a training whose steps take 2 s, reported every 5 of them: job 1 goes from 5 to 50 in
    150 s, job 2 from 45 to 100 in 200 s, 10 s after it."""
    request = TrainRequest.of(
        {
            "plan": {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 8192, "gbs": 64},
            "software": "megatron-lm",
            "launcher": "slurm",
            "time": "5D",
            "settings": {"train_tokens": 10**9, "data": [["/data/a", 1.0]]},
        }
    )
    training = open_folder(folder, request, plan=plan_answer(plan_of(1)), machine=None)
    spans = {1: (1000.0, 1150.0, range(5, 55, 5)), 2: (1160.0, 1360.0, range(45, 105, 5))}
    for number, (start, end, steps) in spans.items():
        training.add_job(
            JobNote(
                number=number,
                label=f"job-{number}",
                launcher="slurm",
                nodes=2,
                gpus=16,
                total_steps=100,
                time_limit_s=None,
                stop_s=None,
            )
        )
        training.add_event("submitted", at_s=start, job=number, handle=str(number))
        training.add_event("ended", at_s=end, job=number, state="succeeded", reason="")
        lines = [
            LINE.format(step=step, samples=64 * step, ms=2000.0, loss=10.0 - 0.05 * step)
            for step in steps
        ]
        (training.job_folder(number) / "stdout.log").write_text("".join(lines))
    assert json.dumps(asdict(training.jobs()[0]))
    return training
