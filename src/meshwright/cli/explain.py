"""`meshwright explain`: where the time and the memory of one layout go, and why its rivals win or
lose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.layout_case import (
    AttentionFlag,
    CalibrationFlag,
    ClusterFlag,
    DecoderSeqFlag,
    GbsFlag,
    GpusPerNodeFlag,
    HeadroomFlag,
    HfFlag,
    JsonFlag,
    LayoutFlag,
    MegatronVersionFlag,
    MemoryFlag,
    ModelArgument,
    PrecisionFlag,
    ProfileFlag,
    RoutingFlag,
    SeqFlag,
    StackFlag,
    asked_with,
    narrow_console,
)
from meshwright.cli.terminal import print_json, write_step
from meshwright.report.explain_json import explanation_record
from meshwright.report.explain_text import print_explanation
from meshwright.report.term_text import print_term, term_name
from meshwright.search.explain import explain as explained

__all__ = ["explain"]

TraceFlag = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Also write one step as a trace for Perfetto."),
]
TermFlag = Annotated[
    str | None,
    typer.Option(
        "--term",
        metavar="NAME",
        help="Print one term alone: its formula, its numbers, and every constant that moves it.",
    ),
]
SourcesFlag = Annotated[
    bool, typer.Option("--sources", help="Also list the constants of every term with sources.")
]


def explain(
    cluster: ClusterFlag,
    seq: SeqFlag,
    layout: LayoutFlag,
    model: ModelArgument = None,
    hf: HfFlag = None,
    gbs: GbsFlag = None,
    gpus_per_node: GpusPerNodeFlag = None,
    decoder_seq: DecoderSeqFlag = None,
    precision: PrecisionFlag = None,
    attention: AttentionFlag = None,
    routing: RoutingFlag = None,
    stack: StackFlag = None,
    calibration: CalibrationFlag = None,
    profile: ProfileFlag = None,
    megatron_version: MegatronVersionFlag = None,
    max_memory_gib: MemoryFlag = None,
    headroom: HeadroomFlag = None,
    trace: TraceFlag = None,
    term: TermFlag = None,
    sources: SourcesFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Explain one layout: time and memory by term, what binds it, and why its nearest rivals win or
    lose.

    A step is the micro batches of the mean stage, then what the slowest stage, the pipeline, the
    exchange of gradients and the optimizer add; each term waits for one unit or one link. Memory is
    what a stage stores, plus what its micro batches in flight keep for the backward pass. A rival
    differs in one axis only, so the terms that change say why it wins or loses.

    Prints the sum, the binding constraint, time by term, memory by stage, the operators of one
    layer, the rivals, and the functions that made the terms. `--term bubble` prints one term's
    formula with its numbers, and each constant that moves it, found by moving it. A layout that
    does not fit is explained as well.

    Examples:

      meshwright explain llama3-70b --cluster h100:256 --seq 8192 --gbs 512 --layout tp=8,pp=4,mbs=1

      meshwright explain mixtral-8x7b --cluster h100:64 --seq 4096 --gbs 256 --layout tp=2,ep=8,pp=2 --json

      meshwright explain llama3-70b --cluster h100:256 --seq 8192 --gbs 512 --layout tp=8,pp=4,mbs=1 --term bubble

      meshwright explain gpt3-175b --cluster a100-80:512 --seq 2048 --gbs 1536 --layout tp=8,pp=8,recompute=full --trace step.json
    """  # noqa: E501
    fields = {
        **{
            "cluster": cluster,
            "gpus_per_node": gpus_per_node,
            "seq_len": seq,
            "decoder_seq_len": decoder_seq,
            "gbs": gbs,
        },
        **{
            "precision": precision,
            "attention": attention,
            "routing": routing,
            "stack": stack,
            "megatron_version": megatron_version,
        },
        **{
            "max_memory_gib": max_memory_gib,
            "headroom": headroom,
            "calibration": calibration,
            "profile": profile,
        },
    }
    asked = asked_with(model, hf, layout, fields)
    name = None if term is None else term_name(term)
    moved = json_output or sources or name is not None
    found = explained(asked.layout, asked.problem, depth="constants" if moved else "functions")
    if trace is not None:
        write_step(trace, asked.layout, asked.problem)
    if json_output:
        print_json(explanation_record(found, asked.problem.request))
    elif name is not None:
        print_term(found, name, narrow_console())
    else:
        print_explanation(found, narrow_console())
