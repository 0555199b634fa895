"""The fine-tuning grid: combinations of hyperparameters, and their results, best loss first."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.compat.checks import is_whole, made
from meshwright.compat.nemo2.given import changed, is_object, part_of
from meshwright.compat.nemo2.results import EVENTS, TEXTS, files_of, read_scalars, timings_of
from meshwright.platforms.files import read_input
from meshwright.runs.counts import LEAST_TIMED_STEPS, cut_short, older_than
from meshwright.runs.outcome import RunLogs, read_run_logs
from meshwright.runs.store import write_whole
from meshwright.software.log import LogReading, Report, steady_reports
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.text import csv_text, read_yaml, write_yaml

__all__ = ["GridResult", "generate_grid", "get_grid_results", "grid_results", "named_combinations"]

CANDIDATES, LOGS, FINAL = "candidate_configs", "ft_logs", "final_result"
"""Folders, as the old tool calls them."""
_LOSS = re.compile(r"(?:validation_loss|val_loss)(?:_dataloader(?P<set>\d+))?(?:/.*)?")
_TIMING, _TRAINED = "train_step_timing in s", "reduced_train_loss"
_WARM_UP = 3
_CUT_SHORT = ("time_limit", "preempted", "refused", "unknown")
"""Ends that say nothing against the losses before them."""
_OURS = ("Run", "Class", "Message")


@dataclass(frozen=True, kw_only=True, slots=True)
class GridResult:
    """One combination and what became of it."""

    name: str
    values: Mapping[str, Any]
    """By dotted key."""
    losses: tuple[float, ...] = ()
    """The last of each validation set; empty where the run failed."""
    total_steps: int | None = None
    step_s: float | None = None
    """Mean, warm-up left out; None where too few steps were timed."""
    train_loss: float | None = None
    failure: tuple[str, str] | None = None
    """Its class, and the words that show it."""


def generate_grid(
    base_config: Any,
    *,
    param_grid: Mapping[str, Sequence[Any]],
    base_results_dir: str | Path,
    model_name: str = "model",
    limit_search_runs: int = 100,
    max_steps_per_run: int = 100,
) -> dict[str, Any]:
    """Return a configuration for every combination of the values, under the names of the old tool,
    `<model_name>_grid_search_<i>`.

    `base_config` is a NeMo 1.x or 2.0 configuration (a YAML file, or a mapping), or a recipe
    object; `param_grid` lists values by dotted key, `{"model.optim.lr": [1e-4, 5e-4]}`. Each logs
    to a folder of its name below `ft_logs/`; of files and mappings `candidate_configs/` gets the
    YAML. ConfigError names a key that the configuration has not, or more combinations than
    `limit_search_runs`.
    """
    base = _base(base_config)
    folder = Path(base_results_dir).absolute()  # a run starts elsewhere
    combinations = _combinations(param_grid)
    if len(combinations) > limit_search_runs:
        raise ConfigError(
            f"param_grid: {len(combinations)} combinations, more than"
            f" limit_search_runs={limit_search_runs}"
        )
    for key in param_grid:
        _require_key(base, key)
    found = {}
    for name, values in named_combinations(param_grid, model_name):
        logs = folder / LOGS / name / "results"
        found[name] = changed(
            base, {**values, **_short(base, logs=str(logs), steps=max_steps_per_run)}
        )
        if isinstance(found[name], Mapping):
            _write_if_new(made(folder / CANDIDATES) / f"{name}.yaml", write_yaml(found[name]))
    return found


def get_grid_results(
    *,
    param_grid: Mapping[str, Sequence[Any]],
    base_results_dir: str | Path,
    model_name: str = "model",
) -> tuple[GridResult, ...]:
    """Write `final_result/results.csv`, the best validation loss first, and `failed.csv`; print the
    best, and return all.

    A run is known by its name in the path of its files, and its losses by TensorBoard's events. One
    without events, out of memory or without a validation loss is a row of the second file.
    """
    return grid_results(param_grid, Path(base_results_dir), model_name=model_name, failures={})


def grid_results(
    param_grid: Mapping[str, Sequence[Any]],
    folder: Path,
    *,
    model_name: str,
    failures: Mapping[str, tuple[str, str]],
) -> tuple[GridResult, ...]:
    """Do as `get_grid_results`; `failures` are class and words of failed runs."""
    if not folder.is_dir():
        raise ConfigError(f"base_results_dir={folder}: no such folder")
    found = [
        _told(_result(name, values, folder), failures.get(name))
        for name, values in named_combinations(param_grid, model_name)
    ]
    done = sorted(
        (result for result in found if result.losses), key=lambda result: result.losses[0]
    )
    failed = [result for result in found if not result.losses]
    keys, sets = list(param_grid), max((len(result.losses) for result in done), default=1)
    losses = (f"validation_loss_{number}" for number in range(sets))
    headings = (*keys, _TIMING, _TRAINED, *losses, "total_steps", "Run")
    final = made(folder / FINAL)
    rows = [_row(result, keys, sets) for result in done]
    write_whole(final / "results.csv", csv_text(headings, rows))
    lost = [
        [*(result.values[key] for key in keys), result.name, *(result.failure or ("", ""))]
        for result in failed
    ]
    write_whole(final / "failed.csv", csv_text((*keys, *_OURS), lost))
    print("\n".join(_said(done, failed)))
    return (*done, *failed)


def _told(result: GridResult, failure: tuple[str, str] | None) -> GridResult:
    """A failed run has no result; one that its time limit ended counts with what it reached."""
    if failure is None or (result.losses and failure[0] in _CUT_SHORT):
        return result
    if result.failure is not None and result.failure[0] not in ("unknown", "never_started"):
        return result
    return replace(result, losses=(), failure=failure)


def _row(result: GridResult, keys: Sequence[str], sets: int) -> list[Any]:
    losses = [*result.losses, *([None] * (sets - len(result.losses)))]
    values = [result.values[key] for key in keys]
    return [*values, result.step_s, result.train_loss, *losses, result.total_steps, result.name]


def _said(done: Sequence[GridResult], failed: Sequence[GridResult]) -> list[str]:
    if not done:
        return [f"No run has a validation loss; {len(failed)} are in the list of failures."]
    best = done[0]
    values = [f"{key}: {value}" for key, value in best.values.items()]
    head = f"Grid search concluded, best loss {best.losses[0]:.4f} ({best.name})"
    return [f"{head}, best hyperparameters:", *values]


def _write_if_new(path: Path, text: str) -> None:
    """Leave a file that says the same as it is: its date tells which logs are of it."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text)


