"""What one short run says of settings that nobody told: `meshwright anchor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.api import measured
from meshwright.cli.flags import FORCE, HF, model_words
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json
from meshwright.report.sizing_text import calibration_lines
from meshwright.runs.measured.anchor import Anchored
from meshwright.runs.measured.fit import FitReport
from meshwright.search.request import PlanRequest
from meshwright.values.units import format_seconds

__all__ = ["anchor"]


@command
def anchor(
    log: Path = argument(REQUIRED, "The log of one run, or the run's folder.", metavar="LOG|RUN"),
    output: Path | None = option(
        None, "Where the calibration goes, for plan --anchor.", "--output", "-o", metavar="FILE"
    ),
    infer: str | None = option(
        None,
        "Settings to infer: micro-batch, recompute, dispatcher, graphs, overlap, network [default:"
        " all that neither log nor flags tell].",
        metavar="LIST",
    ),
    model: Given = fields_of(
        PlanRequest,
        "model",
        model={
            "help": "Where the log doesn't say it: a name, or dims layers=32,hidden=4096,...",
            "is_argument": False,
        },
    ),
    hf: Path | None = HF,
    case: Given = fields_of(
        PlanRequest,
        *("cluster", "gpus_per_node", "stack", "seq_len", "gbs", "precision"),
        cluster="Chips of the run, such as h100:16, or h100.",
        stack="Training software of the run [default: what the log says].",
        seq_len="Tokens in one sequence, where the log doesn't say.",
        gbs="Global batch in sequences, where the log doesn't say.",
        precision="Number format of the matrix products.",
    ),
    layout: str | None = option(
        None, "The layout as far as it is known: tp=8,pp=4.", metavar="KEY=V[,...]"
    ),
    force: bool = FORCE,
    json_output: JsonFlag = False,
) -> None:
    """Infer from one short run of your own software what nobody told, and anchor later plans to it.

    Each value of a setting is a hypothesis: the run is predicted under every combination, and the
    measured step, and the peak of memory where the log has it, weigh them by how far predictions
    usually lie. A value is found at 60 % or more; below, it cannot be told, and stays as it was
    described. Values that predict alike share their weight, so that no guess passes for a finding.

    Prints each setting with its values and their probabilities, the step's prediction before and
    after, and what `calibrate` makes of the run. FILE holds that calibration with the dispatcher,
    graphs, overlap and network rate that were found; `plan --anchor FILE` takes it, on any number
    of the same chips. The log is read as `calibrate` reads it, and must count as measured.

    Examples:

      meshwright anchor train.log --cluster h100:16 -o anchor.yaml

      meshwright anchor nemo.log --model llama3-8b --cluster h100:8 --seq 8192 --gbs 128 --layout tp=2 --stack megatron

      meshwright anchor train.log --cluster h100:16 --infer recompute,network --json
    """  # noqa: E501
    if model or hf is not None:
        case["model"] = model_words(model.get("model"), hf)
    asked = None if infer is None else [word.strip() for word in infer.split(",")]
    found, report = measured.anchor(
        log, infer=asked, output=output, force=force, layout=layout, **case
    )
    if json_output:
        print_json(_record(found, report, output))
        return
    for line in _lines(found):
        print(line)
    for line in calibration_lines(report.calibration, report.runs):
        print(line)
    if output is not None:
        print(f"\n{output}: for --anchor of plan and all that plans")


def _record(found: Anchored, report: FitReport, output: Path | None) -> dict[str, Any]:
    return {
        "output": None if output is None else str(output),
        "run": found.run.words(),
        "settings": {
            one.setting: {"found": one.found, "shares": dict(one.shares)} for one in found.inferred
        },
        "step_s": {
            "measured": found.run.step_s,
            "before": found.before.step_s,
            "after": found.after.step_s,
        },
        "interval": {
            "before": list(found.before.intervals.step_s),
            "after": list(found.after.intervals.step_s),
        },
        "calibration": asdict(report.calibration),
    }


def _lines(found: Anchored) -> list[str]:
    lines = [found.run.words(), ""]
    for one in found.inferred:
        values = sorted(one.shares, key=lambda value: -one.shares[value])
        shares = ", ".join(f"{value} {100 * one.shares[value]:.0f} %" for value in values)
        said = "cannot be told" if one.found is None else one.found
        lines.append(f"{one.setting:<12} {said:<15} {shares}")
    if not found.inferred:
        lines.append(
            "nothing was left to infer: log and flags tell every setting that plays a part"
        )
    for words, answer in (("as described", found.before), ("as found", found.after)):
        low, high = answer.intervals.step_s
        lines.append(
            f"step {words}: predicted {format_seconds(answer.step_s)}"
            f" ({format_seconds(low)} to {format_seconds(high)})"
        )
    return [*lines, ""]
