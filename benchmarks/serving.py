"""Time of a serving search from a cold start, and of a million simulated requests.

    python benchmarks/serving.py

Prints seconds, and their ratio to the limits of the project: 2 s for the search (llama3.1-70b on 8 H100, 4000 tokens in, 1000 out, on
one pool and on two), 60 s for the requests. For comparison: aiconfigurator 0.12.0's own search took 43 to 59 s on the same question, on
another machine; it is not run here.

2026-11-21, 2 cores of a shared x86-64 machine under load: search 2.6 s (0.8 s of CPU), a million requests 45 s.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time

import numpy as np

from meshwright.hardware.catalogue import default_node
from meshwright.hardware.cluster import Pool
from meshwright.models.presets import find_model
from meshwright.serving.clock import clock_of
from meshwright.serving.deployment import Worker
from meshwright.serving.engine import find_engine
from meshwright.serving.prices import Prices
from meshwright.serving.quantisation import quantisation
from meshwright.serving.simulate import Requests, open_loop

SEARCH = "serving plan llama3.1-70b --cluster h100:8 --input-len 4000 --output-len 1000 --ttft 2000 --tpot 30 --json"
SEARCH_LIMIT_S = 2.0
REQUESTS = 1_000_000
REQUESTS_LIMIT_S = 60.0
REPEATS = 5


def main() -> None:
    """Measure both, print."""
    print(f"{platform.machine()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    times = sorted(cold_search_s() for _ in range(REPEATS))
    print(f"search, cold, median of {REPEATS}: {times[REPEATS // 2]:.2f} s, {times[REPEATS // 2] / SEARCH_LIMIT_S:.2f} of the limit")
    seconds = simulated_s()
    print(f"{REQUESTS} requests: {seconds:.1f} s, {seconds / REQUESTS_LIMIT_S:.2f} of the limit")


def cold_search_s() -> float:
    """Wall time of the command in a process of its own."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "meshwright", *SEARCH.split()], capture_output=True, text=True, check=True)
    spent = time.perf_counter() - start
    assert json.loads(done.stdout)["plans"], "the search found nothing"
    return spent


def simulated_s() -> float:
    """Wall time of a million requests of a chat load on an 8B model at about 80 % of what it carries."""
    model = find_model("llama3.1-8b")
    pool = Pool(node=default_node("h100"), num_chips=1)
    prices = Prices(
        model=model, pool=pool, engine=find_engine("vllm"), worker=Worker(), quantisation=quantisation("fp8", model), cache="bf16"
    )
    clock = clock_of(prices, most_tokens=9216, most_context=4096)
    rng = np.random.default_rng(0)
    requests = Requests(prompts=rng.integers(100, 1500, REQUESTS).tolist(), outputs=rng.integers(20, 400, REQUESTS).tolist())
    sent = np.cumsum(rng.exponential(1 / 20, REQUESTS)).tolist()
    start = time.perf_counter()
    found = open_loop(clock, requests, sent_s=sent, slots=1024, cache_tokens=400_000)
    spent = time.perf_counter() - start
    print(f"  mean TTFT {1e3 * found.ttft_s.mean():.0f} ms, mean TPOT {1e3 * np.nanmean(found.tpot_s):.1f} ms")
    return spent


if __name__ == "__main__":
    main()
