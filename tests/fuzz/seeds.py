"""Valid files of every kind that a command reads, and hostile archives, for the fuzz to damage."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tests.data.corpora import gpt2_files, line
from tests.runs.measured.examples import LLAMA
from tests.runs.measured.logs import megatron_log, nccl_output, nemo_log, titan_log
from tests.runs.measured.serving.examples import SERVED
from tests.values.hardware.profiles import ON_H100
from tests.values.models.hf_configs import CONFIGS

from meshwright.cli import run
from meshwright.data.indexed import write_index
from meshwright.values.hardware.profile import profile_to_bytes
from meshwright.values.units import MIB

__all__ = ["CONFIGURATIONS", "write_seeds"]

ASKED = ["llama3-8b", "--cluster", "h100:16", "--seq", "4096", "--gbs", "32"]
CONFIGURATIONS = ("megatron-lm", "nemo1", "nemo2", "torchtitan", "torchtitan-toml", "nanotron")
"""Software whose own exports are the scripts and files of settings that the fuzz damages."""
MORE = ("megatron-bridge", "deepspeed", "accelerate", "pai-megatron-patch")
BOMB_BYTES = 64 * MIB
"""What one bomb unpacks to, from a few KiB."""
MEASURED = {"step_time_s": "10", "peak_mem_gib": "30", "oom": "0", "group": "g", "notes": ""}
FOLDERS = ["configs", "hf", "raw", "plain", "shards", "data", "docs", "bombs", "archives"]
FOLDERS += ["path/to", "tables", "truth"]
CLUSTER = """chips:
  mine: {like: h100, tdp_w: 500, memory_efficiency: 0.8}
pools:
  - {chip: a100-80, count: 8, gpus_per_node: 4, network: 100}
  - {chip: mine, count: 8}
"""
RECIPE = """pipeline: slimpajama
folder: work
chunks: 1
tokenize: {tokenizer_type: gpt2, append_eod: true}
"""
LAUNCHED = """#!/bin/bash
TP=8
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 50257 \\
    --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer --bf16 \\
    --micro-batch-size 1 --global-batch-size 128 --save $1
"""
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
"""
TRACE = "sent_s,input_len,output_len\n0,500,20\n0.5,700,30\n"


