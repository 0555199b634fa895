"""Time of one pipeline step in closed form, for columns of layouts; `simulate.py` is the exact answer for one.

The idea: follow one stage s with n = pp - 1 - s stages below it. Before its first forward and after its last backward, the stages above it
must pass a micro batch. From its first forward to its first backward it either runs its n + 1 warm-up forwards or waits for the round trip
through the stages below; the same holds, mirrored, from its last forward to its last backward; in between it runs one forward and one
backward in turn. Each is a chain of operations that must follow each other, so the sum is a lower bound for any stage, and the largest
one over the stages is the estimate. Arrays: `(N,)` per layout and `(N, S)` per layout and stage; scalars and `(S,)` work as well. Seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.layout import SCHEDULES

__all__ = [
    "PipelineSeconds",
    "pipeline_lower_bound_s",
    "pipeline_of_stages_s",
    "pipeline_s",
    "pipeline_upper_bound_s",
    "steady_period_s",
]

Floats = NDArray[np.float64]
P2P = Literal["blocking", "overlapped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSeconds:
    """Parts of one pipeline step, each (N,); NaN where the schedule has no formula for the layout."""

    work_s: Floats
    """Micro batches times the mean stage: a pipeline without bubble and imbalance."""
    imbalance_s: Floats
    """Micro batches times what the slowest stage takes beyond the mean."""
    bubble_s: Floats
    """Fill and drain, beyond the slowest stage's own work."""
    p2p_s: Floats
    """What messages add: the exposed part."""

    @property
    def pipeline_s(self) -> Floats:
        """The whole step: the sum of the parts."""
        return self.work_s + self.imbalance_s + self.bubble_s + self.p2p_s


def pipeline_s(
    *,
    schedule: Any,
    pp: Any,
    vpp: Any,
    num_microbatches: Any,
    forward_s: Any,
    backward_s: Any,
    forward_sum_s: Any,
    backward_sum_s: Any,
    wgrad_s: Any = 0.0,
    wgrad_sum_s: Any = 0.0,
    p2p_s: Any = 0.0,
    p2p: P2P = "overlapped",
    stage: Any = None,
) -> PipelineSeconds:
    """Return the time of a step from a few representative stages per layout.

    `schedule`, `pp`, `vpp`, `num_microbatches`, `p2p_s` (one message) and the sums over all stages are (N,). `schedule` holds indices into
    `layout.SCHEDULES`; 1f1b is interleaved where vpp > 1, zero-bubble is ZB-H1 where vpp = 1 and DualPipeV where vpp = 2, and anything
    else with vpp > 1 is NaN. `forward_s`, `backward_s` (whole, weight gradients included) and `wgrad_s` (that part of it) are (N, S), of
    one micro batch through all chunks of a stage: column 0 the first stage, column -1 the last, the heaviest in between; the same stage
    may occur twice. `stage` (N, S) are their numbers; None takes the middle ones for second to last, where they cost most.
    `p2p` = "blocking" stops 1f1b and gpipe for each message, as Megatron-Core does; the other schedules overlap messages in either case.

    Formula:  max over s of  (before_s + 2 s p) + start_s + (M - n - 1) t_s + end_s,  with n = pp - 1 - s, t = f + b, before_s = sum of t
              above s, U_s = sum of t below s, start_s = max((n + 1) f_s, f_s + U_s + 2 n p), end_s = max((n + 1) b_s, b_s + U_s + 2 n p).
              The other schedules change the terms, see `_interleaved`, `_zero_bubble`, `_gpipe`, `_dualpipev`. Where stages are even
              and p = 0 they reduce to (M + pp - 1)(f + b) for 1f1b and gpipe; M (f + b) + (pp - 1)(f + b) / vpp interleaved;
              M (f + b) + (pp - 1) max(f + d - w, f, d) for ZB-H1 with d = b - w.
    Units:    seconds.
    Source:   1f1b and interleaved: arXiv:2104.04473, section 2.2; ZB-H1: arXiv:2401.10241, table 1 (its f + d - w for w <= min(f, d));
              DualPipeV: table of github.com/deepseek-ai/DualPipe. The uneven forms are derived here.
    Valid:    M >= 1; interleaved: M a multiple of pp; dualpipev: M >= 2 pp. Exact for even stages if p <= min(f, b) of a chunk (1f1b,
              interleaved, gpipe) or p = 0. For random uneven stages without messages the 1f1b form is never above the simulation and 0.2 %
              below it in the mean. Interleaved takes the chunks of a stage as equal: 0.5 % too low in the mean for stages that differ by
              30 %, 0.9 % for a heavy first or last chunk, and up to 8 % where M = pp; dualpipev is up to 16 % too high for stages that
              differ by 50 %. A representative's neighbours are not known: the middle stages but for itself are taken as equal.
    Checked:  tests/cost/test_pipeline.py::test_closed_form_is_exact_for_even_stages, ::test_uneven_error_of_the_closed_form
    """
    pp, vpp, micro = (np.asarray(v, dtype=np.float64) for v in (pp, vpp, num_microbatches))
    times = (np.asarray(v, dtype=np.float64) for v in (forward_s, backward_s))
    forward, backward = np.broadcast_arrays(*times)
    wgrad = np.broadcast_to(np.asarray(wgrad_s, dtype=np.float64), forward.shape)
    number = _default_stage(pp, forward.shape[-1]) if stage is None else np.asarray(stage, dtype=np.float64)
    sums = [np.asarray(v, dtype=np.float64) for v in (forward_sum_s, backward_sum_s, wgrad_sum_s)]
    above = [_sum_above(t, total, pp=pp, number=number) for t, total in zip((forward, backward, wgrad), sums, strict=True)]
    case = _Case(
        pp=pp,
        vpp=vpp,
        micro=micro,
        number=number,
        forward=forward,
        backward=backward,
        wgrad=wgrad,
        forward_sum=sums[0],
        backward_sum=sums[1],
        wgrad_sum=sums[2],
        forward_above=above[0],
        backward_above=above[1],
        wgrad_above=above[2],
    )
    return _parts(case, np.asarray(schedule), np.asarray(p2p_s, dtype=np.float64), p2p)


