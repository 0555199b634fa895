"""Measured figures in the Python API: the functions behind `predict`, `validate`, `calibrate` and
`profile`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from meshwright import __version__
from meshwright.api import problem_of, read_calibration
from meshwright.platforms.files import check_ours, put_file
from meshwright.platforms.given import find_local_cluster, load_profile
from meshwright.runs.choose import CONFIDENCE
from meshwright.runs.measured.anchor import Anchored, Setting, anchor_run
from meshwright.runs.measured.files import (
    NOTHING,
    Own,
    Runs,
    Tables,
    own_rows,
    predict_tables,
    profiled_runs,
    read_tables,
)
from meshwright.runs.measured.fit import FitReport, fit_runs
from meshwright.runs.measured.predict import PREDICTIONS_MARK, Answers, predictions_csv
from meshwright.runs.measured.results import is_study, read_results, runs_of_study, untold_log
from meshwright.runs.measured.rows import Given
from meshwright.runs.replay import NEAR, Replayed, replay_table
from meshwright.runs.store import read_store
from meshwright.search.request import PlanRequest
from meshwright.trust.calibration import check_profile
from meshwright.trust.calibration_file import CALIBRATION_MARK, calibration_to_yaml
from meshwright.values.errors import ConfigError, require_scorers
from meshwright.values.hardware.parse import LOCAL
from meshwright.values.hardware.profile import (
    Effort,
    FileForm,
    Profile,
    profile_to_bytes,
)
from meshwright.values.hardware.profile_chip import profile_words
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright.trainer.profile.design import ProfileRequest
    from meshwright_truth.verdicts import Validation

__all__ = [
    "anchor",
    "calibrate",
    "predict",
    "profile",
    "read_own",
    "replay",
    "study_runs",
    "validate",
]

_FORMS: dict[str, FileForm] = {".npz": "npz", ".json": "json"}
Paths = str | Path | Sequence[str | Path]


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def predict(
    rows: Paths,
    /,
    *,
    output: str | Path | None = None,
    calibration: str | Path | None = None,
    profile: str | Path | None = None,
    force: bool = False,
    warn: Callable[[str], None] = _warn,
    tell: Callable[[str], None] = lambda line: None,
) -> Answers:
    """Return step time, peak memory and fit of the runs that tables describe: `predict("runs.csv",
    output="predictions.csv")`.

    Measured columns are never read. `warn` is told of files that are left out, `tell` for how many
    rows a calibration or a profile holds.
    """
    given = _paths(rows)
    if output is not None:
        check_ours(Path(output), mark=PREDICTIONS_MARK, force=force)
    tables = _kept(read_tables(given), warn)
    answers = predict_tables(tables.kept, own=_own(tables, calibration, profile, tell))
    if output is not None:
        put_file(Path(output), predictions_csv(answers), mark=PREDICTIONS_MARK, force=force)
    return answers


def replay(
    table: str | Path,
    /,
    *,
    group: str | None = None,
    tolerance: float = NEAR,
    confidence: float = CONFIDENCE,
) -> list[Replayed]:
    """Return how `tune` would have gone on each set of measured runs of a table that differ in
    layout alone: `replay("truth/vtrain.csv")`.

    ConfigError where the table has no set of 8 such runs, UnknownNameError where not that group.
    """
    return [
        one
        for kept in _kept(read_tables(_paths(table)), _warn).kept
        for one in replay_table(kept, group=group, tolerance=tolerance, confidence=confidence)
    ]


def validate(
    truth: Paths,
    /,
    *,
    predictions: str | Path | None = None,
    calibration: str | Path | None = None,
    profile: str | Path | None = None,
    warn: Callable[[str], None] = _warn,
    tell: Callable[[str], None] = lambda line: None,
) -> Validation:
    """Return how wrong predictions of measured runs are, by table: `validate(["truth/a.csv",
    "truth/b.csv"])`.

    `predictions` are scored instead where they are given; warn and tell are those of `predict`.
    """
    require_scorers()
    from meshwright_truth.verdicts import read_measured, validate_tables

    tables = _kept(read_measured(_paths(truth)), warn)
    if predictions is not None and (calibration, profile) != (None, None):
        raise ConfigError(
            "--calibration and --profile have no effect on --predictions, which are made; leave"
            " them out"
        )
    own = _own(tables, calibration, profile, tell)
    return validate_tables(
        tables.kept, predictions=None if predictions is None else Path(predictions), own=own
    )


def calibrate(
    results: Paths,
    /,
    *,
    output: str | Path | None = None,
    profile: str | Path | None = None,
    stack: str | None = None,
    force: bool = False,
    warn: Callable[[str], None] = _warn,
    **described: Any,
) -> FitReport:
    """Return a calibration fitted to measured runs: `calibrate("train.log", cluster="h100:16",
    output="mine.yaml")`.

    The results are studies, logs, tables of runs and outputs of nccl-tests. The other fields
    (model, cluster, gpus_per_node, seq_len, gbs, precision, layout) say what a log does not. `warn`
    is told of runs that are left out.
    """
    given, paths = _given({"stack": stack, **described}), _paths(results)
    if output is not None:
        check_ours(Path(output), mark=CALIBRATION_MARK, force=force)
    studies = [path for path in paths if is_study(path)]
    if len(studies) == len(paths) and given != Given(stack=stack):
        raise ConfigError(
            "a study says all of its runs: of the flags that describe them --stack alone has an"
            " effect"
        )
    found = read_results([path for path in paths if path not in studies], given)
    tuned = [study_runs(path, stack=stack) for path in studies]
    measured = (*found.runs, *(run for part in tuned for run in part.runs))
    left_out = (*found.left_out, *(line for part in tuned for line in part.left_out))
    if not measured and not found.links and left_out:
        raise ConfigError("; ".join(left_out))
    runs = measured if profile is None else profiled_runs(measured, load_profile(Path(profile)))
    report = fit_runs(
        runs, links=found.links, chip=found.chip, stack=stack or "megatron", version=__version__
    )
    for line in (*left_out, *report.left_out):
        warn(f"left out: {line}")
    if output is not None:
        content = calibration_to_yaml(report.calibration)
        put_file(Path(output), content, mark=CALIBRATION_MARK, force=force)
    return report


def anchor(
    log: str | Path,
    /,
    *,
    infer: Sequence[str] | None = None,
    output: str | Path | None = None,
    force: bool = False,
    **described: Any,
) -> tuple[Anchored, FitReport]:
    """Return what one short run says of settings that nobody told, and the calibration that it
    makes: `anchor("train.log", cluster="h100:16", output="anchor.yaml")`.

    `infer` names the settings (micro-batch, recompute, dispatcher, graphs, overlap, network);
    None: all that neither the log nor the other fields tell, which are those of `calibrate`.
    ConfigError where the log does not count as measured.
    """
    if output is not None:
        check_ours(Path(output), mark=CALIBRATION_MARK, force=force)
    run, untold = untold_log(Path(log), _given(described))
    found = anchor_run(run, untold if infer is None else cast("Sequence[Setting]", infer))
    report = fit_runs([found.run], links=found.links, version=__version__)
    calibration = replace(report.calibration, settings=found.settings)
    if output is not None:
        content = calibration_to_yaml(calibration)
        put_file(Path(output), content, mark=CALIBRATION_MARK, force=force)
    return found, replace(report, calibration=calibration)


def _given(described: Mapping[str, Any]) -> Given:
    known = tuple(Given.__dataclass_fields__)
    if unknown := [name for name in described if name not in known]:
        raise ConfigError(
            f"calibrate: {unknown[0]!r} describes no run; known are {', '.join(known)}"
        )
    return Given(**described)


def profile(
    *,
    output: str | Path | None = None,
    device: str | None = None,
    dtype: str | None = None,
    effort: Effort = "standard",
    model: str | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Profile:
    """Return what the operators of training take on this machine: `profile(output="here.npz",
    effort="quick")`. Needs torch.

    Where `output` (a .npz or a .json) exists, only what it lacks is measured, unless `overwrite`;
    it is written as the measuring goes, by the first of several processes. `dtype` is a list such
    as "bf16,fp8"; `model` has its own shapes measured too. `tell` gets a line per series.
    Interrupted, the profile that came so far is returned, and not `complete`.
    """
    path = None if output is None else _checked_output(Path(output))
    request = _profile_request(device=device, dtype=dtype, effort=effort, model=model)
    from meshwright.trainer.profile import profile_device

    earlier = load_profile(path) if path is not None and path.exists() and not overwrite else None
    found = profile_device(
        request, earlier=earlier, tell=tell, keep=lambda so_far: _keep(so_far, path)
    )
    if os.environ.get("RANK", "0") == "0":
        _keep(found, path)
    return found


def _profile_request(
    *, device: str | None, dtype: str | None, effort: Effort, model: str | None
) -> ProfileRequest:
    from meshwright.trainer.profile.design import ProfileRequest, read_dtypes
    from meshwright.values.models.catalogue import find_model

    return ProfileRequest(
        device=device,  # type: ignore[arg-type]  # checked there
        dtypes=None if dtype is None else read_dtypes(dtype),
        effort=effort,
        model=None if model is None else find_model(model),
    )


def _checked_output(path: Path) -> Path:
    """Refuse before minutes of measuring what could not be written after them."""
    if path.suffix.lower() not in _FORMS:
        raise ConfigError(f"--output {path}: expected a name that ends in .npz or .json")
    if not path.parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"--output {path}: this is a folder")
    return path


def _keep(found: Profile, path: Path | None) -> None:
    """Write what is measured so far; what is there was read as a profile, or gives way."""
    if path is not None:
        put_file(path, profile_to_bytes(found, form=_FORMS[path.suffix.lower()]), force=True)


def read_own(*, calibration: str | Path | None = None, profile: str | Path | None = None) -> Own:
    """Return what the user measured, for rows of tables; ConfigError where the calibration was not
    fitted with this profile."""
    fitted = None if calibration is None else read_calibration(calibration)
    measured = None if profile is None else load_profile(Path(profile))
    if fitted is not None:
        check_profile(fitted, profile="" if measured is None else profile_words(measured.machine))
    return Own(calibration=fitted, profile=measured)


def study_runs(folder: str | Path, *, stack: str | None = None) -> Runs:
    """Return what a study measured, for a calibration; ConfigError for one on processors, whose
    figures hold for no cluster."""
    store = read_store(Path(folder))
    request = PlanRequest.of({**store.study.request, "calibration": None, "profile": None})
    if request.cluster.partition(":")[0] == LOCAL and find_local_cluster() is None:
        raise ConfigError(
            f"{folder}: a study of this machine's processors; calibrate takes studies on"
            " accelerators"
        )
    return runs_of_study(store, problem_of(request), stack=stack)


def _own(
    tables: Tables,
    calibration: str | Path | None,
    profile: str | Path | None,
    tell: Callable[[str], None],
) -> Own:
    """Read what the user measured, and say for how many rows it holds."""
    own = read_own(calibration=calibration, profile=profile)
    if own == NOTHING:
        return own
    calibrated, profiled = own_rows(tables.kept, own)
    if own.calibration is not None:
        tell(f"{own.calibration.words()}; holds for {counted(calibrated, 'row')}")
    if own.profile is not None:
        tell(
            f"profile of {own.profile.machine.device_name}, {own.profile.machine.date}; holds for"
            f" {counted(profiled, 'row')}"
        )
    return own


def _kept(tables: Tables, warn: Callable[[str], None]) -> Tables:
    for line in tables.left_out:
        warn(line)
    return tables


def _paths(given: Paths) -> list[Path]:
    found = [Path(given)] if isinstance(given, str | Path) else [Path(path) for path in given]
    if not found:
        raise ConfigError("no file is given")
    return found
