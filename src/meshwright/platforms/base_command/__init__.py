"""NVIDIA Base Command Platform: jobs and storage through NGC CLI up to 4.19.1."""

from __future__ import annotations
