"""RESULTS of `calibrate`: studies, tables of runs, logs of runs, benchmarks of links; what each
file is shows in its text."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meshwright.platforms.files import MOST_BYTES, read_input
from meshwright.platforms.given import load_cluster
from meshwright.runs.candidates import forecast_of
from meshwright.runs.counts import (
    configs_of,
    older_than,
    refused_record,
    timed_steps,
    too_fast,
    too_few,
)
from meshwright.runs.measured.anchor import SETTINGS, Setting, assumed_of
from meshwright.runs.measured.cells import read_truth
from meshwright.runs.measured.files import MeasuredRun, Runs, least_step_s_of, runs_of_table
from meshwright.runs.measured.rows import Given, case_of
from meshwright.runs.record import RunRecord
from meshwright.runs.store import Store
from meshwright.search.link_rates import OPERATIONS, CollectiveTable, link_rates
from meshwright.search.problem import Problem
from meshwright.software.described import Described, MemoryFigure
from meshwright.software.folders import log_forms
from meshwright.software.log import LogReading, Report, plain, steady_reports
from meshwright.software.log_reader import read_log
from meshwright.trust.calibration import LinkRates
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import default_node, find_device
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import parse_layout
from meshwright.values.units import MICROSECOND, counted

__all__ = ["LOGS", "Results", "is_study", "read_results", "runs_of_study", "untold_log"]

LOGS = "Megatron-LM, Megatron-Bridge, NeMo, torchtitan, nanotron, DeepSpeed or the embedded trainer"
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP|XPU|NPU) out of memory")
"""As torch reports it."""


class Refused(ConfigError):
    """A log that does not count as measured, though its run is described."""


def run_of_log(text: str, given: Given, *, source: str) -> MeasuredRun | None:
    """Return the run of a log; None where no software is known, ConfigError for gaps, Refused for
    what does not count as measured."""
    text = plain(text)
    reading = read_log(text)
    if reading is None:
        return None
    return _run_of_reading(text, reading, _described(text, reading), given, source=source)


def untold_run(text: str, given: Given, *, source: str) -> tuple[MeasuredRun, tuple[Setting, ...]]:
    """Return the run of a log and the settings that neither the log nor the user tells; ConfigError
    where no software is known, and as `run_of_log`."""
    text = plain(text)
    reading = read_log(text)
    if reading is None:
        raise ConfigError(f"{source}: no log of {LOGS}")
    described = _described(text, reading)
    run = _run_of_reading(text, reading, described, given, source=source)
    if run.step_s is None:
        raise ConfigError(f"{source}: it ran out of memory before a step was timed")
    fields = {**(described.layout or {}), **(parse_layout(given.layout) if given.layout else {})}
    changes = {name for name, _ in described.stack_changes}
    told = {
        "micro-batch": "mbs" in fields,
        "recompute": "recompute" in fields,
        "dispatcher": described.stack is not None,
        "overlap": described.stack is not None,
        "graphs": "launch_hidden" in changes,
    }
    untold = tuple(name for name in SETTINGS if not told.get(name, False))
    return replace(run, case=replace(run.case, assumptions=assumed_of(untold))), untold


def _run_of_reading(
    text: str, reading: LogReading, described: Described, given: Given, *, source: str
) -> MeasuredRun:
    case = case_of(described, given, source=source)
    if _OUT_OF_MEMORY.search(text) and not any(report.has_rate for report in reading.reports):
        return MeasuredRun(case=case, fitted=False)
    seq_len, gbs, chips = case.workload.seq_len, case.layout.gbs, case.machines.num_chips

    def seconds(report: Report) -> float | None:
        return report.seconds(seq_len=seq_len, gbs=gbs, num_chips=chips)

    rated = [report for report in reading.reports if seconds(report)]
    steady = steady_reports(rated)
    times = [found for report in steady if (found := seconds(report)) is not None]
    why = too_few(timed_steps(reading.reports, steady))
    if why is None and not case.machines.mixed:
        why = too_fast(statistics.median(times), least_step_s_of(case))
    if why is not None:
        raise Refused(f"{source}: {why}")
    reserved, allocated = reading.peak_reserved_bytes, reading.peak_allocated_bytes
    peak = reserved if case.memory.kind == "reserved" else allocated
    return MeasuredRun(case=case, step_s=statistics.median(times), peak_bytes=peak, fitted=True)


def _described(text: str, reading: LogReading) -> Described:
    """What the log says of its run; the batch is that of the last report, as it may grow."""
    told = [report.batch for report in reading.reports if report.batch is not None]
    form = log_forms()[reading.framework]
    gbs = int(told[-1]) if told and told[-1] >= 1 and form.counts_samples else None
    if form.describe is not None:
        return form.describe(text, gbs)
    allocated = reading.peak_allocated_bytes is not None
    memory = MemoryFigure(kind="allocated" if allocated else "reserved", rank="max")
    return Described(gbs=gbs, memory=memory)


LARGEST_BYTES = 2**28
"""Of a file; no log of a run that is worth reading whole is larger."""
_FORMS = f"a CSV in the schema of `predict`, a log of {LOGS}, or the output of nccl-tests"
STUDY_LOGS = ("stdout.log", "stderr.log")
"""What a study keeps of each run's output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What was found in some files."""

    runs: tuple[MeasuredRun, ...] = ()
    links: tuple[LinkRates, ...] = ()
    chip: str = ""
    """Of the links' benchmarks."""
    left_out: tuple[str, ...] = ()


