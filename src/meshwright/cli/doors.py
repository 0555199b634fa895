"""Other tools' own words: `meshwright autoconfigurator` and `apss`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from meshwright.cli.flags import FORCE
from meshwright.cli.options import Given, argument, command, fields_of, option
from meshwright.cli.study_view import interruptible, progress, serving_progress
from meshwright.cli.terminal import JsonFlag, QuietFlag, tell, tell_notes
from meshwright.cli.traces import write_steps
from meshwright.compat.apss import ApssAnswer, ApssRequest
from meshwright.compat.apss import apss as search
from meshwright.compat.autoconfigurator.cluster import platform_of
from meshwright.compat.autoconfigurator.conf import conf_differences, conf_here
from meshwright.compat.autoconfigurator.folders import (
    base_name,
    closed_form_days,
    earlier_candidates,
    inference_answer,
    predicted_days,
    training_answer,
    write_candidates,
    write_final,
    write_first_job,
    write_other_forms,
)
from meshwright.compat.autoconfigurator.inference import (
    PointTable,
    inference_of,
    predict_points,
    write_points,
)
from meshwright.compat.autoconfigurator.measured import (
    MeasuredInference,
    measured_points,
    prepare_inference,
)
from meshwright.compat.autoconfigurator.search import NothingFits, Search, search_of
from meshwright.compat.autoconfigurator.words import compose, write_tree
from meshwright.platforms.files import make_folder
from meshwright.report.mixed_table import print_mixed_miss
from meshwright.runs.tune import StudyResult, run_study
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import counted

__all__ = ["apss", "autoconfigurator"]


@command
def autoconfigurator(
    words: list[str] | None = argument(
        None, "Hydra words: search_config=gpt3/5b.", metavar="KEY=VALUE..."
    ),
    config_dir: Path | None = option(
        None,
        "Your config.yaml, cluster/ and search_config/, before ours; else conf/ here.",
        metavar="DIR",
    ),
    write_conf: Path | None = option(
        None, "Write the tree of configurations there, and stop.", metavar="DIR"
    ),
    diff_conf: Path | None = option(
        None, "Say what such a folder says otherwise than ours, and stop.", metavar="DIR"
    ),
    dry_run: bool = option(
        False, "Write the base configuration and the candidates, and start nothing."
    ),
    force: bool = FORCE,
    json_output: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Find the fastest configuration of a model as NVIDIA's AutoConfigurator for NeMo 1.x does, by
    the same words and folders.

    Every layout is priced; the candidates are those that fit by prediction, best first, at most
    `limit_search_runs`. They are run a few steps each, those first that can matter, until no other
    can be faster by more than `tolerance` (2 %) with `confidence` (70 %). `budget` ends it earlier,
    `run_all` runs every candidate as the old tool does. cluster_type is bcm (Slurm), bcp, k8s, or
    interactive: this machine and the embedded trainer.

    With run_inference_hp_search (the old tool's default) every tp x pp x batch of
    inference_settings is predicted as FasterTransformer runs it, written to
    inference/final_summary/, and without --dry-run measured: a server of each tp x pp under as many
    clients as a batch has.

    Writes <base_results_dir>/<family>/<size>_<memory>gb/ with base_cfg_*.yaml, candidate_configs/,
    training_logs/ and final_results/ (the CSV of every run, fastest first, that of failures, the
    top N, the best YAML). Exit code 1: no run finished.

    Examples:

      meshwright autoconfigurator search_config=gpt3/5b auto_configurator_path=. run_inference_hp_search=False --dry-run

      meshwright autoconfigurator search_config=tiny/llama cluster_type=interactive auto_configurator_path=. run_inference_hp_search=False

      meshwright autoconfigurator search_config=llama/llama3_8b cluster_type=bcm cluster.partition=gpu auto_configurator_path=/opt/tool
    """  # noqa: E501
    if write_conf is not None:
        written = [str(path) for path in write_tree(write_conf, force=force)]
        typer.echo(json.dumps({"files": written}) if json_output else "\n".join(written))
        return
    if diff_conf is not None:
        for line in conf_differences(diff_conf):
            typer.echo(line)
        return
    folder = conf_here(config_dir)
    config = compose(words or [], config_dir=folder)
    config["dry_run"] = dry_run or config["dry_run"]
    page = _Page(json_output=json_output, quiet=quiet)
    if folder is not None and config_dir is None:
        page.note(f"{folder}/ here comes before the configurations that ship")
    training, inference = config["run_training_hp_search"], config["run_inference_hp_search"]
    if not training and not inference:
        page.note("run_training_hp_search=False and run_inference_hp_search=False: nothing to do")
    if inference and "inference_settings" not in config["search_config"]:
        page.note(
            "run_inference_hp_search: search_config has no inference_settings, so nothing is"
            " predicted"
        )
        inference = False
    measured = _inference(config, page, alone=not training) if inference else None
    if training:
        _find(config, page)
    if measured is not None and not config["dry_run"]:
        _measure_grid(measured, page)
    page.close(str(config["search_config_value"]))


