"""`meshwright export`: a plan as files of a training software, and a script that starts it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
import yaml
from rich.console import Console

from meshwright import api
from meshwright.cli.flags import HfFlag, JobFileFlag, job_for, model_words
from meshwright.cli.options import (
    REQUIRED,
    Given,
    argument,
    command,
    fields_of,
    layout_words,
    option,
)
from meshwright.cli.plan_files import read_mixed, read_side
from meshwright.cli.terminal import JsonFlag, print_json, tell, tell_notes
from meshwright.platforms.files import make_folder, put_file
from meshwright.platforms.job import JobOptions, JobText
from meshwright.platforms.registry import find_platform
from meshwright.report.plan_table import print_miss
from meshwright.runs.candidates import fitting_candidates
from meshwright.search.mixed.problem import MixedProblem, is_mixed
from meshwright.search.problem import Asked, Problem, ask
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan, PlanResult
from meshwright.search.rules.software import stack_rules
from meshwright.software.contract import (
    Exported,
    ExportedFile,
    ExportTarget,
    export_plan,
    require_place,
    require_runs,
)
from meshwright.software.mixed import MIXED_TARGETS, SAME_STAGES, export_mixed
from meshwright.software.plan import TrainingPlan, plan_of, without
from meshwright.software.registry import find_target
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError, LayoutError
from meshwright.values.layout import Layout, Sharding
from meshwright.values.mixed_layout import MixedLayout
from meshwright.values.options import Option

__all__ = [
    "LEAVE_OUT",
    "Delivery",
    "export",
    "export_first",
    "export_mixed_plan",
    "for_export",
    "left_names",
    "read_settings",
    "refuse_early",
    "say_how",
]


_NOTHING_WRITTEN = "nothing is written without -o DIR; --dry-run prints the files"


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Where files go, and whether they are written at all."""

    output: Annotated[
        Path | None, Option("Folder to write into.", ("--output", "-o"), metavar="DIR", read=Path)
    ] = None
    dry_run: Annotated[bool, Option("Print what would be written, and write nothing.")] = False
    force: Annotated[bool, Option("Write over files that differ.")] = False

    def deliver(self, files: tuple[ExportedFile, ...]) -> None:
        """Write the files, or print them."""
        if self.dry_run:
            for file in files:
                print(f"==> {Path(self.output or '', file.name)}\n{file.text}")
            return
        if self.output is None:
            raise ConfigError(_NOTHING_WRITTEN)
        paths = {self.output / file.name: file for file in files}
        differing = [
            str(path)
            for path, file in paths.items()
            if path.exists() and path.read_text("utf-8") != file.text
        ]
        if differing and not self.force:
            raise ConfigError(
                f"{', '.join(differing)}: there already, with other contents; --force writes over"
                " it"
            )
        for path, file in paths.items():
            _write(path, file)


LEAVE_OUT: Any = option(
    None,
    "Write it without what the software has no place for: aux_loss.",
    metavar="NAME[,NAME...]",
)


