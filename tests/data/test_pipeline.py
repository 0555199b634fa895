from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.data.corpora import gpt2_files
from tests.data.corpora import line as json_line
from tests.data.test_indexed import write as write_pair
from tests.slurm import require_slurm, running_slurm

from meshwright.cli import run
from meshwright.data.indexed import IndexedFile
from meshwright.data.pipeline import recipe_job
from meshwright.data.recipe import read_recipe
from meshwright.values.errors import ConfigError, UnknownNameError

ROOT = Path(__file__).resolve().parents[2]
TOKENIZE = "tokenize: {vocab_file: encoder.json, merge_file: vocab.bpe, append_eod: true}\n"
CUSTOM = """
pipeline: custom
folder: FOLDER
steps:
- extract: {inputs: ["{folder}/raw"], output: "{folder}/plain", workers: 2}
- concat: {inputs: ["{folder}/plain"], output: "{folder}/shards", min_size: 400, max_size: 700, consume: true}
- remove: ["{folder}/raw", "{folder}/plain"]
"""  # noqa: E501


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(text.replace("FOLDER", str(folder / "out")))
    return folder / "recipe.yaml"


def custom(folder: Path) -> Path:
    for number in range(40):
        path = folder / "out" / "raw" / f"p{number}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b'{"text": "%d"}\n' % number * (number % 9), mtime=0))
    return write(folder, CUSTOM)


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out" / "shards").glob("shard_*")}


def test_slimpajama_chunk_by_chunk(tmp_path: Path) -> None:
    steps = read_recipe(
        write(
            tmp_path,
            "pipeline: slimpajama\nfolder: d\nchunks: 2\nworkers: 8\ndownload: {tries:"
            f" 3}}\n{TOKENIZE}",
        )
    ).steps
    assert [step.line() for step in steps[:4]] == [
        (
            "meshwright data download"
            " 'https://huggingface.co/datasets/cerebras/SlimPajama-627B/resolve/main/train/chunk1/example_train_{0..5911}.jsonl.zst'"
            " --workers 8 --tries 3 --output d/raw/chunk1"
        ),
        (
            "meshwright data tokenize d/raw/chunk1 --workers 8 --vocab-file encoder.json"
            " --merge-file vocab.bpe --append-eod --output-prefix d/tokens/slimpajama_chunk1"
        ),
        "meshwright data verify 'd/tokens/slimpajama_chunk1_*.idx'",
        (
            "rm -r d/raw/chunk1  # when every file of d/tokens/slimpajama_chunk1.manifest.json was"
            " read back"
        ),
    ]
    assert [step.name for step in steps[4:]] == [
        "download-chunk2",
        "tokenize-chunk2",
        "verify-chunk2",
        "remove-chunk2",
    ]
    assert "{0..5910}" in steps[4].line()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("strategy: direct\n", ["download", "tokenize", "verify"]),
        ("strategy: text\n", ["download", "extract", "tokenize", "verify"]),
    ],
)
def test_other_strategies_of_slimpajama(tmp_path: Path, words: str, names: list[str]) -> None:
    steps = read_recipe(
        write(tmp_path, f"pipeline: slimpajama\nfolder: d\n{words}{TOKENIZE}")
    ).steps
    assert [step.name for step in steps] == names


def test_wikipedia(tmp_path: Path) -> None:
    steps = read_recipe(
        write(tmp_path, f"pipeline: wikipedia\nfolder: d\ndump: zhwiki\ndate: 20251101\n{TOKENIZE}")
    ).steps
    assert [step.name for step in steps] == ["download", "wiki", "tokenize", "verify"]
    assert (
        "https://dumps.wikimedia.org/zhwiki/20251101/zhwiki-20251101-pages-articles-multistream.xml.bz2"
        in steps[0].words
    )
    assert steps[1].words == ("wiki", "d/raw", "--output", "d/articles")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pipeline: slimpyjama\nfolder: d\n", "did you mean 'slimpajama'"),
        ("pipeline: slimpajama\nfolder: d\nstrateg: x\n", "did you mean 'strategy'"),
        ("pipeline: slimpajama\n", "expected the folder"),
        ("pipeline: slimpajama\nfolder: d\nstrategy: recipe\n", "expected chunks, direct, text"),
        ("pipeline: slimpajama\nfolder: d\nquota: 3G\n", "recipe: quota=3G"),
        ("pipeline: custom\nfolder: d\nsteps: []\n", "expected a list of steps"),
        (
            "pipeline: custom\nfolder: d\nworkers: many\nsteps: []\n",
            "workers=many: expected a whole number above 0",
        ),
        ("pipeline: custom\nfolder: d\nsteps:\n- delete: [x]\n", "'delete' is no known step"),
        (
            "pipeline: custom\nfolder: d\nsteps:\n- remove: [x]\n",
            "behind the step that replaces them",
        ),
        (
            (
                "pipeline: custom\nfolder: d\nsteps:\n- extract: {inputs: [x], output:"
                ' "{folder}/y"}\n- remove: ["{folder}/y"]\n'
            ),
            "remove d/y: the step before made it",
        ),
        (
            (
                "pipeline: custom\nfolder: d\nsteps:\n- stats: {inputs: [x], output: y}\n- remove:"
                " [x]\n"
            ),
            "no step that makes data",
        ),
        (
            "pipeline: custom\nfolder: d\nsteps:\n- extract: {inputs: [x]}\n",
            "output=None: expected a path",
        ),
    ],
)
def test_wrong_recipes_are_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        read_recipe(write(tmp_path, text))


