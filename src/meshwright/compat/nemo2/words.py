"""A layout in a NeMo 2.0 recipe: what is set in one that was given, or a whole one of a model by
name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.compat.nemo2.given import Given
from meshwright.runs.training.software import written
from meshwright.search.asked import Asked
from meshwright.search.problem import Problem
from meshwright.software.contract import export_plan
from meshwright.software.megatron_core.layout import parallel_words, recompute_words
from meshwright.software.nemo2.export import NEMO2, recipe_values
from meshwright.software.nemo2.recipe import finetuned, recipe
from meshwright.software.plan import TrainingPlan, completed, plan_of
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import MINUTE_S

__all__ = ["layout_values", "named_recipe", "refusal_for", "size_values"]

_NAME = "NeMo 2.0"
_RECOMPUTE = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
)


def refusal_for(given: Given, problem: Problem) -> Callable[[Layout], str | None]:
    """Return what says why NeMo 2.0 can't run a layout."""

    def refusal(layout: Layout) -> str | None:
        try:
            plan = _plan(problem, layout, steps=1)
            if given.recipe is None:
                export_plan(plan, target=NEMO2)
            else:
                layout_values(plan)
        except ConfigError as error:
            return str(error)
        return _of_encoders(given.model, layout)

    return refusal


def _of_encoders(model: ModelSpec, layout: Layout) -> str | None:
    """Say why T5 or BERT can't be cut so.

    Source: NeMo 2.5, nemo/lightning/megatron_init.py, which asserts that an encoder has no stages
            of its own, as T5Config wants them
    under a pipeline, and T5Config.configure_model, which takes no virtual stages.
    """
    if model.family == "encoder-decoder" and (layout.pp > 1 or layout.vpp > 1):
        return (
            f"{_NAME}: its T5 runs under no pipeline, pp={layout.pp}"
            " (nemo/lightning/megatron_init.py)"
        )
    if model.family != "decoder" and layout.cp > 1:
        return f"{_NAME}: the sequence of T5 and BERT is not cut there, cp={layout.cp}"
    return None


def _plan(problem: Problem, layout: Layout, *, steps: int) -> TrainingPlan:
    """The plan as of pretraining: adapters are written beside it."""
    setting = problem.setting
    plain = replace(problem, setting=replace(setting, work=replace(setting.work, lora_rank=0)))
    settings = TrainingSettings.of({"train_steps": steps, "log_interval": 1, "eval_steps": 0})
    return plan_of(Asked(layout=layout, problem=plain), settings=settings)


def layout_values(plan: TrainingPlan) -> dict[str, Any]:
    """Return the dotted keys of a recipe that a layout is, each with its value."""
    recompute = recompute_words(plan)
    return {
        **{f"trainer.strategy.{name}": value for name, value in parallel_words(plan).items()},
        **{f"model.config.{name}": recompute.get(name) for name in _RECOMPUTE},
        "data.micro_batch_size": plan.layout.mbs,
        "data.global_batch_size": plan.layout.gbs,
    }


def given_values(problem: Problem, layout: Layout, *, steps: int) -> dict[str, Any]:
    """Return what makes a recipe that was given a short run of a layout."""
    return {
        **layout_values(_plan(problem, layout, steps=steps)),
        "trainer.max_steps": steps,
        "trainer.log_every_n_steps": 1,
    }


def size_values(model: ModelSpec) -> dict[str, Any]:
    """Return the dims of a model whose size was calculated."""
    words = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.num_heads,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.ffn,
        **(
            {"num_query_groups": model.num_kv_heads}
            if model.num_kv_heads != model.num_heads
            else {}
        ),
        **(
            {"encoder_num_layers": model.encoder_layers, "gated_linear_unit": model.gated}
            if model.encoder_layers
            else {}
        ),
    }
    return {f"model.config.{name}": value for name, value in words.items()}


def named_recipe(
    problem: Problem,
    layout: Layout,
    *,
    steps: int,
    restore_from: str | None,
    logs: Path | None,
    minutes: float,
) -> dict[str, Any]:
    """Return a whole recipe as the mapping that nemo_run writes; `restore_from` makes it
    fine-tune."""
    tree = recipe(completed(_plan(problem, layout, steps=steps)))
    if restore_from is not None:
        tree = finetuned(tree, restore_from=restore_from, lora_rank=problem.setting.work.lora_rank)
    values: dict[str, Any] = recipe_values(tree)
    values["trainer"] |= {
        "max_time": time_words(minutes),
        "callbacks": [{"_target_": "nemo.utils.exp_manager.TimingCallback"}],
    }
    if logs is not None:
        values["log"] |= {"log_dir": str(logs)}
    return values


def time_words(minutes: float) -> str:
    """Return a time as Lightning's `max_time` reads it."""
    return written(round(minutes * MINUTE_S), "days:hours:minutes:seconds")
