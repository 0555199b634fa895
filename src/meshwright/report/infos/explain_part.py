"""The part of a report about `explain --json`."""

from __future__ import annotations

from meshwright.report.infos.asked import Resolve, present
from meshwright.report.infos.explain import (
    constants_info,
    errors_info,
    explain_answer_info,
    operators_info,
    rival_steps_info,
    rivals_info,
    roofline_info,
    stages_info,
    terms_info,
)
from meshwright.report.infos.layouts import short_words
from meshwright.report.infos.part import Part, Record, Section
from meshwright.report.infos.plan import asked_words, figure_tiles
from meshwright.report.infos.terms import time_stack

__all__ = ["explain_part"]


def explain_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return where time and memory go, what one change does, and every constant; all of it stands
    in the answer."""
    time = time_stack(
        [(short_words(record), record)],
        key="time",
        title="Step time by term",
        sentence=str(record["binding"]),
    )
    return Part(
        kind="explain",
        title=(
            f"{asked_words(record['request'])}: {short_words(record)}"
            if "request" in record
            else short_words(record)
        ),
        answer=explain_answer_info(record),
        tiles=figure_tiles(record, limit_gib=record["limit_gib"]),
        sections=(
            Section(key="time", title="Where the time goes", blocks=(time, terms_info(record))),
            Section(key="memory", title="Where the memory goes", blocks=(stages_info(record),)),
            Section(
                key="operators",
                title="The operators",
                blocks=(*present(roofline_info(record)), operators_info(record)),
            ),
            Section(
                key="rivals",
                title="What one change does",
                blocks=(rival_steps_info(record), rivals_info(record)),
            ),
            Section(
                key="sources",
                title="What it stands on",
                blocks=(errors_info(record), constants_info(record)),
            ),
        ),
    )
