"""`meshwright size`: the largest model that trains in a given time."""

from __future__ import annotations

import json

import typer

from meshwright.cli.job_flags import (
    EvalIntervalFlag,
    EvalStepsFlag,
    MtbfFlag,
    RestartFlag,
    SaveFlag,
    WriteFlag,
)
from meshwright.cli.layout_case import (
    CalibrationFlag,
    ClusterFlag,
    GbsFlag,
    GpusPerNodeFlag,
    JsonFlag,
    PrecisionFlag,
    ProfileFlag,
    StackFlag,
)
from meshwright.cli.options import REQUIRED, command, option

__all__ = ["size"]


@command
def size(
    cluster: ClusterFlag,
    days: float = option(REQUIRED, "Longest that the training may take."),
    tokens: str | None = option(
        None, "To train on: 300B, 15T [default: 20 a parameter, compute-optimal]."
    ),
    series: str | None = option(
        None, "Whose shapes: gpt3, llama3, t5, mixtral, qwen3-moe ... [default: gpt3]."
    ),
    tflops: float | None = option(
        None, "Of one chip, for the closed form [default: 45 % of its bf16 peak]."
    ),
    seq: int | None = option(None, "Tokens in one sequence [default: 2048]."),
    gbs: GbsFlag = None,
    vocab: int | None = option(None, "Entries of the vocabulary [default: the series']."),
    eval_interval: EvalIntervalFlag = None,
    eval_steps: EvalStepsFlag = None,
    chip_mtbf_hours: MtbfFlag = None,
    restart: RestartFlag = None,
    save_every: SaveFlag = None,
    write_gb_per_s: WriteFlag = None,
    gpus_per_node: GpusPerNodeFlag = None,
    precision: PrecisionFlag = None,
    stack: StackFlag = None,
    calibration: CalibrationFlag = None,
    profile: ProfileFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Find the largest model that a cluster trains in some days.

    Two answers stand side by side. The closed form of NVIDIA's AutoConfigurator: 8 FLOP per
    parameter and token at one figure of TFLOPS. And ours: shapes of a published series, each
    planned in full, the largest whose best layout fits and makes the deadline with evaluations,
    checkpoints and failures. Shapes are within 2 % of a size and are chosen to shard well.

    Prints both sizes with their constants, days with an 80 % interval, the plan, the shape,
    settings by documented rules, the compute-optimal size of Chinchilla, and how the answer moves
    with days and chips. Exit code 1 where no size makes it.

    Examples:

      meshwright size --cluster a100-80:160 --days 5 --tokens 300B --tflops 140

      meshwright size --cluster h100:512 --days 30 --series llama3 --seq 8192

      meshwright size --cluster h200:64 --days 7 --tokens 1T --series mixtral --json
    """
    from meshwright import api
    from meshwright.cli.job_flags import training_of
    from meshwright.cli.layout_case import file_name
    from meshwright.cli.terminal import print_page
    from meshwright.report.sizing_text import size_lines
    from meshwright.values.units import parse_count

    training = training_of(
        1,  # replaced: by --tokens, or by what the size asks
        eval_interval=eval_interval,
        eval_steps=eval_steps,
        mtbf_hours=chip_mtbf_hours,
        restart=restart,
        save_every=save_every,
        write_gb_per_s=write_gb_per_s,
    )
    given = {
        "seq_len": seq,
        "gbs": gbs,
        "gpus_per_node": gpus_per_node,
        "precision": precision,
        "stack": stack,
        "calibration": file_name(calibration),
        "profile": file_name(profile),
    }
    found = api.size(
        cluster=cluster,
        days=days,
        series=series or "gpt3",
        tokens=None if tokens is None else parse_count(tokens, name="tokens"),
        training=training,
        tflops=tflops,
        vocab=vocab,
        **{name: value for name, value in given.items() if value is not None},
    )
    if json_output:
        print(json.dumps(found.to_dict()))
    else:
        print_page(size_lines(found), indent=13)
    if found.best is None:
        raise typer.Exit(1)
