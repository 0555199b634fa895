"""No value of a job runs anything, on any platform: each field x each hostile value, executed."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.platforms.examples import IMAGE, SMALL
from tests.platforms.hostile import ATTACKS, Bench, attack

from meshwright.platforms import shell
from meshwright.platforms.job import Job, JobText, Mount
from meshwright.platforms.registry import job_text, launchers
from meshwright.software.contract import EnvVar, ExportedFile
from meshwright.values.errors import ConfigError

Change = Callable[[Job, str], Job]


def _variable(job: Job, **given: str) -> Job:
    own = {"name": "ODD", "value": "1", "why": "a reason", **given}
    return replace(job, environment=(*job.environment, EnvVar(**own)))


def _mount(job: Job, **given: Any) -> Job:
    first = job.mounts[0] if job.mounts else Mount(source="/data", target="/data")
    return replace(job, mounts=(replace(first, **given), *job.mounts[1:]))


FIELDS: Mapping[str, Change] = {
    "name": lambda job, value: replace(job, name=value),
    "name-behind": lambda job, value: replace(job, name=f"a{value}"),
    "word": lambda job, value: replace(job, command=(*job.command, value)),
    "flag": lambda job, value: replace(job, command=(*job.command, f"--a={value}")),
    "variable": lambda job, value: _variable(job, value=value),
    "reason": lambda job, value: _variable(job, name="ODDER", why=value),
    "variable-name": lambda job, value: _variable(job, name=value),
    "secret": lambda job, value: replace(job, secrets=(*job.secrets, value)),
    "image": lambda job, value: replace(job, image=f"{value}.sif" if _is_file(job) else value),
    "source": lambda job, value: _mount(job, source=f"/data{value}"),
    "target": lambda job, value: _mount(job, target=f"/data{value}"),
    "mount-kind": lambda job, value: _mount(job, kind=value),
    "workdir": lambda job, value: replace(job, workdir=f"{job.workdir}{value}"),
    **{
        name: lambda job, value, name=name: replace(job, **{name: value})  # type: ignore[misc]
        for name in (
            *("account", "partition", "instance", "memory", "shared_memory", "priority"),
            *("preempt", "min_timeslice"),
        )
    },
    "log_dir": lambda job, value: replace(job, log_dir=f"logs{value}"),
    "option": lambda job, value: replace(job, words=(*job.words, f"--odd={value}")),
    "option-alone": lambda job, value: replace(job, words=(*job.words, value)),
    "file": lambda job, value: _file(job, text=f"a\n{value}\n"),
    "file-name": lambda job, value: _file(job, name=f"b{value.replace('/', '_')}"),
}
"""Every text of a job, and how a value gets into it."""


def _is_file(job: Job) -> bool:
    return job.image is not None and job.image.endswith(".sif")


def _file(job: Job, *, name: str = "own.yaml", text: str = "a: 1\n") -> Job:
    return replace(job, files=(*job.files, ExportedFile(name=name, text=text)), workdir=None)


ALONE = replace(SMALL, command=("train.py", "--lr", "1"), environment=(), workdir="/folder")
RANKS = replace(ALONE, nodes=4, secrets=("HF_TOKEN",), time_limit_s=3600)
NODES = replace(RANKS, command=("trainer", "a"), runs_on="node")
INSIDE = replace(RANKS, image=IMAGE)
KINDS: Mapping[str, tuple[str, Job]] = {
    "torchrun": ("torchrun", RANKS),
    "torchrun, one node": ("torchrun", ALONE),
    "torchrun, own ranks": ("torchrun", NODES),
    "slurm": ("slurm", RANKS),
    "slurm, by ranks": ("slurm", replace(RANKS, launch="ranks")),
    "slurm, own ranks": ("slurm", NODES),
    "slurm, pyxis": ("slurm", INSIDE),
    "slurm, Apptainer": ("slurm", replace(INSIDE, image="/a.sif")),
    "bcp": ("bcp", replace(INSIDE, instance="i")),
    "bcp, one node": ("bcp", replace(ALONE, image=IMAGE, instance="i")),
    "bcp, own ranks": ("bcp", replace(NODES, image=IMAGE, instance="i")),
    "bcprun": ("bcprun", RANKS),
    "bcprun, own ranks": ("bcprun", NODES),
    **{name: (name, INSIDE) for name in launchers() if name.startswith("k8s-")},
    "k8s-jobset, own ranks": ("k8s-jobset", replace(NODES, image=IMAGE)),
    "runai": ("runai", replace(INSIDE, secrets=())),
    "lepton": ("lepton", replace(INSIDE, instance="gpu.8xh100-sxm")),
    "sky": ("sky", replace(INSIDE, instance="H100")),
    "pai-dlc": (
        "pai-dlc",
        replace(INSIDE, account="1", instance="ecs.gn7e", secrets=(), time_limit_s=None),
    ),
    "pai-dlc, a quota": (
        "pai-dlc",
        replace(
            replace(INSIDE, account="1", partition="q", secrets=(), time_limit_s=None),
            cpus=8,
            memory="9Gi",
        ),
    ),
}
"""Every platform, by each way of starting processes that it has."""


def test_every_platform_is_tried() -> None:
    assert {launcher for launcher, _ in KINDS.values()} == set(launchers())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    name = f"mw-{uuid.uuid4().hex[:8]}"
    bench = Bench.at(tmp_path)
    (tmp_path / "name").write_text(name)
    yield bench
    shutil.rmtree(f"/tmp/{name}", ignore_errors=True)


def _placed(job: Job, bench: Bench) -> Job:
    """Return the job under a name of its own, and in a folder that is there."""
    return replace(
        job, name=(bench.folder / "name").read_text(), workdir=str(bench.folder / "folder")
    )


def _execute(text: JobText, launcher: str, job: Job, bench: Bench) -> list[tuple[int, str]]:
    """Submit a job as its text says, and start what the platform would start on a node; return the
    codes, each with what was said on stderr."""
    (bench.work / text.file_name).write_text(text.text)
    if job.workdir is not None:
        Path(job.workdir).mkdir(parents=True, exist_ok=True)
    submit = ["bash", "-c", text.submit.replace("FIRST_NODE", "node-a")]
    return [bench.run(*words) for words in (submit, *_started(text, launcher, bench))]


def _started(text: JobText, launcher: str, bench: Bench) -> Iterator[list[str]]:
    """Yield the commands that a platform takes out of a file; scripts of bash have run already."""
    if launcher == "slurm":
        yield ["bash", str(bench.work / text.file_name)]
    elif launcher == "pai-dlc":
        yield ["sh", "-c", json.loads(text.text)["UserCommand"]]
    elif launcher == "sky":
        yield ["bash", "-c", yaml.unsafe_load(text.text)["run"]]
    elif launcher.startswith("k8s-"):
        for command in _commands(yaml.unsafe_load(text.text)):
            if "sshd" not in command[0]:
                yield [word.replace("$$", "$") for word in command]


def _commands(content: object) -> Iterator[list[str]]:
    if isinstance(content, dict):
        if isinstance(content.get("command"), list):
            yield content["command"]
        for value in content.values():
            yield from _commands(value)
    elif isinstance(content, list):
        for value in content:
            yield from _commands(value)


def _hostile(name: str, kind: str, bench: Bench) -> tuple[list[Job], set[str]]:
    """Return jobs that carry a value in every field which takes it, in as few as can be, and the
    fields that do."""
    launcher, plain = KINDS[kind]
    base = _placed(plain, bench)
    together, alone, taken = base, [], set[str]()
    for field, change in FIELDS.items():
        value = attack(name, bench.canary(field))
        try:
            job_text(one := change(base, value), launcher=launcher)
        except ConfigError:
            continue
        taken.add(field)
        try:
            job_text(more := change(together, value), launcher=launcher)
        except ConfigError:
            alone.append(one)
            continue
        if more.workdir is None:
            alone.append(one)  # a job has files or a folder
            continue
        together = more
    return [together, *alone], taken


QUICK = ("substitution", "both quotes", "lines", "end of a here document", "option")
"""One of each kind; all of them are tried by `scripts/check all`."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(tuple(ATTACKS), id="all", marks=pytest.mark.slow),
    ],
)
def test_no_field_runs_anything(kind: str, names: tuple[str, ...], bench: Bench) -> None:
    """Scripts run to their end, and no canary is there; what is refused is refused in words."""
    launcher, _ = KINDS[kind]
    taken = set()
    for name in names:
        jobs, fields = _hostile(name, kind, bench)
        taken |= fields
        for job in jobs:
            ended = _execute(job_text(job, launcher=launcher), launcher, job, bench)
            assert {code for code, _ in ended} == {0}, ended
            assert bench.ran(), "nothing was started"
            assert bench.injected() == [], name
    assert {"word", "flag", "variable", "reason"} <= taken
    assert not taken & {"name", "name-behind", "variable-name", "secret"}


