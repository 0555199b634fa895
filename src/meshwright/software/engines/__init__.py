"""Inference engines' own words: the command that serves a model as a plan says, checked against the
options of a named version."""

from __future__ import annotations
