"""What this installation and this machine have, and what is missing for which command."""

from __future__ import annotations

from meshwright.health.finding import Finding, Health

__all__ = ["Finding", "Health"]
