"""`meshwright calibrate`: fit the model to the user's own runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.api import measured
from meshwright.cli.layout_case import model_words
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import print_json, warn
from meshwright.report.sizing_text import calibration_lines
from meshwright.runs.measured.fit import FitReport

__all__ = ["calibrate"]

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
    model: str | None = option(
        None, "Of logs that don't say it: a name, or dims layers=32,hidden=4096,..."
    ),
    hf: Path | None = option(None, "A Hugging Face config.json to take the model from."),
    cluster: str | None = option(
        None, "Of logs: chips, such as h100:16, or h100.", metavar="KIND:COUNT"
    ),
    gpus_per_node: int | None = option(None, "Chips in one server [default: as the chip is sold]."),
    stack: str | None = option(
        None, "Training software of all runs [default: what log or table say]."
    ),
    seq: int | None = option(None, "Of logs: tokens in one sequence.", "--seq", "--seq-len"),
    gbs: int | None = option(None, "Of logs: global batch in sequences."),
    precision: str | None = option(None, "Of logs: number format of the matrix products."),
    layout: str | None = option(
        None, "Of logs: the layout, tp=8,pp=4,mbs=1.", metavar="KEY=V[,...]"
    ),
    profile: Path | None = option(
        None, "What `meshwright profile` wrote; plans then need it too.", metavar="FILE"
    ),
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
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
    report = measured.calibrate(
        results,
        output=output,
        model=model_words(model, hf) if model is not None or hf is not None else None,
        cluster=cluster,
        gpus_per_node=gpus_per_node,
        stack=stack,
        seq_len=seq,
        gbs=gbs,
        precision=precision,
        layout=layout,
        profile=profile,
        warn=warn,
    )
    for run in report.runs:
        if not 1 / FAR_OFF < run.before < FAR_OFF:
            words = f"{run.words}: {run.quantity} predicted x{run.before:.2g} of what was measured"
            warn(
                f"{words}; is the run described as it ran, and does the log tell what"
                " docs/calibrate.md says?"
            )
    if json_output:
        _print_json(report, output)
    else:
        _print(report)


def _print_json(report: FitReport, output: Path) -> None:
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


def _print(report: FitReport) -> None:
    for line in calibration_lines(report.calibration, report.runs):
        print(line)
