"""Targets and sources: what every export and every import is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from meshwright.errors import ConfigError
from meshwright.exports._counted import counted_but_not_set
from meshwright.exports._tracked import fields_set, plain, tracked
from meshwright.exports.defaults import left_out
from meshwright.exports.exported import Exported, TrainedLayers
from meshwright.exports.imported import Imported
from meshwright.exports.plan import TrainingPlan, completed

__all__ = ["ExportTarget", "ImportSource", "export_plan", "import_text"]

_NOT_ASKED = {
    "model.name": "a label",
    "layout.dp": "follows from the chips and the other axes",
    "work.gbs": "the layout's",
    "work.attention": "a kernel, not a result",
    "work.routing": "how tokens are taken to spread over experts, for the estimate",
    "work.fused_norm": "a kernel, not a result",
    "settings.train_tokens": "completed to train_steps",
    "settings.extra": "appended by targets that take words, see ExportTarget.takes_extra",
}
"""Fields that an exporter need not look at, each with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportTarget:
    """One training software that plans are written for."""

    name: str
    """As `--to` takes it."""
    title: str
    versions: str
    """Which versions the export is for, in words."""
    write: Callable[[TrainingPlan], Exported]
    """Text from a completed plan. CannotExpress where the software has no words for it."""
    trained_layers: Callable[[TrainingPlan, Exported], TrainedLayers]
    """The layers that the written configuration trains, by reading it as its program does (never by
    asking the plan; that is given for what the program knows from elsewhere, such as the number of
    chips)."""
    stacks: tuple[str, ...] = ()
    """Names of the stacks whose plans it writes; empty takes any."""
    takes_extra: bool = False
    """Whether `settings.extra` is appended to its command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSource:
    """One kind of file that plans are read from."""

    name: str
    title: str
    matches: Callable[[str, str], bool]
    """(file's name, text): whether the file is of this kind."""
    read: Callable[[str], Imported]
    """The run that a text describes; ConfigError says what is wrong, in one line."""


def export_plan(plan: TrainingPlan, *, target: ExportTarget) -> Exported:
    """Write a plan for one training software.

    Everything that the plan sets is looked at by the target, else this is refused; and the layers
    that the written configuration would train are counted against the model's.
    """
    if target.stacks and plan.stack.name not in target.stacks:
        words = f"the plan is priced for stack {plan.stack.name}"
        raise ConfigError(
            f"{target.name}: {words}, whose layouts it does not run; plan with --stack"
            f" {target.stacks[0]}"
        )
    seen: set[str] = set()
    full = completed(plan)
    exported = target.write(tracked(full, seen))
    _require_all_seen(plan, seen, target)
    _require_all_layers(plan, target.trained_layers(full, exported), target)
    notes = (*exported.notes, *counted_but_not_set(plan, target=target.name))
    rest = left_out(plan.model.name)
    return replace(
        exported, notes=(*notes, f"{plan.model.name} is written without: {rest}") if rest else notes
    )


def _require_all_seen(plan: TrainingPlan, seen: set[str], target: ExportTarget) -> None:
    """Refuse where a field that the plan sets was not looked at: nothing is dropped in silence."""
    parts = ("model", "work", "layout", "settings", "details")
    wanted = {
        name: value
        for part in parts
        for name, value in fields_set(getattr(plan, part), f"{part}.").items()
    }
    free = {name for name in _NOT_ASKED if name != "settings.extra" or target.takes_extra}
    dropped = [
        f"{name}={plain(value)!r}" for name, value in wanted.items() if name not in seen | free
    ]
    if dropped:
        raise ConfigError(
            f"{target.name}: has no place for {', '.join(dropped)}; leave it out, or export to"
            " another target"
        )


def _require_all_layers(plan: TrainingPlan, found: TrainedLayers, target: ExportTarget) -> None:
    model, layout = plan.model, plan.layout
    if sum(found.chunks) != model.total_layers or found.mtp != model.mtp_layers:
        shown, wanted = "+".join(map(str, found.chunks)), str(model.total_layers)
        if found.mtp or model.mtp_layers:
            shown, wanted = (
                f"{shown} (and {found.mtp} of multi-token prediction)",
                f"{wanted} (and {model.mtp_layers})",
            )
        raise ConfigError(
            f"{target.name}: the written pipeline would train {shown} layers, the model has"
            f" {wanted}"
        )
    if len(found.chunks) not in (layout.pp, layout.pp * layout.vpp):
        words = f"the written pipeline has {len(found.chunks)} stages or chunks"
        raise ConfigError(f"{target.name}: {words}, the plan pp={layout.pp}, vpp={layout.vpp}")
    even = (model.total_layers // layout.pp,) * layout.pp
    wanted_sums = (
        even if layout.layers_per_stage is None else _stage_sums(layout.layers_per_stage, layout.pp)
    )
    if _stage_sums(found.chunks, layout.pp) != wanted_sums:
        shown, wanted = (
            "+".join(map(str, sums)) for sums in (_stage_sums(found.chunks, layout.pp), wanted_sums)
        )
        raise ConfigError(
            f"{target.name}: the written stages have {shown} layers, the plan's {wanted}"
        )


def _stage_sums(split: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Return the layers of each stage of a split by stage or by chunk; chunk v of stage s is entry
    v * pp + s."""
    return tuple(sum(split[stage::pp]) for stage in range(pp))


def import_text(text: str, *, source: ImportSource) -> Imported:
    """Read a run from a text; words without a place in a plan go to `settings.extra`, so that a
    later export hands them on."""
    found = source.read(text)
    batch = (
        {} if found.work.gbs is None else {"gbs": found.work.gbs}
    )  # a layout names its batch, and sources may leave it to the workload
    settings = replace(found.settings, extra=(*found.settings.extra, *found.passed_through))
    return replace(found, layout={**batch, **found.layout}, settings=settings)
