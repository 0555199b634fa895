"""Every command that writes, on a real small disk that fills at the start, in the middle and at the
end of what it writes, its errors in a pipe, and in a pipe that nobody reads."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.full_disk import LEVELS
from tests.cli.test_failures import PLAN, SCRIPT, TABLE
from tests.data.corpora import gpt2_files, line
from tests.data.test_wiki import HEAD, page
from tests.runs.measured.logs import megatron_log

from meshwright.data.indexed import write_index

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ["--vocab-file", "vocabulary/vocab.json", "--merge-file", "vocabulary/merges.txt"]
HERE = ["tiny-llama", "--cluster", "local:1"]
QUIET = ["--quiet"]
WRITERS: Mapping[str, list[str]] = {
    "plan --csv": [*PLAN, "--csv", "disk/plans.csv"],
    "plan --trace": [*PLAN, "--trace", "disk/traces"],
    "plan --save-request": [*PLAN, "--save-request", "disk/asked.yaml"],
    "plan --export": [*PLAN, "--export", "disk/run", "--to", "megatron-lm"],
    "explain --trace": [
        *("explain", *PLAN[1:], "--layout", "tp=2,mbs=1", "--trace", "disk/step.json"),
    ],
    "fix --write": ["fix", "disk/train.sh", "--cluster", "h100:16", "--write"],
    "calibrate": ["calibrate", "train.log", "--cluster", "h100:16", "-o", "disk/mine.yaml"],
    "anchor": ["anchor", "train.log", "--cluster", "h100:16", "-o", "disk/mine.yaml"],
    "predict": ["predict", "rows.csv", "-o", "disk/predicted.csv"],
    "validate": ["validate", "measured.csv", "-o", "disk/page.md"],
    "export megatron-lm": ["export", "plan.json", "--to", "megatron-lm", "-o", "disk/run"],
    "export --launcher": [
        *("export", "plan.json", "--to", "megatron-lm", "--launcher", "slurm", "-o", "disk/run"),
    ],
    "report html": ["report", "plan.json", "-o", "disk/page.html"],
    "report svg": [
        *("report", "plan.json", "--format", "svg", "--chart", "time", "-o", "disk/time.svg"),
    ],
    "serving predict": ["serving", "predict", "served.csv", "-o", "disk/predicted.csv"],
    "serving validate": ["serving", "validate", "served.csv", "-o", "disk/page.md"],
    "serving export": [
        *("serving", "export", "serving.json", "--to", "vllm", "--model-path", "m"),
        *("-o", "disk/serve"),
    ],
    "watch --textfile": ["watch", "train.log", "--once", "--textfile", "disk/metrics.prom"],
    "autoconfigurator --write-conf": ["autoconfigurator", "--write-conf", "disk/conf"],
    "data extract": ["data", "extract", "packed", "-o", "disk/out", "-j", "1", *QUIET],
    "data concat": ["data", "concat", "texts", "-o", "disk/out", "-j", "1", "--shards", "3"],
    "data wiki": ["data", "wiki", "wiki.xml.bz2", "-o", "disk/out", "--workers", "1"],
    "data train-tokenizer": [
        *("data", "train-tokenizer", "texts", "-o", "disk/mine", "--vocab-size", "300"),
    ],
    "data tokenize": [
        *("data", "tokenize", "texts", "-o", "disk/my", *TOKENIZER, "--append-eod"),
        *("--workers", "1", *QUIET),
    ],
    "data merge": [
        *("data", "merge", "pairs/a_text_document", "pairs/b_text_document", "-o", "disk/all"),
    ],
    "data stats -o": ["data", "stats", "pairs/a_text_document", "-o", "disk/stats.json"],
    "data blend -o": [
        *("data", "blend", "pairs/a_text_document", "pairs/b_text_document"),
        *("-o", "disk/blend.json"),
    ],
    "data run --launcher": ["data", "run", "recipe.yaml", "--launcher", "slurm", "-o", "disk/job"],
    "workflow": [
        *("workflow", "slimpajama-8b", "--mount", "workspace=ID:/mount/data"),
        *("--instance", "dgxa100.80g.8.norm", "-o", "disk/jobs"),
    ],
    "tune": ["tune", *HERE, "--max-runs", "2", "--tolerance", "0", "-o", "disk/study"],
    "train": [
        *("train", *HERE, "--layout", "mbs=1", "--steps", "30", "-o", "disk/run"),
        *("--allow", "storage"),
    ],
}
STARTS = {"data tokenize": 12}
TIMED = {"tune", "train", "report html", "watch --textfile"}
"""What they write says when: two starts are not alike, and what is left is read in place of
compared."""
TORCHRUN = """#!{python}
import json, pathlib, sys
words = dict(word.split("=", 1) for word in sys.argv if "=" in word and not word.startswith("--"))
for step in range(1, int(words["steps"]) + 1):
    print(json.dumps({{"event": "step", "step": step, "loss": 8.0, "gradient_norm": 1.0, "step_s": 0.5}}), flush=True)
if "save.folder" in words:
    new = pathlib.Path(words["save.folder"]) / ("step-" + words["steps"])
    new.mkdir(parents=True)
    (new / "run.json").write_text("{{}}")
