"""Storage of NVIDIA Base Command Platform through NGC CLI up to 4.19.1: workspaces, datasets,
results of jobs."""

from __future__ import annotations

from meshwright.basecommand.listing import Chosen, choose
from meshwright.basecommand.storage import Place, Storage, Target, Transfer

__all__ = ["Chosen", "Place", "Storage", "Target", "Transfer", "choose"]