def _base(given: Any) -> Any:
    if not isinstance(given, str | Path):
        if isinstance(given, Mapping) or is_object(given):
            return given
        raise ConfigError(f"base_config={given!r:.60}: expected a YAML file, a mapping or a recipe")
    try:
        return read_yaml(read_input(Path(given)).decode("utf-8"), what=str(given))
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"base_config={given}:"
            f" {getattr(error, 'strerror', None) or 'expected a YAML file, a mapping or a recipe'}"
        ) from None


def _combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    lists: Mapping[str, Any] = grid  # what users give
    for key, values in lists.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(
                f"param_grid.{key}={values!r}: expected a list of values, such as [1e-4, 5e-4]"
            )
    if not grid:
        raise ConfigError(
            "param_grid: expected dotted keys with lists of values, such as model.optim.lr: [1e-4,"
            " 5e-4]"
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def named_combinations(
    grid: Mapping[str, Sequence[Any]], model_name: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return each combination by its name, in order; ConfigError for a key without a list."""
    return [
        (f"{model_name}_grid_search_{number}", values)
        for number, values in enumerate(_combinations(grid))
    ]


def _require_key(base: Any, path: str) -> None:
    """A key that a configuration has not is a mistake, not one more."""
    above, _, last = path.rpartition(".")
    part = part_of(base, above)
    if isinstance(part, Mapping) and last not in part:
        raise UnknownNameError(
            f"key of {above or 'the configuration'}", last, [str(key) for key in part]
        )


def _short(base: Any, *, logs: str, steps: int) -> dict[str, Any]:
    """What makes it a short run with logs of its own, in whichever NeMo's words it is written."""
    words: dict[str, Any] = {"trainer.max_steps": steps}
    wanted = (("exp_manager", "exp_manager.explicit_log_dir"), ("log", "log.log_dir"))
    places = [key for section, key in wanted if _has(base, section)]
    if not places:
        raise ConfigError(
            "base_config: has neither exp_manager (NeMo 1.x) nor log (NeMo 2.0), where the logs'"
            " folder is set"
        )
    return words | dict.fromkeys(places, logs)


def _has(base: Any, section: str) -> bool:
    try:
        return part_of(base, section) is not None
    except ConfigError:
        return False


def _result(name: str, values: Mapping[str, Any], folder: Path) -> GridResult:
    files = [
        path for path in files_of(name, folder) if CANDIDATES not in path.relative_to(folder).parts
    ]
    scalars = read_scalars([path for path in files if path.name.startswith(EVENTS)])
    logs = read_run_logs([path for path in files if path.suffix in TEXTS])
    losses = _losses(scalars, logs.reading)
    known = partial(GridResult, name=name, values=values)
    if not losses:
        why = ("unknown", "no validation loss in its events")
        if not files:
            why = ("never_started", f"no file below {folder} has its name")
        for first in logs.evidence[:1]:
            why = (first.failure_class, first.message)
        return known(failure=why)
    last = tuple(by_step[max(by_step)] for _, by_step in sorted(losses.items()))
    why_not = _refusal(name, folder, files, scalars, logs)
    if why_not is not None:
        return known(failure=("refused", why_not))
    if not all(math.isfinite(loss) for loss in last):
        return known(failure=("nan_loss", f"its last validation loss is {last[0]:g}"))
    times, trained = _trained(scalars, logs.reading)
    return known(
        losses=last,
        total_steps=max(losses[min(losses)]),
        step_s=round(sum(times) / len(times), 4) if times else None,
        train_loss=trained,
    )


def _refusal(
    name: str,
    folder: Path,
    files: Sequence[Path],
    scalars: Mapping[str, Mapping[int, float]],
    logs: RunLogs,
) -> str | None:
    """Why a run's loss is not compared: of an older configuration, or of fewer steps."""
    config = folder / CANDIDATES / f"{name}.yaml"
    if not config.is_file():
        return None
    told = [path for path in files if path.name.startswith(EVENTS) or path.suffix in TEXTS]
    if any(one.failure_class in _CUT_SHORT for one in logs.evidence):
        return older_than(told, [config])
    reports: Sequence[Report] = logs.reading.reports if logs.reading else ()
    if times := timings_of(scalars):
        from_1 = int(0 in times)  # NeMo 1.x counts steps that are done, NeMo 2.0 from 0
        reports = [Report(step=step + from_1, step_s=times[step]) for step in sorted(times)]
    trainer = read_yaml(config.read_text(encoding="utf-8"), what=str(config)).get("trainer")
    steps = trainer.get("max_steps") if isinstance(trainer, Mapping) else None
    return older_than(told, [config]) or cut_short(reports, steps if is_whole(steps) else None)


def _losses(
    scalars: Mapping[str, Mapping[int, float]], reading: LogReading | None
) -> dict[int, Mapping[int, float]]:
    """Losses by validation set and step: of TensorBoard's events, else of the log."""
    found: dict[int, Mapping[int, float]] = {
        int(match["set"] or 0): by_step
        for tag, by_step in scalars.items()
        if (match := _LOSS.fullmatch(tag)) and by_step
    }
    if found or reading is None or not reading.evaluations:
        return found
    return {0: {one.step: one.loss for one in reading.evaluations}}


def _trained(
    scalars: Mapping[str, Mapping[int, float]], reading: LogReading | None
) -> tuple[list[float], float | None]:
    """Seconds of the steps, warm-up left out, and the last training loss."""
    if scalars or reading is None:
        times = [seconds for _, seconds in sorted(timings_of(scalars).items())][_WARM_UP:]
        trained = scalars.get(_TRAINED, {})
        times = times if len(times) >= LEAST_TIMED_STEPS else []
        return times, trained[max(trained)] if trained else None
    times = [
        report.step_s for report in steady_reports(reading.reports) if report.step_s is not None
    ]
    return times, reading.loss[-1] if reading.loss else None
