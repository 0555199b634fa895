"""Configurations of the layouts that are worth a run, in the form that the recipe came in."""

from __future__ import annotations

from typing import Any

from meshwright.doors.nemo2.configurator import AutoConfigurator, Chosen
from meshwright.doors.nemo2.objects import changed, tree_of
from meshwright.doors.nemo2.words import given_values, named_recipe, size_values, time_words
from meshwright.units import DAY_S

__all__ = ["generate_configs"]


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
    named = given.recipe is None
    configs = {
        chosen.name: (_named if named else _changed)(runner, chosen) for chosen in runner.chosen
    }
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
    return named_recipe(
        runner.problem,
        chosen.layout,
        steps=runner.max_steps_per_run,
        restore_from=runner.restore_from,
        logs=runner.path_to_logs / chosen.name,
        minutes=runner.max_minutes_per_run,
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
    return named_recipe(
        runner.problem,
        best,
        steps=steps,
        restore_from=runner.restore_from,
        logs=None,
        minutes=minutes,
    )
