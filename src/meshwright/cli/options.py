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

from meshwright.values.options import Option

__all__ = ["REQUIRED", "Given", "argument", "command", "field", "fields_of", "option"]

Given = dict[str, Any]
"""Fields of a request that were given; the others keep their default."""
REQUIRED: Any = inspect.Parameter.empty
"""The default of what a command can't do without."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A command's own option or argument."""

    default: Any
    info: Any


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of a request that a command takes, in the order of its help."""

    options: dict[str, tuple[Any, Option]]
    required: tuple[str, ...]


def option(default: Any, help_: str, *names: str, **more: Any) -> Any:
    """Return the default of a command's own option, which says the option too."""
    return _Own(default, typer.Option(*names, help=help_, **more))


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

    @wraps(function)
    def called(**values: Any) -> None:
        for name, options in groups.items():
            values[name] = _given({one: values.pop(one) for one in options}, options)
        function(**values)

    called.__annotations__ = {p.name: p.annotation for p in shown} | {"return": None}
    vars(called)["__signature__"] = signature.replace(parameters=shown)
    return called


def _parameters(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """Yield what one parameter of the function is on the command line."""
    if isinstance(default, _Fields):
        for one, (kind, said) in default.options.items():
            yield _of_field(one, kind, said, needed=one in default.required)
    elif isinstance(default, _Own):
        yield _parameter(name, hint, default.info, default.default)
    else:
        kind, info, *_ = get_args(hint)
        if isinstance(info, Option):
            info = _info(info)
        yield _parameter(name, kind, info, default)


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
