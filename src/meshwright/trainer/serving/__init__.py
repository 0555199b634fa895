"""transformers as a server: continuous batching and tensor parallelism, OpenAI's API."""

from __future__ import annotations
