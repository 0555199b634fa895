"""The jobs of a work flow before they are written for a platform."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from meshwright.data.pairs import even_sum
from meshwright.platforms.given import cluster_from_flag
from meshwright.platforms.job import Job, JobOptions, job_of, parse_mount
from meshwright.platforms.shell import Copy, on_nodes
from meshwright.runs.training.prepare import divides
from meshwright.runs.training.request import written
from meshwright.runs.workflows.spec import TrainWords, WorkflowSpec
from meshwright.search.plan import search_problem
from meshwright.search.problem import (
    Asked,
    Files,
    ask,
    resolve,
)
from meshwright.search.quote import quotes
from meshwright.search.refine import (
    requote,
    setting_of,
)
from meshwright.search.request import PlanRequest
from meshwright.software.contract import Exported, ExportedFile, export_plan
from meshwright.software.plan import TrainingPlan, completed, plan_of
from meshwright.software.registry import find_target
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml
from meshwright.values.units import MINUTE_S, counted, parse_duration

__all__ = [
    "Stage",
    "Trained",
    "data_stages",
    "job_words",
    "notebook_stage",
    "pair_prefixes",
    "read_blend",
    "replicas_that_work",
    "train_stage",
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
    """Return the jobs from the corpus to .bin and .idx; each begins with what the last one left."""
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
    """Tokenize shard by shard, all nodes at one together; then read pairs back and weigh them."""
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


_RESERVED = ("data", "tokenizer", "tokenizer_kind", "vocab_file", "merge_file", "save_dir")
_RESULTS = "/results"
"""Where Base Command keeps what is downloaded with a job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """The training job and what was found out about it."""

    stage: Stage
    plan: TrainingPlan
    steps: int
    step_s: float
    """Predicted."""
    fits: str
    limit_s: int
    stop_s: int | None
    """When the software stops by itself; None: it has no word for it here."""
    weights: tuple[float, ...]
    notes: tuple[str, ...]


def train_stage(
    spec: WorkflowSpec, *, launcher: str, weights: Sequence[float] | None = None
) -> Trained:
    """Return the training job; without weights every pair counts alike, as shards are even."""
    words = spec.train
    assert words is not None
    asked = _asked(words)
    raw = [1.0] * spec.shards if weights is None else list(weights)
    if len(raw) != spec.shards:
        raise ConfigError(f"{counted(len(raw), 'weight')} for {counted(spec.shards, 'shard')}")
    shares = tuple(even_sum(raw))
    limit_s = parse_duration(words.time, name="train.time")
    stop_s = limit_s - parse_duration(words.stop_before, name="train.stop_before")
    stop = _stop_words(words.to, stop_s)
    plan = completed(plan_of(asked, settings=_settings(spec, words, shares, stop)))
    exported = export_plan(plan, target=find_target(words.to))
    [quote] = requote(quotes([asked.layout], setting_of(asked.problem)), asked.problem)
    return Trained(
        stage=_stage(spec, words, exported, plan, launcher=launcher),
        plan=plan,
        steps=plan.settings.train_steps or 0,
        step_s=quote.step_s,
        fits="yes" if quote.fits else "no",
        limit_s=limit_s,
        stop_s=stop_s if stop else None,
        weights=shares,
        notes=exported.notes,
    )


def replicas_that_work(plan: TrainingPlan, *, most: int = 1024) -> list[int]:
    """Return the numbers of nodes on which the layout's tensor, pipeline and context sizes and its
    batch go on as they are."""
    return [
        nodes
        for nodes in range(1, most + 1)
        if divides(plan.layout, gpus=nodes * plan.pool.node.chips_per_node)
    ]


def read_blend(path: Path, spec: WorkflowSpec) -> list[float]:
    """Read the weights that the job `preprocess` wrote (`data blend --output`); ConfigError where
    they are of other pairs."""
    try:
        rows = json.loads(path.read_bytes())["blend"]
        found = {row["prefix"]: float(row["weight"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: no answer of `meshwright data blend --output`: {error}"
        ) from None
    wanted = pair_prefixes(spec)
    if set(found) != set(wanted):
        other = sorted(set(found) ^ set(wanted))[0]
        raise ConfigError(
            f"{path}: weighs other pairs than the {len(wanted)} of {spec.name}; {other} is in one"
            " of them only"
        )
    return [found[prefix] for prefix in wanted]


def _asked(words: TrainWords) -> Asked:
    target = find_target(words.to)
    stack = {"stack": target.stacks[0]} if target.stacks else {}
    asked = {"model": words.model, "cluster": words.cluster, "seq_len": words.seq, "top": 1}
    request = PlanRequest.of({**asked, "gbs": words.gbs, **stack})
    cluster = cluster_from_flag(words.cluster, gpus_per_node=request.gpus_per_node)
    problem = resolve(request, files=Files(cluster=cluster))
    layout = words.layout
    if layout is None:
        result = search_problem(problem)
        if not result.plans:
            raise ConfigError(
                f"train: no layout of {words.model} fits on {words.cluster}; `meshwright plan` says"
                " by how much"
            )
        layout = result.plans[0].layout.words()
    return ask(layout, problem)


def _settings(
    spec: WorkflowSpec, words: TrainWords, shares: Sequence[float], stop: Sequence[str]
) -> TrainingSettings:
    if reserved := [name for name in _RESERVED if name in words.settings]:
        raise ConfigError(
            f"train.settings: {', '.join(reserved)} follow from the work flow; leave them out"
        )
    vocab_file, merge_file = vocabulary_files(spec)
    data = tuple(
        Dataset(path=prefix, weight=share)
        for prefix, share in zip(pair_prefixes(spec), shares, strict=True)
    )
    own = {
        "data": data,
        "tokenizer_kind": "gpt2-bpe",
        "vocab_file": vocab_file,
        "merge_file": merge_file,
        "save_dir": f"{spec.folder}/train",
    }
    return TrainingSettings.of(
        {**words.settings, **own, "extra": (*words.settings.get("extra", ()), *stop)}
    )


def _stop_words(to: str, stop_s: int) -> tuple[str, ...]:
    """Return what makes the software stop and save by itself; () where this export has no word for
    it.

    NeMo's `run.time_limit` is for Slurm alone: on Base Command nothing reads it, `trainer.max_time`
    is what stops there.
    """
    if to == "nemo1-script":
        return (f"training.trainer.max_time={written(stop_s, 'days:hours:minutes:seconds')}",)
    return ("--exit-duration-in-mins", str(stop_s // MINUTE_S)) if to == "megatron-lm" else ()


def _stage(
    spec: WorkflowSpec, words: TrainWords, exported: Exported, plan: TrainingPlan, *, launcher: str
) -> Stage:
    options = replace(job_words(spec, words.job), name=f"{spec.name}-train", time=words.time)
    job = replace(
        job_of(exported, model=plan.model.name, pool=plan.pool, options=options),
        files=exported.files,
    )
    needs = [f"{prefix}.{ending}" for prefix in pair_prefixes(spec) for ending in ("bin", "idx")]
    results = Copy(
        source=f"{spec.folder}/train", target=options.log_dir or _RESULTS, exclude=("checkpoints/",)
    )
    whole = on_nodes(
        job,
        logs=f"{spec.folder}/logs/train",
        needs=(*vocabulary_files(spec), *needs),
        programs=("torchrun",) if exported.runs_on == "rank" else (),
        copy=results if launcher == "bcp" else None,
    )
    does = f"{plan.model.name} on {spec.shards} weighted pairs, {plan.layout.words()}"
    return Stage(name="train", does=does, job=whole)
