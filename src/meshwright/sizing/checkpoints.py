"""How often a run saves, what that costs, and the disk that its checkpoints take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from meshwright.sizing.duration import Reliability, best_interval_s, share_of, write_s
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.units import GIB, HOUR_S, MINUTE_S
from meshwright.values.workload import Precision

__all__ = [
    "OPTIMIZERS",
    "SAVE_EVERY",
    "CheckpointPlan",
    "CheckpointSize",
    "Choice",
    "Machine",
    "Moment",
    "Optimizer",
    "Retention",
    "Saved",
    "Schedule",
    "checkpoint_size",
    "choose",
    "peak_checkpoints",
    "plan_checkpoints",
    "simulate",
]

Optimizer = Literal["adam", "adam-bf16", "adam-8bit", "muon", "lion", "sgd-momentum", "sgd"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
_STATE_BYTES: dict[Optimizer, float] = {
    "adam-bf16": (
        4.0
    ),  # both moments in bf16, as Megatron-Core's --exp-avg-dtype and --exp-avg-sq-dtype
    "adam-8bit": (
        2.0 + 2 * 4.0 / 256
        # two bytes, and an fp32 scale for each block of 256 of either (bitsandbytes, arXiv:2110.02861)  # noqa: E501
    ),
    "lion": 4.0,  # one fp32 momentum (arXiv:2302.06675)
    "sgd-momentum": 4.0,
    "sgd": 0.0,
}
_MUON_BYTES, _ADAM_BYTES = 4.0, 8.0
"""Muon: one fp32 momentum inside layers; embedding, head, norms have Adam's (arXiv:2502.16982)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSize:
    """What one checkpoint holds, in bytes of all ranks together."""

    params: int
    weight_bytes: float
    """The weights that the model computes with, half precision where training is; in fp32, or where
    the software keeps fp32 ones alone, those."""
    master_bytes: float
    """The fp32 copy beside half-precision weights; 0 where there is none."""
    state_bytes: float
    """The optimizer's moments."""

    @property
    def total_bytes(self) -> float:
        """All of it: a run goes on from this."""
        return self.weight_bytes + self.master_bytes + self.state_bytes

    @property
    def without_states_bytes(self) -> float:
        """What stays when master copy and moments are dropped: enough to evaluate, export or
        fine-tune from."""
        return self.weight_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "params": self.params,
            "bytes_per_param": self.total_bytes / self.params,
            "total_gib": self.total_bytes / GIB,
            "weight_gib": self.weight_bytes / GIB,
            "master_gib": self.master_bytes / GIB,
            "state_gib": self.state_bytes / GIB,
            "without_states_gib": self.without_states_bytes / GIB,
        }


