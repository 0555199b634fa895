"""What a report says of each kind of answer, as values: `parts.answers` picks, `charts` draws."""

from __future__ import annotations
