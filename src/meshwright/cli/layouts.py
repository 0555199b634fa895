"""Commands on layouts that are given: `meshwright explain`, `why-oom` and `diff`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from meshwright.api.existing import price_of, read_run
from meshwright.api.fixing import Fixed, fix_run
from meshwright.api.problems import problem_of
from meshwright.cli.flags import FORCE, HOW, LAYOUT, RAN, WHERE, HfFlag, asked_with, model_words
from meshwright.cli.options import (
    REQUIRED,
    Given,
    argument,
    command,
    fields_of,
    layout_words,
    option,
)
from meshwright.cli.plan_files import Side, read_side
from meshwright.cli.terminal import JsonFlag, narrow_console, print_json, tell
from meshwright.cli.traces import write_step
from meshwright.report.diff_text import (
    print_comparison,
    print_ladder,
    print_prices,
    print_ran,
)
from meshwright.report.explain_json import (
    comparison_record,
    explanation_record,
    ladder_record,
)
from meshwright.report.explain_text import Part, print_explanation
from meshwright.report.term_text import print_term, term_name
from meshwright.search import explain as explaining
from meshwright.search import oom
from meshwright.search.diff import compare
from meshwright.search.problem import Asked, Problem, ask
from meshwright.search.quote import Quote
from meshwright.search.quote_record import (
    quote_record,
)
from meshwright.search.ran import Ran, as_ran
from meshwright.search.refine import (
    setting_of,
)
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError
from meshwright.values.layout import parse_layout

__all__ = ["diff", "explain", "why_oom"]


@command
def explain(
    where: Given = WHERE,
    layout: str = LAYOUT,
    hf: HfFlag = None,
    how: Given = HOW,
    trace: Path | None = option(
        None, "Also write one step as a trace for Perfetto.", metavar="FILE"
    ),
    term: str | None = option(
        None,
        "Print one term alone: its formula, its numbers, and every constant that moves it.",
        metavar="NAME",
    ),
    tables: bool = option(
        False, "Also time by term, memory by stage, and the operators of one layer."
    ),
    rivals: bool = option(False, "Also what wins and loses where one axis differs."),
    sources: bool = option(
        False, "Also how far published runs were off, and every constant with its source."
    ),
    ran: bool = RAN,
    json_output: JsonFlag = False,
    force: bool = FORCE,
) -> None:
    """Explain one layout: time and memory by term, what binds it, and why its nearest rivals win or
    lose.

    A step is the micro batches of the mean stage, then what the slowest stage, the pipeline, the
    exchange of gradients and the optimizer add; each term waits for one unit or one link. Memory is
    what a stage stores, plus what its micro batches in flight keep for the backward pass. A rival
    differs in one axis only, so the terms that change say why it wins or loses.

    Prints the sum with its interval, the binding constraint, and in a line each where the time and
    the memory go and the nearest rivals. `--tables` adds time by term, memory by stage and the
    operators of one layer, `--rivals` every change of one axis with its reason. `--term bubble`
    prints one term's formula with its numbers, and each constant that moves it, found by moving it;
    `--sources` lists those of all terms. A layout that does not fit is explained as well; with `--ran` as it
    must have run: gradients in 2 bytes, sharded states, recompute and more are tried where you did
    not tell them, from the least change, and the intervals widen.

    Examples:

      meshwright explain llama3-70b --cluster h100:256 --seq 8192 --gbs 512 --layout tp=8,pp=4,mbs=1

      meshwright explain mixtral-8x7b --cluster h100:64 --seq 4096 --gbs 256 --layout tp=2,ep=8,pp=2 --json

      meshwright explain llama3-70b --cluster h100:256 --seq 8192 --gbs 512 --layout tp=8,pp=4,mbs=1 --term bubble

      meshwright explain gpt3-175b --cluster a100-80:512 --seq 2048 --gbs 1536 --layout tp=8,pp=8,recompute=full --trace step.json
    """  # noqa: E501
    asked, run = _as_ran(asked_with({**where, **how}, hf, layout), ran=ran)
    name = None if term is None else term_name(term)
    if name is not None and json_output:
        raise ConfigError(
            "--term prints one term; --json has every term with its constants: drop one"
        )
    moved = json_output or sources or name is not None
    found = explaining.explain(
        asked.layout, asked.problem, depth="constants" if moved else "functions"
    )
    if trace is not None:
        write_step(trace, asked.layout, asked.problem, force=force)
    if json_output:
        print_json({**explanation_record(found, asked.problem.request), **_ran_record(run)})
        return
    print_ran(run, narrow_console())
    if name is not None:
        print_term(found, name, narrow_console())
    else:
        asked_for = {"tables": tables, "rivals": rivals, "sources": sources}
        parts = [part for part in get_args(Part) if asked_for[part]]
        print_explanation(found, narrow_console(), parts=parts)


@command
def why_oom(
    layout: str | None = layout_words(
        None, "The layout, tp=8,pp=4,mbs=1; the rest follows. Before the words of a file."
    ),
    where: Given = fields_of(
        PlanRequest,
        *("model", "cluster", "seq_len"),
        required=("cluster",),
        model="A model's name or its dims; or a script or configuration, such as train.sh.",
        seq_len="Tokens in one sequence [default: the file's].",
    ),
    hf: HfFlag = None,
    of: str | None = option(
        None, "Of a file that does not say which model it trains: the model.", "--model"
    ),
    how: Given = HOW,
    ran: bool = RAN,
    json_output: JsonFlag = False,
) -> None:
    """Say why a layout runs out of memory, and price a ladder of fixes.

    The fullest stage decides. Its largest term says which fixes can help: stored states shrink with
    sharding and with more ways to cut the model, activations with smaller micro batches, recompute
    and longer cuts of the sequence, slack with the allocator's settings. Every fix is priced as a
    layout of its own, so the ladder says what it saves and what it costs in time.

    Prints the largest term of the fullest stage, memory by stage, and the fixes: allocator settings
    first, then by least slowdown, with what each means for a checkpoint and the data; where none
    suffices, the fastest two or three together. Of a file that does not fit, also the smallest edit
    that does, as a diff, where `meshwright fix` edits its kind.

    Examples:

      meshwright why-oom llama3-70b --cluster h100:256 --seq 8192 --gbs 512 --layout tp=4,pp=4,mbs=2

      meshwright why-oom train.sh --cluster a100-80:64

      meshwright why-oom llama3-8b --cluster h100:8 --seq 8192 --gbs 32 --layout mbs=4 --stack fsdp --json
    """  # noqa: E501
    given = {**where, **how}
    file = _file_in(where.get("model"))
    given = _model_beside(file, given, of, hf)
    asked, run = _as_ran(
        _asked_of_file(file, given, layout) if file else _asked_of_words(given, hf, layout), ran=ran
    )
    found = oom.why_oom(asked.layout, asked.problem)
    fixed = None
    if file is not None and layout is None and found.quote.verdict != "yes":
        fixed = _edit_of(file, given)
    setting = setting_of(asked.problem)
    if json_output:
        record = ladder_record(found, setting, asked.problem.request)
        edit = {} if file is None else {"edit": None if fixed is None else fixed.to_dict()}
        print_json({**record, **edit, **_ran_record(run)})
        return
    print_ran(run, narrow_console())
    print_ladder(found, setting, narrow_console())
    if fixed is not None and fixed.diff:
        print(f"\nThe smallest edit that fits ({fixed.quote.step_s:.3f} s a step):\n{fixed.diff}")
        tell(f"`meshwright fix {file} --write`, with the options above, applies it")


def _as_ran(asked: Asked, *, ran: bool) -> tuple[Asked, Ran | None]:
    """Return the layout, with --ran as it must have run."""
    found = as_ran(asked) if ran else None
    return (asked if found is None else found.asked), found


def _ran_record(run: Ran | None) -> dict[str, Any]:
    """Return what --ran adds to --json."""
    return {} if run is None else {"ran": run.to_dict()}


_SUFFIXES = (".sh", ".toml", ".yaml", ".yml", ".json", ".txt")
"""Of files that a run is read from; no model's name ends so."""


