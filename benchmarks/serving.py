"""Time of a serving search from a cold start, and of a million simulated requests.

    python benchmarks/serving.py
    python benchmarks/serving.py --peer PYTHON      # a Python that has aiconfigurator 0.12.0: its
                                                    own search of the same question, too

Prints seconds, and their ratio to the limits of the project: 2 s for the search (llama3.1-70b on 8
H100, 4000 tokens in, 1000 out, on one pool and on two), 60 s for the requests. The peer searches
vLLM with weights in 16 bits on one pool and on two, and both searches' winners are priced by our
prices: the peer's aggregated one as it is, ours with the same weights and cache. Of the peer its
search and its operator tables are used, never its file of end-to-end runs.

2026-11-21, 2 cores of a shared x86-64 machine under load: a million requests 45 s (earlier that
day). The pair, in one run under a load of 15 processes: search 2.7 s (1.0 s of CPU), the peer's
33.7 s (10.8 s of CPU), 13 and 11 times ours. Our winner with weights in 16 bits (pools of 4 and 4
chips): 336 tok/s/GPU at 29.8 ms by our prices; the peer's (tp=8 under 80 requests): 331 at 29.8 ms
by its prices, 302 at 32.8 ms by ours.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from meshwright.serving.clock import clock_of
from meshwright.serving.engine import Worker, find_engine, quantisation
from meshwright.serving.prices import Prices
from meshwright.serving.request import ServingRequest
from meshwright.serving.search import plan, predict
from meshwright.serving.simulate import Requests, open_loop
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Pool
from meshwright.values.models.catalogue import find_model

SEARCH = (
    "serving plan llama3.1-70b --cluster h100:8 --input-len 4000 --output-len 1000 --ttft 2000"
    " --tpot 30 --json"
)
PEER = (
    "cli default --model-path meta-llama/Meta-Llama-3.1-70B --total-gpus 8 --system h100_sxm"
    " --backend vllm --isl 4000 --osl 1000 --ttft 2000 --tpot 30"
)
SEARCH_LIMIT_S = 2.0
REQUESTS = 1_000_000
REQUESTS_LIMIT_S = 60.0
REPEATS = 5


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer",
        help="a Python that has aiconfigurator 0.12.0; only the searches are measured then",
    )
    flags = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    runs = sorted(cold_search_s() for _ in range(REPEATS))
    wall, processor = runs[REPEATS // 2]
    print(
        f"search, cold, median of {REPEATS}: {wall:.2f} s ({processor:.2f} s of CPU),"
        f" {wall / SEARCH_LIMIT_S:.2f} of the limit"
    )
    if flags.peer:
        compare(flags.peer, wall, processor)
        return
    seconds = simulated_s()
    print(f"{REQUESTS} requests: {seconds:.1f} s, {seconds / REQUESTS_LIMIT_S:.2f} of the limit")


def cold_search_s() -> tuple[float, float]:
    """Wall and CPU time of the command in a process of its own."""
    found, wall, processor = timed([sys.executable, "-m", "meshwright", *SEARCH.split()])
    assert json.loads(found)["plans"], "the search found nothing"
    return wall, processor


def timed(words: list[str]) -> tuple[str, float, float]:
    """What a command prints, its wall time and its CPU time."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(python: str, ours_wall: float, ours_processor: float) -> None:
    """Run the peer's search, and price both winners by our prices."""
    with tempfile.TemporaryDirectory() as folder:
        start = ["from aiconfigurator.main import main", "main()"]
        _, wall, processor = timed(
            [python, "-c", "; ".join(start), *PEER.split(), "--save-dir", folder]
        )
        tables = {path.parent.name: path for path in Path(folder).rglob("best_config_topn.csv")}
        best = {mode: next(csv.DictReader(path.open(newline=""))) for mode, path in tables.items()}
    print(
        f"peer's search: {wall:.1f} s ({processor:.1f} s of CPU), {wall / ours_wall:.0f} and"
        f" {processor / ours_processor:.0f} times ours"
    )
    asked = ServingRequest.of(
        model="llama3.1-70b",
        cluster="h100:8",
        input_len=4000,
        output_len=1000,
        ttft_s=2.0,
        tpot_s=0.03,
        weights=("bf16",),
        cache=("bf16",),
    )
    ours = plan(asked).options[0]
    theirs = best["agg"]
    worker = Worker(tp=int(theirs["tp"]), pp=int(theirs["pp"]))
    priced = predict(
        asked, worker=worker, weights="bf16", cache="bf16", concurrency=int(theirs["concurrency"])
    )
    print(
        f"our winner, {ours.mode}: {ours.tokens_per_s_per_chip:.0f} tok/s/GPU at"
        f" {1e3 * ours.tpot_s:.1f} ms, by our prices"
    )
    print(
        f"peer's winner on one pool, {worker.name} under {theirs['concurrency']}:"
        f" {float(theirs['tokens/s/gpu']):.0f} tok/s/GPU at"
    )
    print(
        f"  {float(theirs['tpot']):.1f} ms by its prices, {priced.tokens_per_s_per_chip:.0f} at"
        f" {1e3 * priced.tpot_s:.1f} ms by ours"
    )
    for mode, row in best.items():
        print(f"peer's best, {mode}: {float(row['tokens/s/gpu']):.0f} tok/s/GPU by its prices")


def simulated_s() -> float:
    """Wall time of a million requests of a chat load on an 8B model at about 80 % of what it
    carries."""
    model = find_model("llama3.1-8b")
    pool = Pool(node=default_node("h100"), num_chips=1)
    prices = Prices(
        model=model,
        pool=pool,
        engine=find_engine("vllm"),
        worker=Worker(),
        quantisation=quantisation("fp8", model),
        cache="bf16",
    )
    clock = clock_of(prices, most_tokens=9216, most_context=4096)
    rng = np.random.default_rng(0)
    requests = Requests(
        prompts=rng.integers(100, 1500, REQUESTS).tolist(),
        outputs=rng.integers(20, 400, REQUESTS).tolist(),
    )
    sent = np.cumsum(rng.exponential(1 / 20, REQUESTS)).tolist()
    start = time.perf_counter()
    found = open_loop(clock, requests, sent_s=sent, slots=1024, cache_tokens=400_000)
    spent = time.perf_counter() - start
    print(
        f"  mean TTFT {1e3 * found.ttft_s.mean():.0f} ms, mean TPOT"
        f" {1e3 * np.nanmean(found.tpot_s):.1f} ms"
    )
    return spent


if __name__ == "__main__":
    main()
