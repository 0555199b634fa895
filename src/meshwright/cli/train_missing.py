"""A training that is only shown, with the names of what is missing in its places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright import api
from meshwright.cli.train_source import Asked
from meshwright.platforms.job import JobOptions
from meshwright.runs.training.request import TrainRequest
from meshwright.runs.training.session import Start
from meshwright.values.errors import ConfigError, MissingWord

__all__ = ["shown"]

_MOUNTS = {"bcp": ("workspace=WORKSPACE", "/mount/data")}
"""What holds checkpoints where a container sees nothing of the outside, and where."""
_FLAGS = {"train_steps": "--steps or --tokens"}


def shown(found: Asked) -> tuple[Start, list[str]]:
    """Return the training, and a sentence for each word that is missing: its name stands in its
    place, and the steps that the time reaches stand for the length.

    ConfigError for what is wrong, not only missing.
    """
    request, missing = _mounted(found.request)
    while True:
        try:
            start = api.prepare_training(request, folder=found.folder, layout=found.layout)
            _written(start)
        except MissingWord as error:
            flag = _FLAGS.get(error.field, f"--{error.field}")
            missing.append(f"{flag}: {error}; {error.value} stands in its place")
            request = _filled(request, error)
        else:
            return start, missing


def _written(start: Start) -> None:
    """MissingWord for what the platform can't do without; preflight says what else is wrong."""
    try:
        start.prepared.written(number=1, label="mw-0-1")
    except MissingWord:
        raise
    except ConfigError:
        return


def _filled(request: TrainRequest, error: MissingWord) -> TrainRequest:
    if error.field in JobOptions.__dataclass_fields__:
        return replace(request, job={**request.job, error.field: error.value})
    return replace(request, settings={**request.settings, error.field: error.value})


def _mounted(request: TrainRequest) -> tuple[TrainRequest, list[str]]:
    """Checkpoints need a mount where nothing of the outside is seen."""
    usual = _MOUNTS.get(request.launcher)
    if usual is None or request.job.get("mounts") or request.save_dir is not None:
        return request, []
    source, target = usual
    job: dict[str, Any] = {**request.job, "mounts": [f"{source}:{target}"]}
    said = (
        f"--mount {source}:{target} --save-dir {target}/checkpoints: where checkpoints are kept;"
        " these stand in their place"
    )
    return replace(request, job=job, save_dir=f"{target}/checkpoints"), [said]