@command
def export(
    to: str = option(REQUIRED, "Training software to write for.", metavar="SOFTWARE"),
    plan: str | None = argument(
        None,
        "A file of `plan --json`, FILE#2 for its second plan; or a model.",
        metavar="PLAN|MODEL",
    ),
    delivery: Given = fields_of(Delivery),
    settings: list[str] | None = option(
        None,
        "A setting of the training: learning_rate=1e-4, data=/corpus.",
        "--setting",
        metavar="KEY=V",
    ),
    hf: HfFlag = None,
    case: Given = fields_of(
        PlanRequest,
        *("cluster", "seq_len", "gbs", "gpus_per_node", "decoder_seq_len", "precision"),
        *("attention", "stack", "megatron_version", "max_memory_gib", "fastest"),
        cluster="With a model: chips, such as h100:256.",
        seq_len="With a model: tokens in one sequence.",
    ),
    leave_out: str | None = LEAVE_OUT,
    layout: str | None = layout_words(None, "With a model: the layout [default: the best]."),
    launcher: str | None = option(
        None,
        "Write a job script too: torchrun, slurm, k8s-trainjob, -pytorchjob, -jobset, -mpijob,"
        " bcp, bcprun, runai, lepton, sky, pai-dlc.",
        metavar="PLATFORM",
    ),
    job: JobFileFlag = None,
    options: Given = fields_of(JobOptions),
    json_output: JsonFlag = False,
) -> None:
    """Write a plan as files that a training software runs unchanged, and a job script that starts
    it.

    The layout keeps its axes, batch, recomputation and stages; what a plan leaves open (learning
    rate, optimizer, data) follows published rules or --setting. What the software or the platform
    has no words for is refused, not dropped; the written pipeline is read back and must train every
    layer.

    Writes the files into --output, with notes and the command that starts them on stderr. --dry-run
    prints them instead. The plan is one of a file, the given layout of a model, or the model's best
    one.

    Examples:

      meshwright export llama3-8b --cluster h100:64 --seq 8192 --gbs 512 --to torchtitan -o run

      meshwright export llama3-8b --cluster h100:64 --seq 8192 --gbs 512 --to torchtitan --launcher slurm --time 5D -o job

      meshwright export llama3-8b --cluster h100:16 --seq 8192 --gbs 64 --to torchtitan --launcher k8s-jobset --image IMAGE --dry-run
    """  # noqa: E501
    target = find_target(to)
    if "stack" in case:
        require_runs(target, case["stack"])
    chosen = _settings(settings or [])
    dropped = left_names(leave_out)
    _require_delivery(Delivery(**delivery), is_json=json_output)
    _require_launcher(launcher, [*_named(None, job), *options])
    if (mixed := None if plan is None else read_mixed(plan)) is not None:
        _require_no_words(plan, case, layout, hf)
        exported = export_mixed_plan(
            mixed, target, chosen, job_words=[*_named(launcher, job), *options]
        )
        _write_out(exported, None, target, Delivery(**delivery), json_output=json_output)
        return
    asked = _asked(
        plan, hf, layout, case, target, partial(_whole, settings=chosen, dropped=dropped)
    )
    whole = _whole(asked, settings=chosen, dropped=dropped)
    exported = export_plan(whole, target=target)
    script = job_for(exported, whole, launcher=launcher, job_file=job, given=options)
    _write_out(exported, script, target, Delivery(**delivery), json_output=json_output)


def refuse_early(problem: Problem, to: str, whole: Callable[[Asked], TrainingPlan]) -> None:
    """Refuse, before a search, what the software to write for has no place for whatever the layout,
    and names to leave out that the plan does not set."""
    rules, chips = stack_rules(problem.setting.stack), problem.num_chips
    layouts = [
        Layout(dp=chips, gbs=chips, sharding=cast("Sharding", sharding))
        for sharding in dict.fromkeys((*rules.shardings, *rules.shardings_without_pp))
    ]
    plans = []
    for layout in layouts:
        with suppress(LayoutError):
            plans.append(whole(Asked(layout=layout, problem=problem)))
    require_place(plans, target=find_target(to))


def left_names(words: str | None) -> list[str]:
    """Read --leave-out."""
    return [] if words is None else [word.strip() for word in words.split(",")]


def _whole(asked: Asked, *, settings: TrainingSettings, dropped: list[str]) -> TrainingPlan:
    return without(plan_of(asked, settings=settings), dropped)


def _require_delivery(delivery: Delivery, *, is_json: bool) -> None:
    """Refuse, before a search, what would write nothing."""
    if delivery.output is None and not delivery.dry_run and not is_json:
        raise ConfigError(_NOTHING_WRITTEN)


def _require_launcher(launcher: str | None, given: list[str]) -> None:
    """Refuse an unknown platform, and words of a job without one, before a search."""
    if launcher is not None:
        find_platform(launcher)
    elif given:
        raise ConfigError(
            f"{', '.join(given)}: of no effect without --launcher, such as --launcher slurm"
        )


def _named(launcher: str | None, job: Path | None) -> list[str]:
    return [
        *(["--launcher"] if launcher is not None else []),
        *(["--job"] if job is not None else []),
    ]


