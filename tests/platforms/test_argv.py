"""Whatever the words of a program are, the program gets exactly those, on every platform."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.platforms.examples import IMAGE, NASTY, SMALL
from tests.platforms.platforms import Call, container_call, expand, install, read, run

from meshwright.platforms.job import Job
from meshwright.platforms.registry import job_text
from meshwright.software.contract import EnvVar, ExportedFile

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=30
) | st.sampled_from(NASTY)
FLAGS = (
    "--nnodes=",
    "--node-rank=",
    "--master-addr=",
    "--master-port=",
    "--nproc-per-node=",
    "--standalone",
)
PER_NODE = {
    "RANK": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
    "NODE_RANK": "2",
    "SLURM_JOB_ID": "71",
    "SLURM_JOB_NODELIST": "x",
}
OPERATOR = {
    "JOB_COMPLETION_INDEX": "2",
    "HOME": "/root",
    "PET_NODE_RANK": "2",
    "PET_MASTER_ADDR": "node-a",
    "PET_MASTER_PORT": "29500",
}
LEPTON = {
    "LEPTON_JOB_WORKER_INDEX": "2",
    "LEPTON_JOB_WORKER_PREFIX": "w",
    "LEPTON_SUBDOMAIN": "svc",
}
SKY = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3", "SKYPILOT_NODE_RANK": "2"}


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("platforms") / "bin")


def job(words: list[str], value: str, *, nodes: int) -> Job:
    environment = (
        EnvVar(name="ODD_VALUE", value=value, why="a reason # with $(signs) and\nlines"),
    )
    return replace(
        SMALL, command=("train.py", *words), environment=environment, nodes=nodes, time_limit_s=3600
    )


def script(job: Job, launcher: str) -> list[str]:
    return ["bash", "-c", job_text(job, launcher=launcher).text]


def on_torchrun(job: Job, bin_dir: Path) -> Call:
    return run(script(job, "torchrun"), bin_dir=bin_dir, env=PER_NODE)


def on_slurm(job: Job, bin_dir: Path) -> Call:
    return run(script(job, "slurm"), bin_dir=bin_dir, env=PER_NODE)


def on_slurm_by_ranks(job: Job, bin_dir: Path) -> Call:
    call = run(script(replace(job, launch="ranks"), "slurm"), bin_dir=bin_dir, env=PER_NODE)
    ranks = {
        name: call.env[name]
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    assert ranks == {
        "RANK": "19",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": str(job.num_gpus),
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": "20071",
    }
    return call


def on_base_command(job: Job, bin_dir: Path) -> Call:
    submitted = run(script(replace(job, image=IMAGE, instance="i"), "bcp"), bin_dir=bin_dir, env={})
    line = submitted.argv[submitted.argv.index("--commandline") + 1]
    return run(["sh", "-c", expand(line, {"HOME": "/root"})], bin_dir=bin_dir, env={})


def on_bcprun(job: Job, bin_dir: Path) -> Call:
    return run(script(job, "bcprun"), bin_dir=bin_dir, env={})


def on_runai(job: Job, bin_dir: Path) -> Call:
    submitted = run(script(replace(job, image=IMAGE), "runai"), bin_dir=bin_dir, env={})
    command = submitted.argv[submitted.argv.index("--command") + 2 :]
    return run([expand(word, {"HOME": "/root"}) for word in command], bin_dir=bin_dir, env=PER_NODE)


def on_lepton(job: Job, bin_dir: Path) -> Call:
    submitted = run(
        script(replace(job, image=IMAGE, instance="i"), "lepton"), bin_dir=bin_dir, env={}
    )
    text = submitted.argv[submitted.argv.index("--command") + 1]
    return run(["bash", "-c", expand(text, {"HOME": "/root"})], bin_dir=bin_dir, env=LEPTON)


def on_sky(job: Job, bin_dir: Path) -> Call:
    text = read(job_text(replace(job, instance="H100"), launcher="sky").text)["run"]
    return run(["bash", "-c", text], bin_dir=bin_dir, env=SKY)


def on_pai_dlc(job: Job, bin_dir: Path) -> Call:
    timeless = replace(job, image=IMAGE, account="1", instance="ecs.gn7e", time_limit_s=None)
    command = json.loads(job_text(timeless, launcher="pai-dlc").text)["UserCommand"]
    return run(["sh", "-c", command], bin_dir=bin_dir, env=PER_NODE)


def on_pods(launcher: str) -> Callable[[Job, Path], Call]:
    def call(job: Job, bin_dir: Path) -> Call:
        spec = read(job_text(replace(job, image=IMAGE), launcher=launcher).text)["spec"]
        if launcher == "k8s-trainjob":
            container = spec["trainer"]
        elif launcher == "k8s-jobset":
            container = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
                "containers"
            ][0]
        else:
            container = next(iter(spec["pytorchReplicaSpecs"].values()))["template"]["spec"][
                "containers"
            ][0]
        argv, env = container_call(container, OPERATOR)
        return run(argv, bin_dir=bin_dir, env=env)

    return call


def on_mpi(job: Job, bin_dir: Path) -> Call:
    spec = read(job_text(replace(job, image=IMAGE), launcher="k8s-mpijob").text)["spec"]
    argv, env = container_call(
        spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0], {"HOME": "/root"}
    )
    passed = dict(
        word.split("=") for before, word in pairwise(argv) if before == "-x" and "=" in word
    )
    assert argv[argv.index("ODD_VALUE") - 1 : argv.index("ODD_VALUE") + 1] == ["-x", "ODD_VALUE"]
    numbers = {"OMPI_COMM_WORLD_RANK": "19", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}
    call = run(argv[argv.index("bash") :], bin_dir=bin_dir, env={**env, **passed, **numbers})
    assert (call.env["RANK"], call.env["LOCAL_RANK"], call.env["WORLD_SIZE"]) == (
        "19",
        "3",
        str(job.num_gpus),
    )
    return call


PLATFORMS: dict[str, Callable[[Job, Path], Call]] = {
    "torchrun": on_torchrun,
    "slurm": on_slurm,
    "slurm-ranks": on_slurm_by_ranks,
    "bcp": on_base_command,
    "bcprun": on_bcprun,
    "runai": on_runai,
    "lepton": on_lepton,
    "sky": on_sky,
    "pai-dlc": on_pai_dlc,
    "k8s-mpijob": on_mpi,
    **{name: on_pods(name) for name in ("k8s-trainjob", "k8s-pytorchjob", "k8s-jobset")},
}


def program_of(call: Call) -> list[str]:
    """Return the program's words, without the options that torchrun took or the `-u` that python
    did."""
    place = next(
        number
        for number, word in enumerate(call.argv)
        if word != "-u" and not word.startswith(FLAGS)
    )
    return call.argv[place:]


@pytest.mark.parametrize("name", list(PLATFORMS))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(TEXT, max_size=8), value=TEXT, nodes=st.sampled_from([1, 4]))
@example(words=NASTY, value="".join(NASTY), nodes=4)
@example(words=NASTY, value="$(HOME) $$ 'END'", nodes=1)
def test_program_gets_its_words_and_variables(
    name: str, bin_dir: Path, words: list[str], value: str, nodes: int
) -> None:
    call = PLATFORMS[name](job(words, value, nodes=nodes), bin_dir)
    assert program_of(call) == ["train.py", *words]
    assert call.env["ODD_VALUE"] == value


@pytest.mark.parametrize(
    "name",
    [name for name in PLATFORMS if name not in ("k8s-mpijob", "slurm-ranks", "bcp", "bcprun")],
)
def test_torchrun_is_told_where_and_who(name: str, bin_dir: Path) -> None:
    several, one = (PLATFORMS[name](job([], "", nodes=nodes), bin_dir).argv for nodes in (4, 1))
    assert "--nproc-per-node=8" in several
    assert "--nproc-per-node=8" in one
    if name in ("k8s-trainjob", "k8s-pytorchjob"):  # their operators set rank and address
        assert several[0] == "--nnodes=4"
        return
    known = dict(word.split("=") for word in several if "=" in word)
    assert known["--nnodes"] == "4"
    assert known["--node-rank"] == "2"
    address = {"lepton": "w-0.svc", "sky": "10.0.0.1", "k8s-jobset": "llama3-8b-node-0-0.llama3-8b"}
    assert known["--master-addr"] == address.get(name, "node-a")
    assert 1024 < int(known["--master-port"]) < 65536


def test_slurm_meets_at_a_port_where_nobody_listens(bin_dir: Path) -> None:
    with socket.socket() as busy:
        busy.bind(
            ("127.0.0.1", taken := next(port for port in range(29000, 30000) if is_free(port)))
        )
        busy.listen()
        number = str(50000 + taken - 20000)  # of the job: its last four digits name the port
        call = run(
            script(job([], "", nodes=4), "slurm"),
            bin_dir=bin_dir,
            env={**PER_NODE, "SLURM_JOB_ID": number},
        )
    [port] = [
        int(word.removeprefix("--master-port="))
        for word in call.argv
        if word.startswith("--master-port=")
    ]
    assert 20000 <= port < 30000
    assert port != taken


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("nodes", [1, 4])
def test_ranks_of_base_command_find_the_files_of_the_job(
    nodes: int, bin_dir: Path, tmp_path: Path
) -> None:
    texts = {"plan.yaml": "".join(NASTY), "data/blend.txt": "0.5 $(a) $$"}
    files = tuple(ExportedFile(name=name, text=text) for name, text in texts.items())
    name = f"mw-{tmp_path.name.lower().replace('_', '-')}"
    on_base_command(
        replace(job([], "", nodes=nodes), name=name, files=files, workdir=None), bin_dir
    )
    place = Path("/tmp") / name
    found = {
        str(path.relative_to(place)): path.read_bytes().decode()
        for path in place.rglob("*")
        if path.is_file()
    }
    shutil.rmtree(place)
    assert found == texts


def test_torchrun_takes_a_module(bin_dir: Path) -> None:
    call = on_torchrun(replace(SMALL, command=("-m", "torchtitan.train", "--a")), bin_dir)
    assert call.argv == ["--standalone", "--nproc-per-node=8", "-m", "torchtitan.train", "--a"]


def test_a_rank_takes_a_module(bin_dir: Path) -> None:
    call = on_slurm_by_ranks(
        replace(job([], "", nodes=4), command=("-m", "torchtitan.train", "--a")), bin_dir
    )
    assert call.argv == ["-u", "-m", "torchtitan.train", "--a"]


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize(
    "name", [name for name in PLATFORMS if name not in ("k8s-mpijob", "slurm-ranks")]
)
def test_a_program_that_starts_its_ranks_itself_is_run_once_per_node(
    name: str, nodes: int, bin_dir: Path
) -> None:
    on_nodes = replace(job([], "", nodes=nodes), command=("trainer", *NASTY), runs_on="node")
    call = PLATFORMS[name](on_nodes, bin_dir)
    assert call.argv == NASTY
    assert call.env["NNODES"] == str(nodes)
    assert call.env["NODE_RANK"] == ("2" if nodes > 1 or name == "slurm" else "0")
    addresses = {
        "lepton": "w-0.svc",
        "sky": "10.0.0.1",
        "k8s-jobset": "llama3-8b-node-0-0.llama3-8b",
    }
    assert call.env["MASTER_ADDR"] == (
        addresses.get(name, "node-a") if nodes > 1 or name == "slurm" else "127.0.0.1"
    )
    assert 1024 < int(call.env["MASTER_PORT"]) < 65536


def test_one_node_needs_nothing_set(bin_dir: Path) -> None:
    alone = replace(job([], "", nodes=1), command=("trainer",), runs_on="node")
    assert run(script(alone, "torchrun"), bin_dir=bin_dir, env={}).env["MASTER_PORT"] == "29500"


@pytest.mark.parametrize(
    "name", ["torchrun", "slurm", "slurm-ranks", "bcp", "lepton", "sky", "pai-dlc"]
)
def test_program_starts_in_its_folder(name: str, bin_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "-my $code's"
    folder.mkdir()
    call = PLATFORMS[name](replace(job([], "", nodes=4), workdir=str(folder)), bin_dir)
    assert call.cwd == str(folder)


def test_a_trainjob_goes_to_its_folder_first(bin_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "-my $(HOME)'s"
    folder.mkdir()
    where = replace(job(NASTY, "", nodes=4), image=IMAGE, workdir=str(folder))
    argv, env = container_call(
        read(job_text(where, launcher="k8s-trainjob").text)["spec"]["trainer"], {"HOME": "/root"}
    )
    call = run(argv, bin_dir=bin_dir, env=env)
    assert call.cwd == str(folder)
    assert call.argv[-len(NASTY) :] == NASTY


def test_a_limit_stops_what_would_run_for_ever(tmp_path: Path) -> None:
    """Where a platform has no limit of its own, `timeout` ends torchrun, with 124."""
    (tmp_path / "torchrun").write_text("#!/bin/bash\nexec sleep 60\n")
    (tmp_path / "torchrun").chmod(0o755)
    text = job_text(replace(SMALL, time_limit_s=1), launcher="torchrun").text
    result = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert result.returncode == 124


@pytest.mark.parametrize(
    "name", ["runai", "lepton", "sky", "pai-dlc", "k8s-trainjob", "k8s-pytorchjob", "k8s-jobset"]
)
def test_files_travel_with_the_job(name: str, bin_dir: Path) -> None:
    """A pod starts with what its image holds; the files come in its command, byte for byte."""
    texts = {"config.toml": "".join(NASTY), "sub dir/it's.txt": "$(HOME) $$\n\nno last line"}
    files = tuple(ExportedFile(name=file, text=text) for file, text in texts.items())
    call = PLATFORMS[name](
        replace(
            job(["config.toml"], "", nodes=4), name=f"test-{uuid.uuid4().hex[:8]}", files=files
        ),
        bin_dir,
    )
    folder = Path(call.cwd)
    assert {file: (folder / file).read_bytes().decode() for file in texts} == texts
    shutil.rmtree(folder)


def test_program_starts_beside_its_files(bin_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "my dir").mkdir()
    script = tmp_path / "my dir" / "job.sh"
    script.write_text(
        job_text(
            replace(SMALL, files=(ExportedFile(name="config.toml", text=""),)), launcher="torchrun"
        ).text
    )
    assert run(["bash", str(script)], bin_dir=bin_dir, env={}).cwd == str(script.parent)