"""  # noqa: E501
RECIPE = """pipeline: slimpajama
folder: work
chunks: 1
tokenize: {tokenizer_type: gpt2, append_eod: true}
"""


def mounts() -> bool:
    """Whether this machine lets the test mount a disk of its own."""
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(words, capture_output=True, check=False).returncode
    )


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, truth_dir: Path
) -> Iterator[Mapping[str, dict[str, Any]]]:
    if not mounts():
        pytest.skip("this machine lets no user mount a disk of its own (unshare -rm)")
    place = tmp_path_factory.mktemp("disks")
    write_inputs(place, truth_dir)
    yield run_all(place, WRITERS)


def run_all(place: Path, writers: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    asked = {
        name: {
            "words": words,
            "copied": ["train.sh"] if name == "fix --write" else [],
            "levels": STARTS.get(name, LEVELS),
        }
        for name, words in writers.items()
    }
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, str(ROOT / "tests" / "cli" / "full_disk.py")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}", "TMPDIR": str(place)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def write_inputs(place: Path, truth: Path) -> None:
    for name in ("disk", "texts", "packed", "pairs", "bin"):
        (place / name).mkdir()
    (place / "rows.csv").write_text(TABLE)
    (place / "train.sh").write_text(SCRIPT)
    (place / "recipe.yaml").write_text(RECIPE)
    (place / "train.log").write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    with (truth / "inference_fastertransformer.csv").open() as table:
        (place / "served.csv").write_text("".join(islice(table, 3)))
    with (truth / "bridge_recompute.csv").open() as table:
        (place / "measured.csv").write_text("".join(islice(table, 3)))
    torchrun = place / "bin" / "torchrun"
    torchrun.write_text(TORCHRUN.format(python=sys.executable))
    torchrun.chmod(0o755)
    write_corpora(place)
    serving = ["serving", "plan", "llama3.1-8b", "--cluster", "h100:2", "--mode", "aggregated"]
    for name, words in (("plan.json", PLAN), ("serving.json", serving)):
        done = subprocess.run(
            [sys.executable, "-m", "meshwright", *words, "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        (place / name).write_text(done.stdout)


def write_corpora(place: Path) -> None:
    gpt2_files(place / "vocabulary")
    words = np.random.default_rng(0).integers(0, 10**6, (40, 200))
    lines = [line(" ".join(map(str, row))) for row in words]
    for number in range(4):
        part = b"".join(lines[number * 10 : number * 10 + 10])
        (place / f"texts/part_{number}.jsonl").write_bytes(part)
        (place / f"packed/part_{number}.jsonl.gz").write_bytes(gzip.compress(part))
    pages = [page(number, " ".join(map(str, row))) for number, row in enumerate(words)]
    wiki = f"{HEAD}{''.join(pages)}</mediawiki>\n"
    (place / "wiki.xml.bz2").write_bytes(bz2.compress(wiki.encode()))
    for name in ("a", "b"):
        stem = place / f"pairs/{name}_text_document"
        tokens = np.arange(12_000, dtype=np.uint16)
        stem.with_suffix(".bin").write_bytes(tokens.tobytes())
        with stem.with_suffix(".idx").open("wb") as handle:
            write_index(
                handle,
                dtype=np.dtype(np.uint16),
                lengths=np.full(1200, 10, dtype=np.int32),
                bounds=np.arange(1201, dtype=np.int64),
            )


def final(files: Mapping[str, str]) -> dict[str, str]:
    """The files with names of their own: what a command keeps for itself begins with a dot."""
    return {name: digest for name, digest in files.items() if "/." not in f"/{name}"}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_ends_a_command_with_3_and_a_sentence(
    ended: Mapping[str, dict[str, Any]], name: str
) -> None:
    found = ended[name]
    assert found["code"] == 0, found["said"]
    assert found["starts"]
    for start in found["starts"]:
        assert start["code"] == 3, (start["free"], start["said"])
        assert "Traceback" not in start["said"]
        last = start["said"].splitlines()[-1]
        assert last.startswith(("error: ", "problem: ")), start["said"]
        assert "No space left on device" in last
        assert "again" in last, "it says what to do"
    assert found["unheard"] == 3, "the exit code does not hang on who reads the errors"


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_nothing_half_written_has_its_name_and_the_command_goes_on(
    ended: Mapping[str, dict[str, Any]], name: str
) -> None:
    whole = ended[name]
    for start in whole["starts"]:
        assert start["again"] == 0, (start["free"], start["said_again"])
        torn = [file for file in start["torn"] if not file.endswith("/events.jsonl")]
        assert not torn, "JSON, YAML and tables are whole; a torn last event is left out"
        if name != "tune":  # which runs it chooses hangs on what it measures of this machine
            assert final(start["files"]).keys() == final(whole["files"]).keys()
        if name not in TIMED:
            known = final(whole["files"])
            kept = {n: d for n, d in known.items() if n == "train.sh" and name == "fix --write"}
            for file, digest in final(start["left"]).items():
                assert digest == known[file] or file in kept, file
            assert final(start["files"]) == known
