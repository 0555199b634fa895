"""What a training is asked for with (a plan's file, a model, a folder), and its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any

from meshwright.cli.export import read_settings
from meshwright.cli.flags import model_words, read_job_file
from meshwright.cli.plan_files import read_side
from meshwright.data.atomic import parse_size
from meshwright.data.pairs import blend
from meshwright.runs.training.prepare import (
    divide,
)
from meshwright.runs.training.request import TrainRequest
from meshwright.runs.training.session import training_in
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import find_server
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.secrets import is_secret
from meshwright.values.units import parse_tokens

__all__ = ["Asked", "asked_of", "environment_of", "job_of_flags", "quota_bytes", "settings_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A training and its folder."""

    folder: Path
    request: TrainRequest
    layout: dict[str, Any] | None = None
    """None: the folder's own, else the best."""


def asked_of(
    source: str | None,
    given: dict[str, Any],
    *,
    case: dict[str, Any],
    hf: Path | None,
    layout: str | None,
    gpus: int | None,
    output: Path | None,
) -> Asked:
    """Return what is to be trained; `given` is of a TrainRequest, `case` of a PlanRequest."""
    words = {
        **case,
        **({} if layout is None else {"layout": layout}),
        **({} if hf is None else {"hf": hf}),
    }
    name = None if source is None else source.partition("#")[0]
    if source is not None and (Path(source).is_dir() or Path(source).name == "train.yaml"):
        _refuse({**words, **({} if gpus is None else {"gpus": gpus})}, f"the training in {source}")
        return _of_folder(Path(source), given, output)
    if name is not None and Path(name).is_file():
        _refuse(words, f"the plan in {source}")
        return _of_plan(str(source), given, gpus=gpus, output=output)
    if name is not None and Path(name).suffix == ".json":
        raise ConfigError(
            f"{source}: no such file; `meshwright plan ... --json > {name}` writes one"
        )
    if gpus is not None:
        raise ConfigError(f"--gpus {gpus}: of no effect with a model; its chips are --cluster's")
    return _of_model(source, given, case=case, hf=hf, layout=layout, output=output)


def _refuse(words: dict[str, Any], what: str) -> None:
    if words:
        raise ConfigError(
            f"{', '.join(words)}: of no effect with {what}, which says it; leave it out"
        )


def _of_folder(path: Path, given: dict[str, Any], output: Path | None) -> Asked:
    folder = path.parent if path.name == "train.yaml" else path
    if output is not None:
        raise ConfigError(f"--output {output}: of no effect with the training in {folder}")
    there = training_in(folder).request.to_dict()
    return Asked(folder=folder, request=TrainRequest.of({**there, **given}))


def _of_plan(source: str, given: dict[str, Any], *, gpus: int | None, output: Path | None) -> Asked:
    side = read_side(source)
    if side.request is None:
        raise ConfigError(
            f"{source}: holds a layout without its request; write it with `meshwright plan ..."
            " --json`"
        )
    request, layout = dict(side.request), dict(side.layout)
    if gpus is not None:
        kind, colon, count = str(request["cluster"]).partition(":")
        if not colon or not count.isdecimal():
            raise ConfigError(
                f"--gpus {gpus}: the plan's cluster is {request['cluster']}; expected KIND:COUNT"
                " such as h100:64"
            )
        server = find_server(kind)
        per_node = server.node.chips_per_node if server else int(request.get("gpus_per_node") or 8)
        found = divide(Layout(**layout), gpus=gpus, gpus_per_node=per_node)
        if not found.divides:
            raise ConfigError(f"--gpus {gpus}: {found.words(Layout(**layout))}")
        if server is not None and gpus % server.chips:
            raise ConfigError(
                f"--gpus {gpus}: no whole number of {server.name}, which hold {server.chips} each"
            )
        request["cluster"] = f"{kind}:{gpus // (server.chips if server else 1)}"
        layout = {key: value for key, value in layout.items() if key not in ("dp", "shard_size")}
    folder = output or _default_folder(request)
    return Asked(folder=folder, request=TrainRequest.of({**given, "plan": request}), layout=layout)


