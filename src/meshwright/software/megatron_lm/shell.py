"""The command that a shell script runs: variables, arrays and quotes resolved, nothing executed."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from meshwright.values.errors import ConfigError

__all__ = ["Script", "names_position", "quoted", "read_script"]

_PUNCTUATION = "();&|<>\n"
_KEYWORDS = {
    *("if", "then", "else", "elif", "fi", "do", "done", "while", "for", "case", "esac"),
    *("{", "}", "!", "exec", "export", "time", "sudo"),
}
_MOST_WORDS = 20_000
"""More than any command line has; ends scripts whose variables grow without end."""
_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(kw_only=True, slots=True)
class Script:
    """What a script comes down to."""

    program: str
    """`pretrain_gpt.py`; empty where a text has flags only."""
    words: tuple[str, ...]
    """Behind the program."""
    launcher: tuple[str, ...]
    """Before it."""
    variables: dict[str, list[str]] = field(default_factory=dict)
    branches: bool = False
    """Whether the script has conditions, which are all taken."""


def read_script(text: str) -> Script:
    """Return the training command of a script, or of bare flags; ConfigError where there is
    none."""
    variables: dict[str, list[str]] = {}
    found: Script | None = None
    branches = False
    for command in _commands(_without_comments(text.replace("\\\n", " "))):
        branches = branches or command[0] in ("if", "case")
        words = command
        while words and words[0] in _KEYWORDS:
            words = words[1:]
        while words and (taken := _assigned(words, variables)):
            words = words[taken:]
        if words and (script := _training(_expanded(words, variables))) is not None:
            found = script
    if found is None:
        raise ConfigError(
            "no training command: expected a pretrain_*.py with flags such as --num-layers 32, or"
            " the flags alone"
        )
    found.variables, found.branches = variables, branches
    return found


def _without_comments(text: str) -> str:
    lines = []
    for line in text.splitlines():
        at = next(
            (
                m.start()
                for m in re.finditer(r"(?:^|(?<=\s))#", line)
                if not _inside_quotes(line[: m.start()])
            ),
            None,
        )
        lines.append(line if at is None else line[:at])
    return "\n".join(lines) + "\n"


def _inside_quotes(text: str) -> bool:
    return text.count('"') % 2 == 1 or text.count("'") % 2 == 1


def _commands(text: str) -> Iterator[list[str]]:
    """Yield commands as words; an array is one command `NAME=( words )`."""
    text = re.sub(
        r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)",
        lambda found: "${=" + found[1].replace(" ", "").replace('"', "") + "}",
        text,
    )
    text = re.sub(r"\$\([^()]*\)|`[^`]*`", "${?}", text)
    text = re.sub(r"(?<=\s)\d(?=[<>])", "", text)  # the stream of a redirection: 2>&1
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    inside = False
    try:
        for token in lexer:
            for word in token if token and set(token) <= set(_PUNCTUATION) else (token,):
                if word == "(" and words and re.fullmatch(r"\w+\+?=", words[-1]):
                    inside = True
                elif word == ")" and inside:
                    inside = False
                elif word in _PUNCTUATION and inside:
                    continue
                elif word in _PUNCTUATION:
                    if words:
                        yield words
                    words = []
                    continue
                words.append(word)
    except ValueError as error:
        raise ConfigError(f"the script does not read as shell: {str(error).lower()}") from None
    if words:
        yield words


def _assigned(words: list[str], variables: dict[str, list[str]]) -> int:
    """Note an assignment at the start of a command; return how many words it takes."""
    found = re.fullmatch(r"(\w+)(\+?)=(.*)", words[0], flags=re.DOTALL)
    if found is None or not re.match(r"[A-Za-z_]", found[1]):
        return 0
    name, plus, value = found.groups()
    before = variables.get(name, []) if plus else []
    if len(words) > 1 and words[1] == "(" and ")" in words:
        end = words.index(")")
        variables[name] = [*before, *_expanded(words[2:end], variables)]
        return end + 1
    joined = " ".join([*before, _filled(value, variables)]) if plus else _filled(value, variables)
    variables[name] = [joined]
    return 1


def _expanded(words: list[str], variables: dict[str, list[str]]) -> list[str]:
    """Return words with their variables filled in; a word that is one variable becomes as many
    words as that holds."""
    found: list[str] = []
    for word in words:
        whole = re.fullmatch(r"\$(?:\{(\w+)(?:\[[@*]\])?\}|(\w+))", word)
        name = whole and (whole[1] or whole[2])
        if name and name in variables:
            found += [
                part
                for value in variables[name]
                for part in (_split(value) if len(variables[name]) == 1 else [value])
            ]
        elif not (whole and "[@]" in word):
            found.append(_filled(word, variables))
        if len(found) > _MOST_WORDS:
            raise ConfigError(f"the script's variables grow beyond {_MOST_WORDS} words")
    return found


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def _filled(word: str, variables: dict[str, list[str]]) -> str:
    """Fill in the variables inside a word; one that the script does not set stays as it is
    written."""

    def value(found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        if name in variables:
            return " ".join(variables[name])
        return found[0] if default is None else _filled(default, variables)

    text = re.sub(r"\$\{=([^}]*)\}", lambda found: _sum(found[1], variables, found[0]), word)
    text = re.sub(r"\$\{(\w+)(?:\[[@*]\])?(?::?[-=]([^}]*))?\}|\$(\w+)", value, text)
    if len(text) > 100 * _MOST_WORDS:
        raise ConfigError("the script's variables grow without end")
    return text


def _sum(expression: str, variables: dict[str, list[str]], written: str) -> str:
    """Return the value of an arithmetic expansion, or the text as it stands where a variable is not
    set."""
    filled = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?",
        lambda found: " ".join(variables.get(found[1], ["?"])),
        expression,
    ).replace("/", "//")
    try:
        return str(_evaluated(ast.parse(filled, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return written


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        value = _SUMS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(value) < 2**63:
            return value
    raise ValueError


def _training(words: list[str]) -> Script | None:
    """Return the training command in some words, also where it is one quoted word of a launcher."""
    for at, word in enumerate(words):
        if re.search(r"pretrain_\w+\.py\s", word):
            return _training([*words[:at], *_split(word)])
        if re.fullmatch(r"(?:.*/)?pretrain_\w+\.py", word):
            return Script(
                program=word.rsplit("/", 1)[-1],
                words=_unquoted(words[at + 1 :]),
                launcher=tuple(words[:at]),
            )
    flags = [at for at, word in enumerate(words) if word.startswith("--")]
    if flags and {"--num-layers", "--hidden-size", "--encoder-num-layers"} & {
        word.partition("=")[0] for word in words
    }:
        start = next((at + 1 for at, word in enumerate(words) if word.endswith(".py")), flags[0])
        return Script(program="", words=_unquoted(words[start:]), launcher=tuple(words[:start]))
    return None


def _unquoted(words: list[str]) -> tuple[str, ...]:
    """Split words such as "--split 99,1,0", which scripts put into arrays and leave to the shell to
    split; what a caller of the script adds, "$@", is left out."""
    return tuple(
        part
        for word in words
        if word not in ("$@", "$*", "${@}")
        for part in (_split(word) if re.match(r"--[\w-]+\s", word) else [word])
    )


_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[1-9]|\{\w+\})")


def names_position(word: str) -> bool:
    """Whether a word names what the caller of a script gives it, such as $1."""
    return re.search(r"\$(?:[1-9]|\{[1-9]\d*\})", word) is not None


def quoted(word: str) -> str:
    """Quote a word for a shell; variables that a script leaves to its caller stay such."""
    if not _VARIABLE.search(word):
        return shlex.quote(word)
    ends = [0, *(at for found in _VARIABLE.finditer(word) for at in found.span()), len(word)]
    parts = [word[start:end] for start, end in pairwise(ends)]  # text and variable in turns
    parts[::2] = [re.sub(r"([\\\"`$])", r"\\\1", text) for text in parts[::2]]
    return f'"{"".join(parts)}"'
