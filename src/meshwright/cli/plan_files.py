"""Files that hold plans, requests and runs, and the sides of a comparison."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from meshwright import api
from meshwright.api.existing import price_of
from meshwright.api.problems import read_text
from meshwright.cli.terminal import narrow_console
from meshwright.platforms.files import read_input
from meshwright.report.diff_text import print_comparison, print_prices
from meshwright.search.diff import compare
from meshwright.search.mixed.front import mixed_layout_of
from meshwright.search.mixed.problem import MixedProblem, resolve_mixed
from meshwright.search.problem import (
    Asked,
    Problem,
)
from meshwright.search.quote import Quote
from meshwright.search.ran import Ran, ran_words
from meshwright.search.refine import (
    setting_of,
)
from meshwright.search.request import PlanRequest
from meshwright.search.result import PlanResult, layout_dict
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.mixed_layout import MixedLayout

__all__ = [
    "Side",
    "print_change",
    "read_mixed",
    "read_request",
    "read_side",
    "request_to_yaml",
    "side_of",
]


_SHARED = (
    "seq_len",
    "decoder_seq_len",
    "sample_len",
    "precision",
    "attention",
    "routing",
    "cp_comm_type",
    "cuda_graphs",
    "switches",
    "fused_norm",
    "finetune",
    "lora_rank",
    "lora_targets",
    "model",
    "stack",
    "cluster",
)
"""Fields of a request that say what is trained, where and by what."""
_CAPS = ("num_gpus", "min_tokens_per_s", "same")
"""Fields of a request under which chips may be left idle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side: fields of a layout, and the request that they answer where that is known."""

    name: str
    layout: dict[str, Any]
    request: dict[str, Any] | None = None

    def asked_with(self, given: dict[str, Any]) -> Side:
        """Return the side as an answer to another request; what is None is not said."""
        return replace(
            self, request={name: value for name, value in given.items() if value is not None}
        )

    def problem(self) -> Problem | None:
        """Return what the side was asked with."""
        if self.request is None:
            return None
        return api.problem_of(PlanRequest.of(self.request))

    def values(self, quote: Quote | None) -> dict[str, Any]:
        """Return everything that the side says, the layout filled in where it was priced."""
        layout = (
            self.layout
            if quote is None
            else {field.name: getattr(quote.layout, field.name) for field in fields(Layout)}
        )
        request = self.request or {}
        return {**{name: request[name] for name in _SHARED if name in request}, **layout}


def read_side(text: str) -> Side:
    """Read words, or the plan of a file; ConfigError for anything broken."""
    name, _, rank = text.partition("#")
    if "=" in text and not Path(name).exists():
        found = parse_layout(text)
        Layout(**found)
        return Side(name=text, layout=found)
    return side_of(_plan_json(Path(name)), text, rank)


def _plan_json(path: Path) -> Any:
    try:
        return json.loads(read_input(path).decode("utf-8"))
    except OSError as error:
        hint = "; a layout is written tp=8,pp=4" if "=" not in str(path) else ""
        raise ConfigError(f"{path}: cannot be read ({error.strerror}){hint}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}: no JSON, line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: no JSON in UTF-8") from None


def side_of(content: Any, name: str, rank: str = "") -> Side:
    """Return a plan, a layout, or a plan of an answer of `plan --json`; ConfigError if broken."""
    if not isinstance(content, dict):
        raise ConfigError(
            f"{name}: expected an object as `plan --json` prints it, got {type(content).__name__}"
        )
    request = content.get("request")
    if "plans" in content:
        content = _ranked(content["plans"], name, rank)
    elif rank:
        raise ConfigError(f"{name}: the file holds one plan; leave out #{rank}")
    layout = content.get("layout", content)
    if "stages" in content and isinstance(layout, dict) and isinstance(request, dict):
        request = _of_one_kind(content, request, name)
    if not isinstance(layout, dict) or (request is not None and not isinstance(request, dict)):
        raise ConfigError(f"{name}: expected an object as `plan --json` prints it")
    return Side(name=name, layout=_layout_fields(layout, name), request=request)


def _of_one_kind(plan: dict[str, Any], request: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a plan's request for the chips that it uses; ConfigError if stages are not alike."""
    if kinds := _kinds(plan):
        raise ConfigError(
            f"{name}: its pipeline runs on {' and '.join(kinds)}; `export` and `report` read the"
            " file of such a plan, and no other command; `stages` of the file says what each"
            " runs as"
        )
    differs = [
        key
        for key in plan["stages"][0]
        if key != "layers" and len({str(stage[key]) for stage in plan["stages"]}) > 1
    ]
    if differs:
        raise ConfigError(
            f"{name}: its stages differ in {', '.join(differs)}, for which training software has"
            " one value; plan with `--same recompute`, or with `--set`, and take that plan"
        )
    kind, colon, _ = str(request.get("cluster")).partition(":")
    if not colon:
        raise ConfigError(
            f"{name}: its cluster {kind} is a file with more chips than the plan uses; plan for a"
            " file with those it uses"
        )
    used = sum(part["used"] for part in plan["chips"])
    return {
        **{key: value for key, value in request.items() if key not in _CAPS},
        "cluster": f"{kind}:{used}",
    }


