"""The jobs of a work flow before they are written for a platform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from meshwright.platforms.job import Job, JobOptions, parse_mount
from meshwright.platforms.shell import on_nodes
from meshwright.runs.workflows.spec import WorkflowSpec
from meshwright.software.contract import ExportedFile
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml
from meshwright.values.units import counted, parse_duration

__all__ = [
    "Stage",
    "StageName",
    "data_stages",
    "job_words",
    "notebook_stage",
    "pair_prefixes",
    "plain_job",
    "vocabulary_files",
]

StageName = Literal["download", "verify", "extract", "concat", "preprocess", "train", "notebook"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One job, and what to know of it."""

    name: StageName
    does: str
    job: Job


def pair_prefixes(spec: WorkflowSpec) -> tuple[str, ...]:
    """Return the pairs of .bin and .idx that the data jobs make, in order."""
    return tuple(f"{prefix}_text_document" for prefix in _prefixes(spec))


def vocabulary_files(spec: WorkflowSpec) -> tuple[str, str]:
    """Return where the vocabulary and the merges lie."""
    vocabulary = spec.vocabulary
    first, second = (
        f"{spec.folder}/bpe/{url.rpartition('/')[2]}"
        for url in (vocabulary.vocab_file, vocabulary.merge_file)
    )
    return first, second


def data_stages(spec: WorkflowSpec) -> list[Stage]:
    """Return the jobs from the corpus to its pairs of .bin and .idx; each begins with what the one
    before it left."""
    folder, workers = spec.folder, str(spec.data.workers)
    raw, text, shards = f"{folder}/raw", f"{folder}/text", f"{folder}/shards"
    chunks = () if spec.data.chunks is None else ("--chunks", str(spec.data.chunks))
    fetched, extracted, joined = (f"{part}/manifest.json" for part in (raw, text, shards))
    check = ("check", raw, "--corpus", spec.corpus, *chunks, "--workers", workers)
    extract = ("extract", raw, "-o", text, "--consume", "--workers", workers)
    concat = ("concat", text, "-o", shards, "--shards", str(spec.shards), *extract[4:])
    does = _DOES
    pairs = f"{counted(spec.shards, 'pair')} of .bin and .idx, read back, and their weights by"
    return [
        _data(spec, "download", does["download"], recipe=_fetch(spec, raw)),
        _data(spec, "verify", does["verify"], check, needs=(fetched,), nodes=1),
        _data(spec, "extract", does["extract"], extract, needs=(fetched,)),
        _data(spec, "concat", f"{spec.shards} {does['concat']}", concat, needs=(extracted,)),
        _data(
            spec,
            "preprocess",
            f"{pairs} tokens",
            recipe=_tokenize(spec, shards),
            needs=(joined, *vocabulary_files(spec)),
        ),
    ]


_DOES: dict[StageName, str] = {
    "download": "archives, each with its length, its sha256 and its own check",
    "verify": "every archive is there and is what was fetched",
    "extract": "archives to plain text; each goes when its text was read back",
    "concat": "even shards, cut between documents",
}


def notebook_stage(spec: WorkflowSpec) -> Stage:
    """Return JupyterLab on one node. Its token is made when it starts and stands in the job's log
    alone, not in what is submitted."""
    words = spec.notebook
    assert words is not None
    token, door = "token=''", "NO TOKEN: whoever has its address has a shell"
    if words.token:
        token, door = _TOKEN, "a token that its log shows"
    options = f"--ip=0.0.0.0 --port={words.port} --no-browser --allow-root"
    options += ' --ServerApp.token="$token" --ServerApp.root_dir="$0"'
    command = (
        *("bash", "-c", f"set -euo pipefail\n{token}\nexec jupyter lab {options}\n"),
        spec.folder,
    )
    own = job_words(spec, words.job)
    job = plain_job(spec, "notebook", own, command=command, nodes=1, asks_for="gpus")
    does = f"JupyterLab on port {words.port}, {door}"
    return Stage(name="notebook", does=does, job=replace(job, port=words.port))


_TOKEN = (
    'read -r token < <(python3 -c "import secrets; print(secrets.token_hex(24))")\n'
    'echo "The token of JupyterLab: $token"'
)


