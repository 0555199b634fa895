"""Time of one pipeline step in closed form, for columns of layouts; `simulate.py` is the exact
answer for one.

The idea: follow one stage s with n = pp - 1 - s stages below it. Before its first forward and after
its last backward, the stages above it must pass a micro batch. From its first forward to its first
backward it either runs its n + 1 warm-up forwards or waits for the round trip through the stages
below; the same holds, mirrored, from its last forward to its last backward; in between it runs one
forward and one backward in turn. Each is a chain of operations that must follow each other, so the
sum is a lower bound for any stage, and the largest one over the stages is the estimate. Arrays:
`(N,)` per layout and `(N, S)` per layout and stage; scalars and `(S,)` work as well. Seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.closed_forms import (
    P2P,
    Case,
    Links,
    alike,
    chain_s,
    interleaved_chain_s,
    step_s,
    unlike,
)
from meshwright.cost.terms import bubble_s, pipeline_messages_s

__all__ = [
    "PipelineSeconds",
    "chain_s",
    "interleaved_chain_s",
    "pipeline_lower_bound_s",
    "pipeline_of_stages_s",
    "pipeline_s",
    "pipeline_upper_bound_s",
    "steady_period_s",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSeconds:
    """Parts of one pipeline step, each (N,); NaN where the schedule has no formula for the
    layout."""

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


@makes("bubble")
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

    `schedule`, `pp`, `vpp`, `num_microbatches`, `p2p_s` (one message) and the sums over all stages
    are (N,). `schedule` holds indices into `layout.SCHEDULES`; 1f1b is interleaved where vpp > 1,
    zero-bubble is ZB-H1 where vpp = 1 and DualPipeV where vpp = 2, and anything else with vpp > 1
    is NaN. `forward_s`, `backward_s` (whole, weight gradients included) and `wgrad_s` (that part of
    it) are (N, S), of one micro batch through all chunks of a stage: column 0 the first stage,
    column -1 the last, the heaviest in between; the same stage may occur twice. `stage` (N, S) are
    their numbers; None takes the middle ones for second to last, where they cost most. `p2p` =
    "blocking" stops 1f1b and gpipe for each message, as Megatron-Core does; the other schedules
    overlap messages in either case.

    Formula:  max over s of  (before_s + 2 s p) + start_s + (M - n - 1) t_s + end_s,  with n = pp -
              1 - s, t = f + b, before_s = sum of t above s, U_s = sum of t below s, start_s =
              max((n + 1) f_s, f_s + U_s + 2 n p), end_s = max((n + 1) b_s, b_s + U_s + 2 n p). The
              other schedules change the terms, see `cost/closed_forms.py`. Where stages are even
              and p = 0 they reduce to (M + pp - 1)(f + b) for 1f1b and gpipe; M (f + b) + (pp -
              1)(f + b) / vpp interleaved; M (f + b) + (pp - 1) max(f + d - w, f, d) for ZB-H1 with
              d = b - w.
    Units:    seconds.
    Source:   1f1b and interleaved: arXiv:2104.04473, section 2.2; ZB-H1: arXiv:2401.10241, table 1
              (its f + d - w for w <= min(f, d)); DualPipeV: table of
              github.com/deepseek-ai/DualPipe. The uneven forms are derived here.
    Valid:    M >= 1; interleaved: M a multiple of pp; dualpipev: M >= 2 pp. Exact for even stages
              if p <= min(f, b) of a chunk (1f1b, interleaved, gpipe) or p = 0. For random uneven
              stages without messages the 1f1b form is never above the simulation and 0.2 % below it
              in the mean. Interleaved takes the chunks of a stage as equal: 0.5 % too low in the
              mean for stages that differ by 30 %, 0.9 % for a heavy first or last chunk, and up to
              8 % where M = pp; dualpipev is up to 16 % too high for stages that differ by 50 %. A
              representative's neighbours are not known: the middle stages but for itself are taken
              as equal.
    Checked:  tests/cost/test_pipeline.py::test_closed_form_is_exact_for_even_stages,
              ::test_uneven_error_of_the_closed_form
    """
    case = _case_of(
        (pp, vpp, num_microbatches),
        (forward_s, backward_s, wgrad_s),
        (forward_sum_s, backward_sum_s, wgrad_sum_s),
        stage=stage,
    )
    message = np.broadcast_to(
        np.asarray(p2p_s, dtype=np.float64), np.broadcast_shapes(np.shape(p2p_s), case.pp.shape)
    )
    return _parts(case, np.asarray(schedule), alike(case, message), p2p)


