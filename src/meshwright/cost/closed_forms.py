"""Closed forms of a pipeline step, one per schedule, on the stages' own times and links;
`pipeline.py` says what they follow from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.values.layout import SCHEDULES

__all__ = [
    "P2P",
    "Case",
    "Links",
    "alike",
    "chain_s",
    "interleaved_chain_s",
    "step_s",
    "unlike",
]

Floats = NDArray[np.float64]
P2P = Literal["blocking", "overlapped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The input in one form: (N,) per layout, (N, S) per stage; `above` is the sum over the stages
    before one."""

    pp: Floats
    vpp: Floats
    micro: Floats
    number: Floats
    forward: Floats
    backward: Floats
    wgrad: Floats
    forward_sum: Floats
    backward_sum: Floats
    wgrad_sum: Floats
    forward_above: Floats
    backward_above: Floats
    wgrad_above: Floats

    @property
    def count_below(self) -> Floats:
        """Stages below each one, (N, S)."""
        return np.asarray(self.pp[..., None] - 1 - self.number)

    @property
    def both(self) -> Floats:
        """Forward and backward of each stage, (N, S)."""
        return np.asarray(self.forward + self.backward)

    @property
    def both_sum(self) -> Floats:
        """Forward and backward of all stages, (N,)."""
        return np.asarray(self.forward_sum + self.backward_sum)

    @property
    def both_above(self) -> Floats:
        """Forward and backward of the stages before each one, (N, S)."""
        return np.asarray(self.forward_above + self.backward_above)

    @property
    def both_below(self) -> Floats:
        """Forward and backward of the stages after each one, (N, S)."""
        return np.asarray(self.both_sum[..., None] - self.both_above - self.both)


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Seconds of messages; (N, S) but for `each`."""

    each: Floats
    """One message, the mean of all boundaries, (N,)."""
    above: Floats
    """Sum over the boundaries above a stage."""
    below: Floats
    """Sum over the boundaries below it."""
    to_next: Floats
    """To the stage below; 0 for the last."""
    both: Floats
    """To both neighbours; of one at the ends."""

    def none(self) -> Links:
        """The same without messages."""
        zeros = {
            name: np.zeros_like(getattr(self, name))
            for name in ("each", "above", "below", "to_next", "both")
        }
        return Links(**zeros)


def alike(case: Case, p: Floats) -> Links:
    """Return links of which all take `p` (N,).

    Formula:  above = number of links above * p; below = links below * p; both = neighbours * p
    Units:    seconds, (N, stages).
    Source:   definition: a pipeline of pp stages has pp - 1 links.
    Valid:    one link time for the whole pipeline.
    Checked:  tests/cost/test_pipeline.py::test_closed_form_is_exact_for_even_stages_with_messages
    """
    message, below, above = p[..., None], case.count_below, case.number
    neighbours = (below > 0).astype(np.float64) + (above > 0)
    return Links(
        each=p,
        above=above * message,
        below=below * message,
        to_next=message * (below > 0),
        both=message * neighbours,
    )


def unlike(p: Floats) -> Links:
    """Return links of which each takes its own time `p`, (N, pp - 1).

    Formula:  above = sum of the links before a stage; below = sum of those behind it;
              both = the link before + the link behind
    Units:    seconds, (N, stages).
    Source:   definition: link i joins stages i and i + 1.
    Valid:    plain pipelines, whose chunks don't come round again.
    Checked:  tests/cost/test_pipeline.py::test_links_are_told_apart
    """
    nothing = np.zeros((*p.shape[:-1], 1))
    above = np.concatenate([nothing, p.cumsum(axis=-1)], axis=-1)
    to_next, to_last = np.concatenate([p, nothing], axis=-1), np.concatenate([nothing, p], axis=-1)
    each = p.sum(axis=-1) / max(1, p.shape[-1])
    return Links(
        each=each,
        above=above,
        below=above[..., -1:] - above,
        to_next=to_next,
        both=to_last + to_next,
    )


def step_s(case: Case, schedule: NDArray[Any], links: Links, p2p: P2P) -> Floats:
    """Return the whole step by schedule, (N,); NaN where there is no formula.

    Formula:  that of the row's schedule: 1F1B, interleaved 1F1B, ZB-H1, DualPipeV or GPipe, each in
              its own function below
    Units:    seconds.
    Source:   each function's own.
    Valid:    DualPipeV from 2 * pp micro batches on; ZB-H1 and GPipe with one chunk a stage.
    Checked:  tests/cost/test_pipeline.py::test_no_formula_is_nan
    """
    blocks = 1.0 if p2p == "blocking" else 0.0
    plain = case.vpp == 1
    one, zero, gpipe = (
        schedule == SCHEDULES.index(name) for name in ("1f1b", "zero-bubble", "gpipe")
    )
    formulas: list[tuple[NDArray[np.bool_], Callable[[], Floats]]] = [
        (one & plain, lambda: _one_f_one_b(case, links, blocks)),
        (one & ~plain, lambda: _interleaved(case, links.each)),
        (zero & plain, lambda: _zero_bubble(case, links.each)),
        (
            zero & (case.vpp == 2) & (case.micro >= 2 * case.pp),
            lambda: _dualpipev(case, links.each),
        ),
        (gpipe & plain, lambda: _gpipe(case, links, blocks)),
    ]
    result = np.asarray(np.nan)
    for holds, formula in formulas:
        if holds.any():  # a schedule that no row has costs nothing
            result = np.where(holds, formula(), result)
    return np.asarray(
        result + np.zeros(np.broadcast_shapes(schedule.shape, case.micro.shape, links.each.shape))
    )


def _one_f_one_b(case: Case, links: Links, blocks: float) -> Floats:
    """1F1B: see `pipeline_s`.

    Formula:  overlapped messages can also stretch the steady state: pp micro batches at a time go
              round the loop of all stages, and the r = (M - 1) mod pp that remain round a loop of r
              stages: (1 + floor((M - 1) / pp)) (sum t + 2 (pp - 1) p) + r min t + 2 (r - 1) p.
              Blocking ones hold a stage for k p per micro batch, with k = 2 neighbours, 1 at the
              ends, and for as much again per warm-up forward and flush backward, where a send and a
              receive do not make one exchange.
    Units:    seconds, (N,).
    Source:   Narayanan et al. 2021 (arXiv:2104.04473), section 2.2; which exchanges are one:
              Megatron-Core's p2p_communication.py. Uneven stages and loops are derived here, see
              `steady_period_s`.
    """
    chains = chain_s(
        num_microbatches=case.micro[..., None],
        count_below=case.count_below,
        forward_s=case.forward,
        backward_s=case.backward,
        below_s=case.both_below + 2 * links.below,
        hold_s=blocks * links.both,
        once_s=blocks * links.to_next,
    )
    whole = case.both_above + 2 * links.above + chains
    p = links.each
    rounds, rest = np.divmod(case.micro - 1, case.pp)
    loop = (
        (rounds + 1) * (case.both_sum + 2 * (case.pp - 1) * p)
        + rest * case.both.min(axis=-1)
        + 2 * p * np.maximum(rest - 1, 0)
    )
    return np.asarray(np.maximum(whole.max(axis=-1), loop * (1 - blocks)))


def chain_s(
    *,
    num_microbatches: Any,
    count_below: Any,
    forward_s: Any,
    backward_s: Any,
    below_s: Any,
    hold_s: Any = 0.0,
    once_s: Any = 0.0,
) -> Floats:
    """Time of 1f1b from a stage's first forward to its last backward, at least; arrays that
    broadcast.

    `below_s` is what a micro batch takes from the stage's forward to its backward, messages
    included; `hold_s` and `once_s` are messages that stop the stage: to both neighbours, and to the
    one below.

    Formula:  start + (M - n - 1)(t + hold) - once + end with n = count_below, t = f + b, start =
              max((n + 1) f + n hold + once, f + below), end the same with b; where M < n + 2 the
              longest of M t, M f + below + b and f + below + M b, with the messages that hold the
              stage
    Units:    seconds.
    Source:   see the head of this file.
    Valid:    M >= 1. It never falls when f, b or below grow.
    Checked:  tests/cost/test_pipeline.py::test_uneven_error_of_the_closed_form,
              ::test_chain_never_falls
    """
    m, n, forward, backward, trip, hold = (
        num_microbatches,
        count_below,
        forward_s,
        backward_s,
        below_s,
        hold_s,
    )
    both = forward + backward
    start = np.maximum((n + 1) * forward + n * hold + once_s, forward + trip)
    end = np.maximum((n + 1) * backward + n * hold + once_s, backward + trip)
    steady = start + (m - n - 1) * (both + hold) - once_s + end
    held = (m - 1) * hold
    short = np.maximum(
        m * both + held,
        np.maximum(m * forward + held + trip + backward, forward + trip + m * backward + held),
    )
    return np.asarray(np.where(m >= n + 2, steady, short))


def _interleaved(case: Case, p: Floats) -> Floats:
    """Interleaved 1F1B with overlapped messages; f', b' are of one chunk, 1/vpp of the stage.

    Formula:  as 1f1b with w = 2 n + (vpp - 1) pp warm-up forwards in place of n, and a round trip
              through all chunks: start = max((w + 1) f', f' + (sum f) (vpp - 1) / vpp + U / vpp +
              (2 n + (vpp - 1) pp) p), end the same with b. Steady state hides messages up to p =
              min(f', b'): beyond, a group waits for itself to come round, from chunk to chunk, + (M
              - pp) max((vpp - 1)(max(f', b') + p - t'), vpp (min(f', b') + p - t')), where
              positive, of mean chunks.
    Units:    seconds, (N,).
    Source:   Narayanan et al. 2021 (arXiv:2104.04473), section 2.2; Megatron-Core's warm-up count
              (`warmup_forwards`). Uneven stages and long messages are derived here.
    """
    message, vpp = p[..., None], case.vpp[..., None]
    rounds = (vpp - 1) / vpp
    warmup = 2 * case.count_below + (vpp - 1) * case.pp[..., None]
    chains = interleaved_chain_s(
        num_microbatches=case.micro[..., None],
        warmup=warmup,
        vpp=vpp,
        forward_s=case.forward,
        backward_s=case.backward,
        below_s=case.both_below / vpp + warmup * message,
        down_s=rounds * case.forward_sum[..., None],
        up_s=rounds * case.backward_sum[..., None],
    )
    whole = case.both_above / vpp + 2 * case.number * message + chains
    mean_f, mean_b = (
        total / (case.pp * case.vpp) for total in (case.forward_sum, case.backward_sum)
    )
    once = (case.vpp - 1) * (p - np.minimum(mean_f, mean_b))
    twice = case.vpp * (p - np.maximum(mean_f, mean_b))
    return np.asarray(
        whole.max(axis=-1)
        + np.maximum(0, case.micro - case.pp) * np.maximum(0, np.maximum(once, twice))
    )


def interleaved_chain_s(
    *,
    num_microbatches: Any,
    warmup: Any,
    vpp: Any,
    forward_s: Any,
    backward_s: Any,
    below_s: Any,
    down_s: Any,
    up_s: Any,
) -> Floats:
    """Time of interleaved 1f1b from a stage's first forward to its last backward, at least; arrays
    that broadcast.

    `warmup` are its forwards of chunks before the first backward, `below_s` a chunk's round trip
    through the stages below, messages included, `down_s` and `up_s` the forwards and backwards of
    all stages' other chunks.

    Formula:  see `_interleaved`
    Units:    seconds.
    Source:   see the head of `pipeline.py`.
    Valid:    M a multiple of pp. It never falls when any of the times grows.
    Checked:  tests/cost/test_pipeline.py::test_uneven_error_of_the_closed_form,
              ::test_chain_never_falls
    """
    m, forward, backward = num_microbatches, forward_s / vpp, backward_s / vpp
    first, last = forward + down_s + below_s, backward + up_s + below_s
    start, end = (
        np.maximum((warmup + 1) * forward, first),
        np.maximum((warmup + 1) * backward, last),
    )
    steady = start + (m * vpp - warmup - 1) * (forward + backward) + end
    both = forward_s + backward_s
    short = np.maximum(m * both, np.maximum(m * forward_s + last, first + m * backward_s))
    return np.asarray(np.where(m * vpp >= warmup + 2, steady, short))


def _zero_bubble(case: Case, p: Floats) -> Floats:
    """ZB-H1 with overlapped messages; d = b - w, stage s runs W(i) after B(i + s).

    Formula:  above_f + s p + start + (M - n - 1)(f + d) + (M - n - 1 - s) w + end + tail, with U of
              f + d, start = max((n + 1) f, f + U + 2 n p), end = max((n + 1) d + n w, d + U + 2 n
              p), tail = max(above_d + s p + w_0, (s + 1) w). Long messages, where M > pp: two
              rounds of sum (f + d) + 2 (pp - 1) p, then for each of M - pp - 1 micro batches mean
              (f + d) + (2 (pp - 1) p + w) / pp, and the least w at the end.
    Units:    seconds, (N,).
    Source:   ZB-H1 (arXiv:2401.10241), table 1; uneven stages and long messages are derived here.
    """
    m, n, message, s = case.micro[..., None], case.count_below, p[..., None], case.number
    dgrad, dgrad_above = case.backward - case.wgrad, case.backward_above - case.wgrad_above
    trip = (
        case.both_below
        - (case.wgrad_sum[..., None] - case.wgrad_above - case.wgrad)
        + 2 * n * message
    )
    late = np.minimum(s + 1, m)
    early = np.maximum(m - n - 1 - s, 0)
    draining = m - late - early
    start = np.maximum((n + 1) * case.forward, case.forward + trip)
    end = np.maximum((n + 1) * dgrad + draining * case.wgrad, dgrad + trip)
    steady = start + (m - n - 1) * (case.forward + dgrad) + early * case.wgrad + end
    alone = m * (case.forward + dgrad) + (m - late) * case.wgrad
    short = np.maximum(
        alone,
        np.maximum(
            m * case.forward + trip + dgrad,
            case.forward + trip + m * dgrad + (m - late) * case.wgrad,
        ),
    )
    tail = np.maximum(dgrad_above + s * message + case.wgrad[..., :1], late * case.wgrad)
    chains = case.forward_above + s * message + np.where(m >= n + 2, steady, short) + tail
    once = case.both_sum - case.wgrad_sum + 2 * (case.pp - 1) * p
    loop = (
        2 * once
        + (case.micro - case.pp - 1) * (once + case.wgrad_sum / case.pp) / case.pp
        + case.wgrad.min(axis=-1)
    )
    return np.asarray(np.maximum(chains.max(axis=-1), np.where(case.micro > case.pp, loop, 0.0)))


def _gpipe(case: Case, links: Links, blocks: float) -> Floats:
    """All forwards, then all backwards.

    Formula:  sum t + 2 (pp - 1) p + (M - 1)(max_s f_s + max_s b_s), each at least p; blocking: of
              f_s + k p, with k neighbours.
    Units:    seconds, (N,).
    Source:   GPipe (arXiv:1811.06965); messages are derived here: one a boundary and way fills it,
              then the slowest stage or message sets the pace.
    """
    hold, p = blocks * links.both, links.each
    messages = np.where(case.pp > 1, p, 0.0)
    rate = sum(
        np.maximum((times + hold).max(axis=-1), messages) for times in (case.forward, case.backward)
    )
    return np.asarray(case.both_sum + 2 * (case.pp - 1) * p + (case.micro - 1) * rate)


def _dualpipev(case: Case, p: Floats) -> Floats:
    """DualPipeV: two chunks per stage in a V; f', d', w' are of a mean chunk.

    Formula:  M max_s t_s + (pp - 1) max(f' + 2 d' - w', 2 f') + 4 (pp - 1) p M / pp. The published
              bubble is F&B + B - 3 W with F&B = f + b, B = b, which is f' + 2 d' - w'; in
              simulation a forward longer than the backward gives 2 f'. Mixed forwards and backwards
              start when both inputs are there, so each of a loop's messages is exposed.
    Units:    seconds, (N,).
    Source:   table of github.com/deepseek-ai/DualPipe, whose PP counts two chunks a stage; the 2 f'
              and the messages are read off the simulation.
    """
    forward, backward, wgrad = (
        total / (2 * case.pp) for total in (case.forward_sum, case.backward_sum, case.wgrad_sum)
    )
    bubble = np.maximum(forward + 2 * (backward - wgrad) - wgrad, 2 * forward)
    return np.asarray(
        case.micro * case.both.max(axis=-1)
        + (case.pp - 1) * (bubble + 4 * p * case.micro / case.pp)
    )