def job_words(spec: WorkflowSpec, own: JobOptions) -> JobOptions:
    """Return the words for one job: its own, and those of the work flow where it has none."""
    values = ((entry.name, getattr(own, entry.name)) for entry in fields(JobOptions))
    return replace(spec.job, **{name: value for name, value in values if value not in (None, ())})


def plain_job(
    spec: WorkflowSpec,
    name: str,
    words: JobOptions,
    *,
    command: Sequence[str],
    nodes: int,
    asks_for: Literal["gpus", "nodes"],
) -> Job:
    """Return a job that runs a program once on each node."""
    if words.name or words.start:
        raise ConfigError(
            "work flow: job: name and start follow from the work flow; leave them out"
        )
    limit = None if words.time is None else parse_duration(words.time, name=f"{name}.time")
    return Job(
        name=f"{spec.name}-{name}",
        command=tuple(command),
        runs_on="node",
        nodes=nodes,
        gpus_per_node=1,
        asks_for=asks_for,
        time_limit_s=limit,
        mounts=tuple(map(parse_mount, words.mounts)),
        **{field: getattr(words, field) for field in _AS_THEY_ARE},
    )


_AS_THEY_ARE = (
    *("image", "workdir", "account", "partition", "instance", "log_dir", "cpus", "memory"),
    *("shared_memory", "priority", "words"),
)
"""Words of a job file that are fields of a job, too."""


def _data(
    spec: WorkflowSpec,
    name: StageName,
    does: str,
    command: Sequence[str] = (),
    *,
    recipe: dict[str, Any] | None = None,
    needs: Sequence[str] = (),
    nodes: int | None = None,
) -> Stage:
    words = job_words(spec, replace(spec.data.job, time=spec.data.time or spec.data.job.time))
    file = None if recipe is None else ExportedFile(name=f"{name}.yaml", text=write_yaml(recipe))
    line = ("meshwright", "data", *(command if file is None else ("run", file.name)))
    job = plain_job(
        spec, name, words, command=line, nodes=nodes or spec.data.nodes, asks_for="nodes"
    )
    if file is not None:
        job = replace(job, files=(file,), workdir=None)
    logs, setup = f"{spec.folder}/logs/{name}", spec.data.setup
    whole = on_nodes(job, logs=logs, needs=needs, programs=("meshwright",), setup=setup)
    return Stage(name=name, does=does, job=whole)


def _fetch(spec: WorkflowSpec, raw: str) -> dict[str, Any]:
    chunks = {} if spec.data.chunks is None else {"chunks": spec.data.chunks}
    urls = [spec.vocabulary.vocab_file, spec.vocabulary.merge_file]
    vocabulary = {"urls": urls, "output": f"{spec.folder}/bpe"}
    corpus = {"corpus": spec.corpus, "output": raw, "workers": spec.data.workers, **chunks}
    return _recipe(spec, "download", [{"download": vocabulary}, {"download": corpus}])


def _recipe(spec: WorkflowSpec, name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"pipeline": "custom", "folder": f"{spec.folder}/jobs/{name}", "steps": steps}


def _tokenize(spec: WorkflowSpec, shards: str) -> dict[str, Any]:
    """Tokenize shard by shard, all nodes at one together; then read every pair back, and weigh
    them."""
    vocab_file, merge_file = vocabulary_files(spec)
    shared = {
        "vocab_file": vocab_file,
        "merge_file": merge_file,
        "append_eod": True,
        "workers": spec.data.workers,
    }
    inputs = [[f"{shards}/shard_{number}.jsonl"] for number in _numbers(spec)]
    prefixes, weights = _prefixes(spec), f"{spec.folder}/tokens/blend.json"
    steps: list[dict[str, Any]] = [
        {"tokenize": {"inputs": files, "output_prefix": prefix, **shared}}
        for files, prefix in zip(inputs, prefixes, strict=True)
    ]
    steps += [{"verify": {"output_prefix": prefix}} for prefix in prefixes]
    steps.append({"blend": {"inputs": list(pair_prefixes(spec)), "output": weights}})
    return _recipe(spec, "preprocess", steps)


def _prefixes(spec: WorkflowSpec) -> list[str]:
    return [f"{spec.folder}/tokens/{spec.corpus}_{number}" for number in _numbers(spec)]


def _numbers(spec: WorkflowSpec) -> list[str]:
    """As `data concat` numbers its shards."""
    digits = max(2, len(str(spec.shards - 1)))
    return [f"{number:0{digits}}" for number in range(spec.shards)]