def write_seeds(folder: Path) -> None:
    """Fill a folder with the files that the examples of the help name, and many more."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    _write_texts(folder)
    _write_tables(folder)
    _write_corpora(folder)
    _write_archives(folder)
    _write_answers(folder)
    _write_exports(folder)


def _write_texts(folder: Path) -> None:
    for name, content in CONFIGS.items():
        (folder / "hf" / f"{name.replace('/', '-')}.json").write_text(json.dumps(content))
    (folder / "train.sh").write_text(LAUNCHED)
    (folder / "llama3_8b.toml").write_text(TITAN)
    for name in ("config.json", "path/to/config.json"):
        (folder / name).write_text(json.dumps(CONFIGS["llama3-8b"]))
    sizes = [2**n for n in range(20, 33, 2)]
    (folder / "train.log").write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    (folder / "nemo.log").write_text(nemo_log([40.0, *[12.6] * 9]))
    (folder / "titan.log").write_text(titan_log([2.5] * 10))
    (folder / "all_reduce_8.txt").write_text(
        nccl_output({size: 40 + size / 2.2e5 for size in sizes})
    )
    (folder / "all_reduce_64.txt").write_text(
        nccl_output({size: 300 + size / 1.6e5 for size in sizes}, hosts=8, factor=2 * 63 / 64)
    )
    (folder / "here.npz").write_bytes(profile_to_bytes(ON_H100, form="npz"))
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "recipe.yaml").write_text(RECIPE)


def _write_tables(folder: Path) -> None:
    for names, row in (
        (("runs.csv", "tables/a.csv", "truth/a.csv"), {**LLAMA, **MEASURED}),
        (("served.csv", "inference_a.csv"), SERVED),
    ):
        text = f"{','.join(row)}\n{','.join(_cell(value) for value in row.values())}\n"
        for name in names:
            (folder / name).write_text(text)
    (folder / "requests.csv").write_text(TRACE)


def _cell(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def _write_corpora(folder: Path) -> None:
    lines = b"".join(line(f"some text {n}", meta={"n": n}) for n in range(20))
    for name in ("raw/a.jsonl", "plain/a.jsonl", "wiki.json", "shards/c.jsonl"):
        (folder / name).write_bytes(lines)
    (folder / "shards/b.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "wiki.xml.bz2").write_bytes(
        bz2.compress(
            b"<mediawiki><page><title>a</title><ns>0</ns><text>b</text></page></mediawiki>"
        )
    )
    gpt2_files(folder / "vocabulary")
    for name in ("data/en_text_document", "data/de_text_document"):
        tokens = np.arange(60, dtype=np.uint16)
        (folder / f"{name}.bin").write_bytes(tokens.tobytes())
        with (folder / f"{name}.idx").open("wb") as handle:
            write_index(
                handle,
                dtype=np.dtype(np.uint16),
                lengths=np.array([20, 20, 20], dtype=np.int32),
                bounds=np.arange(4, dtype=np.int64),
            )


def _write_archives(folder: Path) -> None:
    zeros = b"\0" * BOMB_BYTES
    (folder / "bombs/a.jsonl.gz").write_bytes(gzip.compress(zeros))
    (folder / "bombs/b.jsonl.bz2").write_bytes(bz2.compress(zeros))
    with contextlib.suppress(ImportError):
        from backports import zstd

        (folder / "bombs/c.jsonl.zst").write_bytes(zstd.compress(zeros))
    inside = b'{"text": "escaped"}\n'
    with tarfile.open(folder / "archives/up.tar.gz", "w:gz") as archive:
        for name in ("../escaped.jsonl", "/escaped.jsonl", "a/../../escaped.jsonl", "fine.jsonl"):
            member = tarfile.TarInfo(name)
            member.size = len(inside)
            archive.addfile(member, io.BytesIO(inside))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../.."
        archive.addfile(link)
    (folder / "more.txt").write_text("https://example.org/a.jsonl\n")
    with zipfile.ZipFile(folder / "archives/up.zip", "w") as packed:
        packed.writestr("../escaped.jsonl", inside)


def _write_answers(folder: Path) -> None:
    def said(*words: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            run([str(word) for word in words])
        return out.getvalue()

    serving = ["llama3.1-8b", "--cluster", "h100:2", "--mode", "aggregated"]
    answers: Mapping[str, list[str]] = {
        "plans.json": ["plan", *ASKED, "--json"],
        "plan.json": ["plan", *ASKED, "--top", "1", "--json"],
        "earlier.json": ["validate", str(folder / "truth/a.csv"), "--json"],
        "serving_plans.json": ["serving", "plan", *serving, "--json"],
        "estimate.json": ["estimate", *ASKED, "--tokens", "1B", "--json"],
    }
    for name, words in answers.items():
        (folder / name).write_text(said(*words))
    said("plan", *ASKED, "--save-request", str(folder / "asked.yaml"))
    said("predict", str(folder / "runs.csv"), "-o", str(folder / "predictions.csv"))
    log = str(folder / "train.log")
    said("calibrate", log, "--cluster", "h100:16", "-o", str(folder / "calibration.yaml"))
    served = str(folder / "serving_predictions.csv")
    said("serving", "predict", str(folder / "served.csv"), "-o", served)


def _write_exports(folder: Path) -> None:
    for target in (*CONFIGURATIONS, *MORE):
        out = folder / "configs" / target
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            stack = "deepspeed" if target == "deepspeed" else "fsdp"
            words = ["--stack", stack] if target in ("deepspeed", "accelerate") else []
            run(["export", *ASKED, "--layout", "mbs=1", *words, "--to", target, "-o", str(out)])
