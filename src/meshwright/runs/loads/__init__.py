"""Loads on servers that speak OpenAI's protocol: requests are sent, streamed answers are timed, and
other tools' results are read."""

from __future__ import annotations
