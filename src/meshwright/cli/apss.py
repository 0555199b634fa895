"""`meshwright apss`: Baidu AIAK's adaptive parallel strategy search, by the same flags and
records."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console

from meshwright.cli.options import command, option
from meshwright.cli.terminal import make_folder, tell_notes, write_steps
from meshwright.compat.apss import ApssAnswer, ApssRequest
from meshwright.compat.apss import apss as search
from meshwright.report.mixed_table import print_mixed_miss
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.values.errors import UnknownNameError

__all__ = ["apss"]

_CACHE = Path("cache")
_MODES = ("fast", "analytic")


@command
def apss(
    model_name: str = option(
        "llama2-70b", "One of the tool's 14 models, or any of `meshwright models`."
    ),
    num_gpus: int = option(256, "Chips to use at most, to 1048576."),
    nproc_per_node: int = option(8, "Chips in one server."),
    gpu_infos: str = option(
        "a800",
        "Kinds of chips, each with how many there are at most; -1 or none: no limit.",
        metavar="KIND[:MOST][,...]",
    ),
    global_batch_size: int = option(1024, "Sequences in one step; a multiple of 512."),
    sequence_length: int = option(4096, "Tokens in one sequence; a multiple of 512."),
    top: int = option(5, "Strategies to print."),
    mode: str = option("fast", "fast, or analytic: also a trace of each strategy below ./cache."),
    no_legacy_limits: bool = option(False, "Take any batch and sequence."),
    json_output: bool = option(
        False, "Print the plans as `meshwright plan --json` does.", "--json"
    ),
) -> None:
    """Find the fastest parallel strategies by the flags of Baidu AIAK's adaptive parallel strategy
    search, and print its records.

    One tensor-parallel size for all kinds of chips and one way to recompute per kind are searched,
    as the record has it; layers per stage are free with several kinds, equal with one. Times and
    memory are those of `meshwright plan`; --mode changes nothing about them.

    Prints one Python dict per line, best first: tokens/s of the job, seconds per step, GiB per kind
    of chip, and the strategy as flags. Chips left idle and how near to the best the first line is
    proven to be are said on stderr.

    Examples:

      meshwright apss --model-name llama2-70b --num-gpus 256 --gpu-infos a800 --global-batch-size 512 --sequence-length 4096 --top 3

      meshwright apss --num-gpus 256 --gpu-infos a800:128,h800:160 --global-batch-size 512 --mode analytic

      meshwright apss --model-name llama3-8b --num-gpus 64 --gpu-infos h100,kunlun3:32 --global-batch-size 96 --no-legacy-limits --json
    """  # noqa: E501
    if mode not in _MODES:
        raise UnknownNameError("mode", mode, _MODES)
    asked = ApssRequest(
        model_name=model_name,
        num_gpus=num_gpus,
        nproc_per_node=nproc_per_node,
        gpu_infos=gpu_infos,
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        top=top,
        legacy_limits=not no_legacy_limits,
    )
    answer = search(asked)
    _print(answer, json_output=json_output)
    if not answer.records:
        raise typer.Exit(1)
    if mode == "analytic":
        _trace(answer, asked)


def _print(answer: ApssAnswer, *, json_output: bool) -> None:
    """Print the records, or the plans; what is left idle and what was proven go to stderr."""
    if json_output:
        print(json.dumps(answer.result.to_dict(), indent=2, allow_nan=False))
    if not answer.records:
        print_mixed_miss(answer.result, Console(stderr=True))
        return
    if not json_output:
        for record in answer.records:
            print(record)
    tell_notes(_notes(answer))


def _notes(answer: ApssAnswer) -> list[str]:
    best, proof = answer.result.plans[0], answer.result.proof
    assert proof is not None and best.mixed is not None
    idle = [f"{count} {name}" for name, _, count in best.chips if count]
    used = (
        f"the first strategy uses {sum(used for _, used, _ in best.chips)} chips,"
        f" dp={best.mixed.stages[0].dp}"
    )
    risky = [str(plan.rank) for plan in answer.result.plans if plan.fits == "at risk"]
    return [
        used
        + (
            f"; left idle, as that is faster or they do not divide: {', '.join(idle)}"
            if idle
            else ""
        ),
        (
            "no strategy of this space is faster"
            if proof.gap_frac == 0
            else f"no strategy is faster by more than {proof.gap_frac:.2%}"
        ),
        *(
            [
                f"memory of strategies {', '.join(risky)} may not be enough: they need a part of"
                " what is kept free"
            ]
            if risky
            else []
        ),
    ]


def _trace(answer: ApssAnswer, asked: ApssRequest) -> None:
    chips = asked.gpu_infos.replace(" ", "").replace(":", "-").replace(",", "_")
    name = f"{asked.model_name}_{asked.num_gpus}_{chips}_gbs{asked.global_batch_size}_seq{asked.sequence_length}"  # noqa: E501
    folder = _CACHE / name
    make_folder(folder)
    write_steps(folder, answer.result, resolve_mixed(answer.result.request))
