"""What follows from the runs of a study: tables, `best.yaml`, and the configuration of the best."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshwright.errors import ConfigError
from meshwright.runs.loop import View
from meshwright.runs.record import RunRecord, StudyFacts
from meshwright.runs.store import Store, write_whole
from meshwright.runs.tables import StudyTables
from meshwright.runs.trial import Trial, exported_of
from meshwright.search.problem import Problem
from meshwright.search.result import layout_dict
from meshwright.yaml_text import write_yaml

__all__ = ["write_results"]


def write_results(
    store: Store, facts: StudyFacts, view: View, *, problem: Problem, trial: Trial
) -> None:
    """Write everything that is derived from the runs; each file appears whole, and can be written
    again at any time."""
    tables = StudyTables(facts=facts, model=problem.setting.model, records=view.records)
    texts = {
        "results.csv": tables.results_csv(),
        "failed.csv": tables.failed_csv(),
        "top.log": tables.top_log(),
    }
    for name, text in texts.items():
        write_whole(store.folder / name, text)
    best = view.best
    if best is not None:
        write_whole(store.folder / "best.yaml", write_yaml(_best(store, facts, best)))
        _export_best(store, best, problem=problem, trial=trial)


def _best(store: Store, facts: StudyFacts, best: RunRecord) -> dict[str, Any]:
    measured = best.measured
    assert measured is not None
    return {
        "run_id": best.run_id,
        "layout_words": best.layout.words(),
        "layout": layout_dict(best.layout),
        "measured": asdict(measured),
        "predicted": {
            "step_s": best.predicted.step_s,
            "step_interval_s": list(best.predicted.step_interval_s),
        },
        "study": asdict(facts),
        "request": store.study.request,
    }


def _export_best(store: Store, best: RunRecord, *, problem: Problem, trial: Trial) -> None:
    """Write the best as the files that were run, in `best/`."""
    folder = store.folder / "best"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}") from None
    exported = exported_of(trial, problem, best.layout)
    for file in exported.files:
        write_whole(folder / file.name, file.text)
