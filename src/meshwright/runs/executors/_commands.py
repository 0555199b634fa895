"""Commands of a launcher: they are there, they answer in time, or one clear line says what is
wrong."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import LauncherError, LauncherSilent

__all__ = ["Answer", "ask", "last_line", "require"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


def require(launcher: str, programs: Sequence[str], *, advice: str) -> None:
    """Look for programs; LauncherError where one is not there."""
    for program in programs:
        if shutil.which(program) is None:
            raise LauncherError(f"{launcher}: {program} is not there: {advice}")


def ask(
    words: Sequence[str],
    *,
    launcher: str,
    env: Mapping[str, str],
    patience_s: float,
    out: Path | None = None,
) -> Answer:
    """Run a command; with `out` the command itself writes its output there, so that it is not lost
    if this process dies meanwhile."""
    try:
        if out is None:
            done = subprocess.run(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=patience_s,
                check=False,
            )
            return Answer(code=done.returncode, out=_text(done.stdout), err=_text(done.stderr))
        with out.open("wb") as file:
            into = subprocess.run(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.PIPE,
                timeout=patience_s,
                check=False,
            )
        return Answer(code=into.returncode, out=_text(out.read_bytes()), err=_text(into.stderr))
    except FileNotFoundError:
        raise LauncherError(f"{launcher}: {words[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise LauncherSilent(
            f"{launcher}: {words[0]} did not answer within {patience_s:g} s"
        ) from None
    except OSError as error:
        raise LauncherError(f"{launcher}: {words[0]} could not be run: {error}") from None


def last_line(answer: Answer) -> str:
    """Return the line that says what went wrong."""
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {answer.code} without a word"


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
