"""`meshwright autoconfigurator`: the words of NVIDIA's AutoConfigurator for NeMo 1.x."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli._terminal import QuietFlag
from meshwright.errors import ConfigError

if TYPE_CHECKING:
    from meshwright.doors.autoconfigurator.search import Search
    from meshwright.runs.tune import StudyResult

__all__ = ["autoconfigurator"]

_INTERRUPTED = 130


def autoconfigurator(
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Hydra words: search_config=gpt3/5b.")] = None,
    config_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="More of cluster/ and search_config/, as YAML files.")] = None,
    write_conf: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the tree of configurations there, and stop.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write the base configuration and the candidates, and start nothing.")] = False,
    quiet: QuietFlag = False,
) -> None:
    """Find the fastest configuration of a model as NVIDIA's AutoConfigurator for NeMo 1.x does, by the same words and folders.

    Every layout is priced; the candidates are those that fit by prediction, best first, at most `limit_search_runs`. They are run a few
    steps each, those first that can matter, until no other can be faster by more than 2 % with 90 % confidence. cluster_type is bcm
    (Slurm), bcp, k8s, or interactive: this machine and the embedded trainer.

    With run_inference_hp_search (the old tool's default) every tp x pp x batch of inference_settings is predicted as FasterTransformer runs
    it and written to inference/final_summary/; nothing is measured there.

    Writes <base_results_dir>/<family>/<size>_<memory>gb/ with base_cfg_*.yaml, candidate_configs/, training_logs/ and final_results/ (the
    CSV of every run, fastest first, that of failures, the top N, the best YAML). Exit code 1: no run finished.

    Examples:

      meshwright autoconfigurator search_config=gpt3/5b auto_configurator_path=. run_inference_hp_search=False --dry-run

      meshwright autoconfigurator search_config=tiny/llama cluster_type=interactive auto_configurator_path=. run_inference_hp_search=False

      meshwright autoconfigurator search_config=llama/llama3_8b cluster_type=bcm cluster.partition=gpu auto_configurator_path=/opt/tool
    """
    from meshwright.doors.autoconfigurator.words import compose, write_tree

    if write_conf is not None:
        for path in write_tree(write_conf):
            typer.echo(path)
        return
    config = compose(words or [], config_dir=config_dir)
    dry_run = dry_run or bool(config["dry_run"])
    training, inference = bool(config["run_training_hp_search"]), bool(config["run_inference_hp_search"])
    if not training and not inference:
        typer.echo("note: run_training_hp_search=False and run_inference_hp_search=False: nothing to do", err=True)
        return
    if inference and not training and not dry_run:
        raise ConfigError(f"run_inference_hp_search: {_NOT_MEASURED}; --dry-run writes the predictions")
    if inference and "inference_settings" not in config["search_config"]:
        typer.echo("note: run_inference_hp_search: search_config has no inference_settings, so nothing is predicted", err=True)
    elif inference:
        found = _inference(config)
        if not found and not training:
            raise typer.Exit(1)
    if training:
        _search(config, dry_run=dry_run, quiet=quiet)


_NOT_MEASURED = "no engine of static batches can be started from here, so nothing would be measured"


def _inference(config: dict[str, Any]) -> int:
    """Predict the grid, write its tables and return how many points run: it takes seconds, and stands before hours of training runs."""
    from meshwright.doors.autoconfigurator.inference import inference_of, predict_points, write_points

    search = inference_of(config)
    for note in search.notes:
        typer.echo(f"note: {note}", err=True)
    points, refused = predict_points(search)
    path = write_points(search, points, refused)
    typer.echo(f"inference: {len(points)} points predicted, not measured, and {len(refused)} that can't run; {path}")
    if not points:
        typer.echo(f"inference: nothing runs; tp={refused[0].tp}, pp={refused[0].pp}, bs={refused[0].batch}: {refused[0].reason}")
        return 0
    first = min(points, key=lambda point: point.latency_ms)
    most = max(points, key=lambda point: point.samples_per_s_per_gpu)
    for word, at in (("least latency", first), ("most throughput per GPU", most)):
        figures = f"{at.latency_ms:.4g} ms, {at.samples_per_s_per_gpu:.4g} samples/s/GPU"
        typer.echo(f"inference: {word}: tp={at.tp}, pp={at.pp}, bs={at.batch}: {figures} on {search.chip}")
    return len(points)


def _search(config: dict[str, Any], *, dry_run: bool, quiet: bool) -> None:
    from meshwright.doors.autoconfigurator.folders import base_name, earlier_candidates, write_candidates, write_final, write_other_forms
    from meshwright.doors.autoconfigurator.ready import NothingFits
    from meshwright.doors.autoconfigurator.search import search_of

    try:
        search = search_of(config)
    except NothingFits as error:
        typer.echo(f"{config['search_config_value']}: {error}")
        raise typer.Exit(1) from None
    for note in search.notes:
        typer.echo(f"note: {note}", err=True)
    for line in _opening(search):
        typer.echo(line)
    paths = write_candidates(search)
    typer.echo(f"{search.folder / base_name(search)} and {len(paths)} candidates in {paths[0].parent}")
    others = earlier_candidates(search)
    if others:
        typer.echo(f"note: {len(others)} files of an earlier search are in {paths[0].parent} as well, such as {others[0]}", err=True)
    for line in write_other_forms(search):
        typer.echo(line)
    if dry_run:
        return
    result = _run(search, quiet=quiet)
    for line in write_final(search, result):
        typer.echo(line)
    typer.echo(f"results in {search.folder / 'final_results'}; stopped: {result.view.stop}")
    if result.view.best is None:
        raise typer.Exit(1)


def _opening(search: Search) -> list[str]:
    """The size by the closed form, and what was priced."""
    from meshwright.sizing.closed_form import classic_seconds
    from meshwright.units import DAY_S

    settings = search.settings
    days = classic_seconds(search.size_in_b * 1e9, settings.budget, series=settings.series) / DAY_S
    lines = [
        f"You can train a {search.size_in_b:g}B parameter model in {days:.2f} days using {settings.num_gpus} GPUs. This result assumes you "
        f"are training to {settings.num_tokens_in_b:g}B tokens, and each GPU achieves {settings.tflops_per_gpu:g} TFLOPS.",
    ]
    best = search.members[0]
    tokens = settings.num_tokens_in_b * 1e9
    ours = tokens / (best.layout.gbs * settings.seq_length) * best.predicted.step_s / DAY_S
    lines.append(f"Predicted: {ours:.2f} days of steps with {best.layout.words()}, {best.predicted.step_s:.4g} s a step.")
    if ours > settings.max_training_days:
        lines.append(
            f"warning: max_training_days={settings.max_training_days:g} is less than that; `meshwright estimate` says what would do."
        )
    return lines


def _run(search: Search, *, quiet: bool) -> StudyResult:
    from meshwright.cli._tune_view import progress
    from meshwright.runs.tune import Interrupted, run_study

    try:
        with progress(quiet=quiet) as show:
            return run_study(search.prepared, search.tuning, show=show)
    except Interrupted as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_INTERRUPTED) from None
