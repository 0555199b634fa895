"""Parallelism for a Megatron-LM command line: given flags hold, the rest is planned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from meshwright import api
from meshwright.compat.apss import Device
from meshwright.search.problem import Problem, ask, dims_of
from meshwright.search.request import MOST_PLANS, PlanRequest
from meshwright.search.result import Plan, PlanResult
from meshwright.software.contract import EnvVar, Imported, export_plan
from meshwright.software.plan import plan_of
from meshwright.software.registry import find_target
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.layout import Layout
from meshwright.values.units import GIB, format_seconds

__all__ = ["Answer", "Strategy", "strategies_of"]

_SOFTWARE = "megatron-lm"
_RECOMPUTE_OF = {
    "none": (),
    "selective": ("recompute_modules",),
    "full": ("recompute_method", "recompute_layers"),
}
"""Fields that say more of each kind of recomputation."""
_NEWER_AXES = ("cp", "ep", "etp")
"""Axes whose flags not every version has; each is 1 by default."""
_OLD_SHARDINGS = ["none", "zero1"]
_OLD_MODULES = ["core_attn"]
"""What Megatron-LM could before FSDP and recomputed modules; a version says more."""
_SPARE = 4
"""Plans per strategy, as some cannot be written for an old version."""
_FLAGS: dict[str, tuple[str, ...]] = {
    "dp": ("--data-parallel-size",),
    "tp": ("--tensor-model-parallel-size",),
    "sp": ("--sequence-parallel",),
    "cp": ("--context-parallel-size",),
    "ep": ("--expert-model-parallel-size",),
    "etp": ("--expert-tensor-parallel-size",),
    "pp": ("--pipeline-model-parallel-size",),
    "vpp": ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    "layers_per_stage": (
        "--pipeline-model-parallel-layout",
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
    ),
    "mbs": ("--micro-batch-size",),
    "gbs": ("--global-batch-size",),
    "sharding": (
        "--use-distributed-optimizer",
        "--use-megatron-fsdp",
        "--data-parallel-sharding-strategy",
    ),
    "recompute": ("--recompute-granularity", "--recompute-activations"),
    "recompute_method": ("--recompute-method",),
    "recompute_layers": ("--recompute-num-layers",),
    "recompute_modules": ("--recompute-modules",),
}
"""Fields of a layout and their flags: given ones are pins, a strategy consists of the others."""
_RECOMPUTE = tuple(name for name in _FLAGS if name.startswith("recompute"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One way to train, as words to add to the command line."""

    words: tuple[str, ...]
    environment: tuple[EnvVar, ...]
    figures: str
    """What it is predicted to do."""
    layout: Layout
    problem: Problem
    """What it was found for."""
    imported: Imported
    """What the command line says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Strategies, best first."""

    strategies: tuple[Strategy, ...]
    notes: tuple[str, ...]
    why_none: str
    """Where there are none."""


def strategies_of(
    imported: Imported,
    words: Sequence[str],
    *,
    device: Device,
    world_size: int,
    local_world_size: int,
    max_global_batch_size: int | None = None,
    megatron_version: str | None = None,
    top: int = 10,
) -> Answer:
    """Return strategies for a Megatron-LM command line; flags of parallelism in it are held."""
    flags = {word.partition("=")[0] for word in words}
    given = {field for field, known in _FLAGS.items() if flags & set(known)}
    version = megatron_version or imported.megatron_version
    if version is None and imported.model.family != "decoder":
        version = LAST_ENCODERS
    asked = _request(imported, given, version, device.max_memory_gib)
    asked |= _batch(imported, given, max_global_batch_size)
    asked |= {"cluster": f"{device.chip}:{world_size}", "gpus_per_node": local_world_size}
    asked |= {"top": min(top * _SPARE, MOST_PLANS), "fastest": True}
    request = PlanRequest.of(asked if version is None else {**asked, "megatron_version": version})
    result = api.plan(request)
    problem = api.problem_of(request)
    entries = [_written(plan, problem, imported, given, version) for plan in result.plans]
    found = [entry for entry in entries if isinstance(entry, Strategy)]
    faster = dict.fromkeys(itertools.takewhile(lambda entry: isinstance(entry, str), entries))
    reasons = dict.fromkeys(entry for entry in entries if isinstance(entry, str))
    left_out = [f"a faster one is left out: {reason}" for reason in faster if found]
    return Answer(
        strategies=tuple(found[:top]),
        notes=(*_said(imported.warnings, given, result, max_global_batch_size), *left_out),
        why_none="; ".join(reasons) or _why_none(result),
    )


LAST_ENCODERS = "0.17.1"
"""The last version of Megatron-Core with pretrain_t5.py and pretrain_bert.py
(software/megatron_lm/export.py)."""
_INVENTED = "no --global-batch-size"


