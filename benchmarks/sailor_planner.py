"""Sailor's planner beside ours, on its clusters and profiles, judged by its simulator.

    python benchmarks/sailor_planner.py CHECKOUT [LIBRARY]

CHECKOUT holds github.com/eth-easl/sailor as a folder `sailor`, the way its code looks for itself;
LIBRARY the folder of its planner, built for this Python from sailor/Planner/sailor_planner/cpp_src
(g++ with pybind11 and jsoncpp; its Makefile names Python 3.10). Its simulator wants torch, pandas
and scipy. Without LIBRARY only our plans are simulated, which is said. Results go to stderr: its
planner fills stdout.

OPT-350M, batch 1,024, fp32 in TF32 products, as many A100-40 as V100-16, four a node. Each planner
has the same speeds: ours takes chips that run a layer in the time of Sailor's profile, and its 1.25
GB/s between nodes. Its plan is the first of its list that its simulator says to fit, ours the first
of ours. Both are simulated twice: as it is, with the exchange between replicas at what one GPU
reaches between nodes, however many of a node's GPUs take part; and at what its own table of
bandwidths has for as many GPUs as a node has of the replicas.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import meshwright
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.mixed_layout import MixedLayout
from meshwright.values.units import TERA

ZONE = "us-central1-a"
KINDS = {"a100-40": "A100-40", "v100-16": "V100-16"}
"""Our name of a chip and Sailor's."""
CHIPS = (16, 32, 64, 128)
"""Of each kind."""
SEQ_LEN, BATCH = 2048, 1024
MODEL = {
    **{
        "name": "opt-350m",
        "num_layers": 24,
        "hidden": 1024,
        "ffn": 4096,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 64,
    },
    **{
        "vocab": 50272,
        "gated": False,
        "norm": "layernorm",
        "positions": "learned",
        "max_positions": SEQ_LEN,
        "linear_bias": True,
    },
    "tied": False,
}
PROGRAM = {
    "seq_len": SEQ_LEN,
    "precision": "tf32",
    "stack": "megatron-deepspeed",
    "attention": "fused-softmax",
}
PINS = {"sharding": ["none"], "recompute": ["none"], "cp": [1]}
NETWORK = "tcp-10"
"""What a GPU reaches between nodes in Sailor's table of bandwidths (multizone_bandwidths_het.json),
at pieces of some megabytes."""


def main() -> None:
    """Print a line per cluster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("library", type=Path, nargs="?")
    given = parser.parse_args()
    sailor = _Sailor(given.checkout, given.library)
    speeds = {name: layer_s(name) / sailor.layer_s(theirs) for name, theirs in KINDS.items()}
    for count in CHIPS:
        theirs, ours = sailor.best(count), our_best(count, speeds, sailor)
        said = "skipped, no library" if theirs is None else words(theirs)
        print(f"{count} A100 and {count} V100: Sailor {said}, ours {words(ours)}", file=sys.stderr)


def layer_s(chip: str) -> float:
    """Seconds of one layer's passes for one sequence as we price them."""
    pins = {**PINS, "tp": [1], "pp": [1], "dp": [1], "mbs": [1]}
    few, many = (
        meshwright.plan(
            model={**MODEL, "num_layers": layers},
            cluster=f"{chip}:1",
            gbs=8,
            pins=pins,
            top=1,
            **PROGRAM,
        )
        .plans[0]
        .step_s
        for layers in (2, 4)
    )
    return (many - few) / 2 / 8


def words(times: tuple[float, float]) -> str:
    """Both step times."""
    return f"{times[0]:.2f} s ({times[1]:.2f} s with all of a node's bandwidth)"


