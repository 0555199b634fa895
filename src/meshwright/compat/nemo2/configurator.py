"""AutoConfigurator of NeMo 2.0: a recipe and limits, checked, and the layouts worth a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from meshwright import api
from meshwright.compat.autoconfigurator.settings import card_of
from meshwright.compat.checks import Sizes, budget_of, positive, sizes, whole
from meshwright.compat.nemo2.given import (
    Given,
    Mode,
    changed,
    given_of,
    given_values,
    named_recipe,
    refusal_for,
    size_values,
    time_words,
    tree_of,
)
from meshwright.runs.candidates import Candidate, each_cut
from meshwright.search.problem import Problem, dims_of
from meshwright.search.request import PlanRequest
from meshwright.sizing.shapes import shape_of
from meshwright.sizing.size import Budget, classic_params, classic_seconds
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import DAY_S

__all__ = ["AutoConfigurator", "Chosen", "generate_configs"]

_Asked = Sequence[int] | Literal["auto"]
_MODES: tuple[Mode, ...] = get_args(Mode)
_SIZES = {
    "tp": "tensor_parallel_sizes",
    "pp": "pipeline_parallel_sizes",
    "mbs": "micro_batch_sizes",
    "cp": "context_parallel_sizes",
    "ep": "expert_parallel_sizes",
}
LORA_RANK = 8
"""Of NeMo's own recipes (`llama3_8b.finetune_recipe`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """One layout under its name."""

    name: str
    candidate: Candidate

    @property
    def layout(self) -> Layout:
        """What is set in the configuration."""
        return self.candidate.layout


