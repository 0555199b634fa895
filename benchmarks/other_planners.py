"""Plans of AMP, Sailor and Metis beside ours, on their own clusters.

    python benchmarks/other_planners.py [--truth DIR] [--metis CHECKOUT]

AMP (github.com/DachengLi1/AMP) published what it predicted and what was then measured for every
layout that it considered: of these the one that we predict to be fastest is compared with AMP's own
choice, by the measured times. Of Sailor's measured layouts (github.com/eth-easl/sailor) those on
the same chips with the same batch are told apart in the same way; `benchmarks/sailor_planner.py`
runs Sailor's planner. Metis (github.com/SamsungLabs/Metis) searches with the profile in its
repository, of one kind of chip; our best plan is priced by its cost estimator. Says what it skips
without the tables (`amp.csv` and `sailor_validation.csv` in DIR, MESHWRIGHT_TRUTH, else
truth) or the checkout.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import read_row

METIS_CASES = ((4, 32), (8, 32), (8, 128), (16, 64), (16, 256))
"""Chips and batches."""
METIS_MODEL = {"layers": 8, "hidden": 4096, "heads": 32, "ffn": 16384, "vocab": 51200}
"""The GPT of 1.5 billion parameters in Metis's script; its 10 layers are these, the embedding and
the head."""
METIS_NODE = {
    "instance_type": "A100",
    "inter_bandwidth": 312500000.0,
    "intra_bandwidth": 5312500000.0,
    "memory": 80,
}
"""The node of its README with the chip of its profile."""
METIS_DRIVER = """
import contextlib, io, json, sys
sys.path.insert(0, ".")
asked = json.loads(sys.stdin.read())
with contextlib.redirect_stdout(io.StringIO()):
    from arguments import parse_args
    from cost_het_cluster import cost_het_cluster
    from data_loader import ProfileDataLoader
    from gpu_cluster import GPUCluster
    from model.activation_parameter import GPTActivationAndParam
    from model.cost_estimator import HeteroCostEstimator
    from model.device_group import StagePerformance
    from model.load_balancer import LayerLoadBalancer
    from search_space.plan import InterStagePlan
    from utils import DeviceType, ModelConfig
    args = parse_args()
    cluster = GPUCluster(hostfile_path=args.hostfile_path, clusterfile_path=args.clusterfile_path)
    profile, _ = ProfileDataLoader(args.profile_data_path).load_profile_data_all()
    names = ("model_name", "num_layers", "sequence_length", "vocab_size", "hidden_size", "attention_head_size")
    model = ModelConfig(**{name: getattr(args, name) for name in names})
    estimator = HeteroCostEstimator(profile, model, GPTActivationAndParam(model, profile["model"]["parameters"]), cluster)
    balancer = LayerLoadBalancer(cluster, profile, model, args.gbs)
    theirs = cost_het_cluster(args, cluster, profile, model, estimator, balancer)
    plan = InterStagePlan(ns_idx=0, node_sequence=[DeviceType.A100], dg_idx=0, device_groups=[asked["dp"] * asked["tp"]] * asked["pp"],
                          num_stage=asked["pp"], batches=asked["batches"], gbs=args.gbs)
    ranks = StagePerformance(model, profile, cluster, plan).get_device_placement()
    ours = estimator.get_cost(plan, [(asked["dp"], asked["tp"])] * asked["pp"], asked["layers"], ranks)
print(json.dumps({"ours": ours, "theirs": min(each[6] for each in theirs), "count": len(theirs)}))
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A layout that ran: seconds of a step as measured, as we predict it, and as its planner
    did."""

    words: str
    measured_s: float
    ours_s: float
    theirs_s: float | None


def read_groups(path: Path) -> dict[str, list[Measured]]:
    """Layouts of a table that ran and that we predict, by what they share: chips, model and batch;
    rows marked suspect left out."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    answers = predict_rows([read_row(row, source=path.stem) for row in rows])
    predicted = {each.row_id: each.step_s for each in answers.predictions}
    groups: dict[str, list[Measured]] = defaultdict(list)
    for row in rows:
        if row["step_time_s"] and row["row_id"] in predicted and "SUSPECT" not in row["notes"]:
            said = re.search(r"AMP predicted cost ([\d.]+)", row["notes"])
            groups[row["group"]].append(
                Measured(
                    words=",".join(f"{key}={row[key]}" for key in ("tp", "pp", "dp", "mbs")),
                    measured_s=float(row["step_time_s"]),
                    ours_s=predicted[row["row_id"]],
                    theirs_s=float(said[1]) if said else None,
                )
            )
    return {name: found for name, found in groups.items() if len(found) > 1}


