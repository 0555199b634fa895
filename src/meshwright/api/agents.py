"""What programs such as agents may ask: tools with typed inputs, answered in plain types.

Inputs are made from the request types, so that a tool takes what its command takes. Answers are
those of `--json`, cut to what can be read at once: each figure with its interval, and what it
stands on.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from meshwright.values.errors import ConfigError, MeshwrightError, UnknownNameError
from meshwright.values.options import Option

if TYPE_CHECKING:
    from meshwright.serving.request import ServingRequest
    from meshwright.serving.result import ServingOption

__all__ = ["TOOLS", "AgentTool", "answer", "input_schema", "sentence", "tool_named"]

_TOP = 3
"""Plans in an answer unless more are asked for: about 2 kB each."""
_SOURCES = 3
"""Constants named for each term: those that move it most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTool:
    """One question."""

    name: str
    description: str
    """For the one who chooses among tools: what it answers, and what comes back."""
    inputs: Callable[[], type[BaseModel]]
    call: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns plain types; MeshwrightError says in one sentence what is wrong."""


def answer(tool: AgentTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's answer; MeshwrightError for unknown arguments, wrong types, and all that its
    command refuses."""
    model = tool.inputs()
    for name in arguments:
        if name not in model.model_fields:
            raise UnknownNameError(f"argument of {tool.name}", name, list(model.model_fields))
    try:
        given = model.model_validate_json(json.dumps(dict(arguments)), strict=True)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None
    return tool.call({name: getattr(given, name) for name in given.model_fields_set})


def input_schema(tool: AgentTool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    return tool.inputs().model_json_schema()


def _one_line(error: ValidationError) -> str:
    first, *others = error.errors()
    place = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    if first["type"] == "missing":
        return f"{place}: not given{more}"
    says = first["msg"]
    return f"{place}={first['input']!r}: {says[0].lower()}{says[1:]}{more}"


def _inputs(name: str, request: type, *names: str, **more: tuple[Any, Any]) -> type[BaseModel]:
    """Return the arguments of a tool: fields of a request that have options, and more with their
    types and defaults (... where they are needed)."""
    made: dict[str, Any] = dict(more)
    for field_name, hint in typing.get_type_hints(request, include_extras=True).items():
        said = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Option)]
        if not said or (names and field_name not in names) or field_name in more:
            continue
        kind = typing.get_args(hint)[0]
        made[field_name] = (
            Annotated[kind, Field(description=said[0].help)],
            _usual(request, field_name),
        )
    return cast(
        "type[BaseModel]",
        create_model(name, __config__=ConfigDict(extra="forbid"), **made),
    )


def _usual(request: type, name: str) -> Any:
    model_fields = getattr(request, "model_fields", None)
    if model_fields is not None:
        return ... if model_fields[name].is_required() else model_fields[name].default
    [found] = [field for field in fields(request) if field.name == name]
    return found.default


def _said(kind: Any, description: str, usual: Any = ...) -> tuple[Any, Any]:
    return (Annotated[kind, Field(description=description)], usual)


_LAYOUT_WORDS = "The layout: tp=8,pp=4,mbs=1 (the rest follows), or a plan's `layout` as it is."


@cache
def _plan_inputs() -> type[BaseModel]:
    from meshwright.search.request import PlanRequest

    top = _said(int, "Plans to return.", _TOP)
    return _inputs("PlanArguments", PlanRequest, top=top)


@cache
def _layout_inputs() -> type[BaseModel]:
    from meshwright.search.request import PlanRequest

    names = [
        name
        for name in PlanRequest.model_fields
        if name not in ("pins", "same", "unlike_batch", "top", "objective", "min_tokens_per_s")
    ]
    layout = _said(str | dict[str, Any], _LAYOUT_WORDS)
    return _inputs("LayoutArguments", PlanRequest, *names, layout=layout)


@cache
def _export_inputs() -> type[BaseModel]:
    from meshwright.search.request import PlanRequest
    from meshwright.software.registry import TARGETS

    names = ("model", "cluster", "seq_len", "gbs", "gpus_per_node", "decoder_seq_len", "precision")
    more = ("attention", "stack", "megatron_version", "max_memory_gib")
    known = ", ".join(target.name for target in TARGETS)
    return _inputs(
        "ExportArguments",
        PlanRequest,
        *(*names, *more),
        layout=_said(str | dict[str, Any], _LAYOUT_WORDS),
        to=_said(str, f"Training software to write for: {known}."),
        settings=_said(
            dict[str, Any], "Settings of the training: learning_rate, data, save_dir, ...", {}
        ),
    )