def _said(
    warnings: Sequence[str], given: set[str], result: PlanResult, most: int | None
) -> tuple[str, ...]:
    """What the reader says, but for a batch that is searched here; and how that was chosen."""
    found = tuple(warning for warning in warnings if not warning.startswith(_INVENTED))
    if "gbs" in given or not result.plans:
        return found
    sizes = sorted({plan.layout.gbs for plan in result.plans})
    chosen = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    why = f"of at most {most}" if most is not None else "a usual one for this model"
    words = "--global-batch-size or --max-global-batch-size"
    return (*found, f"{_INVENTED}: {chosen} was chosen, {why}; say yours by {words}")


def _written(
    plan: Plan, problem: Problem, imported: Imported, given: set[str], version: str | None
) -> Strategy | str:
    """Return a plan as a strategy, or why it cannot be written."""
    if version is None and plan.layout.layers_per_stage is not None:
        needed = "a version of Megatron-Core that takes them, said by --megatron-version"
        return f"uneven stages need {needed}"
    asked = ask({one.name: getattr(plan.layout, one.name) for one in fields(Layout)}, problem)
    whole = plan_of(asked, settings=imported.settings, details=imported.details)
    try:
        exported = export_plan(whole, target=find_target(_SOFTWARE))
    except CannotExpress as error:
        return str(error)
    added = _added(exported.command, given, version)
    return Strategy(
        words=added,
        environment=exported.environment,
        figures=_figures(plan),
        layout=plan.layout,
        problem=problem,
        imported=imported,
    )


def _request(
    imported: Imported, given: set[str], version: str | None, max_memory_gib: float | None
) -> dict[str, Any]:
    """Return the request: what the command line says is pinned, the rest is left to the search."""
    work = imported.work
    asked: dict[str, Any] = {
        "model": dims_of(imported.model),
        "seq_len": work.seq_len,
        "precision": work.precision,
        "attention": work.attention,
        "stack": imported.stack,
        "max_memory_gib": max_memory_gib,
        "pins": _pins(imported, given, version),
    }
    if work.decoder_seq_len is not None:
        asked["decoder_seq_len"] = work.decoder_seq_len
    return asked


def _batch(imported: Imported, given: set[str], most: int | None) -> dict[str, int]:
    if "gbs" not in given:
        return {} if most is None else {"max_gbs": most}
    batch = imported.work.gbs
    assert batch is not None, "the reader takes it from the flag"
    if most is not None and batch > most:
        above = f"--global-batch-size {batch} is above --max-global-batch-size {most}"
        raise ConfigError(f"{above}; leave one of them out")
    return {"gbs": batch}


def _pins(imported: Imported, given: set[str], version: str | None) -> dict[str, list[Any]]:
    """Return the values that the command line holds; one word on recomputation holds all of it."""
    layout = imported.layout
    held = [name for name in _FLAGS if name in given and name not in (*_RECOMPUTE, "gbs")]
    if given & set(_RECOMPUTE):
        kind = layout.get("recompute", "none")
        held += ["recompute", *_RECOMPUTE_OF[kind]]
        layout = {"recompute": kind, **layout}
    pins = {name: [_pin(layout[name])] for name in held if layout.get(name) is not None}
    if version is None and "recompute" not in pins:
        pins |= {"recompute": list(_RECOMPUTE_OF), "recompute_modules": list(_OLD_MODULES)}
    if version is None and "sharding" not in pins:
        pins["sharding"] = list(_OLD_SHARDINGS)
    return pins


def _pin(value: Any) -> int | str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return int(value) if isinstance(value, bool) else value


def _added(command: Sequence[str], given: set[str], version: str | None) -> tuple[str, ...]:
    """Return the strategy's words that were not given; an axis of 1 is left to the default."""
    groups = {flag: field for field, flags in _FLAGS.items() for flag in flags}
    found: list[str] = []
    adding = False
    for word, after in zip(command, (*command[1:], ""), strict=True):
        if word.startswith("--"):
            field = groups.get(word)
            if field in _NEWER_AXES and after == "1":
                field = None
            unsaid = version is None and field == "recompute_modules"
            held = {*_RECOMPUTE} if field in _RECOMPUTE else {field}  # one word holds them together
            adding = field is not None and not held & given and not unsaid
        if adding:
            found.append(word)
    return tuple(found)


def _figures(plan: Plan) -> str:
    memory = f"{plan.peak_bytes / GIB:.1f} GiB{'' if plan.fits == 'yes' else ', at risk'}"
    return f"{format_seconds(plan.step_s)} a step, {100 * plan.mfu:.1f} % MFU, {memory}"


def _why_none(result: PlanResult) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in result.rejected.items())
    miss = result.nearest_miss
    near = ""
    if miss is not None:
        near = f"; nearest miss {miss.layout.words()}: {miss.over_bytes / GIB:.1f} GiB too much"
    return f"nothing fits: {reasons}{near}"
