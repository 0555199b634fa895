"""Scores of predictions against the published measured runs; outside the wheel."""

from __future__ import annotations
