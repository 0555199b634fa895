"""Serve a model: plan its deployment, simulate a load on it, measure a server, and see how right
predictions of published runs are."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    **{"plan": "plan", "tune": "tune", "export": "export", "simulate": "plan"},
    **dict.fromkeys(("measure", "read", "predict", "validate"), "measured"),
}
