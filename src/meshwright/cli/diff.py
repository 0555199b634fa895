"""`meshwright diff`: what differs between two plans, and what each difference means for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.cli.layout_case import HfFlag, JsonFlag
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of
from meshwright.search.request import PlanRequest

if TYPE_CHECKING:
    from meshwright.cli.plan_files import Side
    from meshwright.search.problem import Problem
    from meshwright.search.quote import Quote

__all__ = ["diff"]

_SIDE = "tp=8,pp=4,mbs=1, or a file of `plan --json`; FILE#2 is its second plan."


@command
def diff(
    a: str = argument(REQUIRED, _SIDE),
    b: str = argument(REQUIRED, _SIDE),
    given: Given = fields_of(
        PlanRequest,
        *("model", "cluster", "seq_len", "gbs", "gpus_per_node", "decoder_seq_len", "precision"),
        *("attention", "routing", "stack", "calibration", "profile", "megatron_version"),
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
    from meshwright.cli.layout_case import model_words
    from meshwright.cli.plan_files import read_side
    from meshwright.values.errors import ConfigError

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
    _answer(sides, json_output=json_output)


def _answer(sides: list[Side], *, json_output: bool) -> None:
    """Compare, price where both sides can be priced, and print."""
    from meshwright.cli.layout_case import narrow_console
    from meshwright.report.diff_text import print_comparison, print_prices
    from meshwright.report.explain_json import comparison_record, quote_record
    from meshwright.search.diff import compare
    from meshwright.search.refine import setting_of

    problems = [problem for side in sides if (problem := side.problem()) is not None]
    priced = _priced(sides, problems)
    a, b = (
        [side.values(quote) for side, quote in zip(sides, priced, strict=True)]
        if priced
        else [side.values(None) for side in sides]
    )
    found = compare(
        a, b, has_experts=any(problem.setting.model.moe is not None for problem in problems)
    )
    if json_output:
        import json

        records = (
            [
                quote_record(quote, setting_of(problem))
                for quote, problem in zip(priced, problems, strict=True)
            ]
            if priced
            else None
        )
        print(json.dumps({**comparison_record(found), "prices": records}, indent=2))
        return
    console = narrow_console()
    print_comparison(found, console)
    if priced:
        print_prices(priced[0], priced[1], console)


def _priced(sides: list[Side], problems: list[Problem]) -> list[Quote]:
    """Return the price of both sides, each in its own problem; none where one of them has no
    request."""
    from meshwright.search.problem import ask
    from meshwright.search.quote import quotes
    from meshwright.search.refine import requote, setting_of

    if len(problems) < len(sides):
        return []
    asked = [ask(side.layout, problem) for side, problem in zip(sides, problems, strict=True)]
    return [requote(quotes([one.layout], setting_of(one.problem)), one.problem)[0] for one in asked]