def _file_in(model: str | None) -> Path | None:
    """Return the script or configuration that stands in a model's place."""
    if model is None or not (model.endswith(_SUFFIXES) or Path(model).is_file()):
        return None
    return Path(model)


def _model_beside(file: Path | None, given: Given, of: str | None, hf: Path | None) -> Given:
    """Return the words with the model that goes with a file in place of the file."""
    if file is None and of is not None:
        raise ConfigError("--model: of a file; without one the model is the first word")
    if file is None:
        return given
    rest = {name: value for name, value in given.items() if name != "model"}
    return rest if of is None and hf is None else {**rest, "model": model_words(of, hf)}


def _asked_of_words(given: Given, hf: Path | None, layout: str | None) -> Asked:
    if layout is None:
        raise ConfigError(
            "give the layout: --layout tp=8,pp=4,mbs=1, or --tp 8 --pp 4 --mbs 1; or a script, such"
            " as train.sh, in place of the model"
        )
    if "seq_len" not in given:
        raise ConfigError("--seq: not given; such as --seq 8192")
    return asked_with(given, hf, layout)


def _asked_of_file(file: Path, given: Given, layout: str | None) -> Asked:
    """Return a file's layout, words of a layout before its own; what a reader must know goes to
    stderr."""
    run = read_run(file, given, option="")
    if layout is not None:
        words = parse_layout(layout)
        run = replace(run, found=replace(run.found, layout={**run.found.layout, **words}))
    for line in run.lines():
        tell(line)
    return run.asked(problem_of(PlanRequest.of({**run.fields(), **given})))


