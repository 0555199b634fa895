"""A training from plan to last token: what is checked, what is sent, what follows its end."""

from __future__ import annotations