def read_results(paths: Sequence[Path], given: Given) -> Results:
    """Read every file; ConfigError where one is of no known form, or its run is not described."""
    parts = [_read(path, given) for path in paths]
    links: dict[str, LinkRates] = {}
    for rates in (rates for part in parts for rates in part.links):
        if rates.level in links:
            raise ConfigError(
                f"two benchmarks of {rates.name} ({links[rates.level].source}; {rates.source}):"
                " give one of each link"
            )
        links[rates.level] = rates
    return Results(
        runs=tuple(run for part in parts for run in part.runs),
        links=tuple(links.values()),
        chip=next((part.chip for part in parts if part.chip), ""),
        left_out=tuple(line for part in parts for line in part.left_out),
    )


def _read(path: Path, given: Given) -> Results:
    if path.is_dir():
        return _study(path, given)
    text = _text(path)
    if looks_like_nccl_tests(text):
        return _links(text, path, given)
    try:
        run = run_of_log(text, given, source=path.name)
    except Refused as error:
        return Results(left_out=(str(error),))
    if run is not None:
        return Results(runs=(run,))
    if path.suffix.lower() != ".csv":
        raise ConfigError(f"{path}: no form that is known; expected {_FORMS}")
    found = runs_of_table(read_truth(path), stack=given.stack)
    return Results(runs=found.runs, left_out=found.left_out)


def untold_log(path: Path, given: Given) -> tuple[MeasuredRun, tuple[Setting, ...]]:
    """Return the run of a log, or of a run's folder, and what nobody tells of it; ConfigError where
    it does not count as measured."""
    if not path.is_dir():
        return untold_run(_text(path), given, source=path.name)
    logs = [path / name for name in STUDY_LOGS if (path / name).is_file()]
    if not logs:
        raise ConfigError(f"{path}: no {' or '.join(STUDY_LOGS)} in it; give a run's folder or log")
    if (why := older_than(logs, configs_of(path.iterdir()))) is not None:
        raise ConfigError(f"{path.name}: {why}")
    return untold_run("\n".join(map(_text, logs)), given, source=path.name)


