"""`meshwright plan`: the ranked layouts of a model on a cluster."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from meshwright import api
from meshwright.api.existing import Run, price_of, read_run
from meshwright.cli.export import (
    LEAVE_OUT,
    Delivery,
    export_first,
    for_export,
    left_names,
    refuse_early,
    say_how,
)
from meshwright.cli.flags import FORCE
from meshwright.cli.options import Given, command, fields_of, option
from meshwright.cli.plan_files import (
    print_change,
    read_request,
    request_to_yaml,
    side_of,
)
from meshwright.cli.terminal import JsonFlag, QuietFlag, search_progress, tell, tell_notes
from meshwright.cli.traces import write_steps
from meshwright.platforms.files import check_ours, make_folder, put_file
from meshwright.platforms.given import read_hf_config
from meshwright.report.columns import say
from meshwright.report.mixed_table import print_mixed_miss, print_mixed_plans
from meshwright.report.plan_table import cost_words, print_front, print_miss, print_plans
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.problem import (
    Asked,
    Problem,
    ask,
    dims_of,
)
from meshwright.search.quote_record import (
    quote_record,
)
from meshwright.search.ran import Ran, as_ran
from meshwright.search.refine import (
    setting_of,
)
from meshwright.search.request import PlanRequest
from meshwright.search.result import PlanResult
from meshwright.software.contract import export_plan, require_runs
from meshwright.software.plan import TrainingPlan, plan_of, without
from meshwright.software.registry import TARGETS, find_target
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.layout import Layout
from meshwright.values.units import parse_duration, parse_tokens

__all__ = ["plan"]

_PIPE_WIDTH = 160
_TARGET = "megatron-lm"
"""Software that --export writes for unless --to names another."""

_CSV_MARK = "rank,"


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Tokens to train on until a deadline, at least cost."""

    tokens: int
    words: str
    """As they were given."""
    seconds: float

    def fields(self, flags: dict[str, Any]) -> dict[str, Any]:
        """Return what a request must hold; ConfigError where it says something else too."""
        if flags.get("min_tokens_per_s") is not None:
            raise ConfigError("--min-tokens-per-s: the deadline says how many; leave out either")
        return {
            "min_tokens_per_s": self.tokens / self.seconds,
            "objective": flags.get("objective") or "tokens_per_dollar",
        }


def read_goal(tokens: str | None, deadline: str | None) -> Goal | None:
    """Read --tokens and --deadline; ConfigError for one alone and for anything broken."""
    if tokens is None and deadline is None:
        return None
    if tokens is None or deadline is None:
        given, missing = (
            ("--deadline", "--tokens, such as 300B")
            if tokens is None
            else ("--tokens", "--deadline, such as 30D")
        )
        raise ConfigError(
            f"{given}: of no effect without {missing}; `meshwright estimate` says days and cost"
        )
    count, seconds = (
        parse_tokens(tokens, name="--tokens"),
        parse_duration(deadline, name="--deadline"),
    )
    if count < 1 or seconds < 1:
        raise ConfigError(
            f"--tokens {tokens} --deadline {deadline}: expected more than none of both"
        )
    return Goal(tokens=count, words=tokens, seconds=float(seconds))


