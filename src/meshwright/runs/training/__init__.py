"""A training from its plan to its last token: what is checked before it, what is sent, and what
follows a job's end."""

from __future__ import annotations