def _study(path: Path, given: Given) -> Results:
    """The runs of a study: the logs in runs/<id>, each with the id as its name."""
    folders = sorted(folder for folder in path.glob("runs/*") if folder.is_dir())
    if not folders:
        raise ConfigError(
            f"{path}: a directory without runs/<id>/{STUDY_LOGS[0]}, so no study; give a study, or"
            f" files: {_FORMS}"
        )
    runs: list[MeasuredRun] = []
    left_out: list[str] = []
    for folder in folders:
        try:
            runs.append(_run_of_folder(folder, given))
        except ConfigError as error:
            left_out.append(str(error))
    return Results(runs=tuple(runs), left_out=tuple(left_out))


def _run_of_folder(folder: Path, given: Given) -> MeasuredRun:
    text = "\n".join(_text(folder / name) for name in STUDY_LOGS if (folder / name).is_file())
    if (
        why := older_than([folder / name for name in STUDY_LOGS], configs_of(folder.iterdir()))
    ) is not None:
        raise ConfigError(f"{folder.name}: {why}")
    run = run_of_log(text, given, source=folder.name)
    if run is None:
        raise ConfigError(f"{folder.name}: no log of {LOGS} in {' or '.join(STUDY_LOGS)}")
    return run


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ConfigError(
                f"{path}: {path.stat().st_size / 2**20:.0f} MiB; give the part of the log with the"
                " arguments and some iterations"
            )
        return read_input(path, most=4 * MOST_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _links(text: str, path: Path, given: Given) -> Results:
    per_node = given.gpus_per_node
    if given.cluster is None:
        table = read_nccl_tests(text, source=str(path))
        node = default_node(_chip_of(table.device, path), gpus_per_node=per_node)
        pool = Pool(node=node, num_chips=table.ranks)
    else:
        pool = load_cluster(given.cluster, gpus_per_node=per_node).pools[0]
        node = pool.node
        table = read_nccl_tests(
            text, source=str(path), ranks=pool.num_chips, per_node=node.chips_per_node
        )
        device = (table.device or "").lower().replace(" ", "").replace("-", "")
        if table.device is not None and node.chip.name.partition("-")[0] not in device:
            raise ConfigError(f"{path}: ran on {table.device}, --cluster names {node.chip.name}")
    rates = link_rates(table, replace(pool, num_chips=table.ranks))
    return Results(links=(rates,), chip=node.chip.name)


def _chip_of(device: str | None, path: Path) -> str:
    """The catalogue's chip of a device's name, the vendor's with size and form behind it."""
    chip = find_device(device or "")
    if chip is not None:
        return chip.name
    raise ConfigError(
        f"{path}: device {device or 'not named'} is no chip of the catalogue; give --cluster, such"
        " as h100:8"
    )


_NAMED = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\b"
)
_RANK = re.compile(
    r"^#?\s+Rank\s+(\d{1,7})\s.*?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[[^\]]*\] (.+)$", re.MULTILINE
)
_RATE = r"\d{1,9}(?:\.\d{1,6})?"
_ROW = re.compile(
    rf"^\s*(?P<bytes>\d{{1,15}})\s+\d+\s+[a-z]\w*\s+(?:[a-z]+\s+)?(?:-?\d+\s+)?"
    rf"(?P<us>\d{{1,12}}(?:\.\d{{1,6}})?(?:e\+\d{{1,2}})?)\s+(?P<alg>{_RATE})\s+(?P<bus>{_RATE})\s",
    re.MULTILINE,
)
LEAST_SIZES = 3
"""Sizes that two unknowns need with one to spare."""


def looks_like_nccl_tests(text: str) -> bool:
    """Whether a text has a table of nccl-tests."""
    return "algbw" in text and "busbw" in text


