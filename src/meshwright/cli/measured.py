"""From and to measured runs: `meshwright predict`, `calibrate` and `profile`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from meshwright.api import measured
from meshwright.cli.flags import FORCE, HF, model_words
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import (
    INTERRUPTED,
    JsonFlag,
    QuietFlag,
    keep_quiet,
    print_json,
    tell,
    warn,
)
from meshwright.report.sizing_text import calibration_lines
from meshwright.runs.measured.files import Counts, counts
from meshwright.runs.measured.fit import FitReport
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.profile import UNSTEADY_FRAC, Effort, Profile
from meshwright.values.hardware.profile_chip import Rates, measured_rates
from meshwright.values.units import GB, MICROSECOND, TERA

__all__ = ["calibrate", "predict", "profile"]


@command
def predict(
    rows: list[Path] = argument(
        REQUIRED, "Tables of training runs, one run per line.", metavar="ROWS.csv..."
    ),
    output: Path = option(
        REQUIRED, "Where the predictions go.", "--output", "-o", metavar="PREDICTIONS.csv"
    ),
    calibration: Path | None = option(None, "What `meshwright calibrate` wrote.", metavar="FILE"),
    profile: Path | None = option(None, "What `meshwright profile` wrote.", metavar="FILE"),
    json_output: bool = option(
        False, "Print the counts as one JSON object for programs.", "--json"
    ),
    force: bool = FORCE,
) -> None:
    """Predict step time, peak memory and fit for every run of a table.

    A row names model, chips, software, layout and batch in the columns of the published-runs
    schema; measured columns are never read and may be absent. Blank dims come from the named model,
    other blanks from the habits of the named software in `runs/measured/frameworks.csv`. A dense
    model known by its number of parameters alone (`params_b`, or `own-7b`) is given a shape of that
    size. The same cost model as in `meshwright plan` prices the row.

    Writes a line per row: source (the file's name without .csv), row_id, step_time_s, peak_mem_gib,
    oom; both ends of the 80 % intervals (step_time_low_s, step_time_high_s, peak_mem_low_gib,
    peak_mem_high_gib); fits (yes, at risk, no); and assumed, what the row does not tell and what
    was taken for it. A row that cannot be answered has blank figures. Prints how many were
    answered, what was assumed of them, and the reasons of the others. Exit code 1 where none was.
    Files that hold no table of training runs are left out with a warning. With --calibration the
    rows of its chip and its stack are predicted with it, with --profile those of its chip, all
    others without.

    Examples:

      meshwright predict runs.csv -o predictions.csv

      meshwright predict tables/*.csv -o predictions.csv

      meshwright predict runs.csv -o predictions.csv --json
    """
    answers = measured.predict(
        rows,
        output=output,
        calibration=calibration,
        profile=profile,
        force=force,
        warn=warn,
        tell=tell,
    )
    found = counts(answers)
    if json_output:
        _print_counts_json(found, output)
    else:
        _print_counts(found)
    if not answers.predictions:
        raise typer.Exit(1)


def _print_counts_json(found: Mapping[str, Counts], output: Path) -> None:
    print_json(
        {"output": str(output), "tables": {name: asdict(count) for name, count in found.items()}}
    )


def _print_counts(found: Mapping[str, Counts]) -> None:
    width = max(len(name) for name in found)
    for name, count in found.items():
        print(f"{name:<{width}}  {count.answered:>6} of {count.rows:>6} rows answered")
        for reason, number in count.assumed.items():
            print(f"{'':<{width}}  {number:>6} of them assumed: {reason}")
        for reason, number in count.unanswered.items():
            print(f"{'':<{width}}  {number:>6} not: {reason}")


FAR_OFF = 2.0
"""A miss beyond which a run is more likely described wrongly than missed by the model: 3 % of
published times and 7 % of published peaks are that far off."""


@command
def calibrate(
    results: list[Path] = argument(
        REQUIRED, "Studies, logs, tables of runs, outputs of nccl-tests.", metavar="RESULTS..."
    ),
    output: Path = option(
        REQUIRED, "Where the calibration goes.", "--output", "-o", metavar="CALIBRATION.yaml"
    ),
    model: Given = fields_of(
        PlanRequest,
        "model",
        model={
            "help": "Of logs that don't say it: a name, or dims layers=32,hidden=4096,...",
            "is_argument": False,
        },
    ),
    hf: Path | None = HF,
    case: Given = fields_of(
        PlanRequest,
        *("cluster", "gpus_per_node", "stack", "seq_len", "gbs", "precision"),
        cluster="Of logs: chips, such as h100:16, or h100.",
        stack="Training software of all runs [default: what log or table say].",
        seq_len="Of logs: tokens in one sequence.",
        gbs="Of logs: global batch in sequences.",
        precision="Of logs: number format of the matrix products.",
    ),
    layout: str | None = option(
        None, "Of logs: the layout, tp=8,pp=4,mbs=1.", metavar="KEY=V[,...]"
    ),
    profile: Path | None = option(
        None, "What `meshwright profile` wrote; plans then need it too.", metavar="FILE"
    ),
    json_output: JsonFlag = False,
    force: bool = FORCE,
) -> None:
    """Fit the few constants that matter to your own runs, from one run upwards.

    A run tells a factor as far as its time or its memory hangs on it: the chip's work, the host,
    each kind of exchange, activations, states. Every factor is pulled towards 1 by as much as
    published runs of one study usually lie about it, so one run anchors what it shows and leaves
    the rest alone. Outputs of nccl-tests give the rate and the latency of the link itself.

    RESULTS are studies of `meshwright tune`; directories of logs (runs/<id>/stdout.log and
    stderr.log); logs of Megatron-LM (its dump of arguments describes the run), torchtitan (its dump
    of the configuration, with debug.print_config) or other software; CSV tables in the schema of
    `predict` with measured columns; outputs of nccl-tests. Flags say what a log does not, and go
    before what it says. Warm-up iterations are left out; the median counts. For a model of other
    layers a calibration counts less.

    Prints each factor with the share of it that is measured, and the error before, after, and with
    each run left out of the fit in turn. The file is for `--calibration` of plan, explain, why-oom,
    diff, predict and validate, on any number of the same chips.

    Examples:

      meshwright calibrate runs.csv -o calibration.yaml

      meshwright calibrate train.log --cluster h100:16 -o calibration.yaml

      meshwright calibrate nemo.log --model llama3-8b --cluster h100:8 --seq 8192 --gbs 128 --layout mbs=1 --stack megatron -o mine.yaml

      meshwright calibrate all_reduce_8.txt all_reduce_64.txt runs.csv -o calibration.yaml --json
    """  # noqa: E501
    if model or hf is not None:
        case["model"] = model_words(model.get("model"), hf)
    report = measured.calibrate(
        results, output=output, layout=layout, profile=profile, force=force, warn=warn, **case
    )
    for run in report.runs:
        if not 1 / FAR_OFF < run.before < FAR_OFF:
            words = f"{run.words}: {run.quantity} predicted x{run.before:.2g} of what was measured"
            warn(
                f"{words}; is the run described as it ran, and does the log tell what"
                " docs/calibrate.md says?"
            )
    if json_output:
        _print_fit_json(report, output)
    else:
        _print_fit(report)


def _print_fit_json(report: FitReport, output: Path) -> None:
    calibration: dict[str, Any] = asdict(report.calibration)
    for fields, factor in zip(calibration["factors"], report.calibration.factors, strict=True):
        fields["measured_frac"] = factor.measured_frac
    print_json(
        {
            "output": str(output),
            "calibration": calibration,
            "runs": [asdict(run) for run in report.runs],
        }
    )


def _print_fit(report: FitReport) -> None:
    for line in calibration_lines(report.calibration, report.runs):
        print(line)


@command
def profile(
    output: Path = option(
        REQUIRED, "Where the profile goes: a .npz or a .json.", "--output", "-o", metavar="FILE"
    ),
    device: str | None = option(
        None, "cuda or cpu [default: a GPU where torch sees one].", metavar="NAME"
    ),
    dtype: str | None = option(
        None,
        "Of fp32, tf32, bf16, fp16, fp8 [default: bf16, fp8 on a GPU, fp32 on the CPU].",
        metavar="LIST",
    ),
    quick: bool = option(False, "A small grid: under a minute on two cores."),
    full: bool = option(False, "A fine grid, and more repeats."),
    model: str | None = option(None, "Measure this model's own shapes too.", metavar="NAME"),
    overwrite: bool = option(False, "Measure all again where FILE exists."),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Measure the operators of training on this machine, for plans that rest on it.

    Matrix products forward and backward, attention, experts, norms, activations, rotary,
    cross-entropy, embedding, optimizer, copies and launches are timed over a grid of shapes: caches
    cold where a step finds them cold, repeats until the median stands, shapes that do not fit left
    out. Under torchrun collectives are timed too. Time is what a layer's parts add up from; the
    rest is overlap.

    Prints a line per series on stderr, then the best rates. FILE has every shape with its time,
    spread and repeats, and machine, driver and versions. Ctrl-C keeps what was measured; the same
    command again measures the rest. Needs torch: pip install 'meshwright[train]'.

    Examples:

      meshwright profile -o here.npz

      meshwright profile --device cpu --quick -o cpu.json

      meshwright profile --dtype bf16,fp8 --full --model llama3-8b -o h100.npz
    """
    found = measured.profile(
        output=output,
        device=device,
        dtype=dtype,
        effort=_effort(quick=quick, full=full),
        model=model,
        overwrite=overwrite,
        tell=keep_quiet if quiet else _tell,
    )
    if not _is_first_rank():
        return
    _show(found, output, json_output=json_output)
    if not found.complete:
        raise typer.Exit(INTERRUPTED)


def _effort(*, quick: bool, full: bool) -> Effort:
    if quick and full:
        raise ConfigError("--quick and --full: give one of them")
    return "quick" if quick else "full" if full else "standard"


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _tell(line: str) -> None:
    if _is_first_rank():
        print(line, file=sys.stderr, flush=True)


def _show(found: Profile, output: Path, *, json_output: bool) -> None:
    rates = measured_rates(found)
    if json_output:
        record = {
            "file": str(output),
            "complete": found.complete,
            "effort": found.effort,
            "machine": asdict(found.machine),
        }
        counts = {
            series.name: {"shapes": len(series.samples), "measured": len(series.measured)}
            for series in found.series
        }
        print_json(
            {
                **record,
                "rates": asdict(rates),
                "series": counts,
                "skipped": dict(found.skipped),
                "unsteady": found.num_unsteady,
            }
        )
        return
    machine = found.machine
    print(
        f"{machine.device_name}, torch {machine.torch_version}, {found.num_measured} shapes in"
        f" {len(found.series)} series"
    )
    for words, value in _lines(rates):
        print(f"  {words:<36} {value}")
    for name, reason in found.skipped.items():
        print(f"  not measured: {name} ({reason})")
    if found.num_unsteady:
        print(
            f"  unsteady: {found.num_unsteady} shapes with a spread of more than"
            f" {UNSTEADY_FRAC:.0%} of their time"
        )
    state = "complete" if found.complete else "partial: the same command again measures the rest"
    print(f"{output}: {state}")


def _lines(rates: Rates) -> list[tuple[str, str]]:
    """Words and figures in the units of people."""
    tables: tuple[tuple[str, Mapping[str, float]], ...] = (
        ("matrix products", rates.matmul_flops_per_s),
        ("attention forward, causal", rates.attention_forward_flops_per_s),
        ("attention backward, causal", rates.attention_backward_flops_per_s),
    )
    lines = [
        (f"{words}, {name}", _flops(rate)) for words, by in tables for name, rate in by.items()
    ]
    lines += [
        (f"of it sustained, {name}", f"{share:.0%}")
        for name, share in rates.sustained_share.items()
    ]
    singles: tuple[tuple[str, float | None, float, str], ...] = (
        ("memory, read and written", rates.memory_bytes_per_s, GB, "GB/s"),
        ("host, per operation", rates.launch_s, MICROSECOND, "us"),
        ("device, per empty kernel", rates.ramp_s, MICROSECOND, "us"),
    )
    return lines + [
        (words, f"{value / unit:.3g} {name}")
        for words, value, unit, name in singles
        if value is not None
    ]


def _flops(rate: Any) -> str:
    return f"{rate / TERA:.3g} TFLOPS" if rate >= TERA else f"{rate / 1e9:.3g} GFLOPS"
