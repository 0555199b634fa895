#!/usr/bin/env python3
"""Read which pools InferenceX's disaggregated benchmarks start, from clones of its public
configuration and of srt-slurm's recipes.

    scripts/distil_serving_pools.py InferenceX srt-slurm -o
    truth/meshwright_truth/words/serving_pools.csv

Both must be whole clones: every state of the configuration is read, so that a run finds the pools
of its day. What is read is how servers are started (workers, chips, attention ranks, drafted
tokens, sequences, tokens of an iteration), no result of any run.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from meshwright.values.errors import ConfigError  # noqa: E402
from meshwright.values.models.catalogue import find_model  # noqa: E402

PATHS = (".github/configs/nvidia-master.yaml", "configs/nvidia-master.yaml")
ENGINES = {"dynamo-trt": "trtllm", "dynamo-sglang": "sglang", "dynamo-vllm": "vllm"}
COLUMNS = (
    *("engine", "model", "weights", "chip", "input_len", "output_len", "clients", "since", "until"),
    *(
        "prefill_workers",
        "prefill_chips",
        "prefill_ranks",
        "prefill_ep",
        "prefill_tokens",
        "prefill_batch",
    ),
    *("decode_workers", "decode_chips", "decode_ranks", "decode_ep", "decode_sequences", "drafted"),
)
Cells = dict[str, str]


def main() -> int:
    """Read the flags and the clones, write the preset."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inferencex", type=Path)
    parser.add_argument("recipes", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    flags = parser.parse_args()
    found: dict[tuple[str, ...], list[str]] = {}
    for day, text in states(flags.inferencex):
        for cells in entries(
            yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)),
            flags.recipes,
            day,
        ):
            key = tuple(cells[name] for name in COLUMNS if name not in ("since", "until"))
            span = found.setdefault(key, [day, day])
            span[:] = [min(span[0], day), max(span[1], day)]
    named = [name for name in COLUMNS if name not in ("since", "until")]
    rows = [
        dict(zip(named, key, strict=True)) | {"since": span[0], "until": span[1]}
        for key, span in found.items()
    ]
    with flags.output.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: [row[name] for name in COLUMNS]))
    print(f"{len(rows)} sets of pools")
    return 0


def git(clone: Path, *words: str) -> str:
    """Ask git."""
    return subprocess.run(
        ["git", "-C", str(clone), *words], capture_output=True, text=True, check=True
    ).stdout


def states(clone: Path) -> list[tuple[str, str]]:
    """Return (day, text) of each day's first and last state of the configuration."""
    found = []
    for path in PATHS:
        days: dict[str, list[str]] = {}
        for line in git(clone, "log", "--format=%cs %h", "--", path).splitlines():
            day, commit = line.split()
            days.setdefault(day, []).append(commit)
        for day, commits in days.items():
            for commit in {commits[0], commits[-1]}:
                if git(clone, "ls-tree", commit, path):
                    found.append((day, git(clone, "show", f"{commit}:{path}")))
    return sorted(found)


def entries(config: dict[str, Any], recipes: Path, day: str) -> list[Cells]:
    """Return the pools of one state, a line per number of clients' list."""
    found = []
    for one in config.values():
        if not one.get("multinode") or one.get("framework") not in ENGINES:
            continue
        model, lengths = (
            model_of(one),
            one.get("seq-len-configs") or one.get("scenarios", {}).get("fixed-seq-len") or [],
        )
        for length in lengths if model else []:
            for pools in length["search-space"]:
                if pools.get("conc-list") and "prefill" in pools and has_two_pools(pools):
                    head = {
                        "engine": ENGINES[one["framework"]],
                        "model": model,
                        "weights": one["precision"],
                        "chip": chip_of(one),
                    }
                    head |= {"input_len": str(length["isl"]), "output_len": str(length["osl"])}
                    head |= {
                        "clients": " ".join(str(count) for count in sorted(pools["conc-list"]))
                    }
                    found.append(head | cells_of(pools, recipes, day))
    return found


def has_two_pools(pools: dict[str, Any]) -> bool:
    """Whether both pools have workers, and their chips are told: the first entries gave nodes in
    their settings and 1 for the chips."""
    nodes = any(
        str(word).startswith("PREFILL_NODES")
        for word in pools["prefill"].get("additional-settings") or []
    )
    return not nodes and all(pools[side]["num-worker"] for side in ("prefill", "decode"))


