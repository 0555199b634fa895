"""`meshwright why-oom`: what fills the memory, and which fix costs least."""

from __future__ import annotations

from meshwright.cli.layout_case import HOW, WHERE, HfFlag, JsonFlag, LayoutFlag
from meshwright.cli.options import Given, command

__all__ = ["why_oom"]


@command
def why_oom(
    layout: LayoutFlag,
    where: Given = WHERE,
    hf: HfFlag = None,
    how: Given = HOW,
    json_output: JsonFlag = False,
) -> None:
    """Say why a layout runs out of memory, and price a ladder of fixes.

    The fullest stage decides. Its largest term says which fixes can help: stored states shrink with
    sharding and with more ways to cut the model, activations with smaller micro batches, recompute
    and longer cuts of the sequence, slack with the allocator's settings. Every fix is priced as a
    layout of its own, so the ladder says what it saves and what it costs in time.

    Prints the largest term of the fullest stage, memory by stage, and the fixes: allocator settings
    first, then by least slowdown, with what each means for a checkpoint and the data; where none
    suffices, the fastest two or three together.

    Examples:

      meshwright why-oom llama3-70b --cluster h100:256 --seq 8192 --gbs 512 --layout tp=4,pp=4,mbs=2

      meshwright why-oom mixtral-8x7b --cluster a100-80:64 --seq 4096 --gbs 256 --layout tp=1,ep=8,mbs=4

      meshwright why-oom llama3-8b --cluster h100:8 --seq 8192 --gbs 32 --layout mbs=4 --stack fsdp --json
    """  # noqa: E501
    from meshwright.cli.layout_case import asked_with, narrow_console
    from meshwright.report.diff_text import print_ladder
    from meshwright.report.explain_json import ladder_record
    from meshwright.search.oom import why_oom as explained
    from meshwright.search.refine import setting_of

    asked = asked_with(where.pop("model", None), hf, layout, {**where, **how})
    found = explained(asked.layout, asked.problem)
    setting = setting_of(asked.problem)
    if json_output:
        import json

        print(json.dumps(ladder_record(found, setting, asked.problem.request), indent=2))
    else:
        print_ladder(found, setting, narrow_console())
