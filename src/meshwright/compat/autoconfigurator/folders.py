"""AutoConfigurator's folders, a view of the study: configurations, logs, results, answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.inference import PointTable
from meshwright.compat.autoconfigurator.search import Search, max_time
from meshwright.compat.checks import at_path, made, whole
from meshwright.platforms.job import JobText
from meshwright.runs.candidates import Candidate
from meshwright.runs.record import RunRecord, first_id
from meshwright.runs.results import StudyTables
from meshwright.runs.serving.tune import ServingStudy
from meshwright.runs.store import write_whole
from meshwright.runs.training.request import written
from meshwright.runs.trial import LEAST_STEPS, OWN_TRAINER, Trial, exported_of
from meshwright.runs.tune import StudyResult, first_job
from meshwright.sizing.size import classic_seconds
from meshwright.software.contract import Exported, ExportedFile
from meshwright.software.registry import find_target
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.text import write_yaml
from meshwright.values.units import DAY_S, MINUTE_S

__all__ = [
    "base_name",
    "check_config",
    "closed_form_days",
    "earlier_candidates",
    "inference_answer",
    "predicted_days",
    "training_answer",
    "write_candidates",
    "write_final",
    "write_first_job",
    "write_job",
    "write_other_forms",
]

_FLAGS = (
    *("run_training_hp_search", "run_inference_hp_search", "dry_run", "run_all"),
    "wandb.enable",
)
_TEXTS = ("base_results_dir", "data_dir", "wandb.project", "search_config.train_settings.logs")
_SECTIONS = ("cluster", "wandb", "search_config", "search_config.train_settings")
_ASKED = (
    *("model_size_in_b", "act_ckpt_layers", "num_nodes", "gpus_per_node", "gpu_memory_gb"),
    *("max_training_days", "limit_search_runs", "output_top_n", "max_steps_per_run"),
    *("max_minutes_per_run", "tflops_per_gpu", "num_tokens_in_b", "vocab_size", "seq_length"),
    "logs",
)
"""Keys of `train_settings` that every search has."""
_NODE = 8
"""`cluster.gpus_per_node` where nobody sets it."""


def check_config(config: Mapping[str, Any]) -> None:
    """Check that every value is of its kind; ConfigError names the first that is not."""
    for key in _SECTIONS:
        if not isinstance(at_path(config, key), Mapping):
            raise ConfigError(f"{key}={at_path(config, key)}: expected a section of keys")
    train = config["search_config"]["train_settings"]
    for name in _ASKED:
        if name not in train:
            raise ConfigError(f"search_config.train_settings.{name}: missing; give it a value")
    for key in _FLAGS:
        if not isinstance(at_path(config, key), bool):
            raise ConfigError(f"{key}={at_path(config, key)}: expected True or False")
    for key in _TEXTS:
        if not isinstance(at_path(config, key), str) or not at_path(config, key):
            raise ConfigError(f"{key}={at_path(config, key)}: expected a text")
    if (
        "auto_configurator_path" in config
        and config["auto_configurator_path"] in (None, "")
        and str(train["logs"]).startswith("None/")
    ):
        raise ConfigError(
            "auto_configurator_path=null: expected a path, which results lie below; or give"
            " base_results_dir"
        )
    mounts = config["container_mounts"]
    if mounts is not None and (isinstance(mounts, str) or not isinstance(mounts, Sequence)):
        raise ConfigError(
            f"container_mounts={mounts}: expected a list, such as [/raw/data:/data,/models]"
        )
    whole(config["parallel_runs"], f"parallel_runs={config['parallel_runs']}", below=2**63)
    _check_node(config["cluster"].get("gpus_per_node", _NODE), train["gpus_per_node"])


def _check_node(said: Any, used: Any) -> None:
    if said not in (_NODE, used):
        raise ConfigError(
            f"cluster.gpus_per_node={said}: nodes have {used} by"
            " search_config.train_settings.gpus_per_node, which counts"
        )


CANDIDATES, LOGS, FINAL, FIRST = "candidate_configs", "training_logs", "final_results", "first_job"


def base_name(search: Search) -> str:
    """Return the name of the base configuration, `base_cfg_5b.yaml`."""
    return f"base_cfg_{search.size_in_b:g}b.yaml"


def write_candidates(search: Search) -> list[Path]:
    """Write the base configuration and one file or folder per candidate; return their paths."""
    for name in (CANDIDATES, LOGS, FINAL):
        made(search.folder / name)
    write_whole(search.folder / base_name(search), _text(search, search.members[0], whole_run=True))
    paths = []
    for member in search.members:
        path = search.folder / CANDIDATES / f"{search.names[member.run_id]}.yaml"
        write_whole(path, _text(search, member, whole_run=False))
        paths.append(path)
    return paths


def earlier_candidates(search: Search) -> list[str]:
    """Return the names of files beside the candidates that are none of this search."""
    names = set(search.names.values())
    return sorted(
        path.name for path in (search.folder / CANDIDATES).iterdir() if path.stem not in names
    )


def write_other_forms(search: Search) -> dict[Path, str]:
    """Write the base configuration for NeMo 2.0 and Megatron-Bridge; return by file what it is, or
    why there is none.

    Nothing is written where the candidates are the embedded trainer's.
    """
    if search.tuning.trial.software == OWN_TRAINER:
        return {}
    found = {}
    for target, word in (("nemo2", "nemo2"), ("megatron-bridge", "bridge")):
        trial = _whole_run(search, target)
        path = search.folder / base_name(search).replace(".yaml", f"_{word}.yaml")
        try:
            exported = exported_of(trial, search.prepared.problem, search.members[0].layout)
        except ConfigError as error:
            path.unlink(missing_ok=True)
            reason = error.reason if isinstance(error, CannotExpress) else error
            found[path] = f"not written: {reason}"
            continue
        write_whole(path, _main_file(exported).text)
        curve = ""
        if search.how is not None and search.how.settings.get("decay_style") == "linear":
            curve = "; the rate falls along a cosine" if target == "nemo2" else ""
        found[path] = f"the same for {find_target(target).title}{curve}"
    return found


def write_first_job(search: Search) -> tuple[Path, str]:
    """Write the first job with the files that it reads; return its own and its command."""
    member, _, text = first_job(search.prepared, search.tuning)
    files = exported_of(search.tuning.trial, search.prepared.problem, member.layout).files
    return write_job(search.folder, text, files=files), text.submit


def write_job(folder: Path, text: JobText, *, files: Sequence[ExportedFile]) -> Path:
    """Write a job into a folder of its own, where what it reads lies beside it."""
    path = folder / FIRST / text.file_name
    for name, content in ((text.file_name, text.text), *((file.name, file.text) for file in files)):
        made((path.parent / name).parent)
        write_whole(path.parent / name, content)
    return path


def _whole_run(search: Search, software: str) -> Trial:
    """A trial as long as the training, which keeps checkpoints, validates and reads the data."""
    steps = search.settings.steps(search.members[0].layout.gbs)
    trial = replace(search.tuning.trial, software=software, steps=max(LEAST_STEPS, steps))
    if search.how is None:
        return trial
    settings = {**search.how.settings, "save_dir": f"{_results(search, _base(search))}/results"}
    if not software.startswith("nemo1"):
        if software == "nemo2" and settings.get("decay_style") == "linear":
            settings["decay_style"] = "cosine"  # its rate along a line takes no warm-up
        return replace(trial, settings=settings, values={}, program=None)
    limit = {"trainer.max_time": max_time(_whole_s(search))}
    return replace(trial, settings=settings, values=search.how.values(whole_run=True) | limit)


def _whole_s(search: Search) -> int:
    return round(search.settings.max_training_days * DAY_S)


def _base(search: Search) -> str:
    """Name the whole training, `gpt3_5b`."""
    return f"{search.settings.family}_{search.size_in_b:g}b"


def _text(search: Search, member: Candidate, *, whole_run: bool) -> str:
    """A configuration as text: of a short run, which is what its job reads, or of the whole
    training within its days."""
    trial = search.tuning.trial
    if whole_run and trial.software != OWN_TRAINER:
        trial = _whole_run(search, trial.software)
    exported = exported_of(trial, search.prepared.problem, member.layout)
    file = _main_file(exported)
    if not file.name.endswith(".yaml"):
        files = {file.name: file.text for file in exported.files}
        return write_yaml({"meshwright": {"command": list(exported.command), "files": files}})
    if not trial.software.startswith("nemo1"):
        return file.text
    seconds, name = search.settings.max_minutes_per_run * MINUTE_S, search.names[member.run_id]
    if whole_run:
        seconds, name = _whole_s(search), _base(search)
    return write_yaml({"run": _run_section(search, name, seconds)}) + file.text


def _main_file(exported: Exported) -> ExportedFile:
    return next((file for file in exported.files if file.name.endswith(".yaml")), exported.files[0])


def _results(search: Search, name: str) -> str:
    return str((search.folder / LOGS / name).resolve())


def _run_section(search: Search, name: str, seconds: int) -> dict[str, Any]:
    """NeMo 1.x's `run`, which its launcher alone reads, with Slurm's form of the time limit and an
    absolute folder."""
    time_limit = written(seconds, "days-hours:minutes:seconds")
    timing = {"time_limit": time_limit, "dependency": "singleton"}
    return {"name": name, "results_dir": _results(search, name), **timing}


def write_final(search: Search, result: StudyResult) -> list[str]:
    """Write the summary, the failures, the log of the fastest and the best configuration; return
    the lines of the log.

    The CSVs have one row per run, joined by its id; NeMo's own headings come first, to the letter.
    """
    final, nodes = search.folder / FINAL, search.settings.num_nodes
    tables = StudyTables(
        facts=result.facts, model=search.prepared.problem.setting.model, records=result.view.records
    )
    log = tables.top_log(top=search.settings.output_top_n)
    write_whole(final / f"final_summary_{nodes}nodes.csv", tables.results_csv())
    write_whole(final / f"failed_jobs_{nodes}nodes.csv", tables.failed_csv())
    write_whole(final / f"top_{nodes}nodes.log", log)
    for record in result.view.records:
        _link_logs(search, record, result.folder)
    best = result.view.best
    if best is not None:
        member = next(member for member in search.members if member.run_id == first_id(best.run_id))
        name = f"optimal_config_{search.size_in_b:g}b_{nodes}nodes.yaml"
        write_whole(final / name, _text(search, member, whole_run=True))
    return log.splitlines()


def _link_logs(search: Search, record: RunRecord, study: Path) -> None:
    """Show a run's output under the candidate's name: as links, else as copies."""
    first = first_id(record.run_id)
    folder = search.folder / LOGS / f"{search.names[first]}{record.run_id.removeprefix(first)}"
    made(folder)
    for name, shown in (("stdout.log", "log.out"), ("stderr.log", "log.err")):
        source, path = study / "runs" / record.run_id / name, folder / shown
        if not source.exists() or path.is_symlink():
            continue
        try:
            path.symlink_to(os.path.relpath(source, folder))
        except OSError:
            shutil.copyfile(source, path)


def closed_form_days(search: Search) -> float:
    """Days of the training by the old tool's formula."""
    size, settings = search.size_in_b * 1e9, search.settings
    return classic_seconds(size, settings.budget, series=settings.series) / DAY_S