def _kinds(plan: dict[str, Any]) -> list[str]:
    """Return the chips of a plan's pools where it has several."""
    pools = list(dict.fromkeys((stage.get("pool"), stage["chip"]) for stage in plan["stages"]))
    return [chip for _, chip in pools] if len(pools) > 1 else []


def read_mixed(text: str) -> tuple[MixedLayout, MixedProblem] | None:
    """Read a file's plan over several kinds of chips, with its request; None for anything else."""
    name, _, rank = text.partition("#")
    if not Path(name).is_file():
        return None
    content = _plan_json(Path(name))
    if not isinstance(content, dict) or not isinstance(request := content.get("request"), dict):
        return None
    plan = _ranked(content["plans"], text, rank) if "plans" in content else content
    stages = plan.get("stages")
    if (
        not isinstance(stages, list)
        or not all(isinstance(stage, dict) and "chip" in stage for stage in stages)
        or not _kinds(plan)
    ):
        return None
    asked = PlanRequest.of(request)
    problem = resolve_mixed(asked, files=api.cluster_file_of(asked))
    try:
        return mixed_layout_of(plan, problem), problem
    except ConfigError as error:
        raise ConfigError(f"{text}: {error}") from None


def _ranked(plans: Any, name: str, rank: str) -> dict[str, Any]:
    if (
        not isinstance(plans, list)
        or not plans
        or not all(isinstance(plan, dict) for plan in plans)
    ):
        raise ConfigError(f"{name}: the file holds no plan")
    if rank and not rank.isdecimal():
        raise ConfigError(f"{name}: #{rank}: expected a rank such as #2")
    place = int(rank) if rank else 1
    if not 1 <= place <= len(plans):
        raise ConfigError(f"{name}: the file holds plans #1 to #{len(plans)}")
    found: dict[str, Any] = plans[place - 1]
    return found


def _layout_fields(layout: dict[str, Any], name: str) -> dict[str, Any]:
    """Return checked fields; lists become tuples."""
    known = [field.name for field in fields(Layout)]
    for key in layout:
        if key not in known:
            raise UnknownNameError(f"key of a layout in {name}", str(key), known)
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in layout.items()
    }
    try:
        Layout(**values)
    except (TypeError, AttributeError):
        raise ConfigError(f"{name}: a value of its layout has the wrong type") from None
    return values


def print_change(
    current: Asked, result: PlanResult, *, problem: Problem, run: Ran | None = None
) -> None:
    """Print the file's layout against the best: what differs, what each difference means, and both
    prices. `problem` is the best's, in which the software has all that it can do; `run` is the
    file's layout as it must have run."""
    console, mine = narrow_console(), price_of(current)
    console.print(
        f"\nA, the file's layout: {mine.layout.words()}: {mine.step_s:.3f} s a step, fits:"
        f" {mine.verdict}",
        soft_wrap=True,
    )
    if (words := "" if run is None else run.words) or (words := _unasked_words(mine, current)):
        console.print(words, soft_wrap=True)
    if not result.plans:
        return
    best = replace(current, layout=result.plans[0].layout, problem=problem)
    console.print(
        f"B, the best: {best.layout.words()}: {result.plans[0].step_s:.3f} s a step\n",
        soft_wrap=True,
    )
    experts = problem.setting.model.moe is not None
    print_comparison(
        compare(layout_dict(mine.layout), layout_dict(best.layout), has_experts=experts), console
    )
    print_prices(mine, price_of(best), console)


def _unasked_words(mine: Quote, current: Asked) -> str:
    hint = " With --ran it is compared so."
    return ran_words(mine, setting_of(current.problem), told=current.told, hint=hint)


def read_request(path: Path) -> dict[str, Any]:
    """Return the fields of a request file, YAML or JSON, for `PlanRequest.of`."""
    text = read_text(path, f"request {str(path)!r}")
    fields = (
        _json_fields(text, path) if path.suffix.lower() == ".json" else _yaml_fields(text, path)
    )
    if not isinstance(fields, dict):
        raise ConfigError(
            f"request {str(path)!r}: expected keys and values such as model: llama3-70b"
        )
    return fields


def _json_fields(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"request {str(path)!r}: no JSON at line {error.lineno}, column {error.colno}:"
            f" {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"request {str(path)!r}: no JSON: {str(error)[:80]}") from None


def _yaml_fields(text: str, path: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"request {str(path)!r}: no YAML{place}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"request {str(path)!r}: no YAML: {str(error).splitlines()[0][:120]}"
        ) from None


def request_to_yaml(request: PlanRequest) -> str:
    """Return a request as YAML that reads back to the same request."""
    return yaml.safe_dump(request.to_dict(), sort_keys=False, allow_unicode=True, width=120)
