"""The Python API: one function per command, of the same name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from meshwright.api.problems import (
    cluster_file_of,
    files_of,
    mixed_problem_of,
    one_request,
    problem_of,
    read_calibration,
    request_fields,
)
from meshwright.values.errors import ConfigError
from meshwright.values.units import DAY_S, TERA

if TYPE_CHECKING:
    from meshwright.platforms.job import JobOptions
    from meshwright.report.doctor import Health
    from meshwright.runs.limits import StudyLimits
    from meshwright.runs.loop import View
    from meshwright.runs.trackers import Tracking
    from meshwright.runs.training.request import TrainRequest
    from meshwright.runs.training.session import Start, TrainState
    from meshwright.runs.trial import Trial
    from meshwright.runs.tune import Finder, Prepared, StudyResult, Tuning
    from meshwright.search.diff import Comparison
    from meshwright.search.explain import Explanation
    from meshwright.search.oom import Ladder
    from meshwright.search.problem import Problem
    from meshwright.search.request import PlanRequest
    from meshwright.search.result import Plan, PlanResult
    from meshwright.sizing.duration import Training
    from meshwright.sizing.estimate import Limits, RunEstimate
    from meshwright.sizing.size import SizeResult
    from meshwright.software.contract import Exported
    from meshwright.software.settings import ModelDetails, TrainingSettings
    from meshwright.values.hardware.profile import Profile

__all__ = [
    "cluster_file_of",
    "diff",
    "doctor",
    "estimate",
    "explain",
    "export",
    "files_of",
    "mixed_problem_of",
    "plan",
    "plan_front",
    "prepare_study",
    "prepare_training",
    "problem_of",
    "read_calibration",
    "size",
    "train",
    "tune",
    "ui",
    "why_oom",
]

DEFAULT_SEQ_LEN = 2048
"""Of `size`: what the closed form's users train with."""
SOME_PARAMS = 1e9
"""A size that every series has a shape for; only its cluster is looked at."""


def plan(
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    /,
    *,
    progress: Callable[[int, int], None] | None = None,
    **fields: Any,
) -> PlanResult:
    """Return the ranked layouts of a model on a cluster: `plan("llama3-70b", "h100:256", seq=8192,
    gbs=512)`; or of a request.

    The other fields are those of PlanRequest; `seq` is `seq_len`. The result has `best`, `plans`,
    `to_pandas()` and `plot()`.

    `progress` is called with the layouts priced so far and a bound of all. ConfigError says what is
    wrong with a request; a result without plans has `rejected` and `nearest_miss`. Several kinds of
    chips, `cluster="a800:128,h800:160"`, are searched together, and `num_gpus` makes their counts
    caps; the plans then have `mixed`, and the result its `proof`.
    """
    from meshwright.search.mixed.plan import search_mixed_plans
    from meshwright.search.mixed.problem import is_mixed
    from meshwright.search.plan import search_plans

    start = perf_counter()
    asked = one_request("plan", request, cluster, fields)
    known = cluster_file_of(asked)
    result = (
        search_mixed_plans(asked, files=known)
        if is_mixed(asked, files=known)
        else search_plans(asked, files=files_of(asked), progress=progress)
    )
    return replace(result, seconds=perf_counter() - start)


def plan_front(
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    /,
    *,
    points: int | None = None,
    **fields: Any,
) -> tuple[Plan, ...]:
    """Return plans of which no other is both faster and cheaper, the cheapest first: the Pareto
    front of throughput and cost.

    The arguments are those of `plan`; each of `points` plans at most (None: as many as draw the
    front) costs a search. Chips in use are paid, and others may be left idle. ConfigError where a
    chip has no price.
    """
    from meshwright.search.mixed.front import MOST_POINTS
    from meshwright.search.mixed.front import plan_front as found_front

    asked = one_request("plan_front", request, cluster, fields)
    most = MOST_POINTS if points is None else points
    return found_front(asked, points=most, files=cluster_file_of(asked))