def _write_out(
    exported: Exported,
    script: JobText | None,
    target: ExportTarget,
    delivery: Delivery,
    *,
    json_output: bool,
) -> None:
    """Print everything as JSON, or write the files and say how they are started."""
    if json_output:
        record = (
            None
            if script is None
            else {"file_name": script.file_name, "text": script.text, "submit": script.submit}
        )
        print_json({**exported.to_dict(), "job": record})
        return
    delivery.deliver(_files(exported, script))
    tell(f"for {target.title}: {target.versions}")
    say_how(exported, script)


def _asked(
    plan: str | None,
    hf: Path | None,
    layout: str | None,
    case: dict[str, Any],
    target: ExportTarget,
    whole: Callable[[Asked], TrainingPlan],
) -> Asked:
    """Return the layout to write, in its problem."""
    if plan is not None and Path(plan.partition("#")[0]).is_file():
        _require_no_words(plan, case, layout, hf)
        side = read_side(plan)
        problem = side.problem()
        if problem is None:
            raise ConfigError(
                f"{plan}: holds a layout without its request; write it with `meshwright plan ..."
                " --json`"
            )
        return ask(side.layout, problem)
    if plan is not None and Path(plan.partition("#")[0]).suffix == ".json":
        raise ConfigError(
            f"{plan}: no such file; `meshwright plan ... --json > {plan.partition('#')[0]}`"
            " writes one"
        )
    return _of_model(plan, hf, layout, case, target, whole)


def _require_no_words(
    plan: str | None, case: dict[str, Any], layout: str | None, hf: Path | None
) -> None:
    """Refuse words that a plan's file says already."""
    if given := [*case, *(["layout"] if layout else []), *(["hf"] if hf else [])]:
        raise ConfigError(
            f"{', '.join(given)}: of no effect with the plan in {plan}, which says it; leave it out"
        )


def _of_model(
    model: str | None,
    hf: Path | None,
    layout: str | None,
    case: dict[str, Any],
    target: ExportTarget,
    whole: Callable[[Asked], TrainingPlan],
) -> Asked:
    missing = [
        flag for flag, key in (("--cluster", "cluster"), ("--seq", "seq_len")) if key not in case
    ]
    if missing:
        raise ConfigError(
            f"export of {model or 'a model'} needs {' and '.join(missing)}; or name a file of"
            " `meshwright plan --json`"
        )
    of_target = {"stack": target.stacks[0]} if target.stacks else {}
    request = PlanRequest.of({"model": model_words(model, hf), "top": 1, **of_target, **case})
    problem = api.problem_of(request)
    if layout is not None:
        return ask(layout, problem)
    refuse_early(problem, target.name, whole)
    result = api.plan(request)
    if not result.plans:
        print_miss(result, Console(stderr=True))
        raise typer.Exit(1)
    return _best_that_runs(result.plans[0], problem, target, whole)


def _best_that_runs(
    best: Plan, problem: Problem, target: ExportTarget, whole: Callable[[Asked], TrainingPlan]
) -> Asked:
    """Return the best plan that the software runs, saying so; of none the best, to be refused."""

    def asked(layout: Layout) -> Asked:
        return ask({field.name: getattr(layout, field.name) for field in fields(Layout)}, problem)

    def refusal(layout: Layout) -> str | None:
        try:
            export_plan(whole(asked(layout)), target=target)
        except (CannotExpress, LayoutError) as error:
            return str(error)
        return None

    reason = refusal(best.layout)
    if reason is None:
        tell(f"plan: {best.layout.words()}")
        return asked(best.layout)
    try:
        members = fitting_candidates(problem, refusal, count=1).members
    except ConfigError:
        members = ()
    if not members:
        return asked(best.layout)
    tell(f"the best plan, {best.layout.words()}, was passed over: {reason}")
    slower = members[0].predicted.step_s / best.step_s - 1.0
    tell(f"plan: {members[0].layout.words()}, {slower:.1%} slower by prediction")
    return asked(members[0].layout)


def _settings(words: list[str]) -> TrainingSettings:
    try:
        return TrainingSettings.of(read_settings(words))
    except TypeError as error:
        raise ConfigError(f"--setting: {error}") from None


