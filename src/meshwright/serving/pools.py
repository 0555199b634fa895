"""Every pair of workers for prompts and for answers at every load, priced as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from meshwright.serving.candidates import Candidate, transfer_s
from meshwright.serving.kernels import Floats
from meshwright.serving.options import HALVINGS, loads_of, option_of, part_of
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption, excess, order
from meshwright.serving.steady import (
    BUSY,
    MATCHED,
    Steady,
    at_rate,
    at_rates,
    batched_prompt_s,
    cut,
    decodes_s,
    prompt_s,
)

__all__ = ["Priced", "Progress", "pools_at_load", "two_pools"]

Ints = NDArray[np.int64]
Progress = Callable[[int, int], None]
"""Told how many workers are done, and of how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """What can be best of all that was priced."""

    options: tuple[ServingOption, ...]
    """Of every pair the best load, and what is on the front or nearest to a limit."""
    count: int
    """Deployments and loads that were priced."""


def two_pools(request: ServingRequest, found: Sequence[Candidate], progress: Progress) -> Priced:
    """Price every pair of candidates with the same weights and cache that the chips have room for.

    All workers for prompts beside one kind for answers are priced at once. Deployments that another
    one beats in whatever a plan lists are dropped before they are written out: the answer is that
    of all.
    """
    if "disaggregated" not in request.modes or not found:
        return Priced(options=(), count=0)
    prompts = _Prompts.of(request, found)
    kept: list[tuple[int, int, ServingOption]] = []
    count = 0
    for number, second in enumerate(found):
        progress(number, len(found))
        firsts = np.array([n for n, first in enumerate(found) if _can_pair(first, second)])
        loads = np.array(loads_of(request, second), dtype=np.int64)
        if not len(firsts) or not len(loads):
            continue
        answers = _Answers(request=request, prompts=prompts, second=second)
        columns = answers.at_all(firsts, loads)
        count += len(columns.first)
        for row in _survivors(request, columns):
            option = answers.option(columns, row, found[columns.first[row]])
            kept.append((int(columns.first[row]), number, option))
    kept.sort(key=lambda one: one[:2])
    return Priced(options=tuple(option for _, _, option in kept), count=count)


