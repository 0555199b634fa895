"""The steady state of continuous batching in closed form, for every layout and load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil

import numpy as np

from meshwright.serving.clock import Clock
from meshwright.serving.kernels import Floats
from meshwright.serving.memory import state_tokens

__all__ = [
    "BUSY",
    "MATCHED",
    "Rated",
    "Steady",
    "at_rate",
    "at_rates",
    "batched_prompt_s",
    "cut",
    "decode_s",
    "decodes_s",
    "disaggregated",
    "front_s",
    "matching_workers",
    "most_running",
    "prompt_s",
    "prompts_s",
    "prompts_together",
    "steady",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steady:
    """One load on one deployment, when it has run for long."""

    ttft_s: float
    """From sending to the first token, mean."""
    tpot_s: float
    """Between two tokens of an answer after its first, mean: (finish - first) / (output tokens -
    1)."""
    e2e_s: float
    requests_per_s: float
    """Of the whole deployment."""
    running: float
    """Sequences that run at once per attention rank."""


def cut(input_len: int, cached: float) -> tuple[int, int]:
    """Return the new tokens of a prompt, one at least, and those in the prefix cache."""
    before = int(cached * input_len)
    return max(1, input_len - before), before


def decode_s(clock: Clock, running: float, context: float) -> float:
    """Time of an iteration of `running` sequences per attention rank, a fraction between two whole
    numbers by its share.

    Formula:  (1 - f) * t(n) + f * t(n + 1), n + f = max(running, 1)
    Units:    seconds.
    Source:   `Clock.running_column_s`.
    Valid:    up to the clock's tokens.
    Checked:  tests/serving/test_steady.py
    """
    running = max(running, 1.0)
    low = min(int(running), clock.most_tokens)
    share = running - low
    column = clock.running_column_s(context)
    if share <= 0.0 or low + 1 > clock.most_tokens:
        return float(column[low])
    return float((1.0 - share) * column[low] + share * column[low + 1])


def prompt_s(clock: Clock, *, new: int, before: int = 0, beside: int = 0) -> float:
    """Time that the prompt of one request adds to iterations with `beside` running sequences.

    Formula:  sum over chunks of t(chunk + beside) - t(beside), attention of each chunk over what
              came before; at least the launches; alone (beside = 0) it is the whole time of the
              prompt
    Units:    seconds.
    Source:   `Clock`.
    Valid:    chunks of the engine's size.
    Checked:  tests/serving/test_steady.py
    """
    chunk = max(1, (clock.prices.engine.chunk_tokens or clock.most_tokens) - beside)
    total, done = 0.0, 0
    while done < new:
        size = min(chunk, new - done)
        device = clock.tokens_s[min(size + beside, clock.most_tokens)] - clock.tokens_s[beside]
        device += clock.prompt_attention_s(size, before + done)
        total += device if beside else max(device, clock.launch_s)
        done += size
    return total if beside else total + clock.head_s[1]


def _added_s(
    clock: Clock, *, running: float, each_iteration: float, new: int, before: int
) -> float:
    """Time that a prompt adds to iterations of `running` sequences, of which `each_iteration` bring
    a prompt on average.

    Formula:  (t(running + k * new) - t(running)) / k + attention, k = each_iteration, at least 1
              and at most what a chunk has room for
    """
    beside = min(int(running), clock.most_tokens // 2)
    room = (clock.prices.engine.chunk_tokens or clock.most_tokens) - beside
    together = min(each_iteration, room / new)
    if together <= 1.0:
        return prompt_s(clock, new=new, before=before, beside=beside)
    last = min(beside + round(together * new), clock.most_tokens)
    device = (clock.tokens_s[last] - clock.tokens_s[beside]) / together
    return device + clock.prompt_attention_s(new, before)


def prompts_s(clock: Clock, *, count: int, new: int, before: int = 0) -> float:
    """Time of one iteration of `count` equal prompts; one that is longer than a chunk takes
    several.

    Formula:  max(t(count * new) + count * attention, launches) + head(count)
    Units:    seconds.
    Source:   `Clock`.
    Valid:    as many prompts as `prompts_together` says.
    Checked:  tests/serving/test_steady.py
    """
    if count == 1:
        return prompt_s(clock, new=new, before=before)
    device = clock.tokens_s[count * new] + count * clock.prompt_attention_s(new, before)
    return max(device, clock.launch_s) + clock.head_s[count]


def prompts_together(clock: Clock, new: int) -> int:
    """Prompts of `new` tokens that an iteration has room for."""
    return max(1, (clock.prices.engine.chunk_tokens or clock.most_tokens) // new)


def batched_prompt_s(clock: Clock, *, new: int, before: int = 0) -> float:
    """Time per prompt of a worker that always has as many of them as an iteration has room for.

    Formula:  prompts_s(k) / k: an iteration of short prompts that the host bounds costs the same
              with one and with several
    Units:    seconds.
    Source:   `prompts_s`.
    Valid:    equal prompts.
    Checked:  tests/serving/test_steady.py
    """
    count = prompts_together(clock, new)
    return prompts_s(clock, count=count, new=new, before=before) / count


def most_running(clock: Clock, *, input_len: int, output_len: int, cache_tokens: int) -> int:
    """Sequences per attention rank that the cache and the engine let run at once; 0 where not even
    one fits.

    Formula:  min(max_sequences, cache tokens / (input + max(reserved share, 1/2) * output + state
              tokens))
    Units:    sequences.
    Source:   a running answer holds half of its tokens on average; `Engine.cache_reserved`.
    Valid:    equal requests.
    Checked:  tests/serving/test_steady.py
    """
    state = state_tokens(clock.prices)
    if cache_tokens < input_len + output_len + state:
        return 0
    held = input_len + max(clock.prices.engine.cache_reserved, 0.5) * output_len + state
    return int(min(clock.prices.engine.max_sequences, cache_tokens // held))


def front_s(clock: Clock, *, input_len: int, requests_per_s: float) -> float:
    """Time of a request in the front process of one server, which reads prompts one after the
    other.

    Formula:  s * (1 + rho / (2 (1 - rho))), s = token_s * input, rho = requests/s * s
    Units:    seconds; `requests_per_s` of one worker.
    Source:   Pollaczek-Khinchine for equal services; `Engine.token_s`.
    Valid:    requests whose arrivals are spread.
    Checked:  tests/serving/test_steady.py
    """
    service = clock.prices.engine.token_s * input_len
    rho = min(requests_per_s * service, 0.98)
    return service * (1.0 + 0.5 * rho / (1.0 - rho))


def steady(
    clock: Clock, *, concurrency: float, input_len: int, output_len: int, cached: float = 0.0
) -> Steady:
    """Price a load of `concurrency` requests per attention rank on one worker that runs prompts and
    answers.

    Formula:  an iteration of b running sequences sees b / output answers end, and as many prompts
              come in, which share what its tokens cost: tpot = t(b) + b / output * prompt;
              requests/s = concurrency / (ttft + (output - 1) * tpot) * attention_dp; ttft = prompt
              * (1 + rho / (2 (1 - rho))) + poll_steps * t(b) / 2 + overlap * tpot (where others
              run) + request_s + front, rho the share of time spent on prompts (Pollaczek-Khinchine
              for equal services); b such that b = requests/s * (output - 1) * tpot
    Units:    seconds.
    Source:   Little's law; Orca (OSDI 2022) for iteration-level scheduling.
    Valid:    requests whose ends are spread; synchronous waves are told by the simulator alone.
    Checked:  tests/serving/test_steady.py
    """
    new, before = cut(input_len, cached)
    context = input_len + 0.5 * output_len
    engine, pp = clock.prices.engine, clock.prices.worker.pp
    alone = prompt_s(clock, new=new, before=before)
    running = concurrency
    ttft = tpot = cycle = 0.0
    for _ in range(_ROUNDS):
        rate = concurrency * clock.prices.worker.attention_dp / cycle if cycle else 0.0
        lot = max(1.0, running / pp)
        step = decode_s(clock, lot, context)
        added = alone
        if engine.mixed:
            each = lot / output_len
            added = _added_s(clock, running=lot, each_iteration=each, new=new, before=before)
        load = min(running, concurrency) / output_len * added / pp
        tpot = step + load
        rho = min(load / tpot, 0.98)
        ttft = max(alone, added) * (1.0 + 0.5 * rho / (1.0 - rho))
        ttft += 0.5 * engine.poll_steps * step
        ttft += engine.request_s
        ttft += tpot * min(max(running - 1.0, 0.0), 1.0) if engine.overlap else 0.0
        ttft += front_s(clock, input_len=input_len, requests_per_s=rate)
        cycle = ttft + (output_len - 1) * tpot
        target = max(concurrency * (output_len - 1) * tpot / cycle, min(concurrency, 1.0))
        running = 0.5 * (running + target)
    return Steady(
        ttft_s=ttft,
        tpot_s=tpot,
        e2e_s=cycle,
        requests_per_s=concurrency * clock.prices.worker.attention_dp / cycle,
        running=running,
    )


_ROUNDS = 24


def disaggregated(
    prefill: Clock,
    decode: Clock,
    *,
    prefill_workers: float,
    decode_workers: float,
    concurrency: float,
    input_len: int,
    output_len: int,
    transfer_s: float,
    cached: float = 0.0,
    slots: int | None = None,
) -> Steady:
    """Price a load on a pool of workers for prompts and one for answers.

    Formula:  closed network of a queue of prompts before prefill_workers * attention_dp servers and
              of answers, whose tpot grows with their number: requests/s X with X * (ttft(X) +
              (output - 1) * tpot(X)) = concurrency; wait of the queue: prompt / (2 w (1 - rho)) *
              rho^(sqrt(2 (w + 1)) - 1), rho = X * batched prompt / w; of answers run at most
              `slots` at once: X <= slots / ((output - 1) * tpot(slots)), and the others wait for
              their first token as long as Little's law says
    Units:    seconds; `concurrency` and `slots` (None: as many as there are requests) of the whole
              deployment.
    Source:   Sakasegawa's formula for many servers, halved for equal services; DistServe
              (arXiv:2401.09670) for the pools.
    Valid:    the cache of a request is sent once, after its prompt.
    Checked:  tests/serving/test_steady.py
    """
    new, before = cut(input_len, cached)
    prompt = prompt_s(prefill, new=new, before=before)
    servers = prefill_workers * prefill.prices.worker.attention_dp * prefill.prices.worker.pp
    ranks = decode_workers * decode.prices.worker.attention_dp
    context = input_len + 0.5 * output_len
    each = batched_prompt_s(prefill, new=new, before=before)
    price = partial(at_rate, prompt=prompt, each=each, servers=servers, ranks=ranks, decode=decode)
    price = partial(price, context=context, output_len=output_len, transfer_s=transfer_s)
    if slots is not None and output_len > 1:
        full = decode_s(decode, slots / ranks / decode.prices.worker.pp, context)
        rate = slots / ((output_len - 1) * full)
        if rate < servers / each:
            found = price(rate)
            ttft = concurrency / rate - (output_len - 1) * full
            if ttft > found.ttft_s:
                found = replace(found, ttft_s=ttft, tpot_s=full, e2e_s=concurrency / rate)
                return replace(found, running=slots / ranks)
    low, high = 0.0, min(servers / each, concurrency / prompt)
    found = price(0.0)
    for _ in range(_BISECTIONS):
        rate = 0.5 * (low + high)
        found = price(rate)
        if rate * found.e2e_s > concurrency:
            high = rate
        else:
            low = rate
    return found


_BISECTIONS = 30


def matching_workers(
    prefill: Clock,
    decode: Clock,
    *,
    decode_workers: int,
    concurrency: float,
    input_len: int,
    output_len: int,
    cached: float = 0.0,
) -> int:
    """Workers for prompts that keep up with the answers of a pool.

    Formula:  ceil(requests/s of the answers alone * batched prompt / (servers of one worker *
              BUSY))
    Units:    workers.
    Source:   rate matching as in DistServe (arXiv:2401.09670).
    Valid:    equal requests.
    Checked:  tests/serving/test_steady.py
    """
    ranks = decode_workers * decode.prices.worker.attention_dp
    new, before = cut(input_len, cached)
    prompt = prompt_s(prefill, new=new, before=before)
    running = min(concurrency / ranks, float(decode.most_tokens))
    tpot = decode_s(decode, running, input_len + 0.5 * output_len)
    rate = concurrency / (prompt + (output_len - 1) * tpot)
    servers = prefill.prices.worker.attention_dp * prefill.prices.worker.pp
    each = batched_prompt_s(prefill, new=new, before=before)
    return max(1, ceil(rate * each / (servers * BUSY)))


BUSY = 0.8
"""Share of the time that workers for prompts may be busy before their queue outgrows a prompt
(Sakasegawa's formula for few servers)."""


MATCHED = 0.92
"""Share of what workers for answers could carry that a pool of them carries: requests come one by
one from the workers for prompts, so that not every place is taken all the time. AIConfigurator's
factor for the decode side of its rate matching (sdk/inference_session.py,
_RATE_MATCHING_DECODE_DEGRADATION_FACTOR; its 0.9 for prompts is above our BUSY)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rated:
    """Times of a request by rates of requests, each of the shape of the rates."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    running: Floats
    """Sequences that run at once per attention rank of the workers for answers."""


def decodes_s(clock: Clock, running: Floats, context: float) -> Floats:
    """Time of `decode_s` by many numbers of running sequences.

    Formula:  as decode_s
    Units:    seconds, the shape of `running`.
    Source:   `Clock.running_column_s`.
    Valid:    as decode_s.
    Checked:  tests/serving/test_steady.py
    """
    column, most = clock.running_column_s(context), clock.most_tokens
    running = np.maximum(running, 1.0)
    low = np.minimum(running.astype(np.int64), most)
    share = np.where(low < most, running - low, 0.0)
    return np.asarray((1.0 - share) * column[low] + share * column[np.minimum(low + 1, most)])


def at_rates(
    rate: Floats,
    *,
    prompt: Floats,
    each: Floats,
    servers: Floats,
    ranks: Floats,
    decode: Clock,
    context: float,
    output_len: int,
    transfer_s: float,
) -> Rated:
    """Times of a request on two pools, at many rates of requests of as many pairs of pools.

    Formula:  as `disaggregated`; running = rate * (output - 1) * tpot(running) / ranks; ttft =
              prompt + wait + transfer + poll_steps * tpot / 2 + request_s + handover_s, until the
              workers for answers look
    Units:    seconds; `servers` are attention ranks and stages of all workers for prompts, `ranks`
              those of answers. Arrays of one shape.
    Source:   as `disaggregated`.
    Valid:    rates below servers / each; `each` is `batched_prompt_s`.
    Checked:  tests/serving/test_steady.py
    """
    pp, most = decode.prices.worker.pp, float(decode.most_tokens)
    rho = np.minimum(rate * each / servers, 0.9999)
    queue = rho ** (np.sqrt(2.0 * (servers + 1.0)) - 1.0)
    wait = 0.5 * prompt * queue / (servers * (1.0 - rho))
    # Answers see the rate of their own rank alone, which many pairs have in common.
    asked, back = np.unique(rate * (output_len - 1) / ranks, return_inverse=True)
    running, tpot = np.ones(asked.shape), np.zeros(asked.shape)
    for _ in range(_ROUNDS):
        tpot = decodes_s(decode, running / pp, context)
        running = np.minimum(0.5 * (running + np.maximum(asked * tpot, 1.0)), most)
    tpot, running = tpot[back].reshape(rate.shape), running[back].reshape(rate.shape)
    engine = decode.prices.engine
    look = 0.5 * engine.poll_steps * tpot
    ttft = prompt + wait + transfer_s + look + engine.request_s + engine.handover_s
    return Rated(ttft_s=ttft, tpot_s=tpot, e2e_s=ttft + (output_len - 1) * tpot, running=running)


def at_rate(
    rate: float,
    *,
    prompt: float,
    each: float,
    servers: float,
    ranks: float,
    decode: Clock,
    context: float,
    output_len: int,
    transfer_s: float,
) -> Steady:
    """Times of a request on two pools at one rate of requests.

    Formula:  as at_rates
    Units:    as at_rates.
    Source:   as at_rates.
    Valid:    as at_rates.
    Checked:  tests/serving/test_steady.py
    """
    found = at_rates(
        np.array(rate),
        prompt=np.array(prompt),
        each=np.array(each),
        servers=np.array(servers),
        ranks=np.array(ranks),
        decode=decode,
        context=context,
        output_len=output_len,
        transfer_s=transfer_s,
    )
    return Steady(
        ttft_s=float(found.ttft_s),
        tpot_s=float(found.tpot_s),
        e2e_s=float(found.e2e_s),
        requests_per_s=rate,
        running=float(found.running),
    )