def read_settings(words: list[str]) -> dict[str, Any]:
    """Read KEY=VALUE words, values as YAML."""
    given: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in given:
            raise ConfigError(
                f"--setting {word}: expected each KEY=VALUE once, such as learning_rate=1e-4"
            )
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError:
            read = value
        given[key] = _number(value) if isinstance(read, str) else read
    return given


def _number(text: str) -> float | str:
    """YAML reads 1e-4 as a text; people mean the number."""
    try:
        return float(text)
    except ValueError:
        return text


def _files(exported: Exported, script: JobText | None) -> tuple[ExportedFile, ...]:
    job = (
        ()
        if script is None
        else (
            ExportedFile(
                name=script.file_name, text=script.text, executable=script.text.startswith("#!")
            ),
        )
    )
    return (*exported.files, *job)


def _write(path: Path, file: ExportedFile) -> None:
    make_folder(path.parent)
    put_file(path, file.text, force=True, executable=file.executable)
    tell(f"wrote {path}")


def say_how(exported: Exported, script: JobText | None) -> None:
    """Say what the user must know, and the command that starts the run."""
    tell_notes(exported.notes)
    if script is not None:
        tell(f"start it in that folder: {script.submit}")
        return
    for variable in exported.environment:
        tell(f"set {variable.name}={shlex.quote(variable.value)}: {variable.why}")
    how = {"rank": "run behind torchrun or its like", "node": "run once on every node"}
    by_name = exported.runs_on != "rank" and exported.command[0].endswith(".py")
    command = ("python", *exported.command) if by_name else exported.command
    tell(f"{how.get(exported.runs_on, 'run')}: {shlex.join(command)}")


def for_export(asked: PlanRequest, to: str) -> PlanRequest:
    """Return the request with what one command for all ranks needs of its stages, saying so."""
    known = api.cluster_file_of(asked)
    if not is_mixed(asked, files=known) or len(known.cluster_of(asked).pools) == 1:
        return asked
    if to not in MIXED_TARGETS:
        raise ConfigError(
            f"--export ... --to {to}: it has no words for stages on several kinds of chips; --to"
            f" {' or '.join(MIXED_TARGETS)} has, and --json says what each stage runs as"
        )
    if asked.unlike_batch:
        raise ConfigError(
            f"--unlike-batch: {to} has one dp and mbs for all ranks; leave it out, or leave out"
            " --export"
        )
    missing = [name for name in SAME_STAGES if name not in asked.same]
    if missing:
        tell(f"note: searched with --same {','.join(missing)}, as {to} has one value for all ranks")
    return asked.model_copy(update={"same": [*asked.same, *missing]})


def export_first(result: PlanResult, problem: MixedProblem, folder: Path, to: str) -> None:
    """Write the best plan that the software has words for, saying why others were passed over."""

    refused: CannotExpress | None = None
    for plan in result.plans:
        assert plan.mixed is not None, "plans over several kinds of chips have stages"
        try:
            exported = _exported(plan.mixed, problem, to)
        except CannotExpress as error:
            refused = refused or error
            continue
        if refused is not None:
            slower = plan.step_s / result.plans[0].step_s - 1.0
            tell(f"#1 was passed over: {refused}")
            tell(f"#{plan.rank} is written, {slower:.1%} slower by prediction")
        Delivery(output=folder).deliver(exported.files)
        tell_notes(exported.notes)
        return
    assert refused is not None, "there is a plan"
    raise refused


def export_mixed_plan(
    plan: tuple[MixedLayout, MixedProblem],
    target: ExportTarget,
    settings: TrainingSettings,
    *,
    job_words: list[str],
) -> Exported:
    """Return a saved plan's files; job scripts, which are of nodes of one kind, are refused."""
    if job_words:
        raise ConfigError(
            f"{', '.join(job_words)}: job scripts are written for nodes of one kind; leave it out,"
            " and start train.sh on each node in the order that it says"
        )
    return export_mixed(plan[0], plan[1], target=target, settings=settings)


def _exported(layout: MixedLayout, problem: MixedProblem, to: str) -> Exported:
    return export_mixed(layout, problem, target=find_target(to))
