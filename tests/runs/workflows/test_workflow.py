"""Work flows: what is rendered, what is checked, and the data jobs run to their end on a small
corpus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.data.corpora import gpt2_files
from tests.data.corpora import line as json_line

from meshwright.cli import run
from meshwright.data.indexed import IndexedFile
from meshwright.platforms.job import Job
from meshwright.runs.workflows.render import RenderedJob, Workflow, workflow
from meshwright.runs.workflows.spec import read_spec
from meshwright.runs.workflows.stages import data_stages, pair_prefixes, replicas_that_work
from meshwright.values.errors import ConfigError, UnknownNameError

ROOT = Path(__file__).resolve().parents[3]
NAME = "slimpajama-8b"
STAGES = ["download", "verify", "extract", "concat", "preprocess", "train", "notebook"]
PLATFORMS: dict[str, dict[str, Any]] = {
    "bcp": {"job.mounts": ["workspace=Ws:/mount/data"], "job.instance": "dgxa100.80g.8.norm"},
    "slurm": {"job.mounts": ["/lustre/data:/mount/data"], "job.partition": "gpu"},
    "k8s-jobset": {"job.mounts": ["pvc=data:/mount/data"]},
    "runai": {"job.mounts": ["pvc=data:/mount/data"], "job.account": "team"},
    "lepton": {"job.mounts": ["node-nfs:shared=/data:/mount/data"], "job.instance": "gpu.8xa100"},
    "pai-dlc": {
        "job.mounts": ["oss://data.oss-cn-hangzhou-internal.aliyuncs.com/:/mount/data"],
        **{
            "job.account": "12345",
            "job.partition": "quota1",
            "job.cpus": 96,
            "job.memory": "1000Gi",
            "notebook": None,
        },
    },
    "sky": {
        "job.mounts": ["s3://data:/mount/data"],
        "job.instance": "A100-80GB",
        "data.instance": "m6i.8xlarge",
    },
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, Workflow]:
    return {
        name: workflow(read_spec(NAME, words=list(words.items())), launcher=name)
        for name, words in PLATFORMS.items()
    }


def job(found: Workflow, stage: str) -> RenderedJob:
    return next(entry for entry in found.jobs if entry.stage == stage)


def plan_yaml(text: str) -> dict[str, Any]:
    """Read the configuration that a training job brings to its nodes."""
    found = re.search(
        r"# Written by meshwright for megatron_gpt_pretraining.*?\n(.*?data_prefix:.*?)\n[^\n]*>"
        r" \./plan\.yaml",
        text,
        re.DOTALL,
    )
    assert found
    content: dict[str, Any] = yaml.safe_load(found[1].replace("'\"'\"'", "'").rsplit("\n'", 1)[0])
    return content


@pytest.mark.parametrize("name", list(PLATFORMS))
def test_one_description_makes_every_job_of_every_platform(
    name: str, rendered: dict[str, Workflow]
) -> None:
    found = rendered[name]
    stages = STAGES[:-1] if name == "pai-dlc" else STAGES
    assert [entry.stage for entry in found.jobs] == stages
    assert found.passed
    assert [entry.nodes for entry in found.jobs] == [8, 1, 8, 8, 8, 8, 1][: len(stages)]
    for stage in STAGES[:5]:
        text = job(found, stage).text.text
        assert "gpu" not in text.split("needs=")[0].replace("gpu.8xa100", "").replace(
            "--partition=gpu", ""
        )
        assert "-o pipefail" in text or "euo pipefail" in text
        assert "replica-${NODE_RANK:-0}.log" in text
    assert name == "pai-dlc" or "8888" in job(found, "notebook").text.text
    assert "torchrun" in job(found, "train").text.text


def test_base_command_submits_what_the_walk_through_has(rendered: dict[str, Workflow]) -> None:
    found = rendered["bcp"]
    assert "meshwright data check /mount/data/raw" in job(found, "verify").text.text
    assert "--replicas 8 \\\n  --array-type PYTORCH" in job(found, "extract").text.text
    train = job(found, "train").text.text
    assert "--total-runtime 6D" in train
    assert "trainer.max_time=05:23:30:00" in train, "run.time_limit does nothing on Base Command"
    assert train.count("rsync -a --exclude=checkpoints/ -- /mount/data/train/ /results/") == 1
    assert "rsync" not in job(rendered["slurm"], "train").text.text
    notebook = job(found, "notebook").text.text
    assert "--port 8888 \\\n" in notebook
    assert "secrets.token_hex" in notebook


def test_training_reads_74_pairs_whose_weights_sum_to_one(rendered: dict[str, Workflow]) -> None:
    """59,166 archives in files of 800 make 74; 1/74 is 0.0135135..., and six digits of it sum to
    0.999962."""
    config = plan_yaml(job(rendered["slurm"], "train").text.text)
    prefix = config["model"]["data"]["data_prefix"]
    weights, paths = prefix[::2], prefix[1::2]
    assert len(paths) == 74
    assert (paths[0], paths[73]) == (
        "/mount/data/tokens/slimpajama_00_text_document",
        "/mount/data/tokens/slimpajama_73_text_document",
    )
    assert set(weights) == {0.013513, 0.013514}
    assert sum(round(weight * 1e6) for weight in weights) == 1_000_000
    assert config["trainer"]["num_nodes"] * config["trainer"]["devices"] == 64
    assert config["model"]["tokenizer"]["vocab_file"] == "/mount/data/bpe/vocab.json"
    assert config["trainer"]["max_steps"] == 300_000


def test_weights_by_tokens_take_the_place_of_equal_ones(tmp_path: Path) -> None:
    spec = read_spec(NAME, words=[("shards", 3), *PLATFORMS["slurm"].items()])
    prefixes = [
        f"/mount/data/tokens/slimpajama_{number}_text_document" for number in ("00", "01", "02")
    ]
    assert list(pair_prefixes(spec)) == prefixes
    blend = tmp_path / "blend.json"
    blend.write_text(
        json.dumps(
            {
                "blend": [
                    {"prefix": p, "weight": w}
                    for p, w in zip(prefixes, (0.5, 0.3, 0.2), strict=True)
                ]
            }
        )
    )
    config = plan_yaml(job(workflow(spec, launcher="slurm", blend=blend), "train").text.text)
    assert config["model"]["data"]["data_prefix"][::2] == [0.5, 0.3, 0.2]
    blend.write_text(json.dumps({"blend": [{"prefix": prefixes[0], "weight": 1}]}))
    with pytest.raises(ConfigError, match="weighs other pairs than the 3 of slimpajama-8b"):
        workflow(spec, launcher="slurm", blend=blend)


def test_replicas_are_those_that_divide_gpus_and_batch() -> None:
    """tp=4, mbs=1, gbs=512 on nodes of 8: dp = 2 per node, which divides 512 for the powers of two
    up to 256 nodes."""
    from meshwright.runs.workflows.stages import train_stage

    trained = train_stage(read_spec(NAME), launcher="slurm")
    assert replicas_that_work(trained.plan) == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert trained.weights == pytest.approx([1 / 74] * 74, abs=1e-6)


def test_what_lies_outside_of_the_mounts_is_a_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["workflow", NAME, "--launcher", "bcp", "--instance", "i", "-o", str(tmp_path / "jobs")]
    assert run([*words, "--mount", "workspace=W:/elsewhere"]) == 1
    assert (
        "FAIL  mount: slimpajama-8b-download: /mount/data is on none of its mounts"
        in capsys.readouterr().err
    )
    assert run([*words, "--mount", "dataset=7:/mount/data"]) == 1
    assert "read only" in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()


def test_no_token_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "workflow",
        NAME,
        "--mount",
        "workspace=W:/mount",
        "--instance",
        "i",
        "--dry-run",
        "train=null",
    ]
    assert run([*words, "--no-token"]) == 0
    out, err = capsys.readouterr()
    assert "NO TOKEN: whoever has its address has a shell" in err
    assert "secrets" not in out
    assert "6-notebook/job.sh" in out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("data.worker=4", "'worker' is no known key of data; did you mean 'workers'"),
        ("data.nodes=many", "data.nodes=many: expected a whole number"),
        ("train.layout=tp=3", "tp=3"),
        ("train.stop_before=7D", "train.stop_before=7D: leaves nothing of train.time=6D"),
        ("train.settings.data=x", "train.settings: data follow from the work flow"),
        ("corpus=slimpyjama", "did you mean 'slimpajama'?"),
        ("folder=data", "folder=data: expected an absolute path"),
        ("job.port=1", "'port' is no known key of a job"),
        ("job.name=x", "name and start follow from the work flow"),
    ],
)
def test_a_bad_word_is_one_clear_line(
    word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "workflow",
                NAME,
                word,
                "--mount",
                "workspace=W:/mount/data",
                "--instance",
                "i",
                "--dry-run",
            ]
        )
        == 2
    )
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_a_description_reads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["workflow", NAME, "shards=8", "--spec"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert read_spec(str(tmp_path / "mine.yaml")) == read_spec(NAME, words=[("shards", 8)])
    with pytest.raises(UnknownNameError, match="'slimpajama' is no known work flow"):
        read_spec("slimpajama")


def test_ngc_takes_every_job(rendered: dict[str, Workflow], tmp_path: Path) -> None:
    """The stand-in has the words and choices of NGC CLI 4.19.1; the jobs wait for an image and
    never start."""
    ngc = tmp_path / "ngc"
    ngc.write_text(
        f'#!/bin/bash\nexec {sys.executable} {ROOT}/tests/platforms/executors/ngc.py "$@"\n'
    )
    ngc.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NGC_STATE": str(tmp_path / "state")}
    (tmp_path / "state").mkdir()
    for entry in rendered["bcp"].jobs:
        text = entry.text.text.replace("nvcr.io/nvidia/nemo:24.07", "missing")
        done = subprocess.run(
            ["bash", "-c", text], env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
    kept = [
        json.loads((place / "job.json").read_text())
        for place in sorted((tmp_path / "state").iterdir())
    ]
    assert [entry["replicas"] for entry in kept] == [8, None, 8, 8, 8, 8, None]
    assert kept[5]["limit"] == 6 * 86_400


@pytest.mark.parametrize("name", ["bcp", "slurm", "runai"])
def test_shellcheck_finds_nothing(name: str, rendered: dict[str, Workflow]) -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed; requirements-dev.txt brings it")
    texts = [
        entry.text.text
        for entry in rendered[name].jobs
        if entry.stage in ("extract", "train", "notebook")
    ]
    texts += [
        "#!/usr/bin/env bash\n" + stage.job.command[2] for stage in data_stages(read_spec(NAME))[:2]
    ]
    for text in texts:
        result = subprocess.run(
            [shellcheck, "-"], input=text, text=True, capture_output=True, check=False
        )
        assert (result.returncode, result.stdout) == (0, "")


def test_slurm_starts_each_job_behind_the_one_before(
    rendered: dict[str, Workflow], tmp_path: Path
) -> None:
    """15.4 days by prediction in jobs of 143.5 h: training comes three times."""
    for file in rendered["slurm"].files():
        (tmp_path / file.name).parent.mkdir(exist_ok=True)
        (tmp_path / file.name).write_text(file.text)
    (tmp_path / "bin").mkdir()
    sbatch = (
        '#!/bin/bash\ntest -e "${!#}" && echo "${PWD##*/} $*" >> "$CALLS"\necho "$(wc -l <'
        ' "$CALLS");cluster"\n'
    )
    (tmp_path / "bin" / "sbatch").write_text(sbatch)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    done = subprocess.run(
        ["bash", str(tmp_path / "submit.sh")],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "1-download --parsable job.sbatch"
    assert (
        calls[2]
        == "3-extract --parsable --dependency=afterok:2 --kill-on-invalid-dep=yes job.sbatch"
    )
    assert [call.split()[0] for call in calls[4:]] == [
        "5-preprocess",
        "6-train",
        "6-train",
        "6-train",
    ]
    assert rendered["bcp"].submit_all is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run extract, concat and preprocess as their nodes would, on five small archives."""
    import gzip

    folder = tmp_path_factory.mktemp("flow")
    gpt2_files(folder / "bpe")
    (folder / "raw").mkdir()
    for number in range(5):
        content = b"".join(json_line(f"the quick brown {number} {n} jumps over") for n in range(30))
        (folder / "raw" / f"part_{number}.jsonl.gz").write_bytes(gzip.compress(content))
    (folder / "raw" / "manifest.json").write_text("{}")
    (folder / "bin").mkdir()
    (folder / "bin" / "meshwright").write_text(
        f'#!/bin/bash\nexec {sys.executable} -m meshwright "$@"\n'
    )
    (folder / "bin" / "meshwright").chmod(0o755)
    spec = read_spec(
        NAME,
        words=[
            ("folder", str(folder)),
            ("shards", 3),
            ("data.nodes", 1),
            ("data.workers", 1),
            ("name", "test-flow"),
        ],
    )
    for stage in data_stages(spec)[2:]:
        _on_this_node(stage.job, folder)
    return folder


def _on_this_node(job: Job, folder: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "NNODES": "1",
        "NODE_RANK": "0",
    }
    done = subprocess.run(job.command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_data_jobs_follow_each_other(made: Path) -> None:
    """Every document of the archives is in one of the three pairs, each ends with its token, and
    the weights are of those pairs."""
    pairs = [
        IndexedFile(f"{made}/tokens/slimpajama_{number}_text_document")
        for number in ("00", "01", "02")
    ]
    assert sum(pair.num_documents for pair in pairs) == 150
    assert (
        max(pair.num_documents for pair in pairs) - min(pair.num_documents for pair in pairs) <= 2
    )
    assert not list((made / "text").glob("*.jsonl"))
    weights = {
        row["prefix"]: row["weight"]
        for row in json.loads((made / "tokens" / "blend.json").read_text())["blend"]
    }
    total = sum(pair.num_tokens for pair in pairs)
    assert weights == pytest.approx(
        {pair.prefix: pair.num_tokens / total for pair in pairs}, abs=2e-6
    )
    assert "all 7 steps are done" in (made / "logs" / "preprocess" / "replica-0.log").read_text()
    shutil.rmtree("/tmp/test-flow-preprocess", ignore_errors=True)
