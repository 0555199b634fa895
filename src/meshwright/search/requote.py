"""Quotes with the pipeline simulated event by event, as a plan's best few are priced, and as the
plain objects that `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from meshwright.cost.flops import model_flops_per_token
from meshwright.search.origins import origins_of, profile_provenance
from meshwright.search.problem import Problem
from meshwright.search.quote import Quote, Setting, StageQuote
from meshwright.search.refine import reprice
from meshwright.trust.calibration import provenance_of
from meshwright.values.units import GIB, TERA

__all__ = ["figures_record", "gib_by_term", "problem_in", "quote_record", "requote", "setting_of"]


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


def quote_record(quote: Quote, setting: Setting) -> dict[str, Any]:
    """Return the price of a layout with the keys of a plan, and what it stands on."""
    [stands_on] = origins_of([quote.layout], setting)
    return {
        **figures_record(quote, setting),
        "shares": stands_on.to_dict(),
        **profile_provenance(stands_on, setting),
        **provenance_of(
            setting.calibration, time_s=quote.time_s, memory_bytes=quote.fullest.memory_bytes
        ),
    }


def figures_record(quote: Quote, setting: Setting) -> dict[str, Any]:
    """Return the figures of a layout alone."""
    layout, chip = quote.layout, setting.pool.node.chip
    tokens_per_s = layout.gbs * setting.work.seq_len / quote.step_s / layout.num_chips
    flops_per_s = tokens_per_s * model_flops_per_token(setting.model, setting.work)
    return {
        "layout": asdict(layout),
        "step_s": quote.step_s,
        "tokens_per_s_per_gpu": tokens_per_s,
        "mfu": flops_per_s / chip.peak_flops_per_s(setting.work.precision),
        "tflops_per_gpu": flops_per_s / TERA,
        "fits": quote.verdict,
        "interval": setting.intervals(quote).to_dict(),
        "peak_memory_gib": [stage.used_bytes / GIB for stage in quote.stages],
        "time": dict(quote.time_s),
        "memory": gib_by_term(quote.fullest),
    }


def gib_by_term(stage: StageQuote) -> dict[str, float]:
    """Return what fills a stage, in GiB."""
    return {term: held / GIB for term, held in stage.memory_bytes.items()}
