"""Logs of training software, text in and values out: step times, losses, rates and peaks, whatever
wrote them and however it was caught."""

from __future__ import annotations

from meshwright.logs.lines import whole_lines
from meshwright.logs.read import LogReader, read_chunks, read_log
from meshwright.logs.reading import Evaluation, Framework, LogReading, Report, steady_reports

__all__ = [
    "Evaluation",
    "Framework",
    "LogReader",
    "LogReading",
    "Report",
    "read_chunks",
    "read_log",
    "steady_reports",
    "whole_lines",
]