def test_a_quota_that_is_too_small_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(
        tmp_path, f"pipeline: slimpajama\nfolder: FOLDER\nstrategy: direct\nquota: 2TB\n{TOKENIZE}"
    )
    assert run(["data", "run", str(recipe)]) == 1
    assert (
        "too small for direct, which takes 2.23 TB; chunks takes 1.38 TB" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_steps_of_your_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = custom(tmp_path)
    assert run(["data", "run", str(recipe)]) == 0
    joined = b"".join(content for _, content in sorted(shards(tmp_path).items()))
    assert joined == b"".join(b'{"text": "%d"}\n' % number * (number % 9) for number in range(40))
    assert not (tmp_path / "out" / "raw").exists()
    capsys.readouterr()
    assert run(["data", "run", str(recipe)]) == 0
    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()[:3]] == [
        "done"
    ] * 3
    recipe.write_text(recipe.read_text().replace("max_size: 700", "max_size: 800"))
    assert run(["data", "run", str(recipe)]) == 2
    assert "step 2 (concat-2) was done as" in capsys.readouterr().err


def test_nothing_is_removed_before_its_replacement_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = custom(tmp_path)
    text = recipe.read_text()
    recipe.write_text(text.rpartition("- remove")[0])
    assert run(["data", "run", str(recipe)]) == 0
    shard = tmp_path / "out" / "shards" / "shard_01.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b"1", b"2"))
    recipe.write_text(text)
    assert run(["data", "run", str(recipe)]) == 1
    assert "nothing is removed" in capsys.readouterr().err
    assert len(list((tmp_path / "out" / "raw").iterdir())) == 40


def test_tokenized_verified_and_then_removed(tmp_path: Path) -> None:
    spec = gpt2_files(tmp_path / "tokenizer")
    for name in ("a", "b"):
        path = tmp_path / "out" / "raw" / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json_line("the quick dogs") * 50))
    steps = [
        {
            "tokenize": {
                "inputs": ["{folder}/raw"],
                "output_prefix": "{folder}/t/x",
                "vocab_file": spec.vocab_file,
                "merge_file": spec.merge_file,
            }
        },
        {"verify": {"output_prefix": "{folder}/t/x"}},
        {"remove": ["{folder}/raw"]},
    ]
    recipe = write(tmp_path, json.dumps({"pipeline": "custom", "folder": "FOLDER", "steps": steps}))
    assert run(["data", "run", str(recipe)]) == 0
    assert not (tmp_path / "out" / "raw").exists()
    assert IndexedFile(str(tmp_path / "out" / "t" / "x_text_document")).num_documents == 100


def test_raw_data_stays_while_a_file_of_it_was_left_out(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    raw = tmp_path / "out" / "raw"
    raw.mkdir(parents=True)
    (raw / "good.jsonl").write_bytes(json_line("good"))
    (raw / "cut.jsonl.gz").write_bytes(gzip.compress(json_line("x" * 5000))[:-9])
    spec = gpt2_files(tmp_path / "tokenizer")
    words = {"vocab_file": spec.vocab_file, "merge_file": spec.merge_file, "on_error": "skip"}
    steps = [
        {"tokenize": {"inputs": ["{folder}/raw"], "output_prefix": "{folder}/t/x", **words}},
        {"verify": {"output_prefix": "{folder}/t/x"}},
        {"remove": ["{folder}/raw"]},
    ]
    recipe = write(tmp_path, json.dumps({"pipeline": "custom", "folder": "FOLDER", "steps": steps}))
    for _ in range(2):  # the second start finds the output complete
        assert run(["data", "run", str(recipe)]) == 3
        assert sorted(path.name for path in raw.iterdir()) == ["cut.jsonl.gz", "good.jsonl"]


def test_a_step_that_fails_ends_the_run(tmp_path: Path) -> None:
    recipe = custom(tmp_path)
    bad = tmp_path / "out" / "raw" / "p8.jsonl.gz"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:-4])
    assert run(["data", "run", str(recipe)]) == 3
    bad.write_bytes(whole)
    assert run(["data", "run", str(recipe)]) == 0


