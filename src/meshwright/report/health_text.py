"""What `meshwright doctor` found, as lines for people."""

from __future__ import annotations

from itertools import groupby

from meshwright.report.health import Finding, Health

__all__ = ["health_lines"]

_MARKS = {"ok": "ok", "absent": "-", "broken": "BROKEN"}
INDENT = 24
"""Letters before the words of a finding."""


def health_lines(found: Health) -> list[str]:
    """Return a paragraph per room, and a sentence that sums up."""
    lines: list[str] = []
    for room, findings in groupby(found.findings, key=lambda finding: finding.room):
        lines += [room, *(_line(finding) for finding in findings), ""]
    return [*lines, _summary(found)]


def _line(finding: Finding) -> str:
    remedy = "" if finding.remedy is None else f": {finding.remedy}"
    return f"  {finding.name:<12}  {_MARKS[finding.state]:<8}{finding.words}{remedy}"


def _summary(found: Health) -> str:
    if not found.broken:
        return (
            "nothing is broken; what has a - is not here, and only the commands that name it"
            " need it"
        )
    names = ", ".join(finding.name for finding in found.broken)
    return f"broken: {names}"
