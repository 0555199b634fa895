"""What a search came to, as the object that `meshwright autoconfigurator --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.folders import CANDIDATES, base_name
from meshwright.compat.autoconfigurator.inference import PointTable
from meshwright.compat.autoconfigurator.search import Search
from meshwright.runs.candidates import Candidate
from meshwright.runs.serving.tune import ServingStudy
from meshwright.runs.tune import StudyResult
from meshwright.sizing.size import classic_seconds
from meshwright.values.units import DAY_S

__all__ = ["closed_form_days", "inference_answer", "predicted_days", "training_answer"]


def closed_form_days(search: Search) -> float:
    """Days of the training by the old tool's formula."""
    return (
        classic_seconds(
            search.size_in_b * 1e9, search.settings.budget, series=search.settings.series
        )
        / DAY_S
    )


def predicted_days(search: Search, member: Candidate) -> float:
    """Days of the training's steps with a candidate, evaluation, checkpoints and failures left
    out."""
    tokens = search.settings.num_tokens_in_b * 1e9
    return (
        tokens / (member.layout.gbs * search.settings.seq_length) * member.predicted.step_s / DAY_S
    )


def training_answer(
    search: Search, *, other_forms: Sequence[Path], result: StudyResult | None
) -> dict[str, Any]:
    """Return the size, the candidates, the fastest predicted first, and the study; its place is
    null where nothing was started."""
    settings = search.settings
    budget = {
        "num_tokens_in_b": settings.num_tokens_in_b,
        "tflops_per_gpu": settings.tflops_per_gpu,
        "num_gpus": settings.num_gpus,
    }
    return {
        "folder": str(search.folder),
        "model_size_in_b": search.size_in_b,
        "closed_form": {"training_days": closed_form_days(search), **budget},
        "predicted_training_days": predicted_days(search, search.members[0]),
        "max_training_days": settings.max_training_days,
        "notes": list(search.notes),
        "base_config": str(search.folder / base_name(search)),
        "other_forms": [str(path) for path in other_forms],
        "candidates": [_candidate(search, member) for member in search.members],
        "study": None if result is None else result.to_dict(),
    }


def _candidate(search: Search, member: Candidate) -> dict[str, Any]:
    name, predicted = search.names[member.run_id], member.predicted
    return {
        "name": name,
        "run_id": member.run_id,
        "file": str(search.folder / CANDIDATES / f"{name}.yaml"),
        "layout": asdict(member.layout),
        "predicted": {
            "step_s": predicted.step_s,
            "training_days": predicted_days(search, member),
            "mfu": predicted.mfu,
        },
    }


def inference_answer(
    table: PointTable, *, notes: Sequence[str], file: Path, study: ServingStudy | None
) -> dict[str, Any]:
    """Return the points of the grid, predicted or measured, and those that can't run or did not;
    the study is null where none was run."""
    return {
        "file": str(file),
        "chip": table.chip,
        "engine": table.engine,
        "source": table.source,
        "notes": list(notes),
        "points": [asdict(point) for point in table.points],
        "failed": [asdict(one) for one in table.refused],
        "study": None if study is None else study.to_dict(),
    }
