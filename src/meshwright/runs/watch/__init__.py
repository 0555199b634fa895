"""Runs that go on for days: how they do by their logs, what is wrong with them, and whether one
that ended is started again."""

from __future__ import annotations