def predicted_days(search: Search, member: Candidate) -> float:
    """Days of the training's steps alone, without evaluation, checkpoints and failures."""
    tokens_per_step = member.layout.gbs * search.settings.seq_length
    steps = search.settings.num_tokens_in_b * 1e9 / tokens_per_step
    return steps * member.predicted.step_s / DAY_S


def training_answer(
    search: Search, *, other_forms: Sequence[Path], result: StudyResult | None
) -> dict[str, Any]:
    """Return the size, the candidates, fastest predicted first, and the study, null if none ran."""
    settings = search.settings
    budget = {
        "num_tokens_in_b": settings.num_tokens_in_b,
        "tflops_per_gpu": settings.tflops_per_gpu,
        "num_gpus": settings.num_gpus,
    }
    return {
        "folder": str(search.folder),
        "model_size_in_b": search.size_in_b,
        "closed_form": {"training_days": closed_form_days(search), **budget},
        "predicted_training_days": predicted_days(search, search.members[0]),
        "max_training_days": settings.max_training_days,
        "notes": list(search.notes),
        "base_config": str(search.folder / base_name(search)),
        "other_forms": [str(path) for path in other_forms],
        "candidates": [_candidate(search, member) for member in search.members],
        "study": None if result is None else result.to_dict(),
    }


def _candidate(search: Search, member: Candidate) -> dict[str, Any]:
    name, predicted = search.names[member.run_id], member.predicted
    days = predicted_days(search, member)
    figures = {"step_s": predicted.step_s, "training_days": days, "mfu": predicted.mfu}
    return {
        "name": name,
        "run_id": member.run_id,
        "file": str(search.folder / CANDIDATES / f"{name}.yaml"),
        "layout": asdict(member.layout),
        "predicted": figures,
    }


def inference_answer(
    table: PointTable, *, notes: Sequence[str], file: Path, study: ServingStudy | None
) -> dict[str, Any]:
    """Return the grid's points, those that can't run, and the study, null if none ran."""
    return {
        "file": str(file),
        "chip": table.chip,
        "engine": table.engine,
        "source": table.source,
        "notes": list(notes),
        "points": [asdict(point) for point in table.points],
        "failed": [asdict(one) for one in table.refused],
        "study": None if study is None else study.to_dict(),
    }