def _case_of(
    counts: tuple[Any, Any, Any],
    times_s: tuple[Any, Any, Any],
    sums_s: tuple[Any, Any, Any],
    *,
    stage: Any,
) -> Case:
    """What `pipeline_s` is given, with the sums above each representative stage."""
    pp, vpp, micro = (np.asarray(v, dtype=np.float64) for v in counts)
    forward, backward = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in times_s[:2]))
    wgrad = np.broadcast_to(np.asarray(times_s[2], dtype=np.float64), forward.shape)
    number = (
        _default_stage(pp, forward.shape[-1])
        if stage is None
        else np.asarray(stage, dtype=np.float64)
    )
    sums = [np.asarray(v, dtype=np.float64) for v in sums_s]
    above = [
        _sum_above(t, total, pp=pp, number=number)
        for t, total in zip((forward, backward, wgrad), sums, strict=True)
    ]
    return Case(
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

    `p2p_s` is one message's time for all boundaries, (N,), or one per boundary, (N, pp - 1).

    Formula:  as `pipeline_s`, with the true sums above and below each stage: of times, and of
              messages. Schedules other than 1f1b take the mean message for each.
    Units:    seconds.
    Source:   as `pipeline_s`.
    Valid:    as `pipeline_s`; all rows have the same pp.
    Checked:  tests/cost/test_pipeline.py::test_uneven_error_of_the_closed_form,
              ::test_unlike_links_by_hand
    """
    forward, backward = np.broadcast_arrays(
        np.asarray(forward_s, dtype=np.float64), np.asarray(backward_s, dtype=np.float64)
    )
    wgrad = np.broadcast_to(np.asarray(wgrad_s, dtype=np.float64), forward.shape)
    case = Case(
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
    message = np.asarray(p2p_s, dtype=np.float64)
    links = alike(case, message) if message.ndim < forward.ndim else unlike(message)
    return _parts(case, np.asarray(schedule), links, p2p)


def pipeline_lower_bound_s(*, forward_s: Any, backward_s: Any, num_microbatches: Any) -> Floats:
    """Least time of 1f1b, whatever the messages cost; stages on the last axis, (N, pp) -> (N,).

    Formula:  max(sum_s t_s, max_s(sum_{k<s} t_k + M t_s)), t = f + b
    Units:    seconds.
    Source:   one micro batch visits every stage twice; stage s starts after those above it and they
              finish after it.
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
    Source:   raising every stage to the slowest forward and backward makes it even, and never
              faster. The popular sum_s t_s + (M - 1) max_s t_s is no bound: f = (.1, 2, .3, .1), b
              = (3, 1, .1, .3), M = 8 takes 31.5, not 28.6.
    Valid:    any stage times, p = 0.
    Checked:  tests/cost/test_pipeline.py::test_bounds_hold, ::test_popular_form_is_no_bound
    """
    forward, backward = (
        np.asarray(forward_s, dtype=np.float64),
        np.asarray(backward_s, dtype=np.float64),
    )
    steps = np.asarray(num_microbatches) + forward.shape[-1] - 1
    return np.asarray(steps * (forward.max(axis=-1) + backward.max(axis=-1)))


def steady_period_s(*, forward_s: Any, backward_s: Any, p2p_s: Any = 0.0) -> Floats:
    """Time per micro batch of 1f1b with overlapped messages once it is steady; stages on the last
    axis, (N, pp) -> (N,).

    `p2p_s` is (N,), or one per boundary, (N, pp - 1).

    Formula:  max over s <= u of (sum_{k=s..u} (f_k + b_k) + 2 sum_{k=s..u-1} p_k) / (u - s + 1)
              Even stages: t + 2 p (pp - 1) / pp, as the whole pipeline is the slowest loop: u - s +
              1 micro batches go round a loop of that many stages, and pay two messages at each
              boundary in it. p = 0: the slowest stage. Blocking messages: t + 2 p, or t + p where
              pp = 2, as the stage pays both neighbours itself.
    Units:    seconds.
    Source:   the loop F(s) .. F(u) B(u) .. B(s) moves on by u - s + 1 micro batches; a max-plus
              system's period is its slowest loop.
    Valid:    p at most f + b of a stage.
    Checked:  tests/cost/test_pipeline.py::test_steady_period, ::test_steady_period_of_unlike_links
    """
    t = np.asarray(forward_s, dtype=np.float64) + np.asarray(backward_s, dtype=np.float64)
    p = np.asarray(p2p_s, dtype=np.float64)
    if p.ndim < t.ndim:
        p = np.broadcast_to(p[..., None], (*t.shape[:-1], t.shape[-1] - 1))
    upto = np.concatenate([np.zeros_like(t[..., :1]), t.cumsum(axis=-1)], axis=-1)
    crossed = np.concatenate([np.zeros_like(t[..., :1]), p.cumsum(axis=-1)], axis=-1)
    pp = t.shape[-1]
    loops = [
        (
            (
                upto[..., size:]
                - upto[..., :-size]
                + 2 * (crossed[..., size - 1 :] - crossed[..., : pp - size + 1])
            )
            / size
        ).max(axis=-1)
        for size in range(1, pp + 1)
    ]
    return np.asarray(np.max(loops, axis=0))


def _default_stage(pp: Floats, columns: int) -> Floats:
    """First, last, and second to last for all between; a single column stands for the last."""
    numbers = [np.zeros_like(pp), *[np.maximum(pp - 2, 0)] * (columns - 2)][: columns - 1]
    return np.stack([*numbers, pp - 1], axis=-1)


def _sum_above(times: Floats, total: Floats, *, pp: Floats, number: Floats) -> Floats:
    """Sum over the stages before each representative; the middle ones that are not it share alike
    what is left of the total.

    Formula:  0 for the first, total - own for the last, else first + (number - 1) * (total - first
              - last - own) / (pp - 3)
    Units:    seconds, (N, S).
    Source:   counting: the middle stages' own times are not known here, equal ones are assumed.
    """
    first, last = times[..., :1], times[..., -1:]
    pp, total = pp[..., None], total[..., None]
    between = np.maximum(total - first - last - times, 0) / np.maximum(pp - 3, 1)
    middle = first + (number - 1) * between
    return np.asarray(np.where(number == 0, 0.0, np.where(number == pp - 1, total - times, middle)))


def _parts(case: Case, schedule: NDArray[Any], links: Links, p2p: P2P) -> PipelineSeconds:
    """Split a step into its parts.

    Formula:  work = M * sum of stages / pp; imbalance = M * slowest stage - work; bubble = step
              without messages - M * slowest stage; messages = step - step without messages
    Units:    seconds, (N,); NaN where the schedule has no formula.
    Source:   definition; they sum to the step.
    """
    silent, whole = (step_s(case, schedule, messages, p2p) for messages in (links.none(), links))
    work = case.micro * case.both_sum / case.pp
    slowest = case.micro * case.both.max(axis=-1)
    known = np.where(np.isnan(silent), np.nan, 1.0)
    return PipelineSeconds(
        work_s=np.asarray(known * work),
        imbalance_s=np.asarray(known * (slowest - work)),
        bubble_s=bubble_s(silent_s=silent, slowest_s=slowest),
        p2p_s=pipeline_messages_s(whole_s=whole, silent_s=silent),
    )
