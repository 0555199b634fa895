"""Serving: what an iteration of an inference engine costs, and what requests see of it."""
