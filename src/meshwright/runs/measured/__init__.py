"""Tables of runs: rows of the truth schema read, predicted, and used for calibration."""

from __future__ import annotations
