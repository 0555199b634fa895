"""Trust: how wrong predictions have been, intervals, calibration."""

from __future__ import annotations