class _Page:
    """What is printed: lines as they come, or one object at the end."""

    def __init__(self, *, json_output: bool, quiet: bool) -> None:
        self.json_output, self.quiet = json_output, quiet
        self.parts: dict[str, Any] = {"training": None, "inference": None}
        self.answered: dict[str, bool] = {}

    def line(self, text: str) -> None:
        if not self.json_output:
            typer.echo(text)

    def note(self, text: str) -> None:
        tell(f"note: {text}")

    def close(self, name: str) -> None:
        """Print the object; end with 1 where training, or inference alone, has no answer."""
        if self.json_output:
            typer.echo(json.dumps({"search_config": name, **self.parts}, indent=2))
        if not self.answered.get("training", self.answered.get("inference", True)):
            raise typer.Exit(1)


def _inference(config: dict[str, Any], page: _Page, *, alone: bool) -> MeasuredInference | None:
    """Predict the grid and write its tables, which takes seconds; return what can be measured, None
    where nothing can.

    ConfigError where inference alone is asked for, and can't be measured.
    """
    search = inference_of(config)
    for note in search.notes:
        page.note(note)
    points, refused = predict_points(search)
    table = search.table(points, refused, source="predicted")
    named = config["search_config"]["train_settings"].get("chip", "auto")
    try:
        measured, why = (
            prepare_inference(search, platform_of(config), chip=None if named == "auto" else named),
            "",
        )
    except ConfigError as error:
        measured, why = None, str(error)
    if measured is None and alone and not config["dry_run"]:
        raise ConfigError(
            f"run_inference_hp_search: nothing can be measured: {why}; --dry-run writes the"
            " predictions"
        )
    path = write_points(
        table, beside=search.was_measured or (measured is not None and not config["dry_run"])
    )
    page.parts["inference"] = inference_answer(table, notes=search.notes, file=path, study=None)
    page.answered["inference"] = bool(points)
    page.line(
        f"inference: {counted(len(points), 'point')} predicted as {table.engine} runs them, and"
        f" {len(refused)} that can't run; {path}"
    )
    _print_points(table, page)
    if measured is None:
        page.note(f"run_inference_hp_search: nothing can be measured, predictions stand: {why}")
    elif config["dry_run"]:
        job, submit = measured.write_first_job()
        page.line(
            f"{job}: the first of {measured.num_runs} runs of {search.engine}, sent by `{submit}`"
        )
    return measured


