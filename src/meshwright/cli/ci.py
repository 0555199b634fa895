"""`meshwright ci`: what a pull request does to the runs that its files describe."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from meshwright.api.changes import ChangedRun, PricedRun, changed_runs
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json, print_page, tell
from meshwright.report.columns import Column, print_items
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError

__all__ = ["ci"]


@command
def ci(
    base: str = argument(
        REQUIRED, "What the change goes into: a branch or commit.", metavar="BASE"
    ),
    head: str | None = argument(None, "The change [default: the files as they lie here]."),
    given: Given = fields_of(
        PlanRequest,
        *("cluster", "seq_len", "gbs", "stack", "max_memory_gib", "headroom", "gpus_per_node"),
        seq_len="Tokens in one sequence [default: each file's].",
        gbs="Global batch in sequences [default: each file's].",
        stack="Training software [default: by each file].",
        required=("cluster",),
    ),
    files: list[str] | None = option(
        None, "Look at these alone, by git's patterns: 'configs/*.toml'.", metavar="PATTERN"
    ),
    slower: float | None = option(
        None, "Fail as well where a run is slower by more than this.", metavar="PERCENT"
    ),
    summary: Path | None = option(
        None, "Append the table to this file as Markdown.", metavar="FILE"
    ),
    annotate: bool = option(False, "Print lines that GitHub shows beside the files."),
    json_output: JsonFlag = False,
) -> None:
    """Price the runs that a change edits, before and after it.

    Git says which files differ since the change left its base. Those that `plan --from` reads
    (launch scripts, torchtitan, nanotron, NeMo, Megatron-Bridge) are priced as they were and as
    they are, on the cluster that you name, by the layout that each file says. Both prices stand on
    the same estimate, so that its error is much the same in both.

    Prints a row for each such file: whether it fits, how much longer or shorter a sequence takes,
    and which term moved most. Exit code 1: a run does not fit or does not run any more, or is
    slower than --slower allows.

    Examples:

      meshwright ci main --cluster h100:64

      meshwright ci origin/main HEAD --cluster h100:64 --files 'configs/*' --slower 5

      meshwright ci main --cluster a100-80:128 --gbs 512 --summary summary.md --annotate --json
    """
    if slower is not None and not 0 <= slower < float("inf"):
        raise ConfigError(f"--slower {slower:g}: expected a number of per cent, such as 5")
    found = changed_runs(
        Path(), base=base, head=head, fields=given, files=[f":(glob){one}" for one in files or ()]
    )
    if json_output:
        print_json({"runs": [one.to_dict() for one in found]})
    elif found:
        print_items(Console(), _COLUMNS, found, more="--json has them")
        print_page(["", *(f"{one.file}: {one.words()}" for one in found)], indent=4)
    else:
        tell("no file that describes a run differs")
    failed = [one for one in found if one.is_worse or _too_slow(one, slower)]
    if annotate:
        _annotate(found, failed)
    if summary is not None:
        _append(summary, _markdown(found, str(given["cluster"])))
    if failed:
        raise typer.Exit(1)


def _too_slow(one: ChangedRun, percent: float | None) -> bool:
    return percent is not None and one.change_frac is not None and one.change_frac * 100 > percent


def _annotate(found: list[ChangedRun], failed: list[ChangedRun]) -> None:
    """Print commands of GitHub's runners, on stderr, which they read as well."""
    for one in found:
        if one.verdict not in ("as fast", "gone"):
            level = "error" if one in failed else "notice"
            words = one.words().replace("%", "%25").replace("\n", " ")
            tell(f"::{level} file={one.file},title=meshwright::{words}")


def _seconds(run: PricedRun | None) -> str:
    return "-" if run is None or run.step_s is None else f"{run.step_s:.3g}"


def _memory(run: PricedRun | None) -> str:
    return "-" if run is None or run.peak_memory_gib is None else f"{run.peak_memory_gib:.1f}"


def _fits(run: PricedRun | None) -> str:
    return "-" if run is None or run.fits is None else run.fits


def _change(one: ChangedRun) -> str:
    return "-" if one.change_frac is None else f"{one.change_frac:+.1%}"


_COLUMNS = (
    Column(heading="file", justify="left", cell=lambda one: one.file),
    Column(heading="step s", cell=lambda one: _seconds(one.before)),
    Column(heading="now", cell=lambda one: _seconds(one.after)),
    Column(heading="a sequence", cell=_change),
    Column(heading="GiB", cell=lambda one: _memory(one.before), spare=1),
    Column(heading="now", cell=lambda one: _memory(one.after), spare=1),
    Column(heading="fits", justify="left", cell=lambda one: _fits(one.before)),
    Column(heading="now", justify="left", cell=lambda one: _fits(one.after)),
)


def _markdown(found: list[ChangedRun], cluster: str) -> str:
    if not found:
        return f"### meshwright on {cluster}\n\nNo file that describes a run differs.\n"
    lines = [
        f"### meshwright on {cluster}",
        "",
        "| file | says | step s | now | GiB | now |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        cells = [f"`{one.file}`", one.words().replace("|", "\\|")]
        cells += [
            _seconds(one.before),
            _seconds(one.after),
            _memory(one.before),
            _memory(one.after),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
