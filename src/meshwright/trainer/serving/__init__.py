"""transformers as a server: its continuous batching and its plan for tensor parallelism behind
OpenAI's completions."""

from __future__ import annotations