def model_of(one: dict[str, Any]) -> str:
    """Return the catalogue's name; blank where the catalogue lacks the model."""
    for word in (
        one["model"],
        re.sub(r"-(nv)?fp[48](-v2)?$", "", Path(one["model"]).name, flags=re.IGNORECASE),
    ):
        try:
            return find_model(word).name
        except ConfigError:
            continue
    return ""


def chip_of(one: dict[str, Any]) -> str:
    """`gb200` of a runner like `gb200` or `gb200-multinode`."""
    return str(one["runner"]).split("-")[0]


def cells_of(pools: dict[str, Any], recipes: Path, day: str) -> Cells:
    """Return the cells of one entry; those that only its recipe tells are blank where it can't be
    found."""
    words = [
        str(word)
        for side in ("prefill", "decode")
        for word in pools[side].get("additional-settings") or []
    ]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    sides = recipe_of(settings.get("CONFIG_FILE", ""), recipes, day)
    cells: Cells = {}
    for side in ("prefill", "decode"):
        one, told = pools[side], sides.get(side) or {}
        chips = int(one["tp"])
        ranks = (
            int(told.get("data-parallel-size") or told.get("dp-size") or chips)
            if one.get("dp-attn")
            else 1
        )
        cells |= {
            f"{side}_workers": str(one["num-worker"]),
            f"{side}_chips": str(chips),
            f"{side}_ranks": str(ranks),
        }
        cells |= {f"{side}_ep": str(one.get("ep") or 1)}
    told = sides.get("prefill") or {}
    cells["prefill_tokens"] = first_of(
        told, "max_num_tokens", "chunked-prefill-size"
    ) or settings.get("PREFILL_MAX_NUM_TOKENS", "")
    cells["prefill_batch"] = first_of(told, "max_batch_size") or settings.get(
        "PREFILL_MAX_BATCH_SIZE", ""
    )
    told = sides.get("decode") or {}
    each = (
        first_of(told, "max_batch_size")
        or settings.get("DECODE_MAX_BATCH_SIZE", "")
        or in_name(settings, r"batch(\d+)")
    )
    ranks = int(cells["decode_ranks"])
    cells["decode_sequences"] = (
        str(int(each) * ranks) if each else first_of(told, "max-running-requests")
    )
    cells["drafted"] = drafted_of(pools, told, settings)
    return cells


def drafted_of(pools: dict[str, Any], told: dict[str, Any], settings: dict[str, str]) -> str:
    """Tokens drafted per iteration; blank where it drafts and does not say how many."""
    if pools.get("spec-decoding", "none") != "mtp":
        return "0"
    layers = (told.get("speculative_config") or {}).get("num_nextn_predict_layers")
    return str(
        layers
        or first_of(told, "speculative-num-steps")
        or settings.get("DECODE_MTP_SIZE", "")
        or in_name(settings, r"mtp(\d)")
    )


def first_of(told: dict[str, Any], *names: str) -> str:
    """The first of these that is a number."""
    return next((str(told[name]) for name in names if isinstance(told.get(name), int)), "")


def in_name(settings: dict[str, str], pattern: str) -> str:
    """A number in the recipe's file name."""
    found = re.search(pattern, settings.get("CONFIG_FILE", ""))
    return found.group(1) if found else ""


_RECIPES: dict[str, list[tuple[str, dict[str, Any]]]] = {}


def recipe_of(name: str, recipes: Path, day: str) -> dict[str, Any]:
    """Return what a recipe gives the servers of each pool, as it stood that day, or as it began
    where it came later; empty where there is none or it is one of several in a file."""
    if ":" in name or not name.endswith(".yaml"):
        return {}
    if name not in _RECIPES:
        _RECIPES[name] = []
        for line in reversed(
            git(recipes, "log", "--all", "--date-order", "--format=%cs %h", "--", name).splitlines()
        ):
            since, commit = line.split()
            if git(recipes, "ls-tree", commit, name):
                backend = (yaml.safe_load(git(recipes, "show", f"{commit}:{name}")) or {}).get(
                    "backend"
                ) or {}
                told = (
                    backend.get("trtllm_config")
                    or backend.get("sglang_config")
                    or backend.get("vllm_config")
                    or {}
                )
                _RECIPES[name].append((since, told))
    states = _RECIPES[name]
    return (
        [told for since, told in states if since <= day] or [told for _, told in states[:1]] or [{}]
    )[-1]


if __name__ == "__main__":
    raise SystemExit(main())
