"""The training job of a work flow: a plan of ours, in the words of its software, over the weighted
pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.data.pairs import even_sum
from meshwright.platforms.given import cluster_from_flag
from meshwright.platforms.job import job_of
from meshwright.platforms.shell import Copy, on_nodes
from meshwright.runs.training.division import divides
from meshwright.runs.training.software import written
from meshwright.runs.workflows.spec import TrainWords, WorkflowSpec
from meshwright.runs.workflows.stages import Stage, job_words, pair_prefixes, vocabulary_files
from meshwright.search.asked import Asked, ask
from meshwright.search.plan import search_problem
from meshwright.search.problem import Files, resolve
from meshwright.search.quote import quotes
from meshwright.search.request import PlanRequest
from meshwright.search.requote import requote, setting_of
from meshwright.software.contract import Exported, export_plan
from meshwright.software.plan import TrainingPlan, completed, plan_of
from meshwright.software.registry import find_target
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.units import MINUTE_S, counted, parse_duration

__all__ = [
    "Trained",
    "read_blend",
    "replicas_that_work",
    "train_stage",
]

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
    """Return the training job; without weights every pair counts alike, for the shards have equal
    bytes."""
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