def _print_points(table: PointTable, page: _Page) -> None:
    if not table.points:
        first = table.refused[0]
        page.line(
            f"inference: nothing runs; tp={first.tp}, pp={first.pp}, bs={first.batch}:"
            f" {first.reason}"
        )
        return
    least = min(table.points, key=lambda point: point.latency_ms)
    most = max(table.points, key=lambda point: point.samples_per_s_per_gpu)
    for word, at in (("least latency", least), ("most throughput per GPU", most)):
        figures = f"{at.latency_ms:.4g} ms, {at.samples_per_s_per_gpu:.4g} samples/s/GPU"
        page.line(
            f"inference: {word}: tp={at.tp}, pp={at.pp}, bs={at.batch}: {figures} {table.source} on"
            f" {table.chip}"
        )


def _measure_grid(measured: MeasuredInference, page: _Page) -> None:
    """Run the grid; its tables take the place of the predictions."""
    search = measured.search
    with interruptible():
        study = measured.run(serving_progress(quiet=page.quiet))
    points, failed = measured_points(measured, study.view.records)
    table = replace(search.table(points, failed, source="measured"), chip=measured.chip)
    path = write_points(table)
    page.parts["inference"] = inference_answer(table, notes=search.notes, file=path, study=study)
    page.answered["inference"] = bool(points)
    page.line(
        f"inference: {counted(len(points), 'point')} measured with {search.engine}, and"
        f" {len(failed)} that can't run or failed; {path}"
    )
    _print_points(table, page)


def _find(config: dict[str, Any], page: _Page) -> None:
    try:
        search = search_of(config)
    except NothingFits as error:
        page.line(f"{config['search_config_value']}: {error}")
        page.parts["training"] = {"candidates": [], "nothing_fits": str(error)}
        page.answered["training"] = False
        return
    forms = _written(search, page)
    if config["dry_run"]:
        path, submit = write_first_job(search)
        page.line(f"{path}: what would be sent first, by `{submit}`")
        page.parts["training"] = training_answer(search, other_forms=forms, result=None)
        page.answered["training"] = True
        return
    result = _run(search, quiet=page.quiet)
    for line in write_final(search, result):
        page.line(line)
    page.line(f"results in {search.folder / 'final_results'}; stopped: {result.view.stop}")
    page.parts["training"] = training_answer(search, other_forms=forms, result=result)
    page.answered["training"] = result.view.best is not None


def _written(search: Search, page: _Page) -> list[Path]:
    """Say what was priced, write the configurations, and return the base one's other forms."""
    for note in search.notes:
        page.note(note)
    for line in _opening(search):
        page.line(line)
    paths = write_candidates(search)
    page.line(
        f"{search.folder / base_name(search)} and {counted(len(paths), 'candidate')} in"
        f" {paths[0].parent}"
    )
    others = earlier_candidates(search)
    if others:
        page.note(
            f"{counted(len(others), 'file')} of an earlier search in {paths[0].parent} as well,"
            f" such as {others[0]}"
        )
    forms = write_other_forms(search)
    for path, said in forms.items():
        page.line(f"{path}: {said}")
    return [path for path, said in forms.items() if path.exists()]


def _opening(search: Search) -> list[str]:
    """The size by the closed form, and what was priced."""
    settings, best = search.settings, search.members[0]
    days, ours = closed_form_days(search), predicted_days(search, best)
    lines = [
        (
            f"You can train a {search.size_in_b:g}B parameter model in {days:.2f} days using"
            f" {settings.num_gpus} GPUs. This result assumes you are training to"
            f" {settings.num_tokens_in_b:g}B tokens, and each GPU achieves"
            f" {settings.tflops_per_gpu:g} TFLOPS."
        )
    ]
    lines.append(
        f"Predicted: {ours:.2f} days of steps with {best.layout.words()},"
        f" {best.predicted.step_s:.4g} s a step."
    )
    if ours > settings.max_training_days:
        lines.append(
            f"warning: max_training_days={settings.max_training_days:g} is less than that;"
            " `meshwright estimate` says what would do."
        )
    return lines