@command
def plan(
    given: Given = fields_of(
        PlanRequest, cluster="Chips, such as h100:256 or a800:128,h800:160, a YAML file, or local."
    ),
    tokens: str | None = option(None, "With --deadline: tokens to train on, such as 300B."),
    deadline: str | None = option(
        None, "Longest that --tokens may take, such as 30D: the cheapest plan that keeps it."
    ),
    pareto: bool = option(False, "Also plans of which no other is both faster and cheaper."),
    hf: Path | None = option(None, "A Hugging Face config.json to take the model from."),
    request: Path | None = option(None, "A request in YAML or JSON; flags go before its values."),
    save_request: Path | None = option(None, "Write the request as YAML."),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
    csv_path: Path | None = option(None, "Write one row per plan.", "--csv", metavar="PATH"),
    trace: Path | None = option(
        None, "Write a step of each plan as a trace for Perfetto.", metavar="DIR"
    ),
    from_file: Path | None = option(
        None,
        "A training script or configuration to improve; flags go before its values.",
        "--from",
        metavar="FILE",
    ),
    ran: bool = option(
        False,
        "The --from file ran so: where it does not fit by our count, take what it must have done"
        " otherwise.",
    ),
    export_dir: Path | None = option(
        None, "Write the best plan's files for --to.", "--export", metavar="DIR"
    ),
    to: str | None = option(
        None,
        "Software to price, and with --export to write for, as `meshwright export --to` [default:"
        " megatron-lm, on AMD's chips primus].",
    ),
    leave_out: str | None = LEAVE_OUT,
    force: bool = FORCE,
) -> None:
    """Find the fastest layouts that fit: how to cut a model over the chips of a cluster.

    Every layout that the training software accepts is priced: matrix products by a roofline,
    collectives by the links they cross, the pipeline by its schedule, memory stage by stage. The
    best few are simulated event by event, with uneven stages tried. What --set names is held;
    everything else is searched. Nothing that you give is changed.

    Prints a table with step time, tokens/s per GPU, MFU (full attention), peak memory of the
    fullest stage, whether it fits with the headroom left free, and by which terms each row beats
    the next; when nothing fits, why, and what would. With --trace, DIR/plan-1.json is the pipeline
    of the first row, and so on. With --from, also what the file's own layout is predicted to do,
    and what differs between it and the best. With --export, the best plan as files that a training
    software runs.

    Over several kinds of chips, each pipeline stage runs on one of them, with its own layers, tp
    and recomputation; the best plan comes with a proof: how much faster any other could be. Chips
    that make nothing faster are left idle, and that is said.

    With --tokens and --deadline the cheapest plan that keeps the deadline is first; chips that it
    does not need are left idle. With --pareto plans from the cheapest to the fastest follow the
    table, of one kind of chip too.

    Examples:

      meshwright plan llama3-70b --cluster h100:256 --seq 8192 --gbs 512

      meshwright plan mixtral-8x7b --cluster a100-80:64 --seq 4096 --max-gbs 1024 --set tp=1,2 --set recompute=none

      meshwright plan llama2-70b --cluster a800:128,h800:160 --num-gpus 256 --seq 4096 --gbs 512

      meshwright plan llama3-8b --cluster a100-80:64,h100:64 --seq 8192 --gbs 512 --tokens 300B --deadline 30D --pareto

      meshwright plan --hf config.json --cluster h200:16 --seq 4096 --gbs 128 --stack fsdp --json
    """  # noqa: E501
    goal = read_goal(tokens, deadline)
    if leave_out is not None and export_dir is None:
        raise ConfigError(f"--leave-out {leave_out}: of no effect without --export DIR")
    if ran and from_file is None:
        raise ConfigError("--ran: says that the file of --from ran; of no effect without it")
    flags = {**given, **_model(given.get("model"), hf)}
    flags |= goal.fields(flags) if goal is not None else {}
    run = None if from_file is None else _read_run(from_file, flags)
    fields = {
        **(run.fields() if run is not None else {}),
        **(read_request(request) if request is not None else {}),
        **flags,
    }
    _require(fields)
    if to is not None:
        fields["stack"] = _stack_of(to, fields.get("stack"))
    asked = PlanRequest.of(fields)
    if export_dir is not None:
        asked = for_export(asked, to or _TARGET)
    if save_request is not None:
        put_file(save_request, request_to_yaml(asked), mark="model:", force=force)
    problem = _problem(asked, from_file)  # refuses what is unknown before a folder is made
    if export_dir is not None and not isinstance(problem, MixedProblem):
        whole = partial(_whole, run=run, dropped=left_names(leave_out))
        refuse_early(problem, to or _usual_target(problem), whole)
    current = None if run is None or isinstance(problem, MixedProblem) else run.asked(problem)
    found = as_ran(current) if ran and current is not None else None
    current = current if found is None else found.asked
    if trace is not None:
        make_folder(trace)
    check_ours(csv_path, mark=_CSV_MARK, force=force)
    with search_progress("pricing layouts", quiet=quiet) as progress:
        front = (
            api.plan_front(asked) if pareto else None
        )  # first, as it refuses chips without a price
        result = replace(api.plan(asked, progress=progress), front=front)
    if isinstance(problem, MixedProblem):  # with what suits the chips that the plans use
        problem = api.mixed_problem_of(result.request) or problem
    if csv_path is not None:
        put_file(csv_path, _csv(result), mark=_CSV_MARK, force=force)
    if trace is not None:
        write_steps(trace, result, problem, force=force)
    _show(result, _current_record(current, found), goal, json_output=json_output)
    if current is not None and not json_output:
        assert not isinstance(problem, MixedProblem), "such a file is of one kind of chip"
        print_change(current, result, problem=problem, run=found)
    if run is not None and json_output and export_dir is None and (names := run.set_names()):
        tell(
            f"note: {', '.join(names)} of the file do not go with --json; --export DIR writes them"
        )
    if not result.plans:
        raise typer.Exit(1)
    if export_dir is not None:
        _export(
            result, problem, run, export_dir, to or _usual_target(problem), left_names(leave_out)
        )


def _problem(asked: PlanRequest, from_file: Path | None) -> Problem | MixedProblem:
    """Look up a request's names; no software's files are read for several kinds of chips."""
    problem = api.mixed_problem_of(asked)
    if problem is None:
        return api.problem_of(asked)
    if from_file is not None:
        raise ConfigError(
            f"--from {from_file}: such a file is of one kind of chip whose chips are all used;"
            " leave out --num-gpus"
        )
    return problem