def pipeline_of_stages_s(
    *,
    schedule: Any,
    vpp: Any,
    num_microbatches: Any,
    forward_s: Any,
    backward_s: Any,
    wgrad_s: Any = 0.0,
    p2p_s: Any = 0.0,
    p2p: P2P = "overlapped",
) -> PipelineSeconds:
    """Return the time of a step from every stage, arrays (N, pp): for pipelines over unlike chips.

    Formula:  as `pipeline_s`, with the true sums above and below each stage.
    Units:    seconds.
    Source:   as `pipeline_s`.
    Valid:    as `pipeline_s`; all rows have the same pp.
    Checked:  tests/cost/test_pipeline.py::test_uneven_error_of_the_closed_form
    """
    forward, backward = np.broadcast_arrays(np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64))
    wgrad = np.broadcast_to(np.asarray(wgrad_s, dtype=np.float64), forward.shape)
    case = _Case(
        pp=np.asarray(float(forward.shape[-1])),
        vpp=np.asarray(vpp, dtype=np.float64),
        micro=np.asarray(num_microbatches, dtype=np.float64),
        number=np.arange(forward.shape[-1], dtype=np.float64),
        forward=forward,
        backward=backward,
        wgrad=wgrad,
        forward_sum=forward.sum(axis=-1),
        backward_sum=backward.sum(axis=-1),
        wgrad_sum=wgrad.sum(axis=-1),
        forward_above=forward.cumsum(axis=-1) - forward,
        backward_above=backward.cumsum(axis=-1) - backward,
        wgrad_above=wgrad.cumsum(axis=-1) - wgrad,
    )
    return _parts(case, np.asarray(schedule), np.asarray(p2p_s, dtype=np.float64), p2p)


def pipeline_lower_bound_s(*, forward_s: Any, backward_s: Any, num_microbatches: Any) -> Floats:
    """Least time of 1f1b, whatever the messages cost; stages on the last axis, (N, pp) -> (N,).

    Formula:  max(sum_s t_s, max_s(sum_{k<s} t_k + M t_s)), t = f + b
    Units:    seconds.
    Source:   one micro batch visits every stage twice; stage s starts after those above it and they finish after it.
    Valid:    any stage times.
    Checked:  tests/cost/test_pipeline.py::test_bounds_hold
    """
    t = np.asarray(forward_s, dtype=np.float64) + np.asarray(backward_s, dtype=np.float64)
    chain = t.cumsum(axis=-1) - t + np.asarray(num_microbatches)[..., None] * t
    return np.asarray(np.maximum(t.sum(axis=-1), chain.max(axis=-1)))


