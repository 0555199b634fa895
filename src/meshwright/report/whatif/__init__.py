"""A local page that answers what-if questions: one plan, changed by hand, priced at every
change."""

from __future__ import annotations

from meshwright.report.whatif.answers import WhatIf, read_state

__all__ = ["WhatIf", "read_state"]
