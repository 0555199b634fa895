"""What commands share of the terminal: lines that fit it, and the flag that keeps progress away."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.report.columns import fold
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.units import parse_count, parse_duration

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.problem import Problem
    from meshwright.search.request import PlanRequest
    from meshwright.search.result import Plan, PlanResult
    from meshwright.search.traced import TracedStep
    from meshwright.software.contract import Exported, ExportTarget
    from meshwright.software.settings import TrainingSettings
    from meshwright.values.layout import Layout
    from meshwright.values.mixed_layout import MixedLayout

__all__ = [
    "INTERRUPTED",
    "Goal",
    "JsonFlag",
    "QuietFlag",
    "export_first",
    "export_mixed_plan",
    "for_export",
    "keep_quiet",
    "make_folder",
    "narrow_console",
    "print_json",
    "print_page",
    "read_goal",
    "tell",
    "tell_notes",
    "warn",
    "write_step",
    "write_steps",
    "write_text",
]

INTERRUPTED = 130
"""Exit code of what Ctrl-C has ended."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
QuietFlag = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress; warnings and errors stay.")
]


def print_page(lines: Sequence[str], *, indent: int) -> None:
    """Print lines; a terminal gets them folded, further lines set in, a pipe or a file whole."""
    from rich.console import Console

    console = Console()
    for line in "\n".join(lines).split("\n") if lines else ():
        print(fold(line, width=console.width, indent=indent) if console.is_terminal else line)


def narrow_console() -> Console:
    """Return a console that prints words as they are."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def tell(line: str) -> None:
    """Say how it goes, beside the answer."""
    typer.echo(line, err=True)


def keep_quiet(line: str) -> None:
    """Say nothing of how it goes."""


def warn(line: str) -> None:
    """Say a warning beside the answer."""
    typer.echo(f"warning: {line}", err=True)


def tell_notes(lines: Iterable[str]) -> None:
    """Say what a reader of the answer should know."""
    for line in lines:
        typer.echo(f"note: {line}", err=True)


def print_json(record: object) -> None:
    """Print the answer as one object for programs."""
    print(json.dumps(record, indent=2))


def write_text(path: Path, text: str) -> None:
    """Write a file; ConfigError where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Tokens to train on until a deadline, at least cost."""

    tokens: int
    words: str
    """As they were given."""
    seconds: float

    def fields(self, flags: dict[str, Any]) -> dict[str, Any]:
        """Return what a request must hold; ConfigError where it says something else too."""
        if flags.get("min_tokens_per_s") is not None:
            raise ConfigError("--min-tokens-per-s: the deadline says how many; leave out either")
        return {
            "min_tokens_per_s": self.tokens / self.seconds,
            "objective": flags.get("objective") or "tokens_per_dollar",
        }


def read_goal(tokens: str | None, deadline: str | None) -> Goal | None:
    """Read --tokens and --deadline; ConfigError for one alone and for anything broken."""
    if tokens is None and deadline is None:
        return None
    if tokens is None or deadline is None:
        given, missing = (
            ("--deadline", "--tokens, such as 300B")
            if tokens is None
            else ("--tokens", "--deadline, such as 30D")
        )
        raise ConfigError(f"{given}: of no effect without {missing}")
    count, seconds = (
        parse_count(tokens, name="--tokens"),
        parse_duration(deadline, name="--deadline"),
    )
    if count < 1 or seconds < 1:
        raise ConfigError(
            f"--tokens {tokens} --deadline {deadline}: expected more than none of both"
        )
    return Goal(tokens=count, words=tokens, seconds=float(seconds))


_VIEWER = "ui.perfetto.dev"
_TOO_LONG = "too many micro batches to be simulated"


def make_folder(folder: Path) -> None:
    """Make a folder for traces, or take the one that is there; ConfigError where neither can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be made a folder for traces ({error.strerror})"
        ) from None


def write_step(path: Path, layout: Layout, problem: Problem) -> None:
    """Write one step of a layout, and say so."""
    from meshwright.search.refine import reprice, too_long
    from meshwright.search.traced import traced_layout

    if too_long(layout):
        tell(f"no trace: {_TOO_LONG}")
        return
    [priced] = reprice(problem, [layout])
    _write(
        path,
        layout.words(),
        problem.setting.model.name,
        traced_layout(problem, layout, priced.time_s),
    )
    tell(f"trace written to {path}; open it at {_VIEWER}")


