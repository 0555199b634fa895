"""What is wrong with a run, by stated rules on its reports; each names its numbers.

failed       an error in the log behind its last report, and silence
nan          the newest loss or gradient norm is no number, or an iteration was counted so in the
             last RECENT reports
hang         silence for QUIET_REPORTS times the usual time between reports and QUIET_STEPS steps on
             top, five minutes at least; half an hour before the first two reports, and while the
             log says that a checkpoint is being written
loss_spike   one of the last RECENT losses is above the median of the LEAST before them by
             SPIKE_SIGMAS deviations and SPIKE_LEAST of it. A deviation is 1.4826 / sqrt(2) of the
             median step from loss to loss among the WINDOW before, so that neither noise nor a fast
             descent is a spike
slow         the median of the last RECENT steps is SLOW times what it was: the lesser of the
             medians of the WINDOW steps before them and of the first WINDOW, so that a slow-down
             does not become the habit it is held against. Warm-ups and skipped updates are left out
below_plan   the median of the last RECENT steps is beyond the slow end of the plan's 80 % interval
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal, get_args

from meshwright.runs.outcome import START_LIMIT_S, Failure
from meshwright.software.log import Report, steady_reports
from meshwright.values.errors import ConfigError
from meshwright.values.units import format_seconds

__all__ = [
    "ALARMS",
    "NO_FACTS",
    "WINDOW",
    "Alarm",
    "RunFacts",
    "facts_of_plan",
    "find_alarms",
    "quiet_limit_s",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts of a run; None is not known."""

    model: str | None = None
    seq_len: int | None = None
    gbs: int | None = None
    chips: int | None = None
    total_steps: int | None = None
    step_s: float | None = None
    """As the plan predicts."""
    step_interval_s: tuple[float, float] | None = None
    """Of 80 %."""
    mfu: float | None = None
    """Predicted: full attention, recompute not counted."""
    tflops_per_gpu: float | None = None
    """Predicted, in the same count."""
    usd_per_chip_hour: float | None = None

    @property
    def tokens(self) -> int | None:
        """Of one step."""
        return None if self.seq_len is None or self.gbs is None else self.seq_len * self.gbs

    def seconds(self, report: Report) -> float | None:
        """Return a step's time, from a rate where the log says no time and the batch is known."""
        if self.seq_len is not None and self.gbs is not None and self.chips is not None:
            return report.seconds(seq_len=self.seq_len, gbs=self.gbs, num_chips=self.chips)
        return report.step_s if report.step_s is not None and 0 < report.step_s < math.inf else None


NO_FACTS = RunFacts()


