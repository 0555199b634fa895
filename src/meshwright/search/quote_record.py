"""The price of a layout as the plain object that `--json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshwright.cost.flops import mfu, model_flops_per_token, tokens_per_s
from meshwright.search.origins import origins_of, profile_provenance
from meshwright.search.quote import Quote, Setting, StageQuote
from meshwright.trust.calibration import provenance_of
from meshwright.values.units import GIB, TERA

__all__ = ["figures_record", "gib_by_term", "quote_record"]


def quote_record(quote: Quote, setting: Setting) -> dict[str, Any]:
    """Return the price of a layout with the keys of a plan, and what it stands on."""
    [stands_on] = origins_of([quote.layout], setting)
    return {
        **figures_record(quote, setting),
        **({"started_by": setting.started_by} if setting.started_by else {}),
        "shares": stands_on.to_dict(),
        **profile_provenance(stands_on, setting),
        **provenance_of(
            setting.calibration, time_s=quote.time_s, memory_bytes=quote.fullest.memory_bytes
        ),
    }


def figures_record(quote: Quote, setting: Setting) -> dict[str, Any]:
    """Return the figures of a layout alone."""
    layout, chip = quote.layout, setting.pool.node.chip
    rate = tokens_per_s(
        gbs=layout.gbs,
        seq_len=setting.work.seq_len,
        step_s=quote.step_s,
        num_chips=layout.num_chips,
    )
    per_token = model_flops_per_token(setting.model, setting.work)
    return {
        "layout": asdict(layout),
        "step_s": quote.step_s,
        "tokens_per_s_per_gpu": rate,
        "mfu": mfu(rate, per_token, chip.peak_flops_per_s(setting.work.precision)),
        "tflops_per_gpu": rate * per_token / TERA,
        "fits": quote.verdict,
        "interval": setting.intervals(quote).to_dict(),
        "peak_memory_gib": [stage.used_bytes / GIB for stage in quote.stages],
        "time": dict(quote.time_s),
        "memory": gib_by_term(quote.fullest),
    }


def gib_by_term(stage: StageQuote) -> dict[str, float]:
    """Return what fills a stage, in GiB."""
    return {term: held / GIB for term, held in stage.memory_bytes.items()}