CARELESS = ("substitution", "backticks")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("k8s-")])
def test_the_matrix_catches_a_platform_that_does_not_quote(
    kind: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same jobs by the same writers, with quotes taken away."""
    launcher, _ = KINDS[kind]
    jobs = [job for name in CARELESS for job in _hostile(name, kind, bench)[0]]
    monkeypatch.setattr(shell, "quote", str)
    found = set[str]()
    for job in jobs:
        _execute(job_text(job, launcher=launcher), launcher, job, bench)
        found |= set(bench.injected())
    assert {"word", "flag"} & found


CONTEXTS: Mapping[str, str] = {
    "bash": "trainer VALUE\n",
    "bash, a command that fails": "false VALUE\n",
    "bash, an option": "rsync VALUE a b\n",
    "bash, an option in quotes": "rsync 'VALUE' a b\n",
    "bash, an option of ssh": "ssh 'VALUE' node a\n",
    "bash, through ssh": "ssh node trainer 'VALUE'\n",
    "bash, double quotes": 'trainer "VALUE"\n',
    "bash, single quotes": "trainer 'VALUE'\n",
    "bash, before a quote": "trainer VALUE'\n",
    "bash, a here document": "trainer <<'END'\nVALUE\nEND\n",
    "bash, arithmetic": "((0 + VALUE))\n",
    "bash, evaluated": "eval trainer VALUE\n",
    "bash, evaluated in double quotes": 'eval "trainer VALUE"\n',
    "bash, a group": "{ trainer VALUE; }\n",
    "bash, a group in parentheses": "( trainer VALUE )\n",
    "bash, a comment": "# VALUE\ntrainer\n",
    "bash, expanded as Kubernetes does": "trainer VALUE\n",
    "YAML": "a: VALUE\n",
    "YAML, an item": "- VALUE\n",
    "YAML, single quotes": "a: 'b'\n'VALUE'\n",
    "Python": "a = VALUE\n",
    "Python, single quotes": "a = 'VALUE'\n",
    "Python, double quotes": 'a = "VALUE"\n',
    "Python, three quotes": 'a = """VALUE"""\n',
    "Python, formatted": 'a = f"VALUE"\n',
    "Python, a comment": "# VALUE\n",
}
"""Careless ways to write a value."""


def _run_careless(context: str, value: str, bench: Bench) -> None:
    if "Kubernetes" in context:
        value = value.replace("$$", "$")
    text = CONTEXTS[context].replace("VALUE", value)
    if context.startswith("bash"):
        bench.run("bash", "-c", text)
    elif context.startswith("YAML"):
        try:
            yaml.unsafe_load(text)
        except yaml.YAMLError:
            return
    else:
        try:
            exec(compile(text, "careless", "exec"), {})
        except Exception:
            return


def test_every_attack_is_alive_where_nothing_is_quoted(bench: Bench) -> None:
    """The other control: each value runs its program by one careless way at least, and each such
    way lets one in; what no one lets in would prove nothing."""
    alive: dict[str, set[str]] = {name: set() for name in ATTACKS}
    for name in ATTACKS:
        for context in CONTEXTS:
            _run_careless(context, attack(name, bench.canary("careless")), bench)
            if bench.injected():
                alive[name].add(context)
    assert [name for name, contexts in alive.items() if not contexts] == []
    assert set(CONTEXTS) == set().union(*alive.values())
