"""The answers of `explain`, `why-oom` and `diff` as plain objects for `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from meshwright.search.provenance import (
    worked,
)
from meshwright.search.quote_record import (
    gib_by_term,
    quote_record,
)
from meshwright.search.result import layout_dict
from meshwright.values.units import GB, GIB, TERA

if TYPE_CHECKING:
    from meshwright.search.diff import Comparison
    from meshwright.search.explain import Explanation, Rival
    from meshwright.search.oom import Ladder, Rung
    from meshwright.search.operators import LayerTable
    from meshwright.search.provenance import Provenance
    from meshwright.search.quote import Setting, StageQuote
    from meshwright.search.request import PlanRequest

__all__ = [
    "comparison_record",
    "explanation_record",
    "ladder_record",
    "rival_record",
]


def explanation_record(found: Explanation, request: PlanRequest) -> dict[str, Any]:
    """Return what `explain --json` prints."""
    chip, precision = found.setting.pool.node.chip, found.setting.work.precision
    return {
        "request": request.to_dict(),
        **quote_record(found.quote, found.setting),
        "limit_gib": found.quote.limit_bytes / GIB,
        "roof": {
            "chip": chip.name,
            "precision": precision,
            "tflops": chip.peak_flops_per_s(precision) / TERA,
            "gb_per_s": chip.memory_bytes_per_s / GB,
        },
        "error": found.setting.intervals(found.quote).error,
        "memory_error": found.setting.intervals(found.quote).memory_error,
        "binding": found.binding,
        "fullest_stage": found.quote.fullest.stage,
        "stages": [_stage_record(stage) for stage in found.quote.stages],
        "terms": [
            {key: getattr(t, key) for key in ("term", "title", "seconds", "share", "what", "bound")}
            for t in found.time
        ],
        "layers": [_layer_record(layer) for layer in found.layers],
        "rivals": [rival_record(rival) for rival in found.rivals],
        "provenance": {
            "time": {term.term: _provenance_record(term.provenance) for term in found.time},
            "memory": {
                term: _provenance_record(basis) for term, basis in found.memory_provenance.items()
            },
        },
    }


def _stage_record(stage: StageQuote) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "layers": stage.num_layers,
        "in_flight": stage.in_flight,
        "used_gib": stage.used_bytes / GIB,
        "memory": gib_by_term(stage),
    }


def _layer_record(layer: LayerTable) -> dict[str, Any]:
    sums = {
        "forward_s": layer.forward_s,
        "backward_s": layer.backward_s,
        "saved_bytes": layer.saved_bytes,
    }
    return {
        "title": layer.title,
        "num_layers": layer.num_layers,
        **sums,
        "operators": [asdict(row) for row in layer.rows],
    }


def rival_record(rival: Rival) -> dict[str, Any]:
    """Return one layout that differs in one axis."""
    record: dict[str, Any] = {
        "axis": rival.axis,
        "change": rival.words,
        "verdict": rival.verdict,
        "reason": rival.reason or None,
    }
    if rival.quote is None or rival.layout is None:
        return record
    return {
        **record,
        "layout": layout_dict(rival.layout),
        "step_s": rival.quote.step_s,
        "peak_memory_gib": rival.quote.peak_bytes / GIB,
        "over_gib": rival.quote.over_bytes / GIB,
        "fits": rival.quote.verdict,
        "differences_s": dict(rival.differences_s),
    }


def _provenance_record(basis: Provenance) -> dict[str, Any]:
    """A term's kind, the functions that made it with their numbers, and what moves it."""
    return {
        "kind": basis.kind,
        "formula": f"meshwright.{basis.formula}",
        "made_by": [asdict(worked(call)) for call in basis.calls],
        "constants": [asdict(constant) for constant in basis.constants],
    }


def ladder_record(found: Ladder, setting: Setting, request: PlanRequest) -> dict[str, Any]:
    """Return what `why-oom --json` prints."""
    fullest = found.quote.fullest
    return {
        "request": request.to_dict(),
        **quote_record(found.quote, setting),
        "limit_gib": found.quote.limit_bytes / GIB,
        "over_gib": found.quote.over_bytes / GIB,
        "fullest_stage": fullest.stage,
        "largest_term": fullest.largest_term,
        "ladder": [_rung_record(rung) for rung in found.rungs],
        "together": None if found.together is None else _rung_record(found.together),
    }


def _rung_record(rung: Rung) -> dict[str, Any]:
    return {
        "fix": rung.words,
        "kinds": [fix.kind for fix in rung.fixes],
        "labels": list(rung.labels),
        "layout": layout_dict(rung.layout),
        "num_gpus": rung.layout.num_chips,
        "step_s": rung.quote.step_s,
        "step_change_frac": rung.step_change_frac,
        "peak_memory_gib": rung.quote.peak_bytes / GIB,
        "saved_gib": rung.saved_bytes / GIB,
        "fits": rung.quote.verdict,
    }


def comparison_record(found: Comparison) -> dict[str, Any]:
    """Return what `diff --json` prints, prices left out."""
    return {
        "differences": [asdict(difference) for difference in found.differences],
        "labels": list(found.labels),
        "notes": list(found.notes),
    }
