"""What follows from the runs of a study: tables, `best.yaml`, and the configuration of the best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from meshwright.cost.flops import model_flops_per_token
from meshwright.runs.loop import View
from meshwright.runs.outcome import Failure, Measured
from meshwright.runs.record import RunRecord, StudyFacts
from meshwright.runs.store import Store, write_whole
from meshwright.runs.trial import Trial, exported_of
from meshwright.search.problem import Problem
from meshwright.search.result import layout_dict
from meshwright.software.contract import ExportedFile
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import csv_text, write_yaml
from meshwright.values.units import GIB, HOUR_S, TERA, format_seconds
from meshwright.values.workload import Workload

__all__ = [
    "FAILED_COLUMNS",
    "RESULT_COLUMNS",
    "Cell",
    "Columns",
    "StudyTables",
    "by_speed",
    "table",
    "write_best",
    "write_results",
    "write_tables",
]

Cell = str | int | float | None


Row = TypeVar("Row")
Columns = Mapping[str, Callable[[Row], Cell]]
"""What stands in a table of rows, by its headings."""


def table(columns: Columns[Row], rows: Iterable[Row], *, cell: Callable[[Cell], Cell]) -> str:
    """Return a table of runs of any study; `cell` writes each value."""
    return csv_text(
        tuple(columns), [[cell(read(row)) for read in columns.values()] for row in rows]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One run with what its columns need."""

    record: RunRecord
    facts: StudyFacts
    model: ModelSpec

    @property
    def measured(self) -> Measured:
        """Of a run that was measured."""
        assert self.record.measured is not None
        return self.record.measured

    @property
    def failure(self) -> Failure:
        """Of a run that failed."""
        assert self.record.failure is not None
        return self.record.failure

    @property
    def gpus_per_node(self) -> int:
        return min(self.facts.chips_per_node, self.facts.num_chips)

    @property
    def act_ckpt_layers(self) -> int | None:
        """Megatron's recompute-num-layers: of each chunk (block), or at once (uniform)."""
        layout = self.record.layout
        if layout.recompute != "full":
            return None
        return 1 if layout.recompute_layers is None else layout.recompute_layers

    @property
    def config_name(self) -> str:
        """As NeMo writes it: it does not tell layouts apart that differ in what NeMo does not
        search; `run_id` does."""
        at, act = self.record.layout, self.act_ckpt_layers
        return f"tp{at.tp}_pp{at.pp}_cp{at.cp}_ep{at.ep}_mbs{at.mbs}_act_{act}_num_mbs_act_None_act_per_pipe_None"  # noqa: E501

    @property
    def flops_per_s_per_gpu(self) -> float:
        """Model FLOP, full attention, recompute not counted."""
        per_token = float(model_flops_per_token(self.model, Workload(seq_len=self.facts.seq_len)))
        return per_token * self.measured.tokens_per_s / self.facts.num_chips

    @property
    def usd_per_million_tokens(self) -> float | None:
        price = self.facts.usd_per_chip_hour
        if price is None:
            return None
        return 1e6 * price * self.facts.num_chips / HOUR_S / self.measured.tokens_per_s

    @property
    def predicted_off(self) -> float:
        """Predicted over measured step time, less 1: -0.05 is 5 % too fast."""
        return self.record.predicted.step_s / self.measured.step_s - 1


