"""How often a run saves, what that costs, and the disk that its checkpoints take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.checkpoints.retention import Moment, Retention, Saved, peak_checkpoints, simulate
from meshwright.checkpoints.size import CheckpointSize
from meshwright.errors import ConfigError
from meshwright.sizing.goodput import Reliability, best_interval_s, share_of, write_s
from meshwright.units import GIB, HOUR_S, MINUTE_S

__all__ = ["SAVE_EVERY", "CheckpointPlan", "Machine", "Schedule", "plan_checkpoints"]

SAVE_EVERY = 2000
"""Steps between checkpoints where nobody says: NeMo Framework's pretraining configurations
(`every_n_train_steps: 2000`)."""


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
    Source:   Young (1974), Daly (2006), see sizing/goodput.py
    Valid:    checkpoints that stop the run while they are written
    Checked:  tests/checkpoints/test_plan.py
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
    fitting = None
    if quota_bytes is not None and peak_bytes > quota_bytes:
        fewer = (replace(rule, best=best) for best in range(rule.best - 1, -1, -1))
        fitting = next(
            (one.best for one in fewer if _peak(one, schedule, size)[2] <= quota_bytes), None
        )
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
        fitting_best=fitting,
    )


def _peak(rule: Retention, schedule: Schedule, size: CheckpointSize) -> tuple[int, int, float]:
    marked = 0
    if rule.keep_every is not None and schedule.steps is not None:
        saves = {*range(schedule.save_every, schedule.steps, schedule.save_every), schedule.steps}
        marked = sum(1 for step in saves if step % rule.keep_every == 0)
    full, stripped = peak_checkpoints(rule, saves=schedule.saves, marked=marked)
    return full, stripped, full * size.total_bytes + stripped * size.without_states_bytes