class AutoConfigurator:
    """Takes the arguments of NeMo 2.0's class, with its defaults, and checks them;
    `generate_configs` has the rest.

    `recipe` is a recipe of NeMo 2.0 (an object of nemo_run, or its YAML as a mapping), or a model's
    name with `seq_length` and `global_batch_size`. Every list of sizes may be "auto". The arguments
    after `calculate_model_size` are ours: `chip` names the card (`gpu_memory_gb` alone means the
    usual one with that memory, or the next larger one held to it), `limit_search_runs` is the most
    configurations that come back, `restore_from` and `lora_rank` (0 trains all weights) are for
    fine-tuning a model by name.
    """

    def __init__(
        self,
        recipe: Any = None,
        path_to_logs: str | Path | None = None,
        mode: str = "pretrain",
        gpu_memory_gb: float = 80,
        tensor_parallel_sizes: _Asked = "auto",
        pipeline_parallel_sizes: _Asked = "auto",
        micro_batch_sizes: _Asked = "auto",
        context_parallel_sizes: _Asked = (1,),
        expert_parallel_sizes: _Asked = (1,),
        min_model_parallel_size: int | Literal["auto"] = "auto",
        max_model_parallel_size: int | Literal["auto"] = "auto",
        num_tokens_in_b: float = 1400,
        tflops_per_gpu: float = 140,
        max_minutes_per_run: int = 30,
        max_training_days: float = 2,
        max_steps_per_run: int = 50,
        vocab_size: int = 32000,
        calculate_model_size: bool = False,
        *,
        chip: str | None = None,
        num_nodes: int = 1,
        num_gpus_per_node: int = 8,
        seq_length: int | None = None,
        global_batch_size: int | None = None,
        limit_search_runs: int = 20,
        restore_from: str | None = None,
        lora_rank: int = LORA_RANK,
    ) -> None:
        """Check everything; ConfigError names the argument, what was given and what may be."""
        self.mode, self.path_to_logs = _required(recipe, path_to_logs, mode)
        self.max_steps_per_run = _whole("max_steps_per_run", max_steps_per_run, least=10)
        self.max_minutes_per_run = _whole("max_minutes_per_run", max_minutes_per_run, least=1)
        self.limit_search_runs = _whole("limit_search_runs", limit_search_runs, least=1)
        self.min_model_parallel_size = _bound("min_model_parallel_size", min_model_parallel_size)
        self.max_model_parallel_size = _bound("max_model_parallel_size", max_model_parallel_size)
        self.num_tokens_in_b = _positive("num_tokens_in_b", num_tokens_in_b)
        self.tflops_per_gpu = _positive("tflops_per_gpu", tflops_per_gpu)
        self.max_training_days = _positive("max_training_days", max_training_days)
        self.vocab_size = _whole("vocab_size", vocab_size, least=1)
        self.restore_from, self.gpu_memory_gb = restore_from, gpu_memory_gb
        stages = tensor_parallel_sizes, pipeline_parallel_sizes, micro_batch_sizes
        asked = (*stages, context_parallel_sizes, expert_parallel_sizes)
        self.sizes = _by_axis(asked)
        given = given_of(
            recipe,
            mode=self.mode,
            vocab_size=vocab_size,
            num_nodes=num_nodes,
            num_gpus_per_node=num_gpus_per_node,
            seq_length=seq_length,
            global_batch_size=global_batch_size,
            lora_rank=_whole("lora_rank", lora_rank, least=0),
        )
        self._require_mode(given, calculate_model_size=calculate_model_size)
        self.given = self._sized(given) if calculate_model_size else given
        self.calculate_model_size = calculate_model_size
        self.card = card_of(_positive("gpu_memory_gb", gpu_memory_gb), chip=chip)
        self._chosen: tuple[Chosen, ...] | None = None

    def _require_mode(self, given: Given, *, calculate_model_size: bool) -> None:
        if self.mode == "finetune" and calculate_model_size:
            raise ConfigError(
                "calculate_model_size: a model that is fine-tuned has its size; leave it out with"
                " mode='finetune'"
            )
        if self.mode == "finetune" and given.recipe is None and self.restore_from is None:
            raise ConfigError(
                "restore_from: missing; the checkpoint that is fine-tuned, such as"
                " nemo://meta-llama/Meta-Llama-3-8B"
            )
        if self.restore_from is not None and (self.mode != "finetune" or given.recipe is not None):
            raise ConfigError(
                "restore_from: of no effect here; it goes with mode='finetune' and a recipe by name"
            )

    def _sized(self, given: Given) -> Given:
        """The same with a model of the size that the days allow."""
        if not given.series:
            raise ConfigError(
                f"calculate_model_size: {given.model.name} is of no series whose shapes are known;"
                " give one by its name"
            )
        params = classic_params(self.budget_of(given), series=given.series)
        shape = shape_of(params, series=given.series, vocab=self.vocab_size)
        return replace(given, model=shape.model)

    def budget_of(self, given: Given) -> Budget:
        """Return what the closed form of a size or a time is asked with."""
        days, tokens = self.max_training_days, self.num_tokens_in_b
        tflops = self.tflops_per_gpu
        return budget_of(given.num_gpus, days=days, tokens_in_b=tokens, tflops=tflops)

    @property
    def model(self) -> ModelSpec:
        return self.given.model

    @property
    def model_type(self) -> str:
        return self.given.model_type

    @property
    def model_size_in_b(self) -> float:
        return round(model_params(self.model).total / 1e9, 2)

    @property
    def training_days(self) -> float:
        """By the closed form."""
        params, given = model_params(self.model).total, self.given
        return classic_seconds(params, self.budget_of(given), series=given.series) / DAY_S

    @property
    def problem(self) -> Problem:
        """What is searched; ConfigError where a name is unknown."""
        given = self.given
        pins: dict[str, list[int | str]] = {
            axis: list(found) for axis, found in self.sizes.items() if found != "auto"
        }
        if given.model.moe is None:
            pins.pop("ep")
        request = PlanRequest.of(
            {
                "model": dims_of(given.model),
                "cluster": f"{self.card.chip}:{given.num_gpus}",
                "stack": "megatron",
                "gpus_per_node": given.devices,
                "seq_len": given.work.seq_len,
                "decoder_seq_len": given.work.decoder_seq_len,
                "gbs": given.work.gbs,
                "precision": given.work.precision,
                "max_memory_gib": self.card.max_memory_gib,
                "pins": pins | {"sharding": [given.sharding], "schedule": ["1f1b"]},
            }
        )
        problem = api.problem_of(request)
        work = replace(problem.setting.work, lora_rank=given.work.lora_rank)
        return replace(problem, setting=replace(problem.setting, work=work))

    @property
    def chosen(self) -> tuple[Chosen, ...]:
        """The fastest layout of each size that may be set, the fastest predicted first."""
        if self._chosen is None:
            self._chosen = self._found()
        return self._chosen

    def _found(self) -> tuple[Chosen, ...]:
        problem = self.problem
        refusal = refusal_for(self.given, problem)
        low = 1 if self.min_model_parallel_size == "auto" else self.min_model_parallel_size
        high = math.inf if self.max_model_parallel_size == "auto" else self.max_model_parallel_size

        def asked(layout: Layout) -> str | None:
            size = layout.tp * layout.pp * layout.cp * layout.ep
            if not low <= size <= high:
                return f"model parallelism {size}: the bounds are {low} and {high:g}"
            return refusal(layout)

        members = each_cut(problem, asked, count=self.limit_search_runs).members
        if not members:
            raise ConfigError(
                f"nothing fits {self.given.num_gpus} GPUs of {self.card.words} with the usual"
                f" headroom; {_nearest(problem)}"
            )
        return tuple(Chosen(name=self._name(member.layout), candidate=member) for member in members)

    def _name(self, at: Layout) -> str:
        size, vpp = f"{self.model_size_in_b:g}", at.vpp if at.vpp > 1 else None
        head = f"{self.model_type}_{size}b_{self.given.num_nodes}nodes"
        return f"{head}_tp_{at.tp}_pp_{at.pp}_cp_{at.cp}_ep_{at.ep}_mbs_{at.mbs}_vp_{vpp}"


def _nearest(problem: Problem) -> str:
    from meshwright.search.plan import search_problem
    from meshwright.values.units import GIB

    miss = search_problem(problem).nearest_miss
    if miss is None:
        return "the smallest that can be run needs a part of it"
    return f"the nearest is {miss.over_bytes / GIB:.1f} GiB too large"


