"""Studies of serving: deployments that a search predicts, started and put under load, by the same
course as studies of training."""

from __future__ import annotations