def facts_of_plan(content: Mapping[str, Any], *, rank: int = 1, source: str = "plan") -> RunFacts:
    """Return the facts of the object that `meshwright plan --json` prints; ConfigError where it is
    none.

    Formula:  chips = tp * cp * pp * dp, or the used ones of several kinds; USD a chip and hour =
              3600 * tokens/s/GPU / tokens per dollar
    Units:    s, USD, TFLOPS.
    Source:   the contract of `plan --json`
    Checked:  tests/runs/watch/test_status.py
    """
    try:
        request, plan = content["request"], content["plans"][rank - 1]
        layout = plan["layout"]
        chips = math.prod(layout[axis] for axis in ("tp", "cp", "pp", "dp"))
        if plan.get("chips"):
            chips = sum(kind["used"] for kind in plan["chips"])
        model = request["model"]
        rate = plan.get("provenance", {}).get("tokens_per_dollar")
        price = request.get("usd_per_hour")
        low_high = (plan.get("interval") or {}).get("step_s")
        return RunFacts(
            model=model if isinstance(model, str) else model.get("name"),
            seq_len=request["seq_len"],
            gbs=layout["gbs"],
            chips=chips,
            step_s=plan.get("step_s"),
            step_interval_s=None if not low_high else (low_high[0], low_high[1]),
            mfu=plan.get("mfu"),
            tflops_per_gpu=plan.get("tflops_per_gpu"),
            usd_per_chip_hour=(
                3600 * plan["tokens_per_s_per_gpu"] / rate if rate and price is None else price
            ),
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ConfigError(
            f"{source}: expected the object that `meshwright plan --json` prints, with a plan"
            f" #{rank}"
        ) from None


AlarmKind = Literal["failed", "nan", "hang", "loss_spike", "slow", "below_plan"]
ALARMS: tuple[AlarmKind, ...] = get_args(AlarmKind)
_FATAL: tuple[AlarmKind, ...] = ("failed", "nan", "hang")
RECENT = 5
"""Newest reports that a rule looks at."""
WINDOW = 32
"""Reports that they are held against."""
LEAST = 8
"""As many at least."""
QUIET_REPORTS = 5.0
QUIET_STEPS = 60.0
"""An evaluation says nothing until its end: Megatron-LM's 100 iterations (--eval-iters) of a third
of a step each, twice."""
QUIET_LEAST_S = 300.0
SLOW = 1.2
"""Five steps whose median is a fifth longer: jitter of single steps is larger, that of a median of
five is not."""
SPIKE_SIGMAS = 6.0
SPIKE_LEAST = 0.05
"""Of the loss itself, so that a loss that hardly moves does not spike by its last digit."""
_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One thing that is wrong."""

    kind: AlarmKind
    message: str
    step: int | None = None
    """Where it shows; None where no step is told."""

    @property
    def fatal(self) -> bool:
        """Whether the run makes no progress any more."""
        return self.kind in _FATAL

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {"kind": self.kind, "fatal": self.fatal, "step": self.step, "message": self.message}


def find_alarms(
    reports: Sequence[Report],
    *,
    facts: RunFacts,
    silent_s: float | None,
    limit_s: float,
    failure: Failure | None,
    ended: bool,
) -> tuple[Alarm, ...]:
    """Return what is wrong by the rules above.

    `silent_s` is how long the log has not grown, `limit_s` for how long it may (see
    `quiet_limit_s`), `ended` that the run is at its end.
    """
    steady = steady_reports(reports)
    found = [
        *_no_number(reports),
        *_spike(reports),
        *_slow(steady, facts),
        *_below_plan(steady, facts),
    ]
    last = reports[-1].step if reports else None
    if failure is not None:
        evidence = f" ({failure.evidence})" if failure.evidence else ""
        message = f"{failure.failure_class}: {failure.message}{evidence}"
        found.insert(0, Alarm(kind="failed", message=message, step=last))
    elif not ended and silent_s is not None and silent_s > limit_s:
        message = (
            f"no line for {_time(silent_s)}, where {_time(limit_s)} are long: it hangs, or has"
            " ended"
        )
        found.insert(0, Alarm(kind="hang", message=message, step=last))
    return tuple(found)


def quiet_limit_s(usual_s: float | None, *, step_s: float | None, is_saving: bool) -> float:
    """Return for how long a log may be silent; `usual_s` is the usual time between two reports,
    None before there are two."""
    if usual_s is None or step_s is None:
        return START_LIMIT_S
    limit_s = max(QUIET_LEAST_S, QUIET_REPORTS * usual_s + QUIET_STEPS * step_s)
    return max(limit_s, START_LIMIT_S) if is_saving else limit_s


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 100 else f"{seconds / 60:,.0f} min"


def _no_number(reports: Sequence[Report]) -> Iterator[Alarm]:
    recent = reports[-RECENT:]
    if not recent:
        return
    step = recent[-1].step
    for name, words in (("loss", "loss"), ("grad_norm", "gradient norm")):
        values = (getattr(report, name) for report in recent)
        told = [value for value in values if value is not None]
        if told and not math.isfinite(told[-1]):
            yield Alarm(kind="nan", message=f"the {words} is {told[-1]}", step=step)
            return
    if counted := sum(report.nan for report in recent):
        message = f"{counted} of the last iterations gave no number"
        yield Alarm(kind="nan", message=message, step=step)


def _spike(reports: Sequence[Report]) -> Iterator[Alarm]:
    """The highest of the last few, where it stands out."""
    told = [
        (report.step, report.loss)
        for report in reports
        if report.loss is not None and math.isfinite(report.loss)
    ]
    before = [loss for _, loss in told[:-RECENT]][-WINDOW:]
    if len(before) < LEAST:
        return
    middle = median(before[-LEAST:])
    spread = _SIGMA / math.sqrt(2) * median(abs(after - loss) for loss, after in pairwise(before))
    step, highest = max(told[-RECENT:], key=lambda one: one[1])
    if highest - middle > max(SPIKE_SIGMAS * spread, SPIKE_LEAST * abs(middle)):
        now = "" if told[-1][1] == highest else f"; now {told[-1][1]:.4g}"
        message = f"the loss rose to {highest:.4g} from {middle:.4g}{now}"
        yield Alarm(kind="loss_spike", message=message, step=step)


def _slow(steady: Sequence[Report], facts: RunFacts) -> Iterator[Alarm]:
    times = [found for report in steady if (found := facts.seconds(report)) is not None]
    before = times[:-RECENT]
    if len(before) < LEAST:
        return
    usual, now = min(median(before[-WINDOW:]), median(before[:WINDOW])), median(times[-RECENT:])
    if now > SLOW * usual:
        message = (
            f"steps take {format_seconds(now)}, {now / usual:.2f} times the {format_seconds(usual)}"
            " before: a straggler, a throttled chip, or storage"
        )
        yield Alarm(kind="slow", message=message, step=steady[-1].step)


def _below_plan(steady: Sequence[Report], facts: RunFacts) -> Iterator[Alarm]:
    times = [found for report in steady if (found := facts.seconds(report)) is not None]
    if facts.step_interval_s is None or len(times) < RECENT:
        return
    low, high = facts.step_interval_s
    now = median(times[-RECENT:])
    if now > high:
        message = (
            f"steps take {format_seconds(now)}, the plan says {format_seconds(low)} to"
            f" {format_seconds(high)}"
        )
        yield Alarm(kind="below_plan", message=message, step=steady[-1].step)