def write_steps(folder: Path, result: PlanResult, problem: Problem | MixedProblem) -> None:
    """Write a step of each plan that can be simulated, `plan-RANK.json`; name those left out."""
    from meshwright.search.refine import too_long

    long = [plan for plan in result.plans if too_long(plan.mixed or plan.layout)]
    traced = [plan for plan in result.plans if plan not in long]
    for plan in traced:
        _write_plan(folder / f"plan-{plan.rank}.json", plan, problem)
    if traced:
        tell(f"traces of {_ranks(traced)} written to {folder}; open them at {_VIEWER}")
    if long:
        tell(f"no trace of {_ranks(long)}: {_TOO_LONG}")


def _write_plan(path: Path, plan: Plan, problem: Problem | MixedProblem) -> None:
    from meshwright.report.layout_words import mixed_words
    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.traced import traced_layout, traced_mixed

    if isinstance(problem, MixedProblem):
        assert plan.mixed is not None, "plans of several pools say their stages"
        _write(
            path,
            mixed_words(plan.mixed),
            problem.site.model.name,
            traced_mixed(plan.mixed, problem.site, plan.time_s),
        )
        return
    _write(
        path,
        plan.layout.words(),
        problem.setting.model.name,
        traced_layout(problem, plan.layout, plan.time_s),
    )


def _write(path: Path, words: str, model: str, step: TracedStep) -> None:
    from meshwright.report.trace import chrome_trace, write_trace

    write_trace(path, chrome_trace(step, title=f"{model} {words}", metadata={"layout": words}))


def _ranks(plans: list[Plan]) -> str:
    """`plan #3`, or `plans #1, #2, #5`."""
    return f"plan{'s' if len(plans) > 1 else ''} {', '.join(f'#{plan.rank}' for plan in plans)}"


def for_export(asked: PlanRequest, to: str) -> PlanRequest:
    """Return the request with what one command for all ranks needs of its stages, saying so."""
    from meshwright import api
    from meshwright.search.mixed.problem import is_mixed
    from meshwright.software.mixed import MIXED_TARGETS, SAME_STAGES

    known = api.cluster_file_of(asked)
    if not is_mixed(asked, files=known) or len(known.cluster_of(asked).pools) == 1:
        return asked
    if to not in MIXED_TARGETS:
        raise ConfigError(
            f"--export ... --to {to}: it has no words for stages on several kinds of chips; --to"
            f" {' or '.join(MIXED_TARGETS)} has, and --json says what each stage runs as"
        )
    if asked.unlike_batch:
        raise ConfigError(
            f"--unlike-batch: {to} has one dp and mbs for all ranks; leave it out, or leave out"
            " --export"
        )
    missing = [name for name in SAME_STAGES if name not in asked.same]
    if missing:
        tell(f"note: searched with --same {','.join(missing)}, as {to} has one value for all ranks")
    return asked.model_copy(update={"same": [*asked.same, *missing]})


def export_first(result: PlanResult, problem: MixedProblem, folder: Path, to: str) -> None:
    """Write the best plan that the software has words for, saying why others were passed over."""
    from meshwright.cli.export import Delivery

    refused: CannotExpress | None = None
    for plan in result.plans:
        assert plan.mixed is not None, "plans over several kinds of chips have stages"
        try:
            exported = _exported(plan.mixed, problem, to)
        except CannotExpress as error:
            refused = refused or error
            continue
        if refused is not None:
            slower = plan.step_s / result.plans[0].step_s - 1.0
            tell(f"#1 was passed over: {refused}")
            tell(f"#{plan.rank} is written, {slower:.1%} slower by prediction")
        Delivery(output=folder).deliver(exported.files)
        tell_notes(exported.notes)
        return
    assert refused is not None, "there is a plan"
    raise refused


def export_mixed_plan(
    plan: tuple[MixedLayout, MixedProblem],
    target: ExportTarget,
    settings: TrainingSettings,
    *,
    job_words: list[str],
) -> Exported:
    """Return a saved plan's files; job scripts, which are of nodes of one kind, are refused."""
    from meshwright.software.mixed import export_mixed

    if job_words:
        raise ConfigError(
            f"{', '.join(job_words)}: job scripts are written for nodes of one kind; leave it out,"
            " and start train.sh on each node in the order that it says"
        )
    return export_mixed(plan[0], plan[1], target=target, settings=settings)


def _exported(layout: MixedLayout, problem: MixedProblem, to: str) -> Exported:
    from meshwright.software.mixed import export_mixed
    from meshwright.software.registry import find_target

    return export_mixed(layout, problem, target=find_target(to))
