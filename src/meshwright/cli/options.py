"""Signatures of commands: options made from the fields of request types, and a command's own.

A command names the fields that it takes: `asked: Given = fields_of(PlanRequest, "cluster")`. It is
called with those that were given, by the field's name, in the field's type.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from meshwright.values.errors import ConfigError
from meshwright.values.options import Option
from meshwright.values.units import parse_number

__all__ = ["AXES", "REQUIRED", "Given", "argument", "command", "field", "fields_of", "option"]
__all__ += ["layout_words"]

Given = dict[str, Any]
"""Fields of a request that were given; the others keep their default."""
REQUIRED: Any = inspect.Parameter.empty
"""The default of what a command can't do without."""
AXES = {
    "tp": "Tensor parallel size",
    "cp": "Context parallel size",
    "pp": "Pipeline stages",
    "vpp": "Chunks of layers in each stage",
    "ep": "Expert parallel size",
    "etp": "Tensor parallel size of experts",
    "dp": "Data parallel size",
    "mbs": "Sequences in one micro batch",
    "recompute": "none, selective or full",
    "sharding": "none, zero1, zero2, zero3 or hybrid",
}
"""Fields of a layout with options of their own, beside `--set` or `--layout`."""
_LENGTHS = {
    *("--seq", "--decoder-seq", "--input-len", "--output-len", "--sequence-length", "--chunk"),
    *("--gbs", "--max-gbs", "--global-batch-size"),
}
"""Numbers that people round to powers of two: their `k` is 1024. That of all others is 1000."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A command's own option or argument."""

    default: Any
    info: Any
    is_layout: bool = False
    """The words of a layout, to which the axes' own options add."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of a request that a command takes, in the order of its help."""

    options: dict[str, tuple[Any, Option]]
    required: tuple[str, ...]


def option(default: Any, help_: str, *names: str, **more: Any) -> Any:
    """Return the default of a command's own option, which says the option too."""
    return _Own(default, typer.Option(*names, help=help_, **more))


def layout_words(default: Any, help_: str) -> Any:
    """Return the default of `--layout`, beside which an option of each axis stands."""
    return _Own(default, typer.Option(help=help_, metavar="KEY=V[,...]"), is_layout=True)


def argument(default: Any, help_: str, **more: Any) -> Any:
    """Return the default of a command's own argument, which says the argument too."""
    return _Own(default, typer.Argument(help=help_, **{"show_default": False, **more}))


def fields_of(
    request: type, *names: str, required: tuple[str, ...] = (), **changed: str | Mapping[str, Any]
) -> Any:
    """Return the default of a parameter that stands for fields of a request, all that have options
    where none is named.

    `changed` has what is another in this command: a field's help, or several parts of its Option.
    """
    found = _options(request)
    chosen = {name: found[name] for name in names} if names else found
    for name, part in changed.items():
        kind, said = chosen[name]
        parts = {"help": part} if isinstance(part, str) else part
        chosen[name] = (kind, _with_default(replace(said, **parts), _default(request, name)))
    return _Fields(chosen, required)


def field(request: type, name: str) -> Any:
    """Return the typer option of one field, for a command with an annotation of its own."""
    return _info(_options(request)[name][1])


def _options(request: type) -> dict[str, tuple[Any, Option]]:
    """Return type and option of each field that has one, its default said in the help."""
    hints = get_type_hints(request, include_extras=True)
    return {
        name: (get_args(hint)[0], _with_default(said, _default(request, name)))
        for name, hint in hints.items()
        for said in getattr(hint, "__metadata__", ())
        if isinstance(said, Option)
    }


def _default(request: type, name: str) -> Any:
    """Return a field's default, of a dataclass or of a model of pydantic."""
    fields = getattr(request, "model_fields", None) or getattr(request, "__dataclass_fields__", {})
    return getattr(fields.get(name), "default", None)


