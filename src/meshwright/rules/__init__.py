"""The rules of validity: what the training software refuses, each with its sentence and the nearest
valid values."""

from __future__ import annotations

from meshwright.rules._rule import Rule, RuleCase, Violation
from meshwright.rules.check import ALL_RULES, broken_rows, check_layout, require_valid
from meshwright.rules.complete import complete_layout, even_split_words, explicit_layers
from meshwright.rules.software import NEWEST_MEGATRON, StackRules, stack_rules

__all__ = [
    "ALL_RULES",
    "NEWEST_MEGATRON",
    "Rule",
    "RuleCase",
    "StackRules",
    "Violation",
    "broken_rows",
    "check_layout",
    "complete_layout",
    "even_split_words",
    "explicit_layers",
    "require_valid",
    "stack_rules",
]
