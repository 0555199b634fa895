"""Quotes with the pipeline simulated event by event, as a plan's best few are priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting
from meshwright.search.refine import reprice

__all__ = ["problem_in", "requote", "setting_of"]


def setting_of(problem: Problem) -> Setting:
    """Return the problem's setting with the headroom and the rules that its request asks for."""
    return replace(
        problem.setting,
        headroom_bytes=problem.headroom_bytes,
        megatron_version=problem.request.megatron_version,
    )


def problem_in(problem: Problem, setting: Setting) -> Problem:
    """Return the same problem in another setting."""
    return replace(problem, setting=setting)


def requote(closed: Sequence[Quote], problem: Problem) -> list[Quote]:
    """Replace the closed form's time by the simulated one; memory is the same."""
    found = reprice(problem, [quote.layout for quote in closed])
    return [
        replace(quote, time_s=repriced.time_s, pipeline=repriced.pipeline)
        for quote, repriced in zip(closed, found, strict=True)
    ]