def compare_measured(folder: Path) -> None:
    """Print whose choice ran faster, of the layouts that were measured."""
    for name in ("amp", "sailor_validation"):
        path = folder / f"{name}.csv"
        if not path.exists():
            print(f"{name}: skipped, no {path}")
            continue
        for group, found in read_groups(path).items():
            ours, best = (
                min(found, key=lambda each: each.ours_s),
                min(found, key=lambda each: each.measured_s),
            )
            line = (
                f"{group}: {len(found)} measured; ours {ours.words} {ours.measured_s:.4g} s;"
                f" fastest {best.words} {best.measured_s:.4g} s"
            )
            if all(each.theirs_s is not None for each in found):
                theirs = min(found, key=lambda each: each.theirs_s or 0.0)
                line += (
                    f"; theirs {theirs.words} {theirs.measured_s:.4g} s; ours takes"
                    f" {ours.measured_s / theirs.measured_s:.3f} of theirs"
                )
            print(line)


def compare_metis(checkout: Path, *, chips: int, gbs: int) -> None:
    """Print what Metis's estimator says of its best plan and of ours."""
    pins: dict[str, Any] = {
        "tp": [1, 2, 4],
        "mbs": [1, 2, 4],
        "cp": [1],
        "vpp": [1],
        "recompute": ["none"],
    }
    model = ",".join(f"{key}={value}" for key, value in METIS_MODEL.items())
    layout = (
        api.plan(model=model, cluster=f"a100-80:{chips}", seq_len=1024, gbs=gbs, pins=pins, top=1)
        .plans[0]
        .layout
    )
    split = layout.layers_per_stage or (METIS_MODEL["layers"] // layout.pp,) * layout.pp
    cuts = [
        0,
        *(1 + sum(split[: stage + 1]) + (stage == layout.pp - 1) for stage in range(layout.pp)),
    ]
    asked = {
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "batches": layout.num_microbatches,
        "layers": cuts,
    }
    with tempfile.TemporaryDirectory() as folder:
        nodes = [f"IP{node}" for node in range(-(-chips // 8))]
        hosts, cluster = Path(folder) / "hosts", Path(folder) / "cluster.json"
        hosts.write_text("".join(f"{node} slots={min(8, chips)}\n" for node in nodes))
        cluster.write_text(json.dumps(dict.fromkeys(nodes, METIS_NODE)))
        flags = {
            **{
                "model_name": "GPT",
                "num_layers": METIS_MODEL["layers"] + 2,
                "gbs": gbs,
                "sequence_length": 1024,
            },
            **{
                "hidden_size": METIS_MODEL["hidden"],
                "vocab_size": METIS_MODEL["vocab"],
                "attention_head_size": METIS_MODEL["heads"],
            },
            **{
                "hostfile_path": hosts,
                "clusterfile_path": cluster,
                "profile_data_path": "profile_data_samples",
            },
            **{
                "max_profiled_tp_degree": 4,
                "max_profiled_batch_size": 4,
                "min_group_scale_variance": 1,
                "max_permute_len": 4,
            },
        }
        words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
        command = [sys.executable, "-c", METIS_DRIVER, *words]
        done = subprocess.run(
            command,
            cwd=checkout,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"metis: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout)
    print(
        f"metis, {chips} A100, batch {gbs}: its best of {found['count']} plans"
        f" {found['theirs']:.1f} ms by its estimator, ours {found['ours']:.1f} ms"
        f" (tp={layout.tp},pp={layout.pp},dp={layout.dp},mbs={layout.mbs}),"
        f" {found['ours'] / found['theirs']:.3f} of its"
    )


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    beside = Path(__file__).resolve().parents[1] / "truth"
    parser.add_argument(
        "--truth", type=Path, default=Path(os.environ.get("MESHWRIGHT_TRUTH", beside))
    )
    parser.add_argument("--metis", type=Path, default=None, metavar="CHECKOUT")
    asked = parser.parse_args()
    compare_measured(asked.truth)
    if asked.metis is None:
        print("metis: skipped, no --metis CHECKOUT")
        return
    for chips, gbs in METIS_CASES:
        compare_metis(asked.metis, chips=chips, gbs=gbs)


if __name__ == "__main__":
    main()
