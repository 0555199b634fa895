"""What one configuration of a fine-tuning grid is as a job: NeMo's own script, or the embedded
trainer in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meshwright.errors import ConfigError
from meshwright.exports import Exported, ExportedFile, Imported, import_text
from meshwright.exports.defaults import complete_settings
from meshwright.exports.jobs import Job, JobOptions
from meshwright.exports.jobs.job import parse_mount
from meshwright.exports.nemo1 import NEMO1_SOURCE
from meshwright.exports.nemo2 import NEMO2_SOURCE
from meshwright.rules import complete_layout
from meshwright.runs.outcome import RunWork
from meshwright.runs.trial import OWN_TRAINER
from meshwright.search.problem import dims_of
from meshwright.stack import find_stack
from meshwright.trainer.checks import require_trainable
from meshwright.trainer.job import TrainJob
from meshwright.training.embedded import held_out, trainer_words
from meshwright.yaml_text import write_yaml

__all__ = ["exported_config", "job_of_config", "work_of_config"]

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