def _with_default(said: Option, default: Any) -> Option:
    """Return the option with a number or a word that is the default; a help that tells the default
    in words of its own stays as it is."""
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    if not plain or default == "" or "[default" in said.help or said.usual is not None:
        return said
    return replace(said, help=f"{said.help} [default: {default}]")


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function as typer and the documentation read it: one parameter for each option."""
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    shown = [
        parameter
        for name, given in signature.parameters.items()
        for parameter in _parameters(name, hints[name], given.default)
    ]
    groups = {
        name: given.default.options
        for name, given in signature.parameters.items()
        if isinstance(given.default, _Fields)
    }
    layouts = {
        name: given.default
        for name, given in signature.parameters.items()
        if isinstance(given.default, _Own) and given.default.is_layout
    }
    numbers = {parameter.name: kind for parameter in shown if (kind := _number_kind(parameter))}
    written = {parameter.name: _option_name(parameter) for parameter in shown}

    @wraps(function)
    def called(**values: Any) -> None:
        for name, kind in numbers.items():
            values[name] = _read_number(values.get(name), kind, option_name=written[name])
        axes = _axes(values) if layouts or _has_pins(groups) else []
        for name, own in layouts.items():
            values[name] = _joined(values.get(name), axes, needed=own.default is REQUIRED)
        for name, options in groups.items():
            if "pins" in options:
                values["pins"] = [*(values.get("pins") or []), *axes]
            values[name] = _given({one: values.pop(one) for one in options}, options)
        function(**values)

    plain = [_without_number(p, numbers.get(p.name)) for p in shown]
    called.__annotations__ = {p.name: p.annotation for p in plain} | {"return": None}
    vars(called)["__signature__"] = signature.replace(parameters=plain)
    return called


def _axes(values: dict[str, Any]) -> list[str]:
    """Take the axes out of what was given, as words of a layout."""
    given = {axis: values.pop(axis, None) for axis in AXES}
    return [f"{axis}={value}" for axis, value in given.items() if value is not None]


def _has_pins(groups: Mapping[str, Mapping[str, Any]]) -> bool:
    return any("pins" in options for options in groups.values())


def _joined(layout: str | None, words: list[str], *, needed: bool) -> str | None:
    """Return the words of a layout with those of its axes; ConfigError where it is needed."""
    parts = [*([layout] if layout is not None else []), *words]
    if not parts and needed:
        raise ConfigError(
            "give the layout: --layout tp=8,pp=4,mbs=1, or --tp 8 --pp 4 --mbs 1; `meshwright plan`"
            " finds the best"
        )
    return ",".join(parts) if parts else None


_Number = type[int] | type[float]


def _number_kind(parameter: inspect.Parameter) -> _Number | None:
    """Return int or float for a parameter that is one, None for others."""
    kind = _without_none(get_args(parameter.annotation)[0])
    return kind if kind in (int, float) else None


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def _without_number(parameter: inspect.Parameter, kind: _Number | None) -> inspect.Parameter:
    """Return the parameter as a text, so that `8k` can be read."""
    if kind is None:
        return parameter
    info, default = get_args(parameter.annotation)[1], parameter.default
    info.metavar = info.metavar or ("N" if kind is int else "X")
    text = str(default) if isinstance(default, (int, float)) else default
    optional = str if default is REQUIRED else str | None
    return parameter.replace(annotation=Annotated[optional, info], default=text)


def _read_number(value: Any, kind: _Number, *, option_name: str) -> Any:
    """Read `8k` or `0.5`; what is a number already, of a caller in Python, stays."""
    if not isinstance(value, str):
        return value
    thousand = 1024 if option_name in _LENGTHS else 1000
    return parse_number(value, name=option_name, whole=kind is int, thousand=thousand)


def _option_name(parameter: inspect.Parameter) -> str:
    """Return the option as a user writes it."""
    info = get_args(parameter.annotation)[1]
    names = [
        word
        for word in (info.default, *(info.param_decls or ()))
        if isinstance(word, str) and word.startswith("--")
    ]
    return names[0] if names else f"--{parameter.name.replace('_', '-')}"


def _parameters(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """Yield what one parameter of the function is on the command line."""
    if isinstance(default, _Fields):
        for one, (kind, said) in default.options.items():
            yield _of_field(one, kind, said, needed=one in default.required)
            if one == "pins":
                yield from _of_axes("N[,N...]", "as --set {}=")
    elif isinstance(default, _Own) and default.is_layout:
        info = default.info
        yield _parameter(name, str | None, info, None)
        yield from _of_axes("N", "as --layout {}=")
    elif isinstance(default, _Own):
        yield _parameter(name, hint, default.info, default.default)
    else:
        kind, info, *_ = get_args(hint)
        if isinstance(info, Option):
            info = _info(info)
        yield _parameter(name, kind, info, default)


def _of_axes(metavar: str, same: str) -> Iterator[inspect.Parameter]:
    """Yield the options of a layout's axes."""
    for axis, help_ in AXES.items():
        is_word = axis in ("recompute", "sharding")
        info = typer.Option(
            f"--{axis}",
            help=f"{help_}; {same.format(axis)}.",
            metavar="WORD" if is_word else metavar,
        )
        yield _parameter(axis, str | None, info, None)


def _parameter(name: str, kind: Any, info: Any, default: Any) -> inspect.Parameter:
    """Return a parameter of the command line; a switch has no `--no-` form unless it names one.

    Typer takes the first name of an option for its default.
    """
    named = info.param_decls or info.default not in (None, ...)
    if kind is bool and not named:
        info.param_decls = (f"--{name.replace('_', '-')}",)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _of_field(name: str, kind: Any, said: Option, *, needed: bool) -> inspect.Parameter:
    """Return the option of a request's field; False and None leave the field's own default."""
    taken = Path if said.is_file else said.kind or _plain(kind)
    info = _info(said)
    if taken is bool:
        return _parameter(name, bool, info, False)
    if needed:
        return _parameter(name, taken, info, REQUIRED)
    return _parameter(name, taken | None, info, said.usual)


def _info(said: Option) -> Any:
    if said.is_argument:
        return typer.Argument(metavar=said.metavar, help=said.help, show_default=False)
    return typer.Option(*said.names, metavar=said.metavar, help=said.help)


def _plain(kind: Any) -> Any:
    """Return a field's type on the command line: a word of several is a text, checked later."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return str
    return list[str] if get_origin(kind) is tuple else kind


def _given(values: Given, options: Mapping[str, tuple[Any, Option]]) -> Given:
    """Return what was given, as the request takes it."""
    return {
        name: _read(value, options[name][1])
        for name, value in values.items()
        if value is not None and value is not False and value != []
    }


def _read(value: Any, said: Option) -> Any:
    value = str(value) if isinstance(value, Path) else value
    return value if said.read is None else said.read(value)
