"""Predict the runs that rows describe, those of one model, machine and software together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.headroom import headroom_bytes
from meshwright.cost.schedules import Pipeline
from meshwright.cost.simulate import steady_step_s
from meshwright.cost.stages import Which
from meshwright.cost.step import Priced
from meshwright.runs.measured.blanks import NOTICED, Tiers
from meshwright.runs.measured.fallback import as_rows_run, fallback_of
from meshwright.runs.measured.rows import Case, Unanswerable
from meshwright.search.quote import Setting, price_in
from meshwright.search.started import Started, started
from meshwright.trust.calibration import Calibrated, apply_calibration, own_intervals
from meshwright.trust.intervals import Fits, Intervals, fits_within, intervals_of
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Node, Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.stack import find_stack
from meshwright.values.text import csv_text
from meshwright.values.units import GIB

__all__ = [
    "COLUMNS",
    "PREDICTIONS_MARK",
    "SCORED",
    "Answers",
    "Held",
    "Prediction",
    "predict_rows",
    "predictions_csv",
    "reasons",
]

SCORED = ("source", "row_id", "step_time_s", "peak_mem_gib", "oom")
"""Columns that predictions are compared by."""
COLUMNS = (
    *SCORED,
    *("step_time_low_s", "step_time_high_s", "peak_mem_low_gib", "peak_mem_high_gib"),
    *("fits", "assumed"),
)
PREDICTIONS_MARK = ",".join(COLUMNS[:3])
"""How every file of predictions begins, of this version or another."""
_PER_STEP = ("dp_comm", "optimizer", "overhead")
"""Terms of the step time outside the pipeline."""
_STATES = ("weights", "gradients", "optimizer")
_SUMS = {
    "states": (*_STATES, "activations"),
    "after-backward": (*_STATES, "communication", "libraries"),
}
"""Memory terms that make up a figure which is no peak of the whole step."""
_PASSING = ("activations", "recompute_workspace", "logits")
"""Memory terms that are gone when the optimizer steps."""
_FULLY = ("zero3", "hybrid")


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """Memory of one kind of chip, or of one stage."""

    used_bytes: float
    slack_bytes: float
    """Of it, what the allocator gives back before it gives up."""
    room_bytes: float

    @staticmethod
    def of(used: NDArray[np.float64], slack: NDArray[np.float64], *, room: float) -> Held:
        """Return the fullest of some stages; a stage that needs more than the fullest does without
        its slack bounds what is given back."""
        most, needed = float(used.max()), float((used - slack).max())
        return Held(used_bytes=most, slack_bytes=most - needed, room_bytes=room)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What one run is predicted to do."""

    case: Case
    """As it was priced."""
    step_s: float
    peak_memory_bytes: float
    """The figure that the row tells: see MemoryFigure."""
    held: tuple[Held, ...]
    """Per kind of chip or stage."""

    @property
    def source(self) -> str:
        """The table's name."""
        return self.case.source

    @property
    def row_id(self) -> str:
        """The row's name in its table."""
        return self.case.row_id

    @property
    def used_bytes(self) -> float:
        """What the fullest chip shows."""
        return max(held.used_bytes for held in self.held)

    @property
    def slack_bytes(self) -> float:
        """Of it, what the allocator gives back before it gives up."""
        return max(self.held, key=lambda held: held.used_bytes).slack_bytes

    @property
    def fits(self) -> bool:
        """Whether no chip needs more than it has."""
        return all(held.used_bytes <= held.room_bytes for held in self.held)

    @property
    def intervals(self) -> Intervals:
        """The 80 % intervals of both figures."""
        figures = {"step_s": self.step_s, "peak_bytes": self.peak_memory_bytes}
        case, own = self.case, self.case.calibration
        published = intervals_of(
            case.kind, **figures, assumptions=case.assumptions, apart=case.apart
        )
        return published if own is None else own_intervals(own, published, **figures)

    @property
    def verdict(self) -> Fits:
        """`at risk` where the upper end of the memory interval would not fit, or no more than the
        allocator's slack is too much."""
        high = self.intervals.peak_bytes[1] / self.peak_memory_bytes
        said = [
            fits_within(
                held.used_bytes,
                limit_bytes=held.room_bytes,
                headroom_bytes=headroom_bytes(held.room_bytes, high=high),
                slack_bytes=held.slack_bytes,
            )
            for held in self.held
        ]
        return max(said, key=get_args(Fits).index)

    @property
    def cells(self) -> tuple[str, ...]:
        """The line of the predictions file."""
        found = self.intervals
        ends = (*found.step_s, *(size / GIB for size in found.peak_bytes))
        return (
            *(self.source, self.row_id),
            *(f"{self.step_s:.6g}", f"{self.peak_memory_bytes / GIB:.6g}"),
            "0" if self.fits else "1",
            *(f"{end:.6g}" for end in ends),
            *(self.verdict, "; ".join(self.case.assumed)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Predictions in the order of the rows, and the rows without one."""

    predictions: tuple[Prediction, ...]
    unanswered: tuple[Unanswerable, ...]


def predict_rows(cases: Iterable[Case | Unanswerable]) -> Answers:
    """Predict every case; rows without one are passed on with their reason."""
    rows = list(cases)
    found: dict[int, Prediction | Unanswerable] = {
        i: row for i, row in enumerate(rows) if isinstance(row, Unanswerable)
    }
    groups: dict[object, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        if isinstance(row, Unanswerable):
            continue
        if row.machines.mixed:
            found[i] = _one_mixed(row)
        else:
            groups[_key(row)].append(i)
    for members in groups.values():
        alike: list[Case] = [one for i in members if isinstance(one := rows[i], Case)]
        found |= zip(members, _predict_alike(alike), strict=True)
    ordered = [found[i] for i in range(len(rows))]
    return Answers(
        predictions=tuple(p for p in ordered if isinstance(p, Prediction)),
        unanswered=tuple(p for p in ordered if isinstance(p, Unanswerable)),
    )


def _key(case: Case) -> object:
    """Cases with one key are columns of one pricing."""
    return (
        case.model,
        case.machines.nodes[0],
        case.machines.num_chips,
        replace(case.workload, gbs=None),
        case.stack_name,
        case.stack_changes,
        case.switches,
        case.task,
        case.calibration,
    )


def _started(case: Case) -> Started:
    """The software as its release starts the run, with what the row says of it."""
    start = started(
        find_stack(case.stack_name),
        model=case.model,
        chip=case.machines.nodes[0].chip,
        precision=case.workload.precision,
        num_chips=case.machines.num_chips,
        task=case.task,
        seq_len=case.workload.seq_len,
        switches=case.switches,
    )
    stack = start.stack
    changes = {name: type(getattr(stack, name))(value) for name, value in case.stack_changes}
    return replace(start, stack=replace(stack, **changes))


def _predict_alike(cases: Sequence[Case]) -> list[Prediction | Unanswerable]:
    try:
        return _price_alike(cases)
    except ConfigError as error:
        if len(cases) == 1:
            if cases[0].choices:
                return _predict_alike([replace(cases[0], choices=())])
            return [_unanswered(cases[0], str(error))]
        return [answer for case in cases for answer in _predict_alike([case])]


def _price_alike(cases: Sequence[Case]) -> list[Prediction | Unanswerable]:
    """Price the layouts of all cases as columns of one table, and answer each with its own."""
    options = [[layout for tier in _tiers(case) for layout in tier] for case in cases]
    layouts = [layout for some in options for layout in some]
    priced = _priced(cases[0], layouts, node=cases[0].machines.nodes[0])
    used = _over_stages(priced, priced.memory.used)
    usable = cases[0].machines.nodes[0].chip.usable_bytes
    found, start = [], 0
    for case, some in zip(cases, options, strict=True):
        own = slice(start, start + len(some))
        i = start + _chosen(_tiers(case), priced.step_s[own], used[own], usable=usable)
        start = own.stop
        chosen = replace(case, layout=layouts[i], choices=())
        answer = _answer(
            chosen,
            step_s=float(priced.step_s[i]),
            peak=_figure(case, priced, i),
            held=(_held(priced, i, room=usable),),
        )
        found.append(_mended(answer))
    return found


def _mended(found: Prediction | Unanswerable) -> Prediction | Unanswerable:
    """The prediction of a run that fits; of one that does not, its memory with what its row leaves
    blank as it must have been, and its time as told: which of the ways it went is not known, and
    times as told are the nearer ones (9.2 % off for 9.7 in amp, 6.7 for 6.9 in Bridge)."""
    if isinstance(found, Unanswerable) or found.verdict != "no":
        return found
    setting = _setting(found.case, node=found.case.machines.nodes[0])
    rung = fallback_of(found.case, setting)
    if rung is None:
        return found
    priced = price_in(rung.setting, Layouts.of([rung.layout]))
    return replace(
        found,
        case=as_rows_run(found.case, rung),
        peak_memory_bytes=_figure(replace(found.case, layout=rung.layout), priced, 0),
        held=(_held(priced, 0, room=setting.limit_bytes),),
    )


def _tiers(case: Case) -> Tiers:
    return case.choices or ((case.layout,),)


def _chosen(
    tiers: Tiers, step_s: NDArray[np.float64], used: NDArray[np.float64], *, usable: float
) -> int:
    """The place of the layout that is taken to have run: see Tiers."""
    start = 0
    for tier in tiers:
        fitting = [i for i in range(start, start + len(tier)) if used[i] <= usable]
        if fitting:
            enough = (1.0 + NOTICED) * min(float(step_s[i]) for i in fitting)
            return next(i for i in fitting if step_s[i] <= enough)
        start += len(tier)
    last = range(start - len(tiers[-1]), start)
    return min(last, key=lambda i: float(used[i]))


def _held(priced: Priced, i: int, *, room: float) -> Held:
    real = priced.stages.real[i]
    memory = priced.memory
    return Held.of(memory.used[i][real], memory.terms["slack"][i][real], room=room)


def _setting(case: Case, *, node: Node) -> Setting:
    pool, start = Pool(node=node, num_chips=case.machines.num_chips), _started(case)
    stack, work = start.stack, replace(case.workload, gbs=None)
    if start.lora_targets and work.lora_rank:
        work = replace(work, lora_targets=start.lora_targets)
    calibrated = Calibrated(pool=pool, stack=stack)
    if case.calibration is not None:
        calibrated = apply_calibration(case.calibration, pool=pool, stack=stack)
    return Setting(
        model=case.model,
        pool=calibrated.pool,
        work=work,
        stack=calibrated.stack,
        limit_bytes=node.chip.usable_bytes,
    )


def _priced(case: Case, layouts: Sequence[Layout], *, node: Node) -> Priced:
    which: Which = "all" if case.machines.mixed else "representative"
    with np.errstate(all="ignore"):
        return price_in(_setting(case, node=node), Layouts.of(layouts), which=which)


def _over_stages(priced: Priced, array: NDArray[np.float64]) -> NDArray[np.float64]:
    fullest: NDArray[np.float64] = np.where(priced.stages.real, array, -np.inf).max(axis=1)
    return fullest


def _figure(case: Case, priced: Priced, i: int) -> float:
    """The memory that the row's `mem_def` asks for."""
    memory = priced.memory
    if case.memory.kind == "first-step":
        array = _first_step(case, priced)
    elif case.memory.kind in _SUMS:
        array = np.sum([memory.terms[name] for name in _SUMS[case.memory.kind]], axis=0)
        if case.memory.kind == "after-backward" and case.layout.sharding == "zero1":
            params, stack = memory.terms["weights"] / 2.0, find_stack(case.stack_name)
            shards = case.layout.shard_size or case.layout.dp * case.layout.cp
            each = stack.step_gather_bytes + stack.step_shard_bytes / shards
            array = array + params * (shards > 1) * each
    else:
        array = getattr(memory, case.memory.kind)
    at = {"first": 0, "last": case.layout.pp - 1}.get(case.memory.rank)
    chosen = priced.stages.real[i] if at is None else priced.stages.index[i] == at
    return float(array[i][chosen].max())


def _first_step(case: Case, priced: Priced) -> NDArray[np.float64]:
    """Peak allocated of a run's first step, (N, S): Adam's moments are made in it, when activations
    are gone.

    Megatron's log tells the peak once, after the first step (report_memory of
    megatron/training/training.py; the flag that asks for it is lowered there).
    """
    memory, stack = priced.memory, _started(case).stack
    half = case.workload.precision not in ("fp32", "tf32")
    master = stack.master_bytes if half and case.layout.sharding not in _FULLY else 0.0
    moments = stack.moment_bytes if half else 8.0
    made = memory.terms["optimizer"] * moments / (moments + master) if moments else 0.0
    passing = sum(memory.terms[name] for name in _PASSING)
    return np.asarray(memory.allocated - np.minimum(made, passing))


def _answer(
    case: Case, *, step_s: float, peak: float, held: tuple[Held, ...]
) -> Prediction | Unanswerable:
    if not (0 < step_s < math.inf and 0 < peak < math.inf):
        return _unanswered(case, "the model gives no finite time and memory for this layout")
    return Prediction(case=case, step_s=step_s, peak_memory_bytes=peak, held=held)


def _unanswered(case: Case, reason: str) -> Unanswerable:
    return Unanswerable(source=case.source, row_id=case.row_id, reason=reason)


def _one_mixed(case: Case) -> Prediction | Unanswerable:
    try:
        return predict_mixed(case)
    except ConfigError as error:
        return _unanswered(case, str(error))


def predict_mixed(case: Case) -> Prediction | Unanswerable:
    """Predict a run on several kinds of chips: price the layout on each kind, then run the stages'
    own times through the pipeline.

    A stage whose replicas sit on several kinds waits for the slowest; the exchange between replicas
    is the slowest kind's.
    """
    machines = zip(case.machines.pools, case.machines.nodes, strict=True)
    nodes = {name: node for (name, _), node in machines}
    kinds = {name: _priced(case, [case.layout], node=node) for name, node in nodes.items()}
    usable = {name: node.chip.usable_bytes for name, node in nodes.items()}
    stages = [[name for name, _ in stage] for stage in case.placement]
    step_s = _pipeline_s(case, kinds, stages) + max(
        sum(float(kinds[n].time[t][0]) for t in _PER_STEP) for stage in stages for n in stage
    )
    some = next(iter(kinds.values()))
    held = tuple(
        Held.of(
            some.memory.used[0, s],
            some.memory.terms["slack"][0, s],
            room=min(usable[n] for n in names),
        )
        for s, names in enumerate(stages)
    )
    return _answer(case, step_s=step_s, peak=_figure(case, some, 0), held=held)


def _pipeline_s(case: Case, kinds: dict[str, Priced], stages: Sequence[Sequence[str]]) -> float:
    layout = case.layout
    if layout.vpp > 1:
        raise ConfigError(
            f"vpp={layout.vpp}: interleaved stages on several kinds of chips are not predicted"
        )
    times = {name: priced.stage_times for name, priced in kinds.items()}
    forward, backward = (
        [
            max(float(getattr(times[n], which)[0, s]) for n in names)
            for s, names in enumerate(stages)
        ]
        for which in ("forward_s", "backward_s")
    )
    link = max(float(priced.stage_times.p2p_s[0]) for priced in kinds.values())
    overlapped = layout.pp == 1 or _started(case).stack.p2p == "overlapped"
    pipeline = Pipeline(
        schedule="1f1b",
        pp=layout.pp,
        num_microbatches=layout.num_microbatches,
        forward_s=forward,
        backward_s=backward,
        link_s=link,
        p2p="overlapped" if overlapped else "blocking",
    )
    return steady_step_s(pipeline)


def predictions_csv(answers: Answers) -> str:
    """Return the predictions file; rows without an answer have blank figures."""
    blank = ((u.source, u.row_id, *[""] * (len(COLUMNS) - 2)) for u in answers.unanswered)
    return csv_text(COLUMNS, (*(p.cells for p in answers.predictions), *blank))


def reasons(answers: Answers) -> dict[str, dict[str, int]]:
    """Count the rows without an answer by table and reason, the most frequent first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in answers.unanswered:
        counts[row.source][row.reason] += 1
    return {source: dict(counter.most_common()) for source, counter in counts.items()}
