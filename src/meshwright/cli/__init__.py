"""The command line: a file for a command, or for a few small ones, loaded when one is called."""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
import typer.core
import typer.main

from meshwright.cli.complete import add_values, is_asked, rejoin_words
from meshwright.cli.failures import (
    advice,
    exit_code,
    file_words,
    let_go_of_errors,
    limit_words,
    reader_left,
)
from meshwright.cli.help import HELP_ALL, Command, first_sentence, write_commands
from meshwright.cli.start import ask_command
from meshwright.cli.streams import hide_secrets
from meshwright.cli.terminal import INTERRUPTED
from meshwright.cli.usage import as_meant, usage_words
from meshwright.values.errors import ConfigError, MeshwrightError, UnknownNameError

__all__ = ["app", "commands", "main", "run"]

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "Ask": {
        **dict.fromkeys(("size", "estimate"), "sizing"),
        "compare": "compare",
        "plan": "plan",
        "fix": "fix",
        **dict.fromkeys(("explain", "why-oom", "diff"), "layouts"),
        "ci": "ci",
    },
    "Prove": {
        "tune": "tune",
        **dict.fromkeys(("profile", "calibrate", "predict"), "measured"),
        "anchor": "anchor",
        "validate": "validate",
    },
    "Run": {
        **{name: name for name in ("export", "train")},
        **dict.fromkeys(("train status", "train logs", "train cancel", "train list"), "train_jobs"),
        **{name: name for name in ("watch", "ckpt")},
    },
    "Serve": {"serving": "serving"},
    "Data": {"data": "data"},
    "Show": {
        **dict.fromkeys(("report", "ui"), "pages"),
        **dict.fromkeys(("models", "chips"), "catalogues"),
        **dict.fromkeys(("stacks", "prices"), "listed"),
        "doctor": "doctor",
    },
    "Other tools": {
        **dict.fromkeys(("autoconfigurator", "apss"), "doors"),
        **{name: name for name in ("launcher", "workflow", "bcp", "mcp")},
    },
}
"""Commands by what they are for, in the order of the help, each with its module."""
_COMMANDS = {name: module for group in _GROUPS.values() for name, module in group.items()}
"""Module of each command. The command `why-oom` is the function `why_oom`
there; a module with COMMANDS, such a table, is a group. `train logs` is the function `train_logs`:
`train` takes other words too."""

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's own error for a wrong command line; its home differs from version to version."""
_PIPE_CLOSED = 141
"""The exit code of a filter that SIGPIPE ends."""


class _Commands(typer.core.TyperGroup):
    """The commands whose modules exist, each imported when it is needed."""

    package = "meshwright.cli"
    homes: Mapping[str, str] = _COMMANDS
    """Modules below the package; no word is the package itself."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        # A shell completes one word at a time: names of two are none.
        names = [name for name in self.homes if " " not in name] if is_asked() else self.homes
        return [name for name in names if find_spec(self.module(name)) is not None]

    def module(self, name: str) -> str:
        """Return the module of a command."""
        return f"{self.package}.{self.homes[name]}".removesuffix(".")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, from their files' texts: loading them all takes a second."""
        listed = self.list_commands(ctx)
        groups = _GROUPS if self.homes is _COMMANDS else {"Commands": self.homes}
        shown = {
            title: {
                name: first_sentence(_help(name, self.module(name)))
                for name in names
                if name in listed
            }
            for title, names in groups.items()
        }
        write_commands(formatter, {title: names for title, names in shown.items() if names})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Read two words where they are one command's name."""
        two = " ".join(args[:2])
        return super().resolve_command(
            ctx, [two, *args[2:]] if " " in two and two in self.homes else args
        )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return one command, or a group of them; UnknownNameError where there is none."""
        if cmd_name not in self.list_commands(ctx):
            hint = "; `meshwright --help` says what each does" if self.homes is _COMMANDS else ""
            raise UnknownNameError("command", cmd_name, self.list_commands(ctx), hint=hint)
        module = import_module(self.module(cmd_name))
        if _is_group(module, self):
            return _group(cmd_name, module)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        within = self.package.removeprefix("meshwright.cli").strip(".")
        kind = type("_Command", (Command,), {"path": f"{within} {cmd_name}".strip()})
        single.command(name=cmd_name, cls=kind, context_settings=_SETTINGS)(
            _function(cmd_name, module)
        )
        command = typer.main.get_command(single)
        if is_asked():
            item = import_module(
                f"{_UsageError.__module__.rpartition('.')[0]}.shell_completion"
            ).CompletionItem
            add_values(command, group=within, item=item)
        return command


def _help(name: str, module: str) -> str:
    """Return the first paragraph of a command's help, or of a group's, without loading it."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, "commands that exist are listed"
    text = Path(spec.origin).read_text(encoding="utf-8")
    start = rf"^def {_identifier(name)}_?\(.*?\) -> None:\s*"
    found = re.search(start + r'"""(.*?)(?:"""|\n\n)', text, re.MULTILINE | re.DOTALL)
    found = found or re.match(r'"""(.*?)(?:"""|\n\n)', text, re.DOTALL)
    assert found is not None, f"{module} has a docstring"
    return found[1]


