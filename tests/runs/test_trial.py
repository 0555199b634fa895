"""What one run is."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.runs.trial import OWN_TRAINER, stack_of


@pytest.mark.parametrize(
    ("software", "settings", "stack"),
    [
        (OWN_TRAINER, {}, "embedded"),
        (OWN_TRAINER, {"compile": True}, "embedded-compiled"),
        (OWN_TRAINER, {"compile": "true"}, "embedded-compiled"),
        (OWN_TRAINER, {"compile": False}, "embedded"),
        ("torchtitan", {}, "torchtitan"),
        ("megatron-lm", {}, "megatron"),
    ],
)
def test_runs_are_predicted_for_the_software_that_runs(
    software: str, settings: dict[str, Any], stack: str
) -> None:
    assert stack_of(software, settings) == stack
