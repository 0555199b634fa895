"""The rules of validity: which layouts a training software accepts, and why it refuses the rest."""

from __future__ import annotations
