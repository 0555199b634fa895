"""Files for training software from a frozen plan, and a plan from such files; docs/export.md says
how a target is added."""

from __future__ import annotations

from meshwright.exports.exported import EnvVar, Exported, ExportedFile, TrainedLayers
from meshwright.exports.imported import Imported
from meshwright.exports.plan import TrainingPlan, completed, plan_of
from meshwright.exports.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.exports.target import ExportTarget, ImportSource, export_plan, import_text

__all__ = [
    "Dataset",
    "EnvVar",
    "ExportTarget",
    "Exported",
    "ExportedFile",
    "ImportSource",
    "Imported",
    "ModelDetails",
    "TrainedLayers",
    "TrainingPlan",
    "TrainingSettings",
    "completed",
    "export_plan",
    "import_text",
    "plan_of",
]