@cache
def _compare_inputs() -> type[BaseModel]:
    from meshwright.search.request import PlanRequest

    return _inputs(
        "CompareArguments",
        PlanRequest,
        *("model", "gbs", "precision"),
        clusters=_said(list[str], "Clusters to compare: [h100:64, mi300x:64]."),
        tokens=_said(int | str, "Tokens to train on: 2000000000000, or 2T."),
        seq_len=_said(int, "Tokens in one sequence.", 8192),
        budget_usd=_said(float | None, "Dollars that the run may cost.", None),
        deadline_days=_said(float | None, "Days that it may take.", None),
    )


@cache
def _serving_inputs() -> type[BaseModel]:
    from meshwright.serving.request import USUAL_ENGINE, ServingRequest

    return _inputs(
        "ServingArguments",
        ServingRequest,
        model=_said(str, "A model's name; `meshwright models` lists them."),
        cluster=_said(str, "Chips, such as h100:8."),
        engine=_said(str, "vllm, sglang, trtllm, fastertransformer or transformers.", USUAL_ENGINE),
        input_len=_said(int, "Tokens of a prompt."),
        output_len=_said(int, "New tokens of an answer."),
        objective=_said(
            typing.Literal["throughput", "latency"], "What is ranked by.", "throughput"
        ),
        ttft_s=_said(float | None, "Most seconds to the first token, mean.", None),
        tpot_s=_said(float | None, "Most seconds between later tokens, mean.", None),
        e2e_s=_said(float | None, "Most seconds of a whole request, mean.", None),
        top=_said(int, "Deployments to return.", _TOP),
    )


def _plan(asked: dict[str, Any]) -> dict[str, Any]:
    from meshwright import api

    return api.plan(**{"top": _TOP, **asked}).to_dict()


def _explain(asked: dict[str, Any]) -> dict[str, Any]:
    from meshwright import api
    from meshwright.report.explain_json import explanation_record
    from meshwright.search.request import PlanRequest

    layout, request = asked.pop("layout"), PlanRequest.of(asked)
    record = explanation_record(api.explain(layout, request), request)
    found = {key: value for key, value in record.items() if key not in ("layers", "provenance")}
    return {**found, "sources": {part: _sources(record, part) for part in ("time", "memory")}}


def _sources(record: dict[str, Any], part: str) -> dict[str, Any]:
    """Return for each term how it was made and the constants that move it most; `term_change` is
    what one unit more makes of it, as a share."""
    return {
        term: {
            "kind": basis["kind"],
            "constants": [
                {key: one[key] for key in ("name", "value", "source", "unit", "term_change")}
                for one in sorted(basis["constants"], key=_most_first)[:_SOURCES]
            ],
        }
        for term, basis in record["provenance"][part].items()
        if record[part].get(term)
    }


def _most_first(constant: Mapping[str, Any]) -> float:
    return -abs(float(constant["term_change"] or 0.0))


def _why_oom(asked: dict[str, Any]) -> dict[str, Any]:
    from meshwright import api
    from meshwright.report.explain_json import ladder_record
    from meshwright.search.refine import setting_of
    from meshwright.search.request import PlanRequest

    layout, request = asked.pop("layout"), PlanRequest.of(asked)
    found = api.why_oom(layout, request)
    return ladder_record(found, setting_of(api.problem_of(request)), request)


def _compare(asked: dict[str, Any]) -> dict[str, Any]:
    from meshwright.api.comparing import compare
    from meshwright.search.request import PlanRequest
    from meshwright.sizing.duration import Training
    from meshwright.sizing.estimate import Limits
    from meshwright.values.units import DAY_S, parse_tokens

    clusters, tokens = asked.pop("clusters"), asked.pop("tokens")
    days = asked.pop("deadline_days", None)
    limits = Limits(
        usd=asked.pop("budget_usd", None), wall_s=None if days is None else days * DAY_S
    )
    if not clusters:
        raise ConfigError("clusters=[]: expected clusters to compare, such as h100:64")
    asked = {"seq_len": 8192, **asked, "top": 1}
    count = tokens if isinstance(tokens, int) else parse_tokens(tokens, name="tokens")
    requests = [PlanRequest.of({**asked, "cluster": one}) for one in dict.fromkeys(clusters)]
    rows = compare(requests, training=Training(tokens=count), limits=limits)
    return {"rows": [row.to_dict() for row in rows]}


