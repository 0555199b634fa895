"""The `training` stage: the user's configuration put right, priced, and made a job of NeMo 1.x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.api import problem_of
from meshwright.api.existing import price_of, run_of
from meshwright.compat.launcher.data import Prepared
from meshwright.compat.launcher.jobs import Step, step
from meshwright.compat.launcher.line import Line
from meshwright.data.pairs import blend, even_sum
from meshwright.platforms.shell import Copy
from meshwright.runs.training.request import written
from meshwright.search.request import PlanRequest
from meshwright.software.contract import EnvVar
from meshwright.software.folders import TimeForm
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml
from meshwright.values.units import DAY_S, MINUTE_S, counted, parse_duration

__all__ = ["Trained", "train_step"]

_SCRIPTS = {"bert": "bert", "mt5": "t5", "t5": "t5"}
"""Programs of NeMo by family; all others take GPT's (core/stages.py of the launcher)."""
_EXAMPLES = "/opt/NeMo/examples/nlp/language_modeling"
_SAVING_S = 30 * MINUTE_S
"""From NeMo's own stop to the platform's: that of NVIDIA's configurations."""
_RESULTS = "/results"
_FORM: TimeForm = "days:hours:minutes:seconds"


@dataclass(kw_only=True, slots=True)
class Trained:
    """The training job, and what to know of it."""

    step: Step
    config: Mapping[str, Any]
    """What NeMo reads."""
    name: str
    """Of its file."""
    corrected: list[str] = field(default_factory=list)
    """What was put right, in whole sentences."""
    found: list[str] = field(default_factory=list)
    """What was found out: the prediction, and the checkpoint that it goes on from."""


def train_step(line: Line, *, prepared: Prepared | None, chip: str, setup: str | None) -> Trained:
    """Return the job of `training`; ConfigError for what can't run, with what would.

    Args:
        line: the line.
        prepared: what the line's own data preparation leaves; None: it has none.
        chip: what it is priced on.
        setup: bash that runs on each node first.
    """
    config, corrected = deepcopy(dict(line.config["training"])), list[str]()
    run = config.pop("run")
    config.pop("hydra", None)
    trainer, model = config["trainer"], config["model"]
    _nodes(line, trainer, corrected)
    limit = _limits(line, run, trainer, corrected)
    _divides(trainer, model)
    prefixes = None if prepared is None else prepared.prefixes
    needs = _data(line, model["data"], prefixes, corrected)
    _tokenizer(line, model, prepared, corrected)
    name, family = f"{run['name']}_hydra", line.choice("training").partition("/")[0]
    text = write_yaml(config)
    found = [*_priced(text, trainer, chip), *_resumed(config)]
    folder = str(run["results_dir"])
    script = f"{_EXAMPLES}/megatron_{_SCRIPTS.get(family, 'gpt')}_pretraining.py"
    job = step(
        line,
        str(run["name"]),
        does=f"{line.choice('training')} on {counted(_gpus(trainer), 'GPU')}",
        command=(script, "--config-dir=.", f"--config-name={name}"),
        nodes=int(trainer["num_nodes"]),
        gpus_per_node=int(trainer["devices"]),
        time=limit,
        logs=f"{folder}/logs",
        needs=[*needs, *_tokenizer_files(model)],
        programs=("torchrun",),
        file=(f"{name}.yaml", text),
        environment=_environment(line, model),
        secrets=_secrets(line, config, corrected),
        setup=setup,
        copy=Copy(source=folder, target=_RESULTS, exclude=("checkpoints/",))
        if line.platform.launcher in ("bcp", "bcprun")
        else None,
    )
    return Trained(step=job, config=config, name=name, corrected=corrected, found=found)


def _gpus(trainer: Mapping[str, Any]) -> int:
    return int(trainer["num_nodes"]) * int(trainer["devices"])


def _nodes(line: Line, trainer: dict[str, Any], corrected: list[str]) -> None:
    """The nodes of the job that we are in, where the line does not say fewer."""
    here, wanted = line.inside, int(trainer["num_nodes"])
    if here is None:
        return
    if line.says("training.trainer.num_nodes"):
        if wanted > here.nodes:
            raise ConfigError(
                f"training.trainer.num_nodes={wanted}: {counted(here.nodes, 'node')}"
                f" {'is' if here.nodes == 1 else 'are'} here"
            )
        return
    if wanted != here.nodes:
        trainer["num_nodes"] = here.nodes
        corrected.append(
            f"training.trainer.num_nodes={wanted} is {here.nodes}, the nodes that are here"
        )


