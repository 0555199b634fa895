"""The price of an iteration in a few list look-ups, for simulators that ask a million times."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

import numpy as np

from meshwright.serving.kernels import Floats
from meshwright.serving.prices import Prices
from meshwright.values.errors import ConfigError

__all__ = ["Clock", "Drafting", "Speculation", "clock_of"]

_PER_DOUBLING = 2
_SINGLE = 24
"""Token counts up to this are priced one by one: the time of small products is a stair."""


Drafting = Literal["mtp", "eagle", "ngram"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """Tokens drafted ahead and checked together."""

    drafted: int
    """Tokens drafted per iteration."""
    accepted: float
    """Of them, how many are right on average: an iteration gives 1 + accepted tokens."""
    method: Drafting = "mtp"
    """By the model's own layers for multi-token prediction, or by EAGLE's layer of the same width
    (arXiv:2401.15077): one layer's and the head's work each; or by looking the last tokens up in
    the prompt (n-grams), which takes the device no time."""

    @property
    def passes(self) -> int:
        """Passes of one layer and the head that an iteration's drafts take."""
        return 0 if self.method == "ngram" else self.drafted

    def __post_init__(self) -> None:
        if self.drafted < 1:
            raise ConfigError(f"drafted={self.drafted}: expected 1 token or more")
        if not 0.0 <= self.accepted <= self.drafted:
            raise ConfigError(
                f"accepted={self.accepted}: expected 0 to drafted={self.drafted} tokens"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plane:
    """Seconds over two arguments, bilinear in their logarithms."""

    rows: list[float]
    columns: list[float]
    values: list[list[float]]

    @staticmethod
    def of(rows: Floats, columns: Floats, values: Floats) -> _Plane:
        lists = values.tolist()
        return _Plane(rows=np.log(rows).tolist(), columns=np.log(columns).tolist(), values=lists)

    def at(self, row: float, column: float) -> float:
        x, y = log(row), log(column)
        i = min(max(bisect_right(self.rows, x) - 1, 0), len(self.rows) - 2)
        j = min(max(bisect_right(self.columns, y) - 1, 0), len(self.columns) - 2)
        u = min(max((x - self.rows[i]) / (self.rows[i + 1] - self.rows[i]), 0.0), 1.0)
        v = min(max((y - self.columns[j]) / (self.columns[j + 1] - self.columns[j]), 0.0), 1.0)
        low, high = self.values[i], self.values[i + 1]
        first = low[j] + v * (low[j + 1] - low[j])
        return first + u * (high[j] + v * (high[j + 1] - high[j]) - first)

    def down(self, rows: Floats, column: float) -> Floats:
        """Return `at` of many rows of one column."""
        y, columns = log(column), self.columns
        j = min(max(bisect_right(columns, y) - 1, 0), len(columns) - 2)
        v = min(max((y - columns[j]) / (columns[j + 1] - columns[j]), 0.0), 1.0)
        ends = np.array(self.values)
        values = ends[:, j] + v * (ends[:, j + 1] - ends[:, j])
        return np.asarray(np.interp(np.log(rows), self.rows, values))


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Times of the iterations of one worker, seen from one of its attention ranks.

    Formula:  by_tokens(prompts + running) + attention of prompts + attention of running sequences +
              head + messages + host; without a graph (an iteration with prompts) at least kernels *
              launch_s
    Units:    seconds.
    Source:   `Prices`, tabulated.
    Valid:    up to `most_tokens` tokens in an iteration and `most_context` in a sequence.
    Checked:  tests/serving/test_clock.py
    """

    prices: Prices
    most_tokens: int
    most_context: int
    speculation: Speculation | None = None

    @cached_property
    def tokens_s(self) -> list[float]:
        """Seconds by tokens of the iteration, from none on."""
        points = _points(self.most_tokens)
        terms = sum(self.prices.by_tokens_s(points).values(), np.zeros_like(points))
        parts = terms + self.prices.messages_s(points)
        wanted = np.arange(1, self.most_tokens + 1, dtype=np.float64)
        return [0.0, *np.interp(wanted, points, parts).tolist()]

    @cached_property
    def head_s(self) -> list[float]:
        """Seconds of head, sampling and host by sequences."""
        points = _points(self.most_tokens)
        engine = self.prices.engine
        parts = self.prices.head_s(points) + engine.host_s + engine.host_per_sequence_s * points
        wanted = np.arange(1, self.most_tokens + 1, dtype=np.float64)
        return [engine.host_s, *np.interp(wanted, points, parts).tolist()]

    @cached_property
    def _running(self) -> _Plane:
        batches, contexts = _halves(self.most_tokens), _halves(self.most_context)
        values = self.prices.running_s(batch=batches[:, None], context=contexts[None, :])
        return _Plane.of(batches, contexts, values)

    @cached_property
    def _prompts(self) -> _Plane:
        """By new tokens and by tokens seen in all."""
        news, totals = _halves(self.most_context), _halves(self.most_context)
        new, total = np.broadcast_arrays(news[:, None], totals[None, :])
        before = np.maximum(total - new, 0.0)
        values = self.prices.prompts_s(batch=np.ones(()), new=new, context=before)
        return _Plane.of(news, totals, values)

    @cached_property
    def launch_s(self) -> float:
        """What the host needs to launch an iteration without a graph."""
        return self.prices.kernel_count() * self.prices.engine.launch_s

    def running_s(self, batch: int, context: float) -> float:
        """Return the time in which each of `batch` running sequences gets one token, without
        prompts.

        Formula:  one iteration; with speculation one of batch * (1 + drafted) tokens and drafted
                  passes of one layer and the head (none by n-grams), over 1 + accepted tokens
        """
        guess = self.speculation
        each = 1 if guess is None else 1 + guess.drafted
        tokens = min(batch * each, self.most_tokens)
        device = self.tokens_s[tokens] + self._running.at(batch, max(context, 1.0))
        if not self.prices.engine.graphs:
            device = max(device, self.launch_s)
        if guess is None:
            return device + self.head_s[batch]
        layer_s = self.tokens_s[batch] / self.prices.model.num_layers
        draft = guess.passes * (layer_s + self.head_s[batch])
        return (device + draft + self.head_s[tokens]) / (1.0 + guess.accepted)

    @cached_property
    def _columns(self) -> dict[float, Floats]:
        """Of `running_column_s`, by context: a search asks for one a thousand times."""
        return {}

    def running_column_s(self, context: float) -> Floats:
        """Return `running_s` of 1 to `most_tokens` sequences, at the place of their number; that of
        1 at place 0, too.

        Formula:  as running_s
        """
        if context not in self._columns:
            batch = np.maximum(np.arange(self.most_tokens + 1), 1)
            guess = self.speculation
            each = 1 if guess is None else 1 + guess.drafted
            tokens = np.minimum(batch * each, self.most_tokens)
            told, heads = np.array(self.tokens_s), np.array(self.head_s)
            device = told[tokens] + self._running.down(batch.astype(np.float64), max(context, 1.0))
            if not self.prices.engine.graphs:
                device = np.maximum(device, self.launch_s)
            found = device + heads[batch]
            if guess is not None:
                layer = told[batch] / self.prices.model.num_layers
                draft = guess.passes * (layer + heads[batch])
                found = (device + draft + heads[tokens]) / (1.0 + guess.accepted)
            self._columns[context] = found
        return self._columns[context]

    def prompt_attention_s(self, new: int, before: int) -> float:
        """Return the time of attention of a chunk of a prompt after `before` cached tokens."""
        return self._prompts.at(new, new + before)

    def mixed_s(
        self, *, new: int, attention: float, heads: int, batch: int, context: float
    ) -> float:
        """Return an iteration's time: `new` prompt tokens, `heads` last ones, `batch` running."""
        device = self.tokens_s[min(new + batch, self.most_tokens)] + attention
        if batch:
            device += self._running.at(batch, max(context, 1.0))
        return max(device, self.launch_s) + self.head_s[batch + heads]


def clock_of(
    prices: Prices, *, most_tokens: int, most_context: int, speculation: Speculation | None = None
) -> Clock:
    """Return the clock of a worker."""
    return Clock(
        prices=prices,
        most_tokens=max(most_tokens, 64),
        most_context=max(most_context, 64),
        speculation=speculation,
    )


def _points(most: int) -> Floats:
    """1, 2, ..., then a few per doubling, and one more each, where a wave of tiles starts."""
    steps = _halves(most)
    later = steps[steps > _SINGLE]
    single = np.arange(1.0, min(_SINGLE, most) + 1)
    return np.unique(np.concatenate([single, later, later[later < most] + 1]))


def _halves(most: int) -> Floats:
    count = int(np.ceil(_PER_DOUBLING * np.log2(most)))
    return np.unique(np.minimum(np.round(2.0 ** (np.arange(count + 1) / _PER_DOUBLING)), most))
