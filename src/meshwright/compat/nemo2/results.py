"""What runs of NeMo 2.0 measured, each joined to its configuration by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.compat.nemo2.configurator import AutoConfigurator, Chosen
from meshwright.cost.flops import model_flops_per_token
from meshwright.platforms.executor import JobStatus
from meshwright.runs.choose import CONFIDENCE, Stop, Tried, choose
from meshwright.runs.counts import RunWork, configs_of, older_than
from meshwright.runs.forecasts import options_of
from meshwright.runs.limits import StudyLimits
from meshwright.runs.outcome import Failure, Measured, RunLogs, outcome_of, read_run_logs
from meshwright.runs.replay import NEAR
from meshwright.runs.store import write_whole
from meshwright.runs.tune import work_of_problem
from meshwright.software.log import LogReading, Report
from meshwright.software.nemo2.log import TIMINGS
from meshwright.values.errors import ConfigError, MissingExtraError
from meshwright.values.text import csv_text
from meshwright.values.units import TERA, counted

__all__ = ["Result", "files_of", "get_results", "read_events", "read_scalars", "timings_of"]

_LOSS = "reduced_train_loss"
"""NeMo's name, in its progress bar and in TensorBoard alike."""
_MOST_BYTES = 2**26
"""Of one record; a longer one is no record."""


def read_events(files: Sequence[Path]) -> tuple[Report, ...]:
    """Return a report for each timed step; MissingExtraError without tensorboardX."""
    found = read_scalars(files)
    times, losses = timings_of(found), found.get(_LOSS, {})
    return tuple(
        Report(step=step + 1, step_s=times[step], loss=losses.get(step)) for step in sorted(times)
    )


def timings_of(scalars: Mapping[str, Mapping[int, float]]) -> Mapping[int, float]:
    """Return the steps' seconds by step, under either of NeMo's names."""
    return next((scalars[name] for name in TIMINGS if name in scalars), {})


def read_scalars(files: Sequence[Path]) -> dict[str, dict[int, float]]:
    """Return values by name and step, the later of two; a torn file gives what came before."""
    if not files:
        return {}
    try:
        from tensorboardX.proto.event_pb2 import Event
    except ImportError:
        raise MissingExtraError("tensorboardX", "tensorboard") from None
    found: dict[str, dict[int, float]] = {}
    for file in files:
        for record in _records(file):
            event = Event()
            event.ParseFromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, {})[int(event.step)] = float(value.simple_value)
    return found


def _records(file: Path) -> Iterator[bytes]:
    """TFRecords: length, its checksum, the record, its checksum."""
    with file.open("rb") as handle:
        while len(head := handle.read(12)) == 12:
            length = int.from_bytes(head[:8], "little")
            record = handle.read(length) if length <= _MOST_BYTES else b""
            if len(record) < length or len(handle.read(4)) < 4:
                return
            yield record


def files_of(name: str, folder: Path) -> list[Path]:
    """Return files whose path holds a configuration's name, and no longer such name."""
    whole = re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?:(?![A-Za-z0-9.])|(?=\.[a-z]))")
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and whole.search(path.relative_to(folder).as_posix())
    ]


