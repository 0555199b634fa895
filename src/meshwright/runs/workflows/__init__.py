"""Work flows: every job from a corpus to a trained model, from one description."""

from __future__ import annotations

from meshwright.runs.workflows.render import RenderedJob, Workflow, workflow
from meshwright.runs.workflows.spec import WorkflowSpec, named_specs, plain_spec, read_spec

__all__ = [
    "RenderedJob",
    "Workflow",
    "WorkflowSpec",
    "named_specs",
    "plain_spec",
    "read_spec",
    "workflow",
]
