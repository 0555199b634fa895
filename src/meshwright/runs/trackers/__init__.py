"""Where else runs are shown: Weights & Biases and TensorBoard, each an extra."""

from __future__ import annotations

from meshwright.runs.trackers.tensorboard import TensorBoardTracker
from meshwright.runs.trackers.tracker import Tracker, run_name, track
from meshwright.runs.trackers.tracking import Tracking, tracked
from meshwright.runs.trackers.weights_and_biases import WandbOptions, WandbTracker, read_key

__all__ = [
    "TensorBoardTracker",
    "Tracker",
    "Tracking",
    "WandbOptions",
    "WandbTracker",
    "read_key",
    "run_name",
    "track",
    "tracked",
]
