"""What one configuration of a fine-tuning grid is as a job: NeMo's own script, or the embedded
trainer in its place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.platforms.job import Job, JobOptions, parse_mount
from meshwright.runs.belief import Prior
from meshwright.runs.choose import Options
from meshwright.runs.outcome import Measured, RunWork
from meshwright.runs.record import DIGITS, Course, event_of
from meshwright.runs.training.request import held_out, trainer_words
from meshwright.runs.trial import OWN_TRAINER
from meshwright.search.problem import dims_of
from meshwright.search.rules.check import complete_layout
from meshwright.software.contract import Exported, ExportedFile, Imported, import_text
from meshwright.software.defaults import complete_settings
from meshwright.software.nemo1.read import NEMO1_SOURCE
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.trainer.checks import require_trainable
from meshwright.trainer.job import TrainJob
from meshwright.values.errors import ConfigError
from meshwright.values.stack import find_stack
from meshwright.values.text import write_yaml

__all__ = [
    "GridMember",
    "GridRecord",
    "exported_config",
    "grid_options",
    "grid_record_of",
    "job_of_config",
    "work_of_config",
]

_FROM_ELSEWHERE = ("restore_from_path", "restore_from", "peft", "resume.restore_config")
"""What a configuration begins from, or trains beside frozen weights."""
_NO_CHECKPOINTS: Mapping[str, Any] = {"save_dir": None, "load_dir": None, "save_interval": None}


def exported_config(config: Mapping[str, Any], *, name: str, program: str | None) -> Exported:
    """Return what runs it: `program`, a script of NeMo that reads it, or the embedded trainer;
    ConfigError where that can't."""
    if program is None:
        return _embedded(config)
    file = ExportedFile(name=f"{name}.yaml", text=write_yaml(dict(config)))
    # NeMo 1.x's scripts are Hydra's; of a recipe the file itself is the word.
    words = (file.name,) if "_target_" in config else ("--config-dir=.", f"--config-name={name}")
    return Exported(target="nemo", files=(file,), command=(program, *words))


def _embedded(config: Mapping[str, Any]) -> Exported:
    _refuse_elsewhere(config)
    found = _imported(config)
    layout = complete_layout(
        found.layout,
        model=found.model,
        work=found.work,
        num_chips=_ranks(config),
        stack=find_stack(found.stack),
    )
    data = tuple(replace(part, path=str(Path(part.path).resolve())) for part in found.settings.data)
    settings = complete_settings(
        replace(found.settings, data=data, **_NO_CHECKPOINTS), model=found.model, work=found.work
    )
    if held_out(settings) is None:
        raise ConfigError(
            "base_config: without data whose split holds out a part (data_prefix, splits_string,"
            " limit_val_batches) there is no validation loss to compare; program= runs NeMo's own"
            " script"
        )
    if found.work.precision not in ("bf16", "fp32"):
        raise ConfigError(
            f"base_config: precision={found.work.precision}: the embedded trainer computes in bf16"
            " or fp32"
        )
    job = TrainJob(
        model=found.model, layout=layout, seq_len=found.work.seq_len, precision=found.work.precision
    )
    require_trainable(job, num_processes=_ranks(config))
    request = {
        "model": dims_of(found.model),
        "seq_len": found.work.seq_len,
        "precision": found.work.precision,
    }
    text = json.dumps({"request": request, "plans": [{"layout": asdict(layout)}]}, indent=1) + "\n"
    words = [word for word in trainer_words(settings, best=0) if not word.startswith("save.")]
    return Exported(
        target=OWN_TRAINER,
        files=(ExportedFile(name="plan.json", text=text),),
        command=("-m", "meshwright.trainer", "plan.json", *words),
    )


def _refuse_elsewhere(config: Mapping[str, Any]) -> None:
    """The embedded trainer begins from random weights, and trains all of them."""
    for path in _FROM_ELSEWHERE:
        for at in (path, f"model.{path}"):
            part: Any = config
            for key in at.split("."):
                part = part.get(key) if isinstance(part, Mapping) else None
            if part not in (None, "", {}) and not (
                isinstance(part, Mapping) and part.get("peft_scheme", "") in (None, "none")
            ):
                raise ConfigError(
                    f"base_config: {at} is set, and the embedded trainer trains all weights from"
                    " the beginning; program= runs NeMo's script"
                )