def explain(
    layout: str | Mapping[str, Any],
    /,
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    *,
    ran: bool = False,
    **fields: Any,
) -> Explanation:
    """Return where time and memory of a layout go: `explain("tp=8,pp=4", model="llama3-70b",
    cluster="h100:256", seq_len=8192, gbs=512)`.

    What the layout (words, or fields) leaves open follows from the request; `ran` says that it ran:
    where it does not fit, it is taken as it must have run. LayoutError says which rule it breaks.
    """
    from meshwright.search.explain import explain as explain_layout
    from meshwright.search.problem import ask
    from meshwright.search.ran import as_ran

    asked = ask(layout, problem_of(one_request("explain", request, cluster, fields)))
    asked = as_ran(asked).asked if ran else asked
    return explain_layout(asked.layout, asked.problem, depth="constants")


def why_oom(
    layout: str | Mapping[str, Any],
    /,
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    **fields: Any,
) -> Ladder:
    """Return what fills a layout's memory, and priced fixes; arguments are those of `explain`."""
    from meshwright.search.oom import why_oom as mend_layout
    from meshwright.search.problem import (
        ask,
    )

    asked = ask(layout, problem_of(one_request("why_oom", request, cluster, fields)))
    return mend_layout(asked.layout, asked.problem)


def export(
    layout: str | Mapping[str, Any],
    /,
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    *,
    to: str,
    settings: TrainingSettings | None = None,
    details: ModelDetails | None = None,
    **fields: Any,
) -> Exported:
    """Return a layout in the words of a training software: `export("tp=8,pp=4", to="megatron-lm",
    model="llama3-70b", ...)`.

    The other fields are those of `explain`; without a stack the plan is for the target's own.
    Settings and details that are left out follow published rules. CannotExpress names the nearest
    plan that the software takes. Nothing is written.
    """
    from meshwright.search.problem import ask
    from meshwright.software.contract import export_plan
    from meshwright.software.plan import plan_of
    from meshwright.software.registry import find_target

    target, wanted = find_target(to), one_request("export", request, cluster, fields)
    if wanted.stack is None and target.stacks:
        wanted = wanted.model_copy(update={"stack": target.stacks[0]})
    asked = ask(layout, problem_of(wanted))
    return export_plan(plan_of(asked, settings=settings, details=details), target=target)


def estimate(
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    /,
    *,
    training: Training | int,
    limits: Limits | None = None,
    tflops: float | None = None,
    **fields: Any,
) -> RunEstimate:
    """Return days, cost and energy of a training under its best plan: `estimate(training=15 *
    10**12, model="llama3-70b", ...)`.

    `training` is the tokens, or a Training with all constants; the other fields are those of
    `plan`. Where a limit is broken, other numbers of the same chips are estimated too. `tflops` is
    what the closed form beside it assumes of one chip.
    """
    from meshwright.search.plan import search_problem
    from meshwright.sizing.duration import Training
    from meshwright.sizing.estimate import Limits, estimate_run

    problem = problem_of(one_request("estimate", request, cluster, fields))
    trained = Training(tokens=training) if isinstance(training, int) else training
    return estimate_run(
        problem,
        trained,
        limits or Limits(),
        search=search_problem,
        series=series_of(problem.setting.model.name),
        tflops=tflops,
    )


