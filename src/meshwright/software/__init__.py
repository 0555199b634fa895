"""Training software and serving engines: one folder each, found by name or by entry point."""

from __future__ import annotations