def _imported(config: Mapping[str, Any]) -> Imported:
    return import_text(
        write_yaml(dict(config)), source=NEMO2_SOURCE if "_target_" in config else NEMO1_SOURCE
    )


def _ranks(config: Mapping[str, Any]) -> int:
    nodes, devices = _size(config)
    return nodes * devices


def _size(config: Mapping[str, Any]) -> tuple[int, int]:
    trainer = config.get("trainer")
    found = [
        trainer.get(key, 1) if isinstance(trainer, Mapping) else 1
        for key in ("num_nodes", "devices")
    ]
    for key, value in zip(("num_nodes", "devices"), found, strict=True):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"base_config: trainer.{key}={value}: expected a whole number of 1 or more"
            )
    return found[0], found[1]


def job_of_config(
    config: Mapping[str, Any], exported: Exported, *, options: JobOptions, seconds: int
) -> Job:
    """Return the job of one configuration on the nodes that its trainer names."""
    nodes, devices = _size(config)
    return Job(
        name=options.name or "grid",
        command=exported.command,
        files=exported.files,
        nodes=nodes,
        gpus_per_node=devices,
        launch=options.start,
        time_limit_s=seconds,
        image=options.image,
        mounts=tuple(map(parse_mount, options.mounts)),
        account=options.account,
        partition=options.partition,
        instance=options.instance,
        words=options.words,
    )


def work_of_config(config: Mapping[str, Any]) -> RunWork:
    """Return what one step is, by which a log is read; of a configuration whose batch stands
    elsewhere one sequence of one token."""
    found = [
        _found(config, key) for key in ("global_batch_size", "encoder_seq_length", "seq_length")
    ]
    return RunWork(seq_len=found[1] or found[2] or 1, gbs=found[0] or 1, num_chips=_ranks(config))


def _found(part: Any, key: str) -> int | None:
    """The first whole number under a key, at any depth."""
    if not isinstance(part, Mapping):
        return None
    value = part.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return next(
        (found for entry in part.values() if (found := _found(entry, key)) is not None), None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GridRecord(Course):
    """One combination; its id is its name and a digest of what runs."""

    name: str
    values: Mapping[str, Any]
    """By dotted key."""

    @property
    def cost_s(self) -> float | None:
        """Seconds of a step, which says nothing of a grid's best: that is the least validation
        loss."""
        return self.outcome.step_s if isinstance(self.outcome, Measured) else None

    @property
    def noise(self) -> float:
        """Nothing is chosen by it."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return what is known when it is chosen: the content of `run.json`."""
        return {
            "run_id": self.run_id,
            "number": self.number,
            "name": self.name,
            "values": dict(self.values),
            "chosen_because": self.chosen_because,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GridMember:
    """One combination before its run."""

    name: str
    values: Mapping[str, Any]
    digest: str

    @staticmethod
    def of(name: str, values: Mapping[str, Any], *, content: Any) -> GridMember:
        """Name a combination by what runs: another program or length is another run."""
        digest = hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode()
        ).hexdigest()[:DIGITS]
        return GridMember(name=name, values=values, digest=digest)

    @property
    def run_id(self) -> str:
        """`llama_grid_search_0-1f3a9c07`."""
        return f"{self.name}-{self.digest}"

    def planned(self, *, number: int, because: str) -> GridRecord:
        """Return the record of its run."""
        return GridRecord(
            run_id=self.run_id,
            number=number,
            name=self.name,
            values=self.values,
            chosen_because=because,
        )


def grid_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> GridRecord:
    """Read a run back from the content of its two files; ConfigError names the file that is no run
    of a grid."""
    names = ("run_id", "number", "name", "values", "chosen_because")
    try:
        record = GridRecord(**{name: content[name] for name in names})
        for line in events:
            record = record.after(event_of(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source}: no run of a grid ({type(error).__name__}: {error})") from None
    return record


def grid_options(members: Sequence[GridMember]) -> Options:
    """Return options in the order of the grid, of which nothing is believed: all of them are
    run."""
    count = len(members)
    even = Prior(mean=np.zeros(count), shared=np.zeros((count, count)), own=1.0)
    return Options(step=even, fill=even, axes=np.arange(count, dtype=float)[:, None])
