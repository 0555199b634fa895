"""A Megatron-LM command line of earlier days, made fit for the parser of today."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.software.megatron_lm.words import dead_flags, flags
from meshwright.values.errors import ConfigError

__all__ = ["DATA_PARALLEL", "Line", "has_half_precision", "parser_complaint", "repaired"]

DATA_PARALLEL = "--data-parallel-size"
_BOTH = ("--fp16", "--bf16")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_NARROW = (*_BOTH, "--fp8-format", "--fp4-format")
_PARSE = """
import argparse, sys
sys.path[:0] = sys.argv.pop(1).split(chr(10))
try:
    from megatron.training.arguments import add_megatron_arguments
except ImportError:
    sys.exit(0)
parser = argparse.ArgumentParser(allow_abbrev=False)
_, rest = (add_megatron_arguments(parser) or parser).parse_known_args()
unknown = [word for word in rest if word.startswith("--")]
if unknown and sys.stdin.read() == "own":
    parser.error("unrecognized arguments: " + " ".join(unknown))
"""
"""Ends with argparse's code 2 and its message; with 0 where Megatron-LM is not installed."""
_PARSE_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Words that today's parser takes."""

    words: tuple[str, ...]
    notes: tuple[str, ...]
    """What was changed, and why."""
    dp: int | None = None
    """What --data-parallel-size said."""


def repaired(words: Sequence[str]) -> Line:
    """Repair what today's Megatron-LM rejects; ConfigError where two words exclude each other.

    Source: Megatron-LM's `arguments.py`: data-parallel size is what tp, pp and cp leave and has no
    flag, and a switch takes no word behind it.
    """
    kept: list[str] = []
    notes: list[str] = []
    dp: int | None = None
    for flag, values in _grouped(words):
        known = flags().get(flag)
        if flag in dead_flags():
            continue  # the reader of the line says so
        if flag == DATA_PARALLEL:
            dp = _count(values)
            notes.append(f"{flag} is no flag of Megatron-LM's; left out, and dp={dp} is held")
        elif known is not None and known.kind == "switch" and len(values) == 1:
            kept += _switch(flag, values[0], notes)
        else:
            kept += [flag, *values] if flag else values
    if all(flag in kept for flag in _BOTH):
        raise ConfigError("--fp16 and --bf16: Megatron-LM takes one of them; leave one out")
    return Line(words=tuple(kept), notes=tuple(notes), dp=dp)


def has_half_precision(words: Sequence[str]) -> bool:
    """Whether a line says a precision below float32."""
    return any(word.partition("=")[0] in _NARROW for word in words)


def _grouped(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each flag with the words behind it; `--flag=value` is split for a known switch alone."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        flag, equals, value = word.partition("=")
        known = flags().get(flag)
        repairable = flag == DATA_PARALLEL or flag in dead_flags()
        if equals and (repairable or (known is not None and known.kind == "switch")):
            found.append((flag, [value]))
        elif word.startswith("--"):
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append(("", [word]))
    return found


def _count(values: Sequence[str]) -> int:
    if len(values) != 1 or not values[0].isdecimal() or int(values[0]) < 1:
        raise ConfigError(f"{DATA_PARALLEL} {' '.join(values)}: expected how many replicas")
    return int(values[0])


def _switch(flag: str, value: str, notes: list[str]) -> list[str]:
    """A switch with a word behind it, as a switch or left out."""
    if value.lower() in _TRUE:
        notes.append(f"{flag} {value}: a switch takes no word; written as {flag}")
        return [flag]
    if value.lower() in _FALSE:
        notes.append(f"{flag} {value}: a switch takes no word; left out, which says no")
        return []
    raise ConfigError(f"{flag} {value}: a switch, which takes no word")


def parser_complaint(
    program: str, words: Sequence[str], environment: Mapping[str, str], *, own: bool
) -> str | None:
    """Return what Megatron-LM's own parser says against a line; None where it takes it, or where
    Megatron-LM is not installed.

    Flags that it does not know count where the program is Megatron-LM's `own`; another may add
    some. A parser that ends otherwise is let be: the program meets it again.
    """
    folders = "\n".join([str(Path(program).resolve().parent)])
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _PARSE, folders, *words],
            input="own" if own else "",
            capture_output=True,
            text=True,
            timeout=_PARSE_S,
            env={**os.environ, **environment},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line for line in ended.stderr.splitlines() if "error:" in line]
    return lines[-1].partition("error:")[2].strip() if ended.returncode == 2 and lines else None