def _is_group(module: ModuleType, inside: _Commands) -> bool:
    """Whether a module has commands of its own, not those of the group that looks into it."""
    return hasattr(module, "COMMANDS") and module.__name__ != inside.package


def _function(name: str, module: ModuleType) -> Any:
    """Return a command's function; one that would hide a word of Python ends in an underscore."""
    word = _identifier(name)
    return getattr(module, f"{word}_" if hasattr(builtins, word) else word)


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(" ", "_")


def _group(name: str, module: ModuleType) -> Any:
    """Return the group of a package, with the package's own words as its help."""
    kind = type("_Group", (_Commands,), {"package": module.__name__, "homes": module.COMMANDS})
    group = typer.Typer(
        name=name,
        cls=kind,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=_SETTINGS,
        no_args_is_help=True,
    )
    group.callback(help=module.__doc__)(lambda: None)
    return typer.main.get_command(group)


def commands() -> dict[str, Any]:
    """Return the function of every command by its words (`data download`), in the help's order."""
    return _functions(typer.main.get_command(app), "")


def _functions(group: Any, before: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in group.list_commands(None):
        module = import_module(group.module(name))
        inner = _is_group(module, group)
        found |= (
            _functions(group.get_command(None, name), f"{before}{name} ")
            if inner
            else {f"{before}{name}": _function(name, module)}
        )
    return found


app = typer.Typer(
    name="meshwright",
    cls=_Commands,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
    epilog=(
        "Exit codes: 0 answered, 1 the answer is none, 2 bad request, 3 partly done, 130"
        " interrupted. `meshwright COMMAND --help` has examples."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from meshwright import __version__

        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Find the fastest way to train a large language model on a given cluster."""


def run(args: Sequence[str]) -> int:
    """Run a command line and return its exit code; foreseen errors are one line on stderr."""
    command = typer.main.get_command(app)
    if is_asked():
        rejoin_words()
    try:
        if not args and not is_asked() and sys.stdin.isatty() and sys.stdout.isatty():
            args = ask_command(input, print)
        args = as_meant(args)
        _require_values(args)
        outcome = command.main(
            args=["--help" if word == HELP_ALL else word for word in args] or ["--help"],
            prog_name="meshwright",
            standalone_mode=False,
            obj=HELP_ALL if HELP_ALL in args else None,
        )
    except MeshwrightError as error:
        # a line that can't be completed yet is no error
        return 0 if is_asked() else _refuse_for(error, str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_left():
            raise
        return _refuse_for(error, file_words(error))
    except (RecursionError, MemoryError, UnicodeError) as error:
        return _refuse(limit_words(error), code=exit_code(error))
    except _UsageError as error:
        return _refuse(usage_words(error))
    except (typer.Abort, KeyboardInterrupt, EOFError):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    code = outcome if isinstance(outcome, int) else 0
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code


def _require_values(args: Sequence[str]) -> None:
    """ConfigError for an option with an empty value, mostly an unset variable of the shell: some
    options would take a default for it."""
    for option, word in pairwise(["", *args]):
        if option in ("-o", "--output") and word.startswith("--"):
            raise ConfigError(f"{option}: expected where to write, and {word} is an option")
        is_own = option != "--launcher-word"  # whose value is an option of the platform
        if (not word and option.startswith("-")) or (
            is_own and re.fullmatch(r"--[a-z][a-z-]*=", word)
        ):
            name = option if not word else word.removesuffix("=")
            raise ConfigError(
                f"{name}: its value is empty (an unset variable of the shell?); give one, or leave"
                " the option out"
            )


def _refuse_for(error: BaseException, said: str) -> int:
    return _refuse(f"{said}{advice(error, said)}", code=exit_code(error))


def _refuse(message: str, *, code: int = 2) -> int:
    line = " ".join(message.split())
    with suppress(OSError):  # a full disk, or a reader that went, behind stderr too
        print(f"error: {line}", file=sys.stderr)
    return code


def main() -> None:
    """Run the command line of this process. A reader that closes the pipe early ends it quietly, as
    it ends other filters; answers that cannot be written end it with 3. One that closes the pipe of
    its errors loses these, and no work."""
    let_go_of_errors()
    hide_secrets()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except SystemExit as ended:  # how the libraries below end where a reader left
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        code = _PIPE_CLOSED
    except OSError as error:
        code = _refuse(f"standard output: {error.strerror or error}", code=exit_code(error))
    _let_go_of_output()
    sys.exit(code)


def _let_go_of_output() -> None:
    """Point the streams that cannot be flushed to nowhere, so that Python's end says nothing."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
