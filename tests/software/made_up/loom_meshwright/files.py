"""A loom's one file: JSON with every field of a plan, written and read."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from meshwright.software.contract import (
    Exported,
    ExportedFile,
    ExportTarget,
    Imported,
    ImportSource,
    TrainedLayers,
)
from meshwright.software.looked_at import plain
from meshwright.software.plan import TrainingPlan
from meshwright.values.models.catalogue import find_model
from meshwright.values.workload import Workload

__all__ = ["LOOM", "LOOM_SOURCE"]

_PARTS = ("model", "work", "layout", "settings", "details")


def _fields(values: Any) -> dict[str, Any]:
    """Every field, each looked at."""
    found = {one.name: getattr(values, one.name) for one in fields(plain(values))}
    return {
        name: _fields(value) if is_dataclass(plain(value)) else value
        for name, value in found.items()
    }


def _write(plan: TrainingPlan) -> Exported:
    said = {part: _fields(getattr(plan, part)) for part in _PARTS}
    text = json.dumps({"loom": 1, **said}, default=str)
    file = ExportedFile(name="loom.json", text=text)
    return Exported(target="loom", files=(file,), command=("weave.py", "loom.json"))


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    said = json.loads(exported.files[0].text)
    stages = said["layout"]["pp"]
    return TrainedLayers(chunks=(said["model"]["num_layers"] // stages,) * stages)


def _read(text: str) -> Imported:
    said = json.loads(text)
    layout = {name: said["layout"][name] for name in ("tp", "pp", "mbs", "gbs")}
    return Imported(
        source="loom",
        model=find_model(said["model"]["name"]),
        work=Workload(seq_len=said["work"]["seq_len"], gbs=said["layout"]["gbs"]),
        layout=layout,
        stack="loom",
    )


LOOM = ExportTarget(
    name="loom",
    title="Loom",
    versions="1",
    write=_write,
    trained_layers=_trained_layers,
    stacks=("loom",),
)
LOOM_SOURCE = ImportSource(
    name="loom", title="a loom's JSON", matches=lambda _, text: '"loom": 1' in text, read=_read
)