def _can_pair(first: Candidate, second: Candidate) -> bool:
    """Both hold the same weights and cache, and there is room for both."""
    a, b = first.prices, second.prices
    if a.cache != b.cache or a.quantisation.name != b.quantisation.name:
        return False
    return first.pool is not second.pool or a.worker.chips + b.worker.chips <= first.pool.num_chips


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prompts:
    """Every candidate as a worker for prompts, as columns."""

    alone_s: Floats
    """Of one prompt."""
    each_s: Floats
    """Per prompt of a worker that always has several."""
    servers: Ints
    chips: Ints
    there: Ints
    """Chips of its pool."""
    pool: Ints
    """By identity."""

    @classmethod
    def of(cls, request: ServingRequest, found: Sequence[Candidate]) -> _Prompts:
        new, before = cut(request.input_len, request.cached_share)
        workers = [one.prices.worker for one in found]
        return cls(
            alone_s=np.array([prompt_s(one.clock, new=new, before=before) for one in found]),
            each_s=np.array([batched_prompt_s(one.clock, new=new, before=before) for one in found]),
            servers=np.array([worker.attention_dp * worker.pp for worker in workers]),
            chips=np.array([worker.chips for worker in workers]),
            there=np.array([one.pool.num_chips for one in found]),
            pool=np.array([id(one.pool) for one in found]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pairs:
    """Deployments and loads of one kind of worker for answers, as columns."""

    first: Ints
    """Number of the candidate for prompts."""
    load: Ints
    """That the workers were matched for, per attention rank."""
    prompts: Ints
    answers: Ints
    """Workers of each kind in a group."""
    copies: Ints
    """Of such groups."""
    chips: Ints
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    running: Floats
    group_per_s: Floats
    """Requests per second of a group."""
    tokens_per_s: Floats

    @property
    def tokens_per_s_per_chip(self) -> Floats:
        return self.tokens_per_s / self.chips

    @property
    def requests_per_s(self) -> Floats:
        return self.group_per_s * self.copies

    def only(self, rows: NDArray[np.bool_]) -> _Pairs:
        return _Pairs(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @staticmethod
    def together(several: Sequence[_Pairs]) -> _Pairs:
        names = [field.name for field in fields(_Pairs)]
        columns = {name: np.concatenate([getattr(one, name) for one in several]) for name in names}
        return _Pairs(**columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answers:
    """One candidate as the worker for answers beside all others."""

    request: ServingRequest
    prompts: _Prompts
    second: Candidate

    @property
    def context(self) -> float:
        return self.request.input_len + 0.5 * self.request.output_len

    def at_all(self, firsts: Ints, loads: Ints) -> _Pairs:
        """Price every load; then, for each worker for prompts, three between the last that keeps
        the limits and the next, halved."""
        count = len(loads)
        found = [self._at(np.repeat(firsts, count), np.tile(loads, len(firsts)))]
        keeps = self._kept(found[0], firsts)
        place = np.searchsorted(loads, keeps)
        follows = np.append(loads, 0)[np.where(keeps > 0, place + 1, count)]
        for _ in range(HALVINGS):
            open_ = follows - keeps >= 2
            if not open_.any():
                break
            firsts, keeps, follows = firsts[open_], keeps[open_], follows[open_]
            middle = (keeps + follows) // 2
            found.append(self._at(firsts, middle))
            kept = self._kept(found[-1], firsts) > 0
            keeps, follows = np.where(kept, middle, keeps), np.where(kept, follows, middle)
        return _Pairs.together(found)

    def _kept(self, priced: _Pairs, firsts: Ints) -> Ints:
        """The largest load that keeps the limits, by worker for prompts; 0 where none does."""
        good = excess(self.request, priced) <= np.ones(len(priced.first))
        most = np.zeros(int(max(firsts.max(), 0)) + 1, dtype=np.int64)
        np.maximum.at(most, priced.first[good], priced.load[good])
        return most[firsts]

    def _at(self, first: Ints, load: Ints) -> _Pairs:
        """Price groups of 1 to _MOST_GROUP workers for answers with the workers for prompts, BUSY
        at most, that they need; but for rounding, once rounded up and once down."""
        request, worker = self.request, self.second.prices.worker
        tpot = decodes_s(self.second.clock, load / worker.pp, self.context)
        served = np.maximum((request.output_len - 1) * tpot, tpot)
        rate = load * worker.attention_dp / served
        each = self.prompts.each_s[first]
        wanted = rate * MATCHED * each / (self.prompts.servers[first] * BUSY)
        answers = np.repeat(np.arange(1, _MOST_GROUP + 1), 2)
        asked = wanted[:, None] * answers
        up = (np.arange(2 * _MOST_GROUP) % 2 == 1)[None, :]
        prompts = np.maximum(1, np.where(up, np.ceil(asked), np.floor(asked))).astype(np.int64)
        again = np.zeros(prompts.shape, dtype=bool)
        again[:, 1::2] = prompts[:, 1::2] == prompts[:, ::2]
        rows, columns = np.nonzero(~again & self._room(first[:, None], prompts, answers[None, :]))
        return self._groups(
            first[rows], load[rows], rate[rows], prompts[rows, columns], answers[columns]
        )

    def _room(self, first: Ints, prompts: Ints, answers: Ints) -> NDArray[np.bool_]:
        return self._most_copies(first, prompts, answers) >= 1

    def _most_copies(self, first: Ints, prompts: Ints, answers: Ints) -> Ints:
        """Groups that the chips of one pool, or of two, hold."""
        a, b = prompts * self.prompts.chips[first], answers * self.second.prices.worker.chips
        there = self.second.pool.num_chips
        apart = np.minimum(self.prompts.there[first] // a, there // b)
        same = self.prompts.pool[first] == id(self.second.pool)
        return np.where(same, there // (a + b), apart)

    def _groups(
        self, first: Ints, load: Ints, rate: Floats, prompts: Ints, answers: Ints
    ) -> _Pairs:
        request, worker, told = self.request, self.second.prices.worker, self.prompts
        servers = (prompts * told.servers[first]).astype(np.float64)
        each = told.each_s[first]
        carried = np.minimum(answers * rate * MATCHED, servers / each * BUSY)
        seen = at_rates(
            carried,
            prompt=told.alone_s[first],
            each=each,
            servers=servers,
            ranks=np.asarray(answers * worker.attention_dp, dtype=np.float64),
            decode=self.second.clock,
            context=self.context,
            output_len=request.output_len,
            transfer_s=transfer_s(request, self.second),
        )
        copies = most = self._most_copies(first, prompts, answers)
        if request.target_rate is not None:
            copies = np.ceil(request.target_rate / carried - 1e-9).astype(np.int64)
        chips = copies * (prompts * told.chips[first] + answers * worker.chips)
        return _Pairs(
            first=first,
            load=load,
            prompts=prompts,
            answers=answers,
            copies=copies,
            chips=chips,
            ttft_s=seen.ttft_s,
            tpot_s=seen.tpot_s,
            e2e_s=seen.e2e_s,
            running=seen.running,
            group_per_s=carried,
            tokens_per_s=np.asarray(carried * copies * float(request.output_len)),
        ).only(copies <= most)

    def option(self, columns: _Pairs, row: int, first: Candidate) -> ServingOption:
        """Write one row out."""
        copies, rate = int(columns.copies[row]), float(columns.group_per_s[row])
        prompts, answers = int(columns.prompts[row]), int(columns.answers[row])
        e2e, running = float(columns.e2e_s[row]), float(columns.running[row])
        request, second = self.request, self.second
        parts = (
            part_of("prompts", request, first, prompts * copies, 1.0),
            part_of("answers", request, second, answers * copies, running),
        )
        found = Steady(
            ttft_s=float(columns.ttft_s[row]),
            tpot_s=float(columns.tpot_s[row]),
            e2e_s=e2e,
            requests_per_s=rate * copies,
            running=running,
        )
        under_way = max(1, round(rate * e2e * copies))
        return option_of(request, "disaggregated", second, parts, found, under_way)


_MOST_GROUP = 4


def pools_at_load(
    request: ServingRequest,
    prompts: tuple[Candidate, int],
    answers: tuple[Candidate, int],
    *,
    load: float,
) -> Steady:
    """Return what requests see on so many workers for prompts and for answers, `load` answers under
    way on each attention rank, as far as the prompts' workers keep up: a row of `two_pools`."""
    (first, first_count), (second, second_count) = prompts, answers
    servers = first_count * first.prices.worker.attention_dp * first.prices.worker.pp
    new, before = cut(request.input_len, request.cached_share)
    each_s = batched_prompt_s(first.clock, new=new, before=before)
    worker, context = second.prices.worker, request.input_len + 0.5 * request.output_len
    tpot_s = float(decodes_s(second.clock, np.array([load / worker.pp]), context)[0])
    rate = load * worker.attention_dp / max((request.output_len - 1) * tpot_s, tpot_s)
    return at_rate(
        min(second_count * rate * MATCHED, servers / each_s * BUSY),
        prompt=prompt_s(first.clock, new=new, before=before),
        each=each_s,
        servers=servers,
        ranks=second_count * worker.attention_dp,
        decode=second.clock,
        context=context,
        output_len=request.output_len,
        transfer_s=transfer_s(request, second),
    )


def _survivors(request: ServingRequest, columns: _Pairs) -> list[int]:
    """Rows that a plan may list: the best of each worker for prompts among those that keep the
    limits and carry the rate, the front of speed and throughput, the nearest to each limit, and
    what carries most. Each of them is the best of all if it is the best of every kind's best."""
    if not len(columns.first):
        return []
    over = excess(request, columns) + np.zeros(len(columns.first))
    able = columns.requests_per_s >= (request.rate or 0.0)
    kept = set(_best_of_each(request, columns, able & (over <= 1.0)))
    kept |= set(_front(columns))
    for keys in ((over,), *((getattr(columns, name), over) for name in _TIMES)):
        kept |= set(_least(able, *keys))
    for rows in (over <= 1.0, over >= 0.0):
        kept |= set(_least(rows, -columns.requests_per_s, columns.e2e_s))
    return sorted(kept)


_TIMES = ("ttft_s", "tpot_s", "e2e_s")


def _best_of_each(
    request: ServingRequest, columns: _Pairs, rows: NDArray[np.bool_]
) -> Iterator[int]:
    where = np.flatnonzero(rows)
    first, (main, other) = columns.first[where], order(request, columns)
    sort = np.lexsort((other[where], main[where], first))
    starts = np.unique(first[sort], return_index=True)[1]
    return (int(row) for row in where[sort][starts])


def _front(columns: _Pairs) -> Iterator[int]:
    rate = columns.tokens_per_s_per_chip
    sort = np.lexsort((-rate, columns.tpot_s))
    best = np.maximum.accumulate(rate[sort])
    higher = np.append(True, best[1:] > best[:-1])
    return (int(row) for row in sort[higher])


def _least(rows: NDArray[np.bool_], *keys: Floats) -> list[int]:
    where = np.flatnonzero(rows)
    if not len(where):
        return []
    sort = np.lexsort([key[where] for key in reversed(keys)])
    return [int(where[sort[0]])]
