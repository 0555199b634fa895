"""A local page of one plan, changed by hand and priced at every change."""

from __future__ import annotations