def size(
    *,
    cluster: str,
    days: float,
    tokens: int | None = None,
    series: str = "gpt3",
    training: Training | None = None,
    tflops: float | None = None,
    vocab: int | None = None,
    **fields: Any,
) -> SizeResult:
    """Return the largest model of a series that trains in some days: `size(cluster="a100-80:160",
    days=5, tokens=300 * 10**9)`.

    Without `tokens` 20 per parameter are trained on; `training` has the other constants. The other
    fields are those of `plan`, with 2,048 tokens a sequence where none are given.
    """
    from meshwright.search.plan import search_problem
    from meshwright.search.problem import dims_of
    from meshwright.search.request import PlanRequest
    from meshwright.sizing.duration import Training
    from meshwright.sizing.estimate import assumed_tflops, plans_or_none, run_of
    from meshwright.sizing.shapes import Shape, shape_of
    from meshwright.sizing.size import Budget, Sized, find_size

    if not 0 < days < float("inf"):
        raise ConfigError(f"days={days:g}: expected a positive number")
    asked = {"cluster": cluster, "seq_len": DEFAULT_SEQ_LEN, "top": 1, **fields}

    def problem_with(shape: Shape) -> Problem:
        return problem_of(PlanRequest.of({**asked, "model": dims_of(shape.model)}))

    def price(shape: Shape, trained: int) -> Sized:
        problem = problem_with(shape)
        plan = next(iter(plans_or_none(search_problem, problem)), None)
        length = Training(tokens=trained) if training is None else replace(training, tokens=trained)
        return Sized(
            shape=shape,
            problem=problem,
            plan=plan,
            run=None if plan is None else run_of(problem, plan, length),
        )

    some = problem_with(shape_of(SOME_PARAMS, series=series, vocab=vocab))
    budget = Budget(
        chips=some.num_chips,
        seconds=days * DAY_S,
        tokens=None if tokens is None else float(tokens),
        flops_per_s_per_chip=assumed_tflops(some, tflops) * TERA,
    )
    return find_size(budget, series=series, price=price, vocab=vocab)


def series_of(model: str) -> str:
    """Return the series of a model that is known by name, else nothing."""
    from meshwright.values.models.catalogue import presets

    return next((preset.series for preset in presets() if preset.spec.name == model), "")


def tune(
    request: PlanRequest | str | None = None,
    cluster: str | None = None,
    /,
    *,
    folder: str | Path | None = None,
    launcher: str = "local",
    trial: Trial | None = None,
    limits: StudyLimits | None = None,
    job: JobOptions | None = None,
    tracking: Tracking | None = None,
    show: Callable[[View], None] | None = None,
    **fields: Any,
) -> StudyResult:
    """Return how a study ended: short real runs of the layouts that gain most by prediction, until
    none is likely to gain more.

    `tune(model="tiny-llama", cluster="local")`; the fields are those of `plan`, with `gbs`. `show`
    is called with each moment of the study. The same call goes on where an earlier one stopped. A
    run that a tracker refuses is a warning. StudyError where the folder is another study's, or in
    use.
    """
    from meshwright.runs.tune import Tuning, default_folder, run_study

    asked = request_fields("tune", request, cluster, fields)
    parts = {"trial": trial, "limits": limits, "job": job, "tracking": tracking}
    chosen: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
    tuning = Tuning(
        folder=Path(folder) if folder is not None else default_folder(asked),
        launcher=launcher,
        **chosen,
    )
    prepared = prepare_study(asked, tuning)
    return run_study(
        prepared,
        tuning,
        show=show or (lambda view: None),
        warn=lambda line: warnings.warn(line, stacklevel=3),
    )


def prepare_study(
    fields: Mapping[str, Any], tuning: Tuning, *, find: Finder | None = None
) -> Prepared:
    """Return a study before its first run; ConfigError where nothing can be run.

    `find` searches the candidates in another way than `tune` does.
    `local` without a GPU is the processor's cores, with defaults that a laptop trains in seconds.
    """
    from meshwright.runs.trial import stack_of
    from meshwright.runs.tune import prepare

    problem, machine = _problem_here(
        fields, tuning.folder, stack=stack_of(tuning.trial.software, tuning.trial.settings)
    )
    return prepare(problem, tuning.trial, machine=machine, find=find)