def _edit_of(file: Path, given: Given) -> Fixed | None:
    """Return the smallest edit of a file that fits; None where there is none, or for kinds of files
    that are not edited."""
    try:
        return fix_run(file, given)
    except ConfigError as error:
        tell(str(error))
        return None


_SIDE = "tp=8,pp=4,mbs=1, or a file of `plan --json`; FILE#2 is its second plan."


@command
def diff(
    a: str = argument(REQUIRED, _SIDE),
    b: str = argument(REQUIRED, _SIDE),
    given: Given = fields_of(
        PlanRequest,
        *("model", "cluster", "seq_len", "gbs", "gpus_per_node", "decoder_seq_len", "precision"),
        *("attention", "routing", "stack", "calibration", "profile", "megatron_version"),
        *(
            "sample_len",
            "cp_comm_type",
            "cuda_graphs",
            "switches",
            "fused_norm",
            "finetune",
            "lora_rank",
            "lora_targets",
        ),
        "max_memory_gib",
        model={
            "help": "A model's name or dims: both sides are priced with it.",
            "is_argument": False,
        },
    ),
    hf: HfFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Compare two layouts or plans, and say what each difference means for a run that goes on from
    the other's checkpoint.

    How a model is cut over chips changes no sum but its rounding: such differences are execution
    only, or ask that the checkpoint be resharded. Other counts of ranks or micro batches deal the
    same global batches out in another way. Another batch, sequence or precision is another
    training.

    Prints each field that differs with its labels (execution only, reshard the checkpoint, changes
    data order, changes training) and the reason. With a model, or with files that hold their
    request, it also prices both sides, term by term.

    Examples:

      meshwright diff tp=8,pp=4,mbs=1 tp=4,pp=4,vpp=5,mbs=1

      meshwright diff tp=8,pp=4 tp=4,pp=8 --model llama3-70b --cluster h100:256 --seq 8192 --gbs 512

      meshwright diff plans.json#1 plans.json#2 --json
    """
    sides = [read_side(text) for text in (a, b)]
    model = given.pop("model", None)
    if model is not None or hf is not None:
        if "cluster" not in given or "seq_len" not in given:
            raise ConfigError("--model: prices need --cluster and --seq as well")
        given["model"] = model_words(model, hf)
        sides = [side.asked_with(given) for side in sides]
    elif given:
        raise ConfigError(
            f"{', '.join(given)}: of no effect without --model; add it, or leave them out"
        )
    _compare(sides, json_output=json_output)


def _compare(sides: list[Side], *, json_output: bool) -> None:
    """Compare, price where both sides can be priced, and print."""
    problems = [problem for side in sides if (problem := side.problem()) is not None]
    priced = _priced(sides, problems)
    quotes: list[Quote] | list[None] = priced or [None] * len(sides)
    a, b = (side.values(quote) for side, quote in zip(sides, quotes, strict=True))
    has_experts = any(problem.setting.model.moe is not None for problem in problems)
    found = compare(a, b, has_experts=has_experts)
    if json_output:
        records = [
            quote_record(quote, setting_of(problem))
            for quote, problem in zip(priced, problems, strict=False)
        ]
        print_json({**comparison_record(found), "prices": records or None})
        return
    print_comparison(found, narrow_console())
    if priced:
        print_prices(priced[0], priced[1], narrow_console())


def _priced(sides: list[Side], problems: list[Problem]) -> list[Quote]:
    """Return the prices of both sides; none where one of them has no request."""
    if len(problems) < len(sides):
        return []
    asked = [ask(side.layout, problem) for side, problem in zip(sides, problems, strict=True)]
    return [price_of(one) for one in asked]