def pipeline_upper_bound_s(*, forward_s: Any, backward_s: Any, num_microbatches: Any) -> Floats:
    """Most time of 1f1b when messages cost nothing; stages on the last axis, (N, pp) -> (N,).

    Formula:  (M + pp - 1) (max_s f_s + max_s b_s)
    Units:    seconds.
    Source:   raising every stage to the slowest forward and backward makes it even, and never faster. The popular
              sum_s t_s + (M - 1) max_s t_s is no bound: f = (.1, 2, .3, .1), b = (3, 1, .1, .3), M = 8 takes 31.5, not 28.6.
    Valid:    any stage times, p = 0.
    Checked:  tests/cost/test_pipeline.py::test_bounds_hold, ::test_popular_form_is_no_bound
    """
    forward, backward = np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    steps = np.asarray(num_microbatches) + forward.shape[-1] - 1
    return np.asarray(steps * (forward.max(axis=-1) + backward.max(axis=-1)))


def steady_period_s(*, forward_s: Any, backward_s: Any, p2p_s: Any = 0.0) -> Floats:
    """Time per micro batch of 1f1b with overlapped messages once it is steady; stages on the last axis, (N, pp) -> (N,).

    Formula:  max over s <= u of (sum_{k=s..u} (f_k + b_k) + 2 (u - s) p) / (u - s + 1)
              Even stages: t + 2 p (pp - 1) / pp, as the whole pipeline is the slowest loop: u - s + 1 micro batches go round a loop of
              that many stages, and pay two messages at each boundary in it. p = 0: the slowest stage.
              Blocking messages: t + 2 p, or t + p where pp = 2, as the stage pays both neighbours itself.
    Units:    seconds.
    Source:   the loop F(s) .. F(u) B(u) .. B(s) moves on by u - s + 1 micro batches; a max-plus system's period is its slowest loop.
    Valid:    p at most f + b of a stage; one link time for all boundaries.
    Checked:  tests/cost/test_pipeline.py::test_steady_period
    """
    t = np.asarray(forward_s, dtype=np.float64) + np.asarray(backward_s, dtype=np.float64)
    p = np.asarray(p2p_s, dtype=np.float64)[..., None]
    upto = np.concatenate([np.zeros_like(t[..., :1]), t.cumsum(axis=-1)], axis=-1)
    loops = [((upto[..., size:] - upto[..., :-size] + 2 * (size - 1) * p) / size).max(axis=-1) for size in range(1, t.shape[-1] + 1)]
    return np.asarray(np.max(loops, axis=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """The input in one form: (N,) per layout, (N, S) per stage; `above` is the sum over the stages before one."""

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
    def neighbours(self) -> Floats:
        """Stages that each one exchanges messages with, (N, S): 2, at the ends 1, and 0 where there is one stage."""
        return np.asarray((self.count_below > 0).astype(np.float64) + (self.number > 0))

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


def _default_stage(pp: Floats, columns: int) -> Floats:
    """First, last, and second to last for all between; a single column stands for the last."""
    numbers = [np.zeros_like(pp), *[np.maximum(pp - 2, 0)] * (columns - 2)][: columns - 1]
    return np.stack([*numbers, pp - 1], axis=-1)


def _sum_above(times: Floats, total: Floats, *, pp: Floats, number: Floats) -> Floats:
    """Sum over the stages before each representative; the middle ones that are not it share alike what is left of the total."""
    first, last = times[..., :1], times[..., -1:]
    pp, total = pp[..., None], total[..., None]
    between = np.maximum(total - first - last - times, 0) / np.maximum(pp - 3, 1)
    middle = first + (number - 1) * between
    return np.asarray(np.where(number == 0, 0.0, np.where(number == pp - 1, total - times, middle)))


def _parts(case: _Case, schedule: NDArray[Any], p2p_s: Floats, p2p: P2P) -> PipelineSeconds:
    silent, whole = (_step(case, schedule, message, p2p) for message in (np.zeros_like(p2p_s), p2p_s))
    work = case.micro * case.both_sum / case.pp
    slowest = case.micro * case.both.max(axis=-1)
    known = np.where(np.isnan(silent), np.nan, 1.0)
    return PipelineSeconds(
        work_s=np.asarray(known * work),
        imbalance_s=np.asarray(known * (slowest - work)),
        bubble_s=np.asarray(silent - slowest),
        p2p_s=np.asarray(whole - silent),
    )


def _step(case: _Case, schedule: NDArray[Any], p: Floats, p2p: P2P) -> Floats:
    """Whole step by schedule, (N,); NaN where there is no formula."""
    blocks = 1.0 if p2p == "blocking" else 0.0
    plain = case.vpp == 1
    one, zero, gpipe = (schedule == SCHEDULES.index(name) for name in ("1f1b", "zero-bubble", "gpipe"))
    formulas: list[tuple[NDArray[np.bool_], Callable[[], Floats]]] = [
        (one & plain, lambda: _one_f_one_b(case, p, blocks)),
        (one & ~plain, lambda: _interleaved(case, p)),
        (zero & plain, lambda: _zero_bubble(case, p)),
        (zero & (case.vpp == 2) & (case.micro >= 2 * case.pp), lambda: _dualpipev(case, p)),
        (gpipe & plain, lambda: _gpipe(case, p, blocks)),
    ]
    result = np.asarray(np.nan)
    for holds, formula in formulas:
        if holds.any():  # a schedule that no row has costs nothing
            result = np.where(holds, formula(), result)
    return np.asarray(result + np.zeros(np.broadcast_shapes(schedule.shape, case.micro.shape, p.shape)))


def _one_f_one_b(case: _Case, p: Floats, blocks: float) -> Floats:
    """1F1B: see `pipeline_s`.

    Formula:  overlapped messages can also stretch the steady state: pp micro batches at a time go round the loop of all stages, and the
              r = (M - 1) mod pp that remain round a loop of r stages: (1 + floor((M - 1) / pp)) (sum t + 2 (pp - 1) p) + r min t
              + 2 (r - 1) p. Blocking ones hold a stage for k p per micro batch, with k = 2 neighbours, 1 at the ends, and for as much
              again per warm-up forward and flush backward, where a send and a receive do not make one exchange.
    """
    m, n, message = case.micro[..., None], case.count_below, p[..., None]
    has_below = n > 0
    hold = blocks * message * case.neighbours
    once = blocks * message * has_below
    trip = case.both_below + 2 * n * message
    start = np.maximum((n + 1) * case.forward + n * hold + once, case.forward + trip)
    end = np.maximum((n + 1) * case.backward + n * hold + once, case.backward + trip)
    steady = start + (m - n - 1) * (case.both + hold) - once + end
    held = (m - 1) * hold
    short = np.maximum(
        m * case.both + held,
        np.maximum(m * case.forward + held + trip + case.backward, case.forward + trip + m * case.backward + held),
    )
    chains = case.both_above + 2 * case.number * message + np.where(m >= n + 2, steady, short)
    rounds, rest = np.divmod(case.micro - 1, case.pp)
    loop = (rounds + 1) * (case.both_sum + 2 * (case.pp - 1) * p) + rest * case.both.min(axis=-1) + 2 * p * np.maximum(rest - 1, 0)
    return np.asarray(np.maximum(chains.max(axis=-1), loop * (1 - blocks)))


def _interleaved(case: _Case, p: Floats) -> Floats:
    """Interleaved 1F1B with overlapped messages; f', b' are of one chunk, 1/vpp of the stage.

    Formula:  as 1f1b with w = 2 n + (vpp - 1) pp warm-up forwards in place of n, and a round trip through all chunks:
              start = max((w + 1) f', f' + (sum f) (vpp - 1) / vpp + U / vpp + (2 n + (vpp - 1) pp) p), end the same with b.
              Steady state hides messages up to p = min(f', b'): beyond, a group waits for itself to come round, from chunk to chunk,
              + (M - pp) max((vpp - 1)(max(f', b') + p - t'), vpp (min(f', b') + p - t')), where positive, of mean chunks.
    """
    m, message, vpp, pp = (v[..., None] for v in (case.micro, p, case.vpp, case.pp))
    n = case.count_below
    warmup = 2 * n + (vpp - 1) * pp
    forward, backward, rounds = case.forward / vpp, case.backward / vpp, (vpp - 1) / vpp
    below = case.both_below / vpp + warmup * message
    down, up = (rounds * total[..., None] for total in (case.forward_sum, case.backward_sum))
    first, last = forward + down + below, backward + up + below
    start, end = np.maximum((warmup + 1) * forward, first), np.maximum((warmup + 1) * backward, last)
    steady = start + (m * vpp - warmup - 1) * (forward + backward) + end
    short = np.maximum(m * case.both, np.maximum(m * case.forward + last, first + m * case.backward))
    chains = case.both_above / vpp + 2 * case.number * message + np.where(m * vpp >= warmup + 2, steady, short)
    mean_f, mean_b = (total / (case.pp * case.vpp) for total in (case.forward_sum, case.backward_sum))
    once = (case.vpp - 1) * (p - np.minimum(mean_f, mean_b))
    twice = case.vpp * (p - np.maximum(mean_f, mean_b))
    return np.asarray(chains.max(axis=-1) + np.maximum(0, case.micro - case.pp) * np.maximum(0, np.maximum(once, twice)))


def _zero_bubble(case: _Case, p: Floats) -> Floats:
    """ZB-H1 with overlapped messages; d = b - w, stage s runs W(i) after B(i + s).

    Formula:  above_f + s p + start + (M - n - 1)(f + d) + (M - n - 1 - s) w + end + tail, with U of f + d,
              start = max((n + 1) f, f + U + 2 n p), end = max((n + 1) d + n w, d + U + 2 n p), tail = max(above_d + s p + w_0, (s + 1) w).
              Long messages: two rounds of sum (f + d) + 2 (pp - 1) p, then mean (f + d) + (2 (pp - 1) p + w) / pp per micro batch.
    """
    m, n, message, s = case.micro[..., None], case.count_below, p[..., None], case.number
    dgrad, dgrad_above = case.backward - case.wgrad, case.backward_above - case.wgrad_above
    trip = case.both_below - (case.wgrad_sum[..., None] - case.wgrad_above - case.wgrad) + 2 * n * message
    late = np.minimum(s + 1, m)
    early = np.maximum(m - n - 1 - s, 0)
    draining = m - late - early
    start = np.maximum((n + 1) * case.forward, case.forward + trip)
    end = np.maximum((n + 1) * dgrad + draining * case.wgrad, dgrad + trip)
    steady = start + (m - n - 1) * (case.forward + dgrad) + early * case.wgrad + end
    alone = m * (case.forward + dgrad) + (m - late) * case.wgrad
    short = np.maximum(alone, np.maximum(m * case.forward + trip + dgrad, case.forward + trip + m * dgrad + (m - late) * case.wgrad))
    tail = np.maximum(dgrad_above + s * message + case.wgrad[..., :1], late * case.wgrad)
    chains = case.forward_above + s * message + np.where(m >= n + 2, steady, short) + tail
    once = case.both_sum - case.wgrad_sum + 2 * (case.pp - 1) * p
    loop = 2 * once + (case.micro - case.pp - 1) * (once + case.wgrad_sum / case.pp) / case.pp + case.wgrad.min(axis=-1)
    return np.asarray(np.maximum(chains.max(axis=-1), np.where(case.micro > case.pp, loop, 0.0)))


def _gpipe(case: _Case, p: Floats, blocks: float) -> Floats:
    """All forwards, then all backwards.

    Formula:  sum t + 2 (pp - 1) p + (M - 1)(max_s f_s + max_s b_s), each at least p; blocking: of f_s + k p, with k neighbours.
    """
    hold = blocks * p[..., None] * case.neighbours
    messages = np.where(case.pp > 1, p, 0.0)
    rate = sum(np.maximum((times + hold).max(axis=-1), messages) for times in (case.forward, case.backward))
    return np.asarray(case.both_sum + 2 * (case.pp - 1) * p + (case.micro - 1) * rate)


def _dualpipev(case: _Case, p: Floats) -> Floats:
    """DualPipeV: two chunks per stage in a V; f', d', w' are of a mean chunk.

    Formula:  M max_s t_s + (pp - 1) max(f' + 2 d' - w', 2 f') + 4 (pp - 1) p M / pp. The published bubble is F&B + B - 3 W with
              F&B = f + b, B = b, which is f' + 2 d' - w'; in simulation a forward longer than the backward gives 2 f'.
              Mixed forwards and backwards start when both inputs are there, so each of a loop's messages is exposed.
    """
    forward, backward, wgrad = (total / (2 * case.pp) for total in (case.forward_sum, case.backward_sum, case.wgrad_sum))
    bubble = np.maximum(forward + 2 * (backward - wgrad) - wgrad, 2 * forward)
    return np.asarray(case.micro * case.both.max(axis=-1) + (case.pp - 1) * (bubble + 4 * p * case.micro / case.pp))