def start(recipe: Path, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "meshwright", "data", "run", str(recipe)]
    full = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.Popen(
        command,
        env=full,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_two_ranks_that_start_at_different_times(tmp_path: Path) -> None:
    alone, two = custom(tmp_path / "one"), custom(tmp_path / "two")
    assert run(["data", "run", str(alone)]) == 0
    first = start(two, RANK="0", WORLD_SIZE="2")
    time.sleep(0.1)
    second = start(two, RANK="1", WORLD_SIZE="2")
    assert (first.wait(60), second.wait(60)) == (0, 0)
    assert shards(tmp_path / "two") == shards(tmp_path / "one")


@pytest.mark.slow
def test_kills_leave_the_same_bytes(tmp_path: Path) -> None:
    alone, killed = custom(tmp_path / "one"), custom(tmp_path / "killed")
    assert run(["data", "run", str(alone)]) == 0
    chance = random.Random(3)
    for _ in range(4):
        process = start(killed)
        time.sleep(chance.uniform(0.2, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(killed).wait(60) == 0
    assert shards(tmp_path / "killed") == shards(tmp_path / "one")
    manifests = [
        json.loads((tmp_path / name / "out" / "shards" / "manifest.json").read_text())
        for name in ("one", "killed")
    ]
    assert manifests[0]["totals"] == manifests[1]["totals"]


def test_jobs_ask_for_no_gpus(tmp_path: Path) -> None:
    recipe = write(tmp_path, f"pipeline: slimpajama\nfolder: d\n{TOKENIZE}")
    slurm = recipe_job(
        recipe, launcher="slurm", nodes=4, options={"time": "12h", "partition": "cpu"}
    ).text
    assert "gres" not in slurm
    assert "# data-slimpajama: 4 nodes, no GPUs. One task per node" in slurm
    for line in (
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=0-12:00:00",
        "export NNODES=4",
        f"data run {recipe}",
    ):
        assert line in slurm
    pods = recipe_job(
        recipe,
        launcher="k8s-jobset",
        nodes=4,
        options={"image": "python:3.12", "mounts": ["pvc=data:/data"]},
    ).text
    assert "nvidia.com/gpu" not in pods
    assert "NNODES=4" in pods
    assert "NODE_RANK=$(JOB_COMPLETION_INDEX)" in pods
    base = recipe_job(
        recipe, launcher="bcp", nodes=4, options={"image": "i", "instance": "cpu.x86.tiny"}
    ).text
    assert "bcprun" in base
    assert "--npernode 1" in base
    runai = recipe_job(recipe, launcher="runai", nodes=4, options={"image": "i"}).text
    assert "gpu-devices" not in runai
    assert 'NODE_RANK="$RANK"' in runai
    assert (
        "NNODES=4"
        in recipe_job(
            recipe, launcher="lepton", nodes=4, options={"image": "i", "instance": "cpu.large"}
        ).text
    )
    sky = recipe_job(recipe, launcher="sky", nodes=4, options={"instance": "m6i.8xlarge"}).text
    assert "accelerators" not in sky
    assert "instance_type: m6i.8xlarge" in sky
    with pytest.raises(
        UnknownNameError, match="known: bcp, bcprun, k8s-jobset, lepton, pai-dlc, runai, sky, slurm"
    ):
        recipe_job(recipe, launcher="torchrun", nodes=1, options={})


def test_flags_of_jobs_need_a_launcher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write(tmp_path, f"pipeline: slimpajama\nfolder: d\n{TOKENIZE}")
    assert run(["data", "run", str(recipe), "--nodes", "4", "--time", "5h"]) == 2
    assert "nodes, time: of no effect without --launcher" in capsys.readouterr().err
    assert (
        run(["data", "run", str(recipe), "--launcher", "slurm", "-o", str(tmp_path / "jobs")]) == 0
    )
    assert (tmp_path / "jobs" / "job.sbatch").exists()


def test_pairs_are_merged_counted_and_weighed_by_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "out" / "raw").mkdir(parents=True)
    write_pair(tmp_path / "out" / "a", [[[5, 6, 7]]], "<u2")
    write_pair(tmp_path / "out" / "b", [[[1]], [[2]]], "<u2")
    pairs = 'inputs: ["{folder}/a", "{folder}/b"]'
    steps = f"""- merge: {{{pairs}, output_prefix: "{{folder}}/both"}}
- stats: {{inputs: ["{{folder}}/both"], output: "{{folder}}/stats.json"}}
- blend: {{{pairs}, output: "{{folder}}/blend.json"}}
- remove: ["{{folder}}/raw"]
"""
    recipe = write(tmp_path, f"pipeline: custom\nfolder: FOLDER\nsteps:\n{steps}")
    assert [step.on for step in read_recipe(recipe).steps] == ["rank 0"] * 4
    assert run(["data", "run", str(recipe)]) == 0
    assert json.loads((tmp_path / "out" / "stats.json").read_text())[0]["documents"] == 3
    assert [
        row["weight"] for row in json.loads((tmp_path / "out" / "blend.json").read_text())["blend"]
    ] == [0.6, 0.4]
    assert not (
        tmp_path / "out" / "raw"
    ).exists()  # what merge made was read back; stats and blend make no data
    (
        tmp_path / "out" / ".meshwright" / "run" / "001-merge-1.done"
    ).unlink()  # as after a kill behind the merge
    assert run(["data", "run", str(recipe)]) == 0


def test_workers_of_a_recipe_are_those_of_each_step_that_has_none(tmp_path: Path) -> None:
    one = 'inputs: [x], output: "{folder}/y"'
    steps = (
        f"- extract: {{{one}}}\n- concat: {{{one}, workers: 2}}\n- stats: {{inputs: [x], output:"
        " z}\n"
    )
    recipe = write(tmp_path, f"pipeline: custom\nfolder: d\nworkers: 8\nsteps:\n{steps}")
    shares = [
        step.words[step.words.index("--workers") + 1] if "--workers" in step.words else None
        for step in read_recipe(recipe).steps
    ]
    assert shares == ["8", "2", None]


def test_json_has_one_object_and_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = custom(tmp_path)
    (tmp_path / "out" / "raw" / "p1.jsonl.gz").write_bytes(b"no archive")
    assert run(["data", "run", str(recipe), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["pipeline"], found["code"]) == ("custom", 3)
    assert [step["state"] for step in found["steps"]] == ["failed", "not reached", "not reached"]
    (tmp_path / "out" / "raw" / "p1.jsonl.gz").write_bytes(gzip.compress(b'{"text": "1"}\n'))
    assert run(["data", "run", str(recipe), "--json"]) == 0
    assert [step["state"] for step in json.loads(capsys.readouterr().out)["steps"]] == [
        "done",
        "done",
        "done",
    ]
    assert run(["data", "run", str(recipe), "--json"]) == 0
    assert [step["state"] for step in json.loads(capsys.readouterr().out)["steps"]] == [
        "done before"
    ] * 3
    assert run(["data", "run", str(recipe), "--json", "--dry-run"]) == 0
    assert [step["name"] for step in json.loads(capsys.readouterr().out)["steps"]] == [
        "extract-1",
        "concat-2",
        "remove-3",
    ]


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (TOKENIZE, True),
        ("tokenize: {tokenizer: llama3/tokenizer.json}\n", False),
        ("tokenize: {tokenizer: mine.model}\nvocab_size: 32000\n", True),
        (f"{TOKENIZE}vocab_size: 128256\n", False),
    ],
)
def test_a_quota_counts_two_or_four_bytes_a_token(tmp_path: Path, words: str, fits: bool) -> None:
    """SlimPajama's 636 B tokens are 1.27 TB or 2.54 TB, beside a tenth of 0.95 TB of archives: 1.38
    TB or 2.65 TB."""
    found = read_recipe(write(tmp_path, f"pipeline: slimpajama\nfolder: d\nquota: 2TB\n{words}"))
    assert (found.too_large is None) == fits


@pytest.mark.slow
def test_a_job_of_two_nodes_runs_on_slurm(tmp_path: Path) -> None:
    require_slurm()
    recipe = custom(tmp_path)
    one = custom(tmp_path / "one")
    assert run(["data", "run", str(one)]) == 0
    with running_slurm(tmp_path / "slurm") as cluster:
        (cluster.folder / "bin").mkdir(exist_ok=True)
        shim = cluster.folder / "bin" / "meshwright"
        shim.write_text(
            f'#!/bin/bash\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m meshwright "$@"\n'
        )
        shim.chmod(0o755)
        text = recipe_job(
            recipe, launcher="slurm", nodes=2, options={"time": "5m", "log_dir": str(tmp_path)}
        )
        (cluster.folder / text.file_name).write_text(text.text)
        answer = cluster.ask("sbatch", "--wait", "--parsable", text.file_name)
        log = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert answer.isdecimal(), f"{answer}\n{log}"
    assert log.count("all 3 steps are done") == 2
    assert shards(tmp_path) == shards(tmp_path / "one")