_SHARED = (
    *("Model Name", "Model Size", "Seq Length", "TP", "PP", "CP", "EP", "MBS", "VP"),
    *("Num Layers", "Hidden Size", "FFN Hidden Size", "GBS", "Nodes", "GPUs per Node"),
)
RESULT_COLUMNS = (
    *_SHARED,
    *("Time per Step", "Samples per Second", "Model TFLOPS / GPU", "Model TFLOPS Aggregate"),
)
ERROR_COLUMNS = (*_SHARED, "Error Message")
"""NeMo's headings, to the letter; ours follow them."""
OURS = ("Run", "Predicted Time per Step", "Steps Measured")
OURS_FAILED = ("Run", "Class")
TEXTS = (".log", ".out", ".err", ".txt")
EVENTS = "events.out.tfevents"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One configuration and what became of it."""

    chosen: Chosen
    outcome: Measured | Failure


def get_results(
    base_config: Any = None,
    train_config: AutoConfigurator | None = None,
    path_to_save: str | Path | None = None,
    output_top_n: int = 10,
    log_file_prefix: str = "log-",
    *,
    tolerance: float = NEAR,
    confidence: float = CONFIDENCE,
) -> tuple[Result, ...]:
    """Write `final_summary_<n>nodes.csv` and `failed_jobs_<n>nodes.csv` of the runs below
    `path_to_save`, and print the fastest.

    `base_config` is NeMo's argument, which nothing here needs. A run is known by its
    configuration's name, as a folder or in a file's name; its logs are the files that begin with
    `log_file_prefix`, other texts beside them, and TensorBoard's events. A run without logs, out of
    memory, or that does not count as measured (cut short, too few steps, too fast for the chips, a
    log older than its configuration) is a row of the second file. Returns all, the fastest first,
    those that failed last.

    The last line is ours: how many of the configurations were measured, how sure it is that no
    other is faster than the best by more than `tolerance`, and where that is below `confidence`,
    which one is worth the next run.
    """
    StudyLimits(tolerance=tolerance, confidence=confidence)
    if train_config is None or path_to_save is None:
        raise ConfigError(
            f"{'train_config' if train_config is None else 'path_to_save'}: missing;"
            " get_results(base_cfg, runner, path)"
        )
    folder = Path(path_to_save)
    if not folder.is_dir():
        raise ConfigError(f"path_to_save={folder}: no such folder")
    del base_config
    found = sorted(
        (_result(train_config, chosen, folder, log_file_prefix) for chosen in train_config.chosen),
        key=_rank,
    )
    nodes = train_config.given.num_nodes
    rows, failed = [], []
    for one in found:
        if isinstance(one.outcome, Measured):
            rows.append(_row(train_config, one, one.outcome))
        else:
            lost = one.outcome
            ours = (lost.message, one.chosen.name, lost.failure_class)
            failed.append([*_shared(train_config, one), *ours])
    summary = csv_text((*RESULT_COLUMNS, *OURS), rows)
    write_whole(folder / f"final_summary_{nodes}nodes.csv", summary)
    errors = csv_text((*ERROR_COLUMNS, *OURS_FAILED), failed)
    write_whole(folder / f"failed_jobs_{nodes}nodes.csv", errors)
    flops = _step_flops(train_config) / train_config.given.num_gpus
    said = _said(found, output_top_n, flops=flops)
    told = _how_sure(found, tolerance=tolerance, confidence=confidence)
    print("\n".join((*said, told)))
    return tuple(found)


def _how_sure(found: Sequence[Result], *, tolerance: float, confidence: float) -> str:
    """How many were measured, and whether another is worth a run, as `tune` believes it."""
    members = [one.chosen.candidate for one in found]
    runs = {at: _tried(one) for at, one in enumerate(found) if _ran(one.outcome)}
    measured = sum(isinstance(one.outcome, Measured) for one in found)
    head = f"Measured {measured} of {counted(len(found), 'configuration')}"
    forecasts = [member.forecast for member in members]
    options = options_of(forecasts)
    chosen = choose(options, runs, tolerance=tolerance, confidence=confidence, repeats=False)
    sure = f"with {chosen.confidence:.0%} no other is faster than the best by more than"
    words = f"{sure} {tolerance:.1%}" if measured else "nothing is known of the others"
    if isinstance(chosen, Stop):
        return f"{head}; {words}."
    return f"{head}; {words}. The next worth a run: {found[chosen.index].chosen.name}."


def _ran(outcome: Measured | Failure) -> bool:
    return isinstance(outcome, Measured) or outcome.failure_class != "never_started"


def _tried(one: Result) -> Tried:
    record = replace(one.chosen.candidate.planned(number=1, because=""), outcome=one.outcome)
    return Tried(step_s=record.cost_s, noise=record.noise, ran_out=record.ran_out)


def _rank(result: Result) -> tuple[int, float]:
    if isinstance(result.outcome, Measured):
        return 0, result.outcome.step_s
    return 1, result.chosen.candidate.predicted.step_s


def _result(runner: AutoConfigurator, chosen: Chosen, folder: Path, prefix: str) -> Result:
    files = files_of(chosen.name, folder)
    texts = [file for file in files if file.name.startswith(prefix) or file.suffix in TEXTS]
    events = [file for file in files if file.name.startswith(EVENTS)]
    if not texts and not events:
        why = f"no log below {folder} has its name"
        lost = Failure(failure_class="never_started", message=why, step=None)
        return Result(chosen=chosen, outcome=lost)
    logs = read_run_logs(sorted(texts))
    stale = older_than([*texts, *events], configs_of(files))
    if logs.reading is None and events:
        reading = LogReading(framework="nemo-2", reports=read_events(events))
        logs = RunLogs(reading=reading, evidence=logs.evidence)
    logs = replace(logs, stale=stale)
    done = logs.reading is not None and (logs.reading.last_step or 0) >= runner.max_steps_per_run
    state = JobStatus(state="failed" if logs.evidence and not done else "succeeded")
    outcome = outcome_of(state, logs=logs, work=_work(runner))
    assert outcome is not None, "a run that ended is measured or failed"
    return Result(chosen=chosen, outcome=outcome)


def _work(runner: AutoConfigurator) -> RunWork:
    """What each run of a search was to do."""
    return work_of_problem(runner.problem, steps=runner.max_steps_per_run)


def _step_flops(runner: AutoConfigurator) -> float:
    """Model FLOPs of one step on all GPUs."""
    work = runner.given.work
    assert work.gbs is not None
    return model_flops_per_token(runner.model, work) * work.gbs * work.seq_len


def _shared(runner: AutoConfigurator, result: Result) -> list[Any]:
    at, model, given = result.chosen.layout, runner.model, runner.given
    vpp = at.vpp if at.vpp > 1 else None
    return [
        *(runner.model_type, runner.model_size_in_b, given.work.seq_len),
        *(at.tp, at.pp, at.cp, at.ep, at.mbs, vpp),
        *(model.num_layers, model.hidden, model.ffn, at.gbs, given.num_nodes, given.devices),
    ]


def _row(runner: AutoConfigurator, result: Result, measured: Measured) -> list[Any]:
    tflops = _step_flops(runner) / measured.step_s / TERA
    each = tflops / runner.given.num_gpus
    theirs = [round(measured.step_s, 4), round(measured.samples_per_s, 2)]
    theirs += [round(each, 2), round(tflops, 2)]
    predicted = round(result.chosen.candidate.predicted.step_s, 4)
    return [*_shared(runner, result), *theirs, result.chosen.name, predicted, measured.steps]


def _said(found: Sequence[Result], top: int, *, flops: float) -> Iterable[str]:
    outcomes = [(result.chosen.name, result.outcome) for result in found]
    done = [(name, one) for name, one in outcomes if isinstance(one, Measured)]
    if not done:
        yield f"No run finished; {len(found)} are in the list of failures."
        return
    yield f"Top {min(top, len(done))} configs sorted from fastest to slowest:"
    for place, (_, measured) in enumerate(done[:top], start=1):
        yield (
            f"Config #{place}: {flops / measured.step_s / TERA:.2f} TFLOPS per GPU with"
            f" {measured.step_s:.4f}s per global step."
        )
    name, best = done[0]
    yield f"Optimal config: {name} with {best.step_s:.4f}s per global step."