def checkpoint_size(
    model: ModelSpec, *, stack: Stack, precision: Precision = "bf16", optimizer: Optimizer = "adam"
) -> CheckpointSize:
    """Bytes of one checkpoint of a model, as a training software writes it.

    Formula:  params * (weights + master copy + moments). In half precision 2 + 4 + 8 = 14 with
              Adam; 4 + 8 = 12 where the software keeps fp32 weights alone (FSDP without
              half-precision shards) and in fp32; 2 + 4 where it updates half-precision weights
    Units:    bytes.
    Source:   the stack's file software/*/stack.toml (master_bytes, moment_bytes, zero3_weights);
              optimizers as listed above
    Valid:    every parameter is trained; padding of the vocabulary, data loaders' and generators'
              states are left out
    Checked:  tests/sizing/test_size.py: NeMo's 6.838 B model is 89.2 GiB
    """
    if optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
    params = model_params(model)
    half = precision not in ("fp32", "tf32")
    master = stack.master_bytes if half else 0.0
    only_master = half and stack.family == "fsdp" and master > 0 and stack.zero3_weights == "master"
    if optimizer == "adam":
        states = stack.moment_bytes if half else _ADAM_BYTES
    elif optimizer == "muon":
        outside = params.embedding + params.positions + params.head + params.norms
        states = _MUON_BYTES + (_ADAM_BYTES - _MUON_BYTES) * outside / params.total
    else:
        states = _STATE_BYTES[optimizer]
    return CheckpointSize(
        params=params.total,
        weight_bytes=params.total * (master if only_master else 2.0 if half else 4.0),
        master_bytes=0.0 if only_master else params.total * master,
        state_bytes=params.total * states,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """What stays of the checkpoints of a run; one that any of the rules keeps stays."""

    best: int = 10
    """As many with the least validation loss; of equal ones the newer. One without a loss, or whose
    loss is no number, is never best."""
    last: int = 1
    """The newest with optimizer states, from which a run goes on."""
    keep_every: int | None = None
    """And each whose step is a multiple of this, for ever; None keeps none for that."""
    drop_states: bool = False
    """Whether those that are not among the newest lose their optimizer states."""

    def __post_init__(self) -> None:
        if self.best < 0:
            raise ConfigError(f"best={self.best}: expected 0 or more checkpoints")
        if self.last < 1:
            raise ConfigError(
                f"last={self.last}: expected 1 or more; a run goes on from the newest checkpoint"
            )
        if self.keep_every is not None and self.keep_every < 1:
            raise ConfigError(f"keep_every={self.keep_every}: expected a number of steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One whole checkpoint on disk."""

    step: int
    loss: float | None = None
    """Of validation at that step; None where nobody evaluated."""
    has_states: bool = True
    """Whether its optimizer states are still there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What is done when a checkpoint has become whole; steps, ascending."""

    delete: tuple[int, ...]
    strip: tuple[int, ...]
    """Those that lose their optimizer states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The disk behind one save of a simulated run."""

    saved: Saved
    choice: Choice
    kept: tuple[Saved, ...]
    """Behind the choice."""
    peak_bytes: float
    """While it was written: all that were there, and itself."""
    bytes: float
    """Behind the choice."""


def choose(saved: Iterable[Saved], rule: Retention) -> Choice:
    """Return what goes of the checkpoints on disk."""
    found = sorted(saved, key=lambda one: one.step)
    newest = {one.step for one in [one for one in found if one.has_states][-rule.last :]}
    rated = [one for one in found if one.loss is not None and math.isfinite(one.loss)]
    best = {one.step for one in sorted(rated, key=lambda one: (one.loss, -one.step))[: rule.best]}
    marked = {
        one.step for one in found if rule.keep_every is not None and one.step % rule.keep_every == 0
    }
    stays = newest | best | marked
    return Choice(
        delete=tuple(one.step for one in found if one.step not in stays),
        strip=tuple(
            one.step
            for one in found
            if rule.drop_states and one.has_states and one.step in stays - newest
        ),
    )


def simulate(
    losses: Sequence[Saved], rule: Retention, *, full_bytes: float, stripped_bytes: float
) -> list[Moment]:
    """Return the disk behind each save of a run, in the order of the checkpoints."""
    kept: tuple[Saved, ...] = ()
    moments = []
    for one in losses:
        before = kept
        choice = choose([*before, one], rule)
        kept = tuple(
            replace(old, has_states=old.has_states and old.step not in choice.strip)
            for old in [*before, one]
            if old.step not in choice.delete
        )
        used = [
            sum(full_bytes if old.has_states else stripped_bytes for old in olds)
            for olds in (before, kept)
        ]
        moments.append(
            Moment(
                saved=one, choice=choice, kept=kept, peak_bytes=used[0] + full_bytes, bytes=used[1]
            )
        )
    return moments


def peak_checkpoints(rule: Retention, *, saves: int | None, marked: int) -> tuple[int, int]:
    """Most checkpoints on disk at once, whatever the losses: those with optimizer states, and those
    that lost them.

    Formula:  best + last + 1 that is being written, and each that `keep_every` keeps (`marked`); at
              most all `saves`. Where old ones lose their states, last + 1 have them and the others
              have not
    Units:    checkpoints.
    Source:   the rules of `choose`; the new one is whole before an old one goes
    Valid:    an upper end: a checkpoint that two rules keep is counted twice
    Checked:  tests/sizing/test_retention.py: against `simulate`
    """
    whole = rule.last + 1 + (0 if rule.drop_states else rule.best + marked)
    stripped = rule.best + marked if rule.drop_states else 0
    if saves is None:
        return whole, stripped
    whole = min(whole, saves)
    return whole, min(stripped, saves - whole)


SAVE_EVERY = 2000
"""Steps between checkpoints where nobody says: NeMo's `every_n_train_steps: 2000`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What writes checkpoints, and fails."""

    chip: str
    chips: int
    nodes: int
    reliability: Reliability


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When a run saves."""

    save_every: int = SAVE_EVERY
    """Steps between checkpoints."""
    step_s: float | None = None
    """None where nobody knows: intervals are then in seconds alone."""
    steps: int | None = None
    """Of the whole run."""

    def __post_init__(self) -> None:
        for name in ("save_every", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: expected 1 step or more")
        if self.step_s is not None and not 0 < self.step_s < float("inf"):
            raise ConfigError(f"step_s={self.step_s:g}: expected a positive number of seconds")

    @property
    def saves(self) -> int | None:
        """Checkpoints of the whole run, one at its end among them."""
        return None if self.steps is None else -(-self.steps // self.save_every)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """The answer of `meshwright ckpt plan`."""

    model: str
    stack: str
    size: CheckpointSize
    machine: Machine
    schedule: Schedule
    rule: Retention
    write_s: float
    """Seconds of one checkpoint from all nodes at once."""
    mtbf_s: float
    """Between failures of the whole job."""
    best_interval_s: float
    """Seconds of training between checkpoints that lose the least time."""
    best_share: float | None
    """Of the wall time that trains at that interval; None where such a run never ends."""
    asked_share: float | None
    """The same at `schedule.save_every`; None also where nobody knows the step's time."""
    peak_full: int
    """Most checkpoints with optimizer states on disk at once."""
    peak_stripped: int
    """And most without them beside those."""
    peak_bytes: float
    """By the rule, whatever the losses."""
    quota_bytes: float | None
    moments: tuple[Moment, ...]
    """Of the losses that were given."""
    fitting_best: int | None
    """Where the quota is too small: the largest `best` that keeps it; None where none does."""

    @property
    def fits(self) -> bool:
        """Whether the disk holds the peak."""
        return self.quota_bytes is None or self.peak_bytes <= self.quota_bytes

    @property
    def best_interval_steps(self) -> int | None:
        """The best interval, in steps."""
        step_s = self.schedule.step_s
        return None if step_s is None else max(1, round(self.best_interval_s / step_s))

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `ckpt plan --json` prints."""
        rule, reliability = self.rule, self.machine.reliability
        return {
            "model": self.model,
            "stack": self.stack,
            "chip": self.machine.chip,
            "chips": self.machine.chips,
            "nodes": self.machine.nodes,
            "checkpoint": self.size.to_dict(),
            "write_s": self.write_s,
            "write_gb_per_s_per_node": reliability.write_bytes_per_s_per_node / 1e9,
            "mtbf_hours": self.mtbf_s / HOUR_S,
            "restart_minutes": reliability.restart_s / MINUTE_S,
            "best_interval": {
                "minutes": self.best_interval_s / MINUTE_S,
                "steps": self.best_interval_steps,
                "goodput": self.best_share,
            },
            "save_every": {"steps": self.schedule.save_every, "goodput": self.asked_share},
            "step_s": self.schedule.step_s,
            "steps": self.schedule.steps,
            "saves": self.schedule.saves,
            "retention": {
                "best": rule.best,
                "last": rule.last,
                "keep_every": rule.keep_every,
                "drop_states": rule.drop_states,
            },
            "peak": {
                "full": self.peak_full,
                "stripped": self.peak_stripped,
                "gib": self.peak_bytes / GIB,
            },
            "quota_gib": None if self.quota_bytes is None else self.quota_bytes / GIB,
            "fits": self.fits,
            "fitting_best": self.fitting_best,
            "simulated": [_moment_dict(moment) for moment in self.moments],
        }


def _moment_dict(moment: Moment) -> dict[str, Any]:
    return {
        "step": moment.saved.step,
        "loss": moment.saved.loss,
        "deleted": list(moment.choice.delete),
        "stripped": list(moment.choice.strip),
        "kept": [one.step for one in moment.kept],
        "gib": moment.bytes / GIB,
        "peak_gib": moment.peak_bytes / GIB,
    }


def plan_checkpoints(
    name: str,
    size: CheckpointSize,
    *,
    stack: str,
    machine: Machine,
    schedule: Schedule,
    rule: Retention,
    losses: Sequence[Saved] = (),
    quota_bytes: float | None = None,
) -> CheckpointPlan:
    """Interval, cost and disk of a run's checkpoints.

    Formula:  write_s = bytes / (nodes * write rate); mtbf = chip_mtbf / chips; interval by Daly's
              `best_interval_s`; peak = (last + 1) * full + (best + marked) * (full or without
              states)
    Units:    bytes, s, shares
    Source:   Young (1974), Daly (2006), see sizing/duration.py
    Valid:    checkpoints that stop the run while they are written
    Checked:  tests/sizing/test_plan.py
    """
    if rule.keep_every is not None and schedule.steps is None:
        raise ConfigError(
            f"keep_every={rule.keep_every} keeps checkpoints for ever: say of how many steps the"
            " run is (steps)"
        )
    reliability = machine.reliability
    written_s = write_s(size.total_bytes, nodes=machine.nodes, reliability=reliability)
    mtbf_s = reliability.chip_mtbf_s / machine.chips
    interval_s = best_interval_s(write_s=written_s, mtbf_s=mtbf_s)
    asked_s = None if schedule.step_s is None else schedule.save_every * schedule.step_s

    def share(seconds: float) -> float | None:
        return share_of(seconds, write_s=written_s, mtbf_s=mtbf_s, restart_s=reliability.restart_s)

    full, stripped, peak_bytes = _peak(rule, schedule, size)
    return CheckpointPlan(
        model=name,
        stack=stack,
        size=size,
        machine=machine,
        schedule=schedule,
        rule=rule,
        write_s=written_s,
        mtbf_s=mtbf_s,
        best_interval_s=interval_s,
        best_share=share(interval_s),
        asked_share=None if asked_s is None else share(asked_s),
        peak_full=full,
        peak_stripped=stripped,
        peak_bytes=peak_bytes,
        quota_bytes=quota_bytes,
        moments=tuple(
            simulate(
                losses, rule, full_bytes=size.total_bytes, stripped_bytes=size.without_states_bytes
            )
        ),
        fitting_best=_fitting_best(rule, schedule, size, quota_bytes),
    )


def _fitting_best(
    rule: Retention, schedule: Schedule, size: CheckpointSize, quota_bytes: float | None
) -> int | None:
    """How many of the best checkpoints to keep so that the disk holds all; None where those asked
    for fit, and where no number does."""
    if quota_bytes is None or _peak(rule, schedule, size)[2] <= quota_bytes:
        return None
    fewer = (replace(rule, best=best) for best in range(rule.best - 1, -1, -1))
    return next((one.best for one in fewer if _peak(one, schedule, size)[2] <= quota_bytes), None)


def _peak(rule: Retention, schedule: Schedule, size: CheckpointSize) -> tuple[int, int, float]:
    marked = 0
    if rule.keep_every is not None and schedule.steps is not None:
        saves = {*range(schedule.save_every, schedule.steps, schedule.save_every), schedule.steps}
        marked = sum(1 for step in saves if step % rule.keep_every == 0)
    full, stripped = peak_checkpoints(rule, saves=schedule.saves, marked=marked)
    return full, stripped, full * size.total_bytes + stripped * size.without_states_bytes