_SETTINGS: Columns[_Run] = {
    "Model Name": lambda run: run.facts.model,
    "Model Size": lambda run: round(run.facts.params / 1e9, 3),
    "Seq Length": lambda run: run.facts.seq_len,
    "TP": lambda run: run.record.layout.tp,
    "PP": lambda run: run.record.layout.pp,
    "CP": lambda run: run.record.layout.cp,
    "EP": lambda run: run.record.layout.ep,
    "MBS": lambda run: run.record.layout.mbs,
    "VP": lambda run: run.record.layout.vpp,
    "Act Ckpt Layers": lambda run: run.act_ckpt_layers,
    "Act Ckpt Micro Bathes": lambda run: None,
    "Act Ckpt Layers per Pipeline": lambda run: None,
    "Num Layers": lambda run: run.model.num_layers,
    "Hidden Size": lambda run: run.model.hidden,
    "FFN Hidden Size": lambda run: run.model.ffn,
    "GBS": lambda run: run.record.layout.gbs,
    "Nodes": lambda run: math.ceil(run.facts.num_chips / run.gpus_per_node),
    "GPUs per Node": lambda run: run.gpus_per_node,
}
_OURS: Columns[_Run] = {
    "run_id": lambda run: run.record.run_id,
    "number": lambda run: run.record.number,
    "layout": lambda run: run.record.layout.words(),
    "predicted_step_s": lambda run: run.record.predicted.step_s,
    "predicted_step_low_s": lambda run: run.record.predicted.step_interval_s[0],
    "predicted_step_high_s": lambda run: run.record.predicted.step_interval_s[1],
    "predicted_peak_gib": lambda run: run.record.predicted.peak_bytes / GIB,
    "predicted_fits": lambda run: run.record.predicted.fits,
}
_RESULT: Columns[_Run] = {
    **_SETTINGS,
    "Time per Step": lambda run: run.measured.step_s,
    "Samples per Second": lambda run: run.measured.samples_per_s,
    "Model TFLOPS / GPU": lambda run: run.flops_per_s_per_gpu / TERA,
    "Model TFLOPS Aggregate": lambda run: run.flops_per_s_per_gpu * run.facts.num_chips / TERA,
    "Config Name": lambda run: run.config_name,
    **_OURS,
    "step_low_s": lambda run: run.measured.step_low_s,
    "step_high_s": lambda run: run.measured.step_high_s,
    "steps": lambda run: run.measured.steps,
    "tokens_per_s_per_gpu": lambda run: run.measured.tokens_per_s / run.facts.num_chips,
    "mfu": lambda run: run.flops_per_s_per_gpu / run.facts.peak_flops_per_s,
    "predicted_off": lambda run: run.predicted_off,
    "peak_allocated_gib": lambda run: _gib(run.measured.peak_allocated_bytes),
    "peak_reserved_gib": lambda run: _gib(run.measured.peak_reserved_bytes),
    "final_loss": lambda run: run.measured.final_loss,
    "usd_per_million_tokens": lambda run: run.usd_per_million_tokens,
}
_FAILED: Columns[_Run] = {
    **_SETTINGS,
    "Error Message": lambda run: run.failure.message,
    **_OURS,
    "failure_class": lambda run: run.failure.failure_class,
    "step": lambda run: run.failure.step,
    "evidence": lambda run: run.failure.evidence,
}
RESULT_COLUMNS = tuple(_RESULT)
"""Headings of `results.csv`."""
FAILED_COLUMNS = tuple(_FAILED)
"""Headings of `failed.csv`."""


def _gib(count: float | None) -> float | None:
    return None if count is None else count / GIB