def read_nccl_tests(
    text: str, *, source: str, ranks: int | None = None, per_node: int | None = None
) -> CollectiveTable:
    """Read one table; `ranks` and `per_node` stand in where the list of devices was cut off."""
    found = [
        (float(row["bytes"]), float(row["us"]) * MICROSECOND, float(row["alg"]), float(row["bus"]))
        for row in _ROW.finditer(text)
    ]
    rows = [row for row in found if row[0] > 0 and row[1] > 0]
    if len({row[0] for row in rows}) < LEAST_SIZES:
        raise ConfigError(
            f"{source}: {counted(len(rows), 'size')} in the table; {LEAST_SIZES} or more tell"
            " latency and rate apart (-b 8M -e 8G -f 2)"
        )
    devices = {int(rank): (host, device.strip()) for rank, host, device in _RANK.findall(text)}
    count = len(devices) or ranks
    if count is None or count < 2:
        raise ConfigError(
            f"{source}: {count or 'no'} ranks are named; give --cluster with the count that took"
            " part, such as h100:16"
        )
    hosts = len({host for host, _ in devices.values()}) or -(-count // (per_node or count))
    return CollectiveTable(
        operation=_operation(text, rows, count, source=source),
        ranks=count,
        hosts=hosts,
        device=next(iter(devices.values()))[1] if devices else None,
        bytes=tuple(row[0] for row in rows),
        times_s=tuple(row[1] for row in rows),
    )


def _operation(
    text: str, rows: Sequence[tuple[float, float, float, float]], ranks: int, *, source: str
) -> str:
    """The name that the output or the command has, else by the ratio of bus to algorithm rate."""
    named = _NAMED.search(text)
    if named is not None:
        if named[1] not in OPERATIONS:
            raise ConfigError(
                f"{source}: {named[1]}_perf is not read; expected"
                f" {', '.join(f'{name}_perf' for name in OPERATIONS)}"
            )
        return named[1]
    _, _, alg, bus = max(rows)
    if abs(bus / alg / (2 * (ranks - 1) / ranks) - 1) < 0.03:
        return "all_reduce"
    raise ConfigError(
        f"{source}: which collective it is can't be told; keep the line that names the program,"
        " such as all_gather_perf"
    )


def is_study(folder: Path) -> bool:
    """Whether a folder is a study of `meshwright tune`, with at least one run."""
    return next(iter(folder.glob("runs/*/run.json")), None) is not None


def runs_of_study(store: Store, problem: Problem, *, stack: str | None = None) -> Runs:
    """Return the runs that were measured, and as bounds those that ran out of accelerator memory.

    `problem` is the study's own, without profile and calibration; `stack` takes the place of the
    software that it was predicted with. Of every other run a line says why it is left out.
    """
    runs: list[MeasuredRun] = []
    left_out: list[str] = []
    for record in store.records():
        found = _run(record, problem, source=store.folder.name, stack=stack)
        if isinstance(found, MeasuredRun):
            runs.append(found)
        else:
            left_out.append(f"{store.folder.name} {record.run_id}: {found}")
    return Runs(runs=tuple(runs), left_out=tuple(left_out))


def _run(
    record: RunRecord, problem: Problem, *, source: str, stack: str | None
) -> MeasuredRun | str:
    case = replace(forecast_of(problem, record.layout, record.predicted).case, source=source)
    if stack is not None:
        case = replace(case, stack_name=stack)
    if record.failure is not None and record.failure.failure_class == "cuda_oom":
        return MeasuredRun(case=case, fitted=False)
    if record.failure is not None:
        return f"{record.failure.failure_class}, {record.failure.message}"
    measured = record.measured
    if measured is None:
        return "it has not ended"
    if (why := refused_record(asdict(measured), least_step_s_of(case))) is not None:
        return why
    allocated, reserved = measured.peak_allocated_bytes, measured.peak_reserved_bytes
    figure = MemoryFigure(kind="allocated" if allocated is not None else "reserved", rank="max")
    peak = allocated if allocated is not None else reserved
    return MeasuredRun(
        case=replace(case, memory=figure), step_s=measured.step_s, peak_bytes=peak, fitted=True
    )
