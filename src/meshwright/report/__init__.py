"""Answers for people: tables and texts for the terminal, CSV, traces, pages."""