def _run(search: Search, *, quiet: bool) -> StudyResult:
    with interruptible(), progress(quiet=quiet) as show:
        return run_study(
            search.prepared, search.tuning, starter=search.platform.executor(), show=show
        )


_CACHE = Path("cache")
_MODES = ("fast", "analytic")


@command
def apss(
    asked: Given = fields_of(ApssRequest),
    mode: str = option("fast", "fast, or analytic: also a trace of each strategy below ./cache."),
    no_legacy_limits: bool = option(False, "Take any batch and sequence."),
    json_output: bool = option(
        False, "Print the plans as `meshwright plan --json` does.", "--json"
    ),
) -> None:
    """Find the fastest parallel strategies by the flags of Baidu AIAK's adaptive parallel strategy
    search, and print its records.

    One tensor-parallel size for all kinds of chips and one way to recompute per kind are searched,
    as the record has it; layers per stage are free with several kinds, equal with one. Times and
    memory are those of `meshwright plan`; --mode changes nothing about them.

    Prints one Python dict per line, best first: tokens/s of the job, seconds per step, GiB per kind
    of chip, and the strategy as flags. Chips left idle and how near to the best the first line is
    proven to be are said on stderr.

    Examples:

      meshwright apss --model-name llama2-70b --num-gpus 256 --gpu-infos a800 --global-batch-size 512 --sequence-length 4096 --top 3

      meshwright apss --num-gpus 256 --gpu-infos a800:128,h800:160 --global-batch-size 512 --mode analytic

      meshwright apss --model-name llama3-8b --num-gpus 64 --gpu-infos h100,kunlun3:32 --global-batch-size 96 --no-legacy-limits --json
    """  # noqa: E501
    if mode not in _MODES:
        raise UnknownNameError("mode", mode, _MODES)
    request = ApssRequest(**asked, legacy_limits=not no_legacy_limits)
    answer = search(request)
    _print(answer, json_output=json_output)
    if not answer.records:
        raise typer.Exit(1)
    if mode == "analytic":
        _trace(answer, request)


def _print(answer: ApssAnswer, *, json_output: bool) -> None:
    """Print the records, or the plans; what is left idle and what was proven go to stderr."""
    if json_output:
        print(json.dumps(answer.result.to_dict(), indent=2, allow_nan=False))
    if not answer.records:
        print_mixed_miss(answer.result, Console(stderr=True))
        return
    if not json_output:
        for record in answer.records:
            print(record)
    tell_notes(_notes(answer))


def _notes(answer: ApssAnswer) -> list[str]:
    best, proof = answer.result.plans[0], answer.result.proof
    assert proof is not None and best.mixed is not None
    idle = [f"{count} {name}" for name, _, count in best.chips if count]
    used = (
        f"the first strategy uses {sum(used for _, used, _ in best.chips)} chips,"
        f" dp={best.mixed.stages[0].dp}"
    )
    risky = [str(plan.rank) for plan in answer.result.plans if plan.fits == "at risk"]
    return [
        used
        + (
            f"; left idle, as that is faster or they do not divide: {', '.join(idle)}"
            if idle
            else ""
        ),
        (
            "no strategy of this space is faster"
            if proof.gap_frac == 0
            else f"no strategy is faster by more than {proof.gap_frac:.2%}"
        ),
        *(
            [
                f"memory of strategies {', '.join(risky)} may not be enough: they need a part of"
                " what is kept free"
            ]
            if risky
            else []
        ),
    ]


def _trace(answer: ApssAnswer, asked: ApssRequest) -> None:
    chips = asked.gpu_infos.replace(" ", "").replace(":", "-").replace(",", "_")
    name = f"{asked.model_name}_{asked.num_gpus}_{chips}_gbs{asked.global_batch_size}_seq{asked.sequence_length}"  # noqa: E501
    folder = _CACHE / name
    make_folder(folder)
    write_steps(folder, answer.result, resolve_mixed(answer.result.request))