def _problem_here(
    fields: Mapping[str, Any], folder: Path, *, stack: str | None
) -> tuple[Problem, Profile | None]:
    """Return a problem; where `local` has no GPU, that of the cores, and what they were probed to
    do, now or when the folder was begun.

    `stack` is what the software's runs are predicted with where the fields name none.
    """
    from meshwright.platforms.given import find_local_cluster
    from meshwright.runs.processors import ON_PROCESSORS, probed_processors
    from meshwright.runs.tune import kept_machine
    from meshwright.search.problem import Files, resolve
    from meshwright.search.request import PlanRequest
    from meshwright.values.hardware.parse import LOCAL, parse_count

    fields = fields if stack is None else {"stack": stack, **fields}
    word, colon, count = str(fields.get("cluster", "")).strip().lower().partition(":")
    if (
        word != LOCAL
        or fields.get("profile") is not None
        or (not colon and find_local_cluster() is not None)
    ):
        return problem_of(PlanRequest.of(fields)), None
    cores = parse_count(count, kind=LOCAL) if colon else None
    machine = kept_machine(folder) or probed_processors(cores=cores)
    return (
        resolve(PlanRequest.of({**ON_PROCESSORS, **fields}), files=Files(profile=machine)),
        machine,
    )


def train(
    request: TrainRequest,
    /,
    *,
    folder: str | Path,
    layout: Mapping[str, Any] | None = None,
    follow: bool = False,
    allow: Collection[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> TrainState:
    """Return how a training is after its next job was sent: `train(TrainRequest(plan={...},
    settings={...}), folder="run")`.

    The plan's best layout is taken unless one is given. With `follow`, return when the last token
    is trained, or nobody can go on. The same call goes on where an earlier one stopped. ConfigError
    where preflight finds a problem that `allow` does not name.
    """
    from meshwright.runs.training.preflight import preflight, require_clear
    from meshwright.runs.training.session import start_training

    start = prepare_training(request, folder=folder, layout=layout)
    require_clear(preflight(start.prepared), allow=allow)
    return start_training(
        start.prepared, plan=start.plan, machine=start.machine, follow=follow, say=say
    )


def prepare_training(
    request: TrainRequest, *, folder: str | Path, layout: Mapping[str, Any] | None = None
) -> Start:
    """Return a training before its next job: of the given layout, of the one that the folder has,
    else of the best that its software runs.

    ConfigError where nothing can be run, NothingFits where no layout fits.
    """
    from meshwright.runs.training.session import begin
    from meshwright.runs.trial import stack_of

    problem, machine = _problem_here(
        request.plan, Path(folder), stack=stack_of(request.software, request.settings)
    )
    return begin(request, folder=Path(folder), problem=problem, machine=machine, layout=layout)


def diff(
    a: str | Mapping[str, Any], b: str | Mapping[str, Any], /, *, has_experts: bool = False
) -> Comparison:
    """Return what differs between two layouts (words, or fields; those of a Workload too), and what
    each difference means for a run."""
    from meshwright.search.diff import compare
    from meshwright.values.layout import parse_layout

    left, right = (parse_layout(side) if isinstance(side, str) else side for side in (a, b))
    return compare(left, right, has_experts=has_experts)


def doctor(*, calibration: str | Path | None = None, profile: str | Path | None = None) -> Health:
    """Return what this installation and this machine have. ConfigError for a file that can't be
    read.

    Calibration and profile are those that plans are to use.
    """
    from meshwright.platforms.given import load_profile
    from meshwright.report.doctor import examine

    return examine(
        calibration=None if calibration is None else read_calibration(calibration),
        profile=None if profile is None else load_profile(Path(profile)),
    )


def ui(
    state: str = "",
    /,
    *,
    port: int = 0,
    calibration: str | Path | None = None,
    profile: str | Path | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the what-if page on 127.0.0.1 until interrupted:
    `ui("model=llama3-8b&cluster=h100:64")`.

    `ready` is called once with its address. ConfigError where the port is taken, MissingExtraError
    without the extra `ui`.
    """
    from meshwright.api.whatif import answers_of
    from meshwright.report.whatif_page.server import serve

    answers = answers_of(calibration=calibration, profile=profile)
    serve(answers, port=port, state=state, ready=ready)