def by_speed(records: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
    """Return the runs that were measured, most tokens a second first, then as chosen."""
    found = [(one.measured.tokens_per_s, one) for one in records if one.measured is not None]
    return tuple(one for _, one in sorted(found, key=lambda pair: (-pair[0], pair[1].number)))


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyTables:
    """A study's runs with what they share; its texts are made anew from the runs at any time."""

    facts: StudyFacts
    model: ModelSpec
    records: tuple[RunRecord, ...]

    def results_csv(self) -> str:
        """All runs that were measured, fastest first; the heading alone where there is none."""
        return table(_RESULT, self._finished(), cell=_cell)

    def failed_csv(self) -> str:
        """All runs that failed, in the order of their choice; else the heading alone."""
        return table(_FAILED, self._failed(), cell=_cell)

    def row(self, record: RunRecord) -> dict[str, Cell]:
        """One run's row of either table; before its end what was settled and predicted."""
        columns: Columns[_Run] = {**_SETTINGS, **_OURS}
        if record.outcome is not None:
            columns = _RESULT if record.measured is not None else _FAILED
        run = self._run(record)
        return {name: cell(run) for name, cell in columns.items()}

    def top_log(self, *, top: int = 10) -> str:
        """The fastest runs beside their predictions, failures by class, and how far off we were."""
        finished, failed = self._finished(), self._failed()
        lines = [
            f"{self.facts.model} on {self.facts.num_chips} x {self.facts.chip}: {len(finished)}"
            f" measured, {len(failed)} failed"
        ]
        if finished:
            lines += ["", f"Top {min(top, len(finished))} configs sorted from fastest to slowest:"]
            lines += [_line(place, run) for place, run in enumerate(finished[:top], start=1)]
            lines += ["", _how_far_off(finished)]
        else:
            lines += ["", "No run was measured."]
        classes = Counter(run.failure.failure_class for run in failed)
        if classes:
            lines += [
                "",
                "Failed: " + ", ".join(f"{count} {name}" for name, count in classes.most_common()),
            ]
            lines += [_failed_line(run) for run in failed]
        return "\n".join(lines) + "\n"

    def _run(self, record: RunRecord) -> _Run:
        return _Run(record=record, facts=self.facts, model=self.model)

    def _finished(self) -> list[_Run]:
        return [self._run(record) for record in by_speed(self.records)]

    def _failed(self) -> list[_Run]:
        chosen = sorted(self.records, key=lambda record: record.number)
        return [self._run(record) for record in chosen if record.failure is not None]


def _line(place: int, run: _Run) -> str:
    record, step_s = run.record, run.measured.step_s
    low, high = record.predicted.step_interval_s
    inside = "inside" if low <= step_s <= high else "outside"
    reached = (
        f"{run.flops_per_s_per_gpu / TERA:.4g} TFLOPS/GPU, MFU"
        f" {100 * run.flops_per_s_per_gpu / run.facts.peak_flops_per_s:.1f} %"
    )
    predicted = (
        f"predicted {record.predicted.step_s:.4f}s ({100 * run.predicted_off:+.1f} %, {inside}"
        f" {low:.4g} to {high:.4g} s)"
    )
    return (
        f"Config #{place}: {record.layout.words()} with {step_s:.4f}s per global step, {reached};"
        f" {predicted} [{record.run_id}]"
    )


def _failed_line(run: _Run) -> str:
    evidence = f": {run.failure.evidence}" if run.failure.evidence else ""
    return f"  {run.record.run_id}: {run.failure.failure_class}, {run.failure.message}{evidence}"


def _how_far_off(finished: Sequence[_Run]) -> str:
    off = [abs(run.predicted_off) for run in finished]
    fastest = format_seconds(finished[0].measured.step_s)
    return (
        f"Predicted against measured: median {100 * median(off):.1f} %, worst"
        f" {100 * max(off):.1f} %; the fastest takes {fastest}."
    )


def _cell(value: Cell) -> str:
    """Floats in six digits; what is missing is blank."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_results(
    store: Store, facts: StudyFacts, view: View, *, problem: Problem, trial: Trial
) -> None:
    """Write everything that is derived from the runs; each file appears whole, at any time."""
    tables = StudyTables(facts=facts, model=problem.setting.model, records=view.records)
    results, failed, best = tables.results_csv(), tables.failed_csv(), view.best
    write_tables(
        store.folder, {"results.csv": results, "failed.csv": failed, "top.log": tables.top_log()}
    )
    if best is not None:
        write_best(
            store.folder,
            _best(store, facts, best),
            files=lambda: exported_of(trial, problem, best.layout).files,
        )


def write_tables(folder: Path, texts: Mapping[str, str]) -> None:
    """Write what is derived from the runs of a study, by the names of the files."""
    for name, text in texts.items():
        write_whole(folder / name, text)


def write_best(
    folder: Path, content: dict[str, Any], *, files: Callable[[], Iterable[ExportedFile]]
) -> None:
    """Write what the best run of a study was, and the files that ran in `best/`."""
    write_whole(folder / "best.yaml", write_yaml(content))
    try:
        (folder / "best").mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder / 'best'}: {error.strerror or error}") from None
    for file in files():
        write_whole(folder / "best" / file.name, file.text)


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