def _usual_target(problem: Problem | MixedProblem) -> str:
    """Return the software to write for where nobody says: the one that is priced for a fine-tuning,
    and on chips of another maker than NVIDIA, whose Megatron-LM leaves off what theirs has."""
    if isinstance(problem, MixedProblem):
        return _TARGET
    own, vendor = problem.setting.stack.name, problem.setting.pool.node.chip.vendor
    if problem.request.finetune is None and vendor == "NVIDIA":
        return _TARGET
    return own if own in {target.name for target in TARGETS} else _TARGET


def _stack_of(to: str, stack: str | None) -> str | None:
    """Return the stack to price for a target, before the search; ConfigError where the target does
    not exist or runs no plan of a stack that was given."""
    target = find_target(to)
    if stack is None:
        return target.stacks[0] if target.stacks else None
    require_runs(target, stack)
    return stack


def _export(
    result: PlanResult,
    problem: Problem | MixedProblem,
    run: Run | None,
    folder: Path,
    to: str,
    dropped: list[str],
) -> None:
    """Write the best plan that the software has words for, saying why better ones were passed over;
    with a file to improve, in the settings that this has."""
    if isinstance(problem, MixedProblem) and len(problem.cluster.pools) > 1:
        export_first(result, problem, folder, to)
        return
    plans = result.plans
    if isinstance(problem, MixedProblem):
        plans = plans[:1]  # others may be of other chips
        side = side_of(result.to_dict(), "plan #1")
        assert side.request is not None, "an answer has its request"
        problem = api.problem_of(PlanRequest.of(side.request))
    refused: CannotExpress | None = None
    for plan in plans:
        layout = {field.name: getattr(plan.layout, field.name) for field in fields(Layout)}
        whole = _whole(ask(layout, problem), run=run, dropped=dropped)
        try:
            exported = export_plan(whole, target=find_target(to))
            break
        except CannotExpress as error:
            refused = refused or error
    else:
        assert refused is not None, "an answer has plans"
        raise refused
    if refused is not None:
        tell(f"#1 was passed over: {refused}")
        tell(f"#{plan.rank} is written: {plan.layout.words()}")
    Delivery(output=folder).deliver(exported.files)
    say_how(exported, None)


def _whole(asked: Asked, *, run: Run | None, dropped: list[str]) -> TrainingPlan:
    """Return the plan of a layout, in the settings of a file to improve, without what is left
    out."""
    settings, details = (None, None) if run is None else (run.found.settings, run.found.details)
    return without(plan_of(asked, settings=settings, details=details), dropped)


def _read_run(path: Path, flags: dict[str, Any]) -> Run:
    """Read a training script, and say what a plan has no place for."""
    run = read_run(path, flags)
    for line in run.lines():
        tell(line)
    return run


def _model(name: str | None, hf: Path | None) -> dict[str, Any]:
    """Return the model of a config.json as a field of the request; nothing without one."""
    if hf is None:
        return {}
    if name is not None:
        raise ConfigError(f"plan {name} --hf {hf}: give either a name or a config")
    reading = read_hf_config(hf)
    tell_notes(reading.notes)
    return {"model": dims_of(reading.spec, details=reading.details)}


def _require(fields: dict[str, Any]) -> None:
    """Say in the words of the command line what is missing."""
    wanted = {
        "model": "a model such as llama3-70b, or --hf",
        "cluster": "--cluster, such as h100:256",
        "seq_len": "--seq, such as 8192",
    }
    missing = [words for key, words in wanted.items() if key not in fields]
    if missing:
        raise ConfigError(f"plan needs {'; '.join(missing)}")


def _csv(result: PlanResult) -> str:
    rows = result.to_rows()
    text = io.StringIO()
    writer = csv.DictWriter(
        text, fieldnames=list(rows[0]) if rows else ["rank"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _show(
    result: PlanResult, current: dict[str, Any], goal: Goal | None, *, json_output: bool
) -> None:
    if json_output:
        print(json.dumps(result.to_dict() | current, indent=2, allow_nan=False))
    mixed = result.proof is not None
    if not result.plans:
        (print_mixed_miss if mixed else print_miss)(result, Console(stderr=True))
    elif not json_output:
        console = Console()
        console = console if console.is_terminal else Console(width=_PIPE_WIDTH)
        (print_mixed_plans if mixed else print_plans)(result, console)
        if goal is not None:
            say(console, cost_words(result.plans[0], goal.tokens, goal.words))
        if result.front is not None:
            print_front(result.front, console)


def _current_record(current: Asked | None, run: Ran | None) -> dict[str, Any]:
    """Return what --from adds to the answer: the file's own layout and its price."""
    if current is None:
        return {}
    ran = {} if run is None else {"ran": run.to_dict()}
    return {"current": {**quote_record(price_of(current), setting_of(current.problem)), **ran}}