def _export(asked: dict[str, Any]) -> dict[str, Any]:
    from meshwright import api
    from meshwright.software.settings import TrainingSettings

    layout, to = asked.pop("layout"), asked.pop("to")
    try:
        settings = TrainingSettings.of(asked.pop("settings", {}))
    except TypeError as error:
        raise ConfigError(f"settings: {error}") from None
    return api.export(layout, to=to, settings=settings, **asked).to_dict()


def _serving_plan(asked: dict[str, Any]) -> dict[str, Any]:
    from meshwright.serving.request import ServingRequest
    from meshwright.serving.search import plan

    top = asked.pop("top", _TOP)
    request = ServingRequest.of(**asked)
    found = plan(request)
    record = found.to_dict()
    plans = [
        {**row, "interval": _serving_intervals(option, request)}
        for row, option in zip(record["plans"][:top], found.options, strict=False)
    ]
    kept = {key: record[key] for key in ("nearest", "rejected", "search", "definitions", "notes")}
    sources = {
        "engine": f"{request.engine.name}: measured kernels, docs/operators.md",
        "interval": "80 % of published runs of this kind, docs/serving_accuracy.md",
    }
    return {"request": request.to_dict(), "plans": plans, **kept, "sources": sources}


_WAYS = {"aggregated": "one pool", "disaggregated": "two pools", "static": "static batches"}
"""A mode as the published runs' kinds name it."""


def _serving_intervals(
    option: ServingOption, request: ServingRequest
) -> dict[str, tuple[float, float]]:
    from meshwright.trust.intervals import serving_interval, serving_kind

    chip = request.cluster.pools[0].node.chip
    kind = serving_kind(
        model=request.model, chip=chip, engine=request.engine.name, way=_WAYS[option.mode]
    )
    return {
        "ttft_s": serving_interval(kind, "ttft", option.ttft_s),
        "tpot_s": serving_interval(kind, "tpot", option.tpot_s),
        "e2e_s": serving_interval(kind, "e2e", option.e2e_s),
        "tokens_per_s_per_gpu": serving_interval(kind, "throughput", option.tokens_per_s_per_chip),
    }


TOOLS: tuple[AgentTool, ...] = (
    AgentTool(
        name="plan",
        description="Rank the parallel layouts with which a language model trains fastest on a"
        " cluster. Returns plans with step time, MFU, memory and their 80 % intervals, and what"
        " each stands on; without a plan that fits, why, and the nearest miss. Seconds, GiB.",
        inputs=_plan_inputs,
        call=_plan,
    ),
    AgentTool(
        name="explain",
        description="Say where the time and the memory of one training layout go: seconds and GiB"
        " by term, what binds it, rivals that differ in one axis, and the sources of the constants"
        " that move each term most.",
        inputs=_layout_inputs,
        call=_explain,
    ),
    AgentTool(
        name="why_oom",
        description="Say why a training layout runs out of memory: the fullest stage by term, and"
        " a ladder of fixes, each with what it saves in GiB and costs in step time.",
        inputs=_layout_inputs,
        call=_why_oom,
    ),
    AgentTool(
        name="compare",
        description="Compare clusters for one training: days with their 80 % interval, dollars,"
        " energy and carbon on each, with the sources of the prices; marks those of which no"
        " other is both faster and cheaper.",
        inputs=_compare_inputs,
        call=_compare,
    ),
    AgentTool(
        name="export",
        description="Write a layout as the files and the command of a training software. Returns"
        " their text; writes nothing. What the software has no words for is refused.",
        inputs=_export_inputs,
        call=_export,
    ),
    AgentTool(
        name="serving_plan",
        description="Find deployments that serve a model: how to cut it, how many copies, how many"
        " requests at once. Returns TTFT, TPOT, end-to-end time and throughput with 80 %"
        " intervals, cost and memory.",
        inputs=_serving_inputs,
        call=_serving_plan,
    ),
)


def tool_named(name: str) -> AgentTool:
    """Return a tool; UnknownNameError with the nearest names."""
    for tool in TOOLS:
        if tool.name == name:
            return tool
    raise UnknownNameError("tool", name, [tool.name for tool in TOOLS])


def sentence(error: MeshwrightError) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split())
