"""What one measured run says of settings that nobody told: each value's prediction is compared with
the measured step, and with the peak of memory where that is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from meshwright.runs.measured.blanks import MOST_SEQUENCES
from meshwright.runs.measured.files import MeasuredRun
from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.runs.measured.rows import Case
from meshwright.trust.calibration import DISPATCHERS, SETTLED_SHARES, Z90, LinkRates
from meshwright.trust.intervals import Assumption
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import Recompute
from meshwright.values.stack import find_stack

__all__ = ["SETTINGS", "Anchored", "Inferred", "Setting", "anchor_run", "assumed_of", "values_of"]

Setting = Literal["micro-batch", "recompute", "dispatcher", "graphs", "overlap", "network"]
SETTINGS: tuple[Setting, ...] = get_args(Setting)
TOLD_AT = 0.6
"""Probability from which on a value is said to be found; below, it cannot be told. Of published
runs' settings that are hidden and found so, 92 % are right (benchmarks/anchor.py --hidden 24)."""
MOST_TOGETHER = 2000
"""Combinations that are priced; more unknown settings are a question for more runs."""
RARE = 0.01
"""Weight of each value whatever the run shows: published runs lie outside any normal
distribution now and then."""
_OVERLAPS = tuple(name for name in SETTLED_SHARES if name.endswith("_overlap"))
_GRAPHS: Mapping[str, float] = {"off": 0.0, "on": 1.0}
_FIGURES: Mapping[Setting, tuple[str, ...]] = {
    "dispatcher": ("dispatcher",),
    "graphs": ("launch_hidden",),
    "overlap": _OVERLAPS,
}
"""What a setting of the software stands for."""
_ASSUMED: Mapping[Setting, Assumption] = {"micro-batch": "micro batch", "recompute": "recompute"}
_NETWORK: Mapping[str, float] = {"as named": 1.0, "half": 0.5, "quarter": 0.25}
"""Shares of the network's rate that a run reaches: an oversubscribed or a wrongly bound one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inferred:
    """What a run says of one setting."""

    setting: Setting
    shares: Mapping[str, float]
    """Probability of each value; they sum to 1."""

    @property
    def likeliest(self) -> str:
        """The value with the most probability."""
        return max(self.shares, key=lambda value: self.shares[value])

    @property
    def found(self) -> str | None:
        """The value where it is likely enough; None where it cannot be told."""
        return self.likeliest if self.shares[self.likeliest] >= TOLD_AT else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchored:
    """What one run says of all that was asked."""

    run: MeasuredRun
    """With the values that were found in its case; what cannot be told is left as it was."""
    before: Prediction
    """As the run was described."""
    after: Prediction
    """With the values that were found."""
    inferred: tuple[Inferred, ...]

    def found_of(self, setting: Setting) -> str | None:
        """Return the value that was found of a setting; None where none was."""
        return next((one.found for one in self.inferred if one.setting == setting), None)

    @property
    def settings(self) -> tuple[tuple[str, str | float], ...]:
        """Figures of the software that were found, which hold for other runs of it too."""
        names = [
            name for setting, names in _FIGURES.items() for name in names if self.found_of(setting)
        ]
        return tuple((name, dict(self.run.case.stack_changes)[name]) for name in names)

    @property
    def links(self) -> tuple[LinkRates, ...]:
        """The network, where a rate that is not the named one was found."""
        value = self.found_of("network")
        if value is None or _NETWORK[value] == 1.0:
            return ()
        link = self.run.case.machines.nodes[0].network_link
        return (
            LinkRates(
                level="network",
                name=link.name,
                bytes_per_s=link.bytes_per_s * link.efficiency,
                latency_s=link.latency_s,
                setup_s=link.setup_s,
                half_message_bytes=link.half_message_bytes,
                source=f"{value} of what is named, by {self.run.case.source}",
            ),
        )


def values_of(case: Case, setting: Setting) -> dict[str, Case]:
    """Return the run under each value that a setting may have; empty where it plays no part."""
    if setting not in SETTINGS:
        raise UnknownNameError("setting", setting, SETTINGS)
    return dict(_VALUES[setting](case))


def _micro_batches(case: Case) -> Iterator[tuple[str, Case]]:
    """Powers of two that divide a replica's sequences, in rounds of stages where interleaved."""
    layout = case.layout
    share = layout.gbs // layout.dp
    sizes = [1 << power for power in range(MOST_SEQUENCES.bit_length())]
    for size in sorted({*sizes, layout.mbs}):
        if share % size == 0 and (layout.vpp == 1 or share // size % layout.pp == 0):
            yield str(size), replace(case, layout=replace(layout, mbs=size), choices=())


def _recomputes(case: Case) -> Iterator[tuple[str, Case]]:
    layout = case.layout
    for value in get_args(Recompute):
        own = layout.recompute_layers if value == layout.recompute else None
        changed = replace(layout, recompute=value, recompute_layers=own)
        yield value, replace(case, layout=changed, choices=())


def _dispatchers(case: Case) -> Iterator[tuple[str, Case]]:
    if case.model.moe is not None and case.layout.ep > 1:
        for value in DISPATCHERS:
            yield value, _with(case, dispatcher=value)


def _graphs(case: Case) -> Iterator[tuple[str, Case]]:
    for value, share in _GRAPHS.items():
        yield value, _with(case, launch_hidden=share)


def _overlaps(case: Case) -> Iterator[tuple[str, Case]]:
    """None, or what the software can."""
    stack = find_stack(case.stack_name)
    shares = {name: getattr(stack, name) for name in _OVERLAPS}
    if any(shares.values()):
        yield "off", _with(case, **dict.fromkeys(shares, 0.0))
        yield "on", _with(case, **shares)


def _networks(case: Case) -> Iterator[tuple[str, Case]]:
    machines = case.machines
    if machines.num_chips <= machines.nodes[0].chips_per_node:
        return
    for value, share in _NETWORK.items():
        nodes = tuple(
            replace(
                node,
                network_link=replace(
                    node.network_link, bytes_per_s=share * node.network_link.bytes_per_s
                ),
            )
            for node in machines.nodes
        )
        yield value, replace(case, machines=replace(machines, nodes=nodes))


def _with(case: Case, **changes: str | float) -> Case:
    """A run under other figures of its software."""
    kept = [(name, value) for name, value in case.stack_changes if name not in changes]
    return replace(case, stack_changes=(*kept, *changes.items()))


_VALUES = {
    "micro-batch": _micro_batches,
    "recompute": _recomputes,
    "dispatcher": _dispatchers,
    "graphs": _graphs,
    "overlap": _overlaps,
    "network": _networks,
}


def anchor_run(run: MeasuredRun, settings: Sequence[Setting]) -> Anchored:
    """Return what a run says of some settings, taken together.

    ConfigError where none of them plays a part, or the run cannot be predicted under any.
    """
    if run.step_s is None:
        raise ConfigError(f"{run.case.source}: no step time was measured")
    asked = [name for name in settings if len(values_of(run.case, name)) > 1]
    combinations = _combinations(run.case, asked)
    answered = {p.row_id: p for p in predict_rows(combinations.values()).predictions}
    told = {
        values: answered[case.row_id]
        for values, case in combinations.items()
        if case.row_id in answered
    }
    if not told:
        raise ConfigError(f"{run.case.source}: the run cannot be predicted")
    shares = _shares(run, told)
    inferred = tuple(
        Inferred(setting=name, shares=_marginal(shares, place)) for place, name in enumerate(asked)
    )
    case = run.case
    for one in inferred:
        if one.found is not None:
            case = values_of(case, one.setting)[one.found]
            case = _without(case, [one.setting])
    before, after = (_predicted(one) for one in (run.case, case))
    return Anchored(run=replace(run, case=case), before=before, after=after, inferred=inferred)


def _predicted(case: Case) -> Prediction:
    answers = predict_rows([case])
    if not answers.predictions:
        raise ConfigError(f"{case.source}: {answers.unanswered[0].reason}")
    return answers.predictions[0]


def assumed_of(settings: Sequence[Setting]) -> tuple[Assumption, ...]:
    """Return what has to be taken for granted where some settings are not told, as the intervals
    know it."""
    return tuple(_ASSUMED[name] for name in settings if name in _ASSUMED)


def _without(case: Case, settings: Sequence[Setting]) -> Case:
    """A run with some settings known."""
    known = assumed_of(settings)
    left = tuple(name for name in case.assumptions if name not in known)
    return replace(case, assumptions=left)


def _combinations(case: Case, asked: Sequence[Setting]) -> dict[tuple[str, ...], Case]:
    """Every combination of values, each with a name of its own as its row."""
    found: dict[tuple[str, ...], Case] = {(): _without(case, asked)}
    for name in asked:
        found = {
            (*values, value): changed
            for values, one in found.items()
            for value, changed in values_of(one, name).items()
        }
        if len(found) > MOST_TOGETHER:
            raise ConfigError(
                f"{case.source}: {len(found)} combinations of {', '.join(asked)}; say some of them"
            )
    return {values: replace(one, row_id=" | ".join(values)) for values, one in found.items()}


def _shares(
    run: MeasuredRun, told: Mapping[tuple[str, ...], Prediction]
) -> dict[tuple[str, ...], float]:
    """The probability of each combination: all alike before, weighed by what was measured.

    Formula:  exp(-z_step**2 / 2 - z_memory**2 / 2) * P(fits), z the logarithm of measured over
              predicted against the interval's standard deviation; and RARE shared by all
    """
    logs = {values: _log_weight(run, found) for values, found in told.items()}
    most = max(logs.values())
    weights = {values: math.exp(log - most) for values, log in logs.items()}
    total, count = sum(weights.values()), len(weights)
    return {
        values: (1.0 - RARE) * weight / total + RARE / count for values, weight in weights.items()
    }


def _log_weight(run: MeasuredRun, found: Prediction) -> float:
    assert run.step_s is not None
    intervals = found.intervals
    log = _log_normal(run.step_s, found.step_s, intervals.step_s)
    spread = _spread(intervals.peak_bytes)
    if run.peak_bytes is not None:
        log += _log_normal(run.peak_bytes, found.peak_memory_bytes, intervals.peak_bytes)
    # It ran, so that it fitted.
    held = max(found.held, key=lambda one: one.used_bytes / one.room_bytes)
    room = math.log(held.room_bytes / max(held.used_bytes - held.slack_bytes, 1.0))
    return log + math.log(max(0.5 * math.erfc(-room / spread / math.sqrt(2.0)), 1e-9))


def _log_normal(measured: float, predicted: float, interval: tuple[float, float]) -> float:
    spread = _spread(interval)
    off = math.log(measured / predicted) - math.log(interval[0] * interval[1] / predicted**2) / 2
    return -0.5 * (off / spread) ** 2 - math.log(spread)


def _spread(interval: tuple[float, float]) -> float:
    """Standard deviation of the logarithm, of an interval of 80 %."""
    return math.log(interval[1] / interval[0]) / (2.0 * Z90)


def _marginal(shares: Mapping[tuple[str, ...], float], place: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for values, share in shares.items():
        found[values[place]] = found.get(values[place], 0.0) + share
    return found