def our_best(count: int, speeds: dict[str, float], sailor: _Sailor) -> tuple[float, float]:
    """Step times of our first plan that Sailor's simulator says to fit."""
    chips = {f"{name}-of-sailor": scaled(name, speeds[name]) for name in KINDS}
    pools = [
        {"chip": name, "count": count, "gpus_per_node": 4, "network": NETWORK} for name in chips
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(yaml.safe_dump({"chips": chips, "pools": pools}), encoding="utf-8")
        pins = {**PINS, "tp": [1, 2, 4], "mbs": [1, 2, 4, 8], "vpp": [1]}
        found = meshwright.plan(
            model=MODEL,
            cluster=str(path),
            num_gpus=2 * count,
            gbs=BATCH,
            pins=pins,
            top=30,
            **PROGRAM,
        )
    times = (
        sailor.steps_s(as_sailor(plan.mixed)) for plan in found.plans if plan.mixed is not None
    )
    return next(both for both in times if both is not None)


def scaled(name: str, speed: float) -> dict[str, Any]:
    """A chip that takes `speed` times as little time for everything."""
    chip = find_chip(name)
    peaks = {
        word: getattr(chip, f"{word}_flops_per_s") for word in ("fp32", "tf32", "fp16", "bf16")
    }
    rates = {f"{word}_tflops": peak * speed / TERA for word, peak in peaks.items() if peak}
    return {"like": name, "memory_gb_per_s": chip.memory_bytes_per_s * speed / 1e9, **rates}


def as_sailor(plan: MixedLayout) -> dict[str, Any]:
    """Our plan in Sailor's words: layers from 1, the embedding 0 and the head behind the last; a
    worker of tp chips for each replica."""
    layers, at = [], 1
    for stage in plan.stages:
        layers.append(list(range(at, at + stage.layers)))
        at += stage.layers
    layers[0].insert(0, 0)
    layers[-1].append(at)
    workers = [
        [
            ([(KINDS[stage.chip.removesuffix("-of-sailor")], stage.tp, ZONE)], stage.tp)
            for _ in range(stage.dp)
        ]
        for stage in plan.stages
    ]
    return sailor_plan(layers, workers, mbs=plan.stages[0].mbs)


def sailor_plan(layers: list[list[int]], workers: list[list[Any]], *, mbs: int) -> dict[str, Any]:
    """A plan as Sailor's simulator takes it."""
    pipeline = {
        "num_stages": len(layers),
        "layers_per_stage": layers,
        "tmp_per_stage": workers,
        "dp": [len(stage) for stage in workers],
    }
    return {"pipeline_list": [pipeline], "mbs": mbs, "used_gpus": {}}


class _Sailor:
    """Its planner and its simulator."""

    def __init__(self, checkout: Path, library: Path | None) -> None:
        sys.path[:0] = [str(checkout / "sailor"), *([str(library)] if library is not None else [])]
        os.environ["SAILOR_PATH"] = str(checkout)
        from sailor.Planner.simulations.runtime_simulator import Simulator  # type: ignore[import-not-found]

        self.root, self.library = checkout / "sailor" / "sailor", library
        planner = self.root / "Planner"
        self.config = planner / "simulations" / "configs" / "training_config_opt_350.json"
        self.profiles = json.loads(
            (planner / "simulations" / "profiles_tmp.json").read_text(encoding="utf-8")
        )
        info = json.loads((planner / "llm_info.json").read_text(encoding="utf-8"))
        training = json.loads(self.config.read_text(encoding="utf-8"))
        self.simulator = Simulator(str(checkout), training, info, False, self.profiles, zone=ZONE)

    def layer_s(self, chip: str) -> float:
        """Seconds of one layer's passes for one sequence on one GPU in its profile."""
        return sum(self.profiles["OPT-350"][chip]["1"]["1"]["5"][:2])

    def steps_s(self, plan: dict[str, Any]) -> tuple[float, float] | None:
        """Step time by its simulator, and with all of a node's bandwidth; None for a plan that does
        not fit there."""
        with contextlib.redirect_stdout(io.StringIO()):
            if not self.simulator.check_config_fits(plan):
                return None
            seconds = self.simulator.simulate_iteration_time(plan)[0]
            with self._with_nodes_of(4):
                return seconds, self.simulator.simulate_iteration_time(plan)[0]

    @contextlib.contextmanager
    def _with_nodes_of(self, gpus: int) -> Iterator[None]:
        """Let the exchange between replicas of each stage have the bandwidth of as many GPUs as a
        node holds of them."""
        simulator, table = self.simulator, self.simulator.inter_network_coeffs
        plain_sync, plain_coeffs = simulator.estimate_sync_time, table.get_zone_coeffs

        def sync_s(plan: Any) -> float:
            whole, longest_s = plan.pipeline_list[0], 0.0
            for stage in range(whole.num_stages):
                alone, own = copy.copy(plan), copy.copy(whole)
                for name in ("layers_per_stage", "num_dp", "tmp_configs"):
                    setattr(own, name, getattr(whole, name)[stage : stage + 1])
                own.num_stages, alone.pipeline_list = 1, [own]
                members = max(1, gpus // min(config.tmp for config in own.tmp_configs[0]))
                shared = {"sender_gpu_count": members, "receiver_gpu_count": members}
                table.get_zone_coeffs = lambda shared=shared, **asked: plain_coeffs(
                    **{**asked, **shared}
                )
                longest_s = max(longest_s, plain_sync(alone))
                table.get_zone_coeffs = plain_coeffs
            return longest_s

        simulator.estimate_sync_time = sync_s
        try:
            yield
        finally:
            simulator.estimate_sync_time, table.get_zone_coeffs = plain_sync, plain_coeffs

    def best(self, count: int) -> tuple[float, float] | None:
        """Step times of the first plan of its planner that fits."""
        if self.library is None:
            return None
        import libplanner  # type: ignore[import-not-found]

        with tempfile.TemporaryDirectory() as folder:
            quotas = Path(folder) / "quotas.json"
            quotas.write_text(
                json.dumps({name: {ZONE: count} for name in KINDS.values()}), encoding="utf-8"
            )
            planner, providers = self.root / "Planner", self.root / "providers"
            found = libplanner.SailorPlanner(
                f"{planner}/sailor_planner/profiles/OPT-350/",
                f"{providers}/multizone_bandwidths_het.json",
                str(self.config),
                f"{planner}/llm_info.json",
                f"{providers}/gcp/communication_cost.json",
                True,
                False,
                str(quotas),
                "throughput",
            ).get_sorted_plans({ZONE: dict.fromkeys(KINDS.values(), count)}, 0.0, 0.0)
        names = sorted(KINDS.values())
        for config in found:
            zones = config.get_zones()
            workers = [
                [([(names[w[0]], w[1], zones[w[2]])], w[1]) for w in stage]
                for stage in config.get_config_per_stage()
            ]
            times = self.steps_s(sailor_plan(config.get_stages(), workers, mbs=config.get_mbs()))
            if times is not None:
                return times
        return None


if __name__ == "__main__":
    main()
