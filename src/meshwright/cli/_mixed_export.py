"""`plan --export` over several kinds of chips."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from meshwright.exports import Exported, ExportTarget, TrainingSettings
    from meshwright.mixed_layout import MixedLayout
    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.request import PlanRequest
    from meshwright.search.result import PlanResult

__all__ = ["export_first", "export_mixed_plan", "for_export"]


def for_export(asked: PlanRequest, to: str) -> PlanRequest:
    """Return the request with what one command for all ranks asks of stages on several kinds of
    chips, saying so."""
    from meshwright.errors import ConfigError
    from meshwright.exports.mixed import MIXED_TARGETS, SAME_STAGES
    from meshwright.hardware.parse import load_cluster
    from meshwright.search.mixed.problem import is_mixed

    if (
        not is_mixed(asked)
        or len(load_cluster(asked.cluster, gpus_per_node=asked.gpus_per_node).pools) == 1
    ):
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
        typer.echo(
            f"note: searched with --same {','.join(missing)}, as {to} has one value for all ranks",
            err=True,
        )
    return asked.model_copy(update={"same": [*asked.same, *missing]})


def export_first(result: PlanResult, problem: MixedProblem, folder: Path, to: str) -> None:
    """Write the best plan that the software has words for, saying which it is and why others were
    passed over."""
    from meshwright.cli.export import deliver
    from meshwright.errors import CannotExpress

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
            typer.echo(f"#1 was passed over: {refused}", err=True)
            typer.echo(f"#{plan.rank} is written, {slower:.1%} slower by prediction", err=True)
        deliver(exported.files, folder, dry_run=False, force=False)
        for note in exported.notes:
            typer.echo(f"note: {note}", err=True)
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
    """Return the files of a saved plan; job scripts, which are of nodes of one kind, are
    refused."""
    from meshwright.errors import ConfigError
    from meshwright.exports.mixed import export_mixed

    if job_words:
        raise ConfigError(
            f"{', '.join(job_words)}: job scripts are written for nodes of one kind; leave it out,"
            " and start train.sh on each node in the order that it says"
        )
    return export_mixed(plan[0], plan[1], target=target, settings=settings)


def _exported(layout: MixedLayout, problem: MixedProblem, to: str) -> Exported:
    from meshwright.exports.mixed import export_mixed
    from meshwright.exports.registry import find_target

    return export_mixed(layout, problem, target=find_target(to))
