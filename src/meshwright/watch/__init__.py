"""Runs that go on for days: whether to start one again that ended."""