def _limits(
    line: Line, run: Mapping[str, Any], trainer: dict[str, Any], corrected: list[str]
) -> str:
    """Return the platform's limit, behind NeMo's own, which saves; what the line itself says is
    kept, and refused where it can't be."""
    limit, own = str(run["time_limit"]), str(trainer["max_time"])
    limit_s = parse_duration(limit, name="training.run.time_limit")
    own_s = parse_duration(own, name="training.trainer.max_time")
    if own_s < limit_s:
        return limit
    limit_said = line.says("training.run.time_limit")
    if limit_said and line.says("training.trainer.max_time"):
        raise ConfigError(
            f"training.trainer.max_time={own} is no less than training.run.time_limit={limit}: the"
            f" job would be killed before it saves; max_time={written(limit_s - _SAVING_S, _FORM)}"
            " would do"
            if limit_s > _SAVING_S
            else f"training.run.time_limit={limit}: too short to save before it"
        )
    if limit_said:
        trainer["max_time"] = written(max(limit_s - _SAVING_S, limit_s // 2), _FORM)
        corrected.append(
            f"training.trainer.max_time={own} is {trainer['max_time']}, so that NeMo saves before"
            f" the limit of {limit}"
        )
        return limit
    raised = written(own_s + _SAVING_S, "days-hours:minutes:seconds")
    corrected.append(
        f"training.run.time_limit={limit} is {raised}, 30 minutes behind max_time={own}; on Base"
        " Command it is the job's --total-runtime, and NVIDIA's launcher does not read it there"
    )
    return raised


def _divides(trainer: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """ConfigError where the GPUs make no whole replicas, or the batch no whole micro batches."""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    tp, pp, cp = (int(model.get(name) or 1) for name in sizes)
    gbs, mbs = int(model["global_batch_size"]), int(model["micro_batch_size"])
    gpus, devices = _gpus(trainer), int(trainer["devices"])
    most = range(1, gbs // mbs + 1)
    fitting = [dp * tp * pp * cp for dp in most if gbs % (mbs * dp) == 0]
    if gpus in fitting:
        return
    nodes = sorted({count // devices for count in fitting if count % devices == 0})
    near = sorted(nodes, key=lambda count: (abs(count * devices - gpus), count))[:3]
    raise ConfigError(
        f"training: {gpus} GPUs do not divide tp {tp} * pp {pp} * cp {cp}, or the batch of {gbs} in"
        f" micro batches of {mbs}; training.trainer.num_nodes="
        + " or ".join(map(str, sorted(near)))
        + " would do"
    )


def _data(
    line: Line, data: dict[str, Any], prefixes: Sequence[str] | None, corrected: list[str]
) -> list[str]:
    """Take the pairs that are there, and return the files that the job needs."""
    folder, key = str(line.config["data_dir"]), "training.model.data.data_prefix"
    if data.get("data_impl") == "mock":
        return []
    given = list(data.get("data_prefix") or ())
    usual = [str(word) for word in given if not _is_number(word)]
    if not line.says(key):
        found = None if _all_there(usual) else _pairs_of(line, prefixes, folder)
        if found is not None:
            words, why = found
            data["data_prefix"] = given = words
            was = f"the {len(usual)} names of the configuration" if usual else "none"
            corrected.append(f"{key}: {why}, in place of {was}")
    names = [str(word) for word in given if not _is_number(word)]
    if not names:
        raise ConfigError(f"{key}: no data is named, and none lies in data_dir={folder}")
    return [f"{name}.{ending}" for name in names for ending in ("bin", "idx")]


def _pairs_of(
    line: Line, prefixes: Sequence[str] | None, folder: str
) -> tuple[list[Any], str] | None:
    """The pairs of the line's own data preparation, else those that lie in a folder that is to be
    seen from here, with the sentence that says so."""
    preprocessed = line.config["data_preparation"].get("preprocessed_dir")
    if prefixes and not _all_there(prefixes):
        shares = even_sum([1.0] * len(prefixes))
        words = [word for pair in zip(shares, prefixes, strict=True) for word in pair]
        return words, (
            f"the {counted(len(prefixes), 'pair')} of this line's data preparation, all alike until"
            " their tokens are known"
        )
    for place in filter(None, (preprocessed, folder)):
        seen = sorted(str(path.with_suffix("")) for path in Path(place).rglob("*.idx"))
        if paths := list(prefixes or seen):
            mixed = blend(paths)
            pairs = zip(mixed.weights, mixed.prefixes, strict=True)
            words = [word for weight, prefix in pairs for word in (round(weight, 6), str(prefix))]
            return words, f"{counted(len(paths), 'pair')} in {place}, weighed by their tokens"
    return None


def _all_there(names: Sequence[str]) -> bool:
    return bool(names) and all(Path(f"{name}.idx").exists() for name in names)


def _is_number(word: Any) -> bool:
    try:
        float(word)
    except (TypeError, ValueError):
        return False
    return True


def _tokenizer(
    line: Line, model: dict[str, Any], prepared: Prepared | None, corrected: list[str]
) -> None:
    """Take the tokenizer that the line's own corpus is made with, unless the line says another."""
    key = "training.model.tokenizer"
    own = None if prepared is None else prepared.tokenizer
    if own is None or any(name.startswith(key) for name in line.typed):
        return
    model["tokenizer"] = {**model.get("tokenizer", {}), **own}
    corrected.append(f"{key} is {own['model']}, with which this line's data is made")


def _tokenizer_files(model: Mapping[str, Any]) -> list[str]:
    words = model.get("tokenizer") or {}
    named = [words.get(key) for key in ("vocab_file", "merge_file", "model")]
    return [str(path) for path in named if path and str(path).startswith("/")]


def _environment(line: Line, model: Mapping[str, Any]) -> list[EnvVar]:
    """`env_vars`, and what NVIDIA's launcher sets by the layout."""
    found = [
        EnvVar(name=str(name), value=str(value), why=f"env_vars.{name} of the line")
        for name, value in line.config["env_vars"].items()
        if value is not None
    ]
    sizes = ("tensor_model_parallel_size", "context_parallel_size")
    if any(int(model.get(name) or 1) > 1 for name in sizes) and not model.get("fsdp"):
        why = "communication is launched before the compute that hides it"
        found.append(EnvVar(name="CUDA_DEVICE_MAX_CONNECTIONS", value="1", why=why))
    return found


def _secrets(line: Line, config: Mapping[str, Any], corrected: list[str]) -> list[str]:
    """The key of Weights & Biases, from the platform's store or the environment."""
    named = line.config.get("wandb_api_bcp_secret_key")
    file = line.config.get("wandb_api_key_file")
    if not config["exp_manager"].get("create_wandb_logger"):
        return []
    if file is not None:
        corrected.append(
            f"wandb_api_key_file={file}: its key is not written into a script; set WANDB_API_KEY"
            " where you start this line"
        )
    if named is not None and str(named) != "WANDB_API_KEY":
        corrected.append(
            f"wandb_api_bcp_secret_key={named}: the program reads WANDB_API_KEY; keep the key under"
            " that name"
        )
    return ["WANDB_API_KEY"]


def _priced(text: str, trainer: Mapping[str, Any], chip: str) -> list[str]:
    """The predicted step, whether it fits, and how far the time reaches."""
    flags = {"cluster": f"{chip}:{_gpus(trainer)}"}
    try:
        run = run_of(Path("hydra.yaml"), text, flags)
        quote = price_of(run.asked(problem_of(PlanRequest.of({**run.fields(), **flags}))))
    except ConfigError as error:
        return [f"not predicted: {error}"]
    steps, days = int(trainer["max_steps"]), quote.step_s / DAY_S
    reached = parse_duration(str(trainer["max_time"]), name="max_time") / quote.step_s
    fits = "it fits" if quote.fits else "it does NOT fit"
    lines = [
        f"predicted on {chip}: {quote.step_s:.3g} s a step, {fits}; {steps:,} steps take"
        f" {steps * days:.3g} days"
    ]
    if reached < steps:
        lines.append(
            f"one job of max_time={trainer['max_time']} reaches step {int(reached):,}"
            f" ({reached / steps:.0%}); the same line goes on from its newest checkpoint"
        )
    return lines


def _resumed(config: Mapping[str, Any]) -> list[str]:
    """The checkpoint that is there already."""
    manager = config["exp_manager"]
    folder = Path(str(manager["explicit_log_dir"])) / "checkpoints"
    kept = sorted(folder.glob("*-last*")) if folder.is_dir() else []
    if not kept:
        return []
    if not manager.get("resume_if_exists"):
        return [f"{kept[-1].name} is there, and resume_if_exists=False begins anew"]
    return [f"goes on from {kept[-1].name}"]