def _of_model(
    model: str | None,
    given: dict[str, Any],
    *,
    case: dict[str, Any],
    hf: Path | None,
    layout: str | None,
    output: Path | None,
) -> Asked:
    if "cluster" not in case:
        raise ConfigError(
            f"train {model or 'MODEL'} needs --cluster, such as h100:64 or local; or name a file of"
            " `meshwright plan --json`"
        )
    if "seq_len" not in case and case["cluster"].partition(":")[0] != "local":
        raise ConfigError(f"train {model or 'MODEL'} needs --seq, such as 8192")
    plan = {"model": model_words(model, hf), **case}
    request = TrainRequest.of({**given, "plan": plan})
    fixed = None if layout is None else parse_layout(layout)
    return Asked(folder=output or _default_folder(plan), request=request, layout=fixed)


def _default_folder(plan: dict[str, Any]) -> Path:
    """Name a training by its model and its cluster, so that the same command finds it again."""
    model = (
        plan["model"] if isinstance(plan["model"], str) else str(plan["model"].get("name", "model"))
    )
    return Path(
        re.sub(r"[^A-Za-z0-9.]+", "-", f"train-{model}-{Path(str(plan['cluster'])).name}")
        .strip("-")
        .lower()
    )


def settings_of(
    words: list[str],
    *,
    tokens: str | None,
    steps: int | None,
    data: list[str],
    tokenizer: str | None,
) -> dict[str, Any]:
    """Return settings as flags say them; ConfigError where two flags say the same."""
    found = read_settings(words)
    flags: dict[str, Any] = {
        "train_tokens": None
        if tokens is None
        else parse_tokens(tokens, name="--tokens", least=1000),
        "train_steps": steps,
        "data": _data(data) or None,
        "tokenizer": tokenizer,
    }
    for key, value in flags.items():
        if value is not None:
            if key in found:
                raise ConfigError(
                    f"--setting {key}={found[key]}: given by a flag too; leave one out"
                )
            found[key] = value
    return found


def _data(words: list[str]) -> list[list[Any]]:
    """Read PREFIX or PREFIX=WEIGHT; pairs of a folder or pattern share its weight by tokens."""
    found: list[list[Any]] = []
    for word in words:
        path, equals, text = word.rpartition("=")
        weight = _number(text) if equals else None
        name = word if weight is None else path
        if (Path(name).is_dir() and any(Path(name).glob("*.idx"))) or has_magic(name):
            mixed = blend([name])
            pairs = zip(mixed.prefixes, mixed.weights, strict=True)
            found += [
                [str(Path(prefix).absolute()), (1.0 if weight is None else weight) * share]
                for prefix, share in pairs
            ]
        else:
            found.append([_absolute(name), 1.0 if weight is None else weight])
    return found


def _absolute(name: str) -> str:
    """A path of this machine is written whole: a job starts in a folder of its own."""
    prefix = name.removesuffix(".idx").removesuffix(".bin")
    here = Path(prefix)
    return (
        str(here.absolute())
        if here.exists() or here.with_name(f"{here.name}.idx").exists()
        else prefix
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def environment_of(words: list[str] | None) -> dict[str, str | None]:
    """Read words NAME=VALUE, or NAME for what the submitting environment holds. A secret's value is
    refused: it would stand in the script, the folder and the shell's history."""
    found: dict[str, str | None] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if equals and is_secret(name):
            raise ConfigError(
                f"--env {name}=...: a secret is not written into files; set it in your shell"
                f" (export {name}=...) and give --env {name}"
            )
        if not name or name in found:
            raise ConfigError(f"--env {name}: expected each NAME=VALUE, or NAME, once")
        found[name] = value if equals else None
    return found


def quota_bytes(text: str | None) -> int | None:
    """Read a size such as 20TB."""
    if text is None:
        return None
    return parse_size(text, name="--quota")


def job_of_flags(path: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Return options of the job: a file's, with flags before them."""
    return {**({} if path is None else read_job_file(path)), **flags}
