"""Answers for people: tables and texts for the terminal, CSV, traces, and the page of `meshwright
report`."""