def _configurator_sizes(name: str, value: Any) -> Sizes:
    found = sizes(value)
    if found is None:
        raise ConfigError(
            f"{name}={value!r}: expected 'auto' or a list of whole numbers of 1 or more, such as"
            " [1, 2, 4]"
        )
    return found


def _bound(name: str, value: Any) -> int | Literal["auto"]:
    return "auto" if value is None or value == "auto" else _whole(name, value, least=1)


def _by_axis(asked: Sequence[_Asked]) -> dict[str, Sizes]:
    names = zip(_SIZES.items(), asked, strict=True)
    return {axis: _configurator_sizes(name, found) for (axis, name), found in names}


def _required(recipe: Any, path_to_logs: str | Path | None, mode: str) -> tuple[Mode, Path]:
    """Return the mode and the folder; ConfigError where what has no default is missing."""
    if recipe is None or path_to_logs is None:
        missing = "recipe" if recipe is None else "path_to_logs"
        raise ConfigError(f"{missing}: missing; give recipe and path_to_logs")
    for known in _MODES:
        if mode == known:
            return known, Path(path_to_logs)
    raise UnknownNameError("mode", mode, _MODES)


def _whole(name: str, value: Any, *, least: int) -> int:
    return whole(value, f"{name}={value!r}", least=least)


def _positive(name: str, value: Any) -> float:
    return positive(value, f"{name}={value!r}")


def generate_configs(runner_config: AutoConfigurator) -> tuple[Any, dict[str, Any]]:
    """Return the base configuration and the candidates by name, the fastest predicted first;
    ConfigError where nothing fits.

    Each candidate is valid, fits by prediction, uses all the recipe's GPUs and is another run than
    any other: of each tensor, pipeline, context and expert size and micro batch the fastest chunks
    and recomputation. A recipe object comes back as changed copies, a mapping as mappings, a name
    as whole recipes in the YAML of nemo_run. The base configuration is the recipe (with the
    calculated size), or of a name the fastest candidate for the whole training.
    """
    runner, given = runner_config, runner_config.given
    print(opening(runner))
    form = _named if given.recipe is None else _changed
    configs = {chosen.name: form(runner, chosen) for chosen in runner.chosen}
    return _base(runner), configs


def opening(runner: AutoConfigurator) -> str:
    """Return the old tool's sentence of the closed form, and what is predicted beside it."""
    best, given = runner.chosen[0].candidate, runner.given
    tokens = runner.num_tokens_in_b * 1e9
    days = tokens / (best.layout.gbs * given.work.seq_len) * best.predicted.step_s / DAY_S
    return (
        f"You can train a {runner.model_size_in_b:g}B parameter model in {runner.training_days:.2f}"
        f" days using {given.num_gpus} GPUs. This result assumes you are training to"
        f" {runner.num_tokens_in_b:g}B tokens, and each GPU achieves {runner.tflops_per_gpu:g}"
        f" TFLOPS.\nPredicted: {days:.2f} days of steps on {runner.card.words} with"
        f" {best.layout.words()}, {best.predicted.step_s:.4g} s a step."
    )


def _named(runner: AutoConfigurator, chosen: Chosen) -> dict[str, Any]:
    logs, minutes = runner.path_to_logs / chosen.name, runner.max_minutes_per_run
    return _recipe(
        runner, chosen.layout, steps=runner.max_steps_per_run, logs=logs, minutes=minutes
    )


def _recipe(
    runner: AutoConfigurator, layout: Layout, *, steps: int, logs: Path | None, minutes: float
) -> dict[str, Any]:
    restore = runner.restore_from
    return named_recipe(
        runner.problem, layout, steps=steps, restore_from=restore, logs=logs, minutes=minutes
    )


def _changed(runner: AutoConfigurator, chosen: Chosen) -> Any:
    recipe = runner.given.recipe
    tree = tree_of(recipe)
    values: dict[str, Any] = {
        **_sizes(runner),
        **given_values(runner.problem, chosen.layout, steps=runner.max_steps_per_run),
        "trainer.max_time": time_words(runner.max_minutes_per_run),
        **({"resume": None} if runner.mode == "pretrain" else {}),
    }
    if isinstance(tree.get("log"), dict):
        values["log.log_dir"] = str(runner.path_to_logs / chosen.name)
        values |= {"log.ckpt.save_last": False} if isinstance(tree["log"].get("ckpt"), dict) else {}
    return changed(recipe, values)


def _sizes(runner: AutoConfigurator) -> dict[str, Any]:
    return size_values(runner.model) if runner.calculate_model_size else {}


def _base(runner: AutoConfigurator) -> Any:
    given = runner.given
    if given.recipe is not None:
        return changed(given.recipe, _sizes(runner))
    best = runner.chosen[0].layout
    steps = max(1, round(runner.num_tokens_in_b * 1e9 / (best.gbs * given.work.seq_len)))
    minutes = runner.max_training_days * DAY_S / 60
    return _recipe(runner, best, steps=steps, logs=None, minutes=minutes)
