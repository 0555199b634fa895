"""Trainings of llama3-8b on 16 H100, by any software."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.runs.training.prepare import Prepared
from meshwright.runs.training.request import TrainRequest
from meshwright.runs.training.session import begin
from meshwright.runs.trial import OWN_TRAINER
from meshwright.search.problem import Problem
from meshwright.search.request import PlanRequest
from meshwright.software.registry import find_target

TEXT_ONLY = ("torchtitan", "torchtitan-toml", "nanotron", "deepspeed", "accelerate")


def case_of(software: str) -> dict[str, Any]:
    stacks = () if software == OWN_TRAINER else find_target(software).stacks
    case: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 8192, "gbs": 128}
    return {**case, "stack": stacks[0]} if stacks else case


@cache
def problem_of(software: str) -> Problem:
    return api.problem_of(PlanRequest.of(case_of(software)))


def prepared(software: str, folder: Path, *, layout: str = "mbs=1", **more: Any) -> Prepared:
    """Return the training of a layout, five days a job, with data and tokenizer on a path that all
    nodes see."""
    settings = {
        "train_tokens": 10**11,
        "data": [["/data/a", 1.0]],
        **({} if software == OWN_TRAINER else {"tokenizer": "/data/tokenizer"}),
    }
    given = {"launcher": "slurm", "time": "5D", "settings": settings, **more}
    request = TrainRequest.of({**given, "software": software, "plan": case_of(software)})
    from meshwright.values.layout import parse_layout

    return begin(
        request,
        folder=folder,
        problem=problem_of(software),
        machine=None,
        layout=parse_layout(layout),
    ).prepared
