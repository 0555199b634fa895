"""A job whose program runs inside a script of its node: checks before it, a log of each node's own,
results copied once at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import fill

from meshwright.exports.jobs._shell import STRICT, files, program, quote, script, start
from meshwright.exports.jobs.job import Job

__all__ = ["Copy", "on_nodes"]

_WIDTH = 120
_WAIT = """\
# One log for each node; pipefail gives the program's code, not that of tee. A signal reaches the program, which may save.
stopped=0
trap 'stopped=1; kill -TERM "$(jobs -p)" || :' TERM
run 2>&1 | tee -a -- "$logs/replica-${NODE_RANK:-0}.log" &
code=0
wait "$!" || code=$?
if ((stopped)); then
  code=0
  wait "$!" || code=$?
fi"""  # noqa: E501


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """What the first node copies when the program has ended, however it ended."""

    source: str
    target: str
    exclude: tuple[str, ...] = ()
    """Patterns of rsync."""


def on_nodes(
    job: Job,
    *,
    logs: str,
    needs: Sequence[str] = (),
    programs: Sequence[str] = (),
    setup: str | None = None,
    copy: Copy | None = None,
) -> Job:
    """Return the job with its program inside a script that each node runs once.

    Args:
        job: a program for ranks is started by torchrun; its files are written to /tmp/NAME of each
             node.
        logs: folder that each node appends its output to, as `replica-NUMBER.log`.
        needs: paths that must be there before the program starts; the first that is not ends the
               job with code 2.
        programs: commands that must be there, after the setup.
        setup: bash that runs before the program, such as an installation.
        copy: what the first node copies at the end.
    """
    inside = [
        "set -e",
        *_needs(job.name, needs),
        *([setup.rstrip()] if setup else []),
        *_programs(job.name, programs),
        *([files(job)] if job.files else []),
        program(job.command),
        _start(job),
    ]
    body = "\n".join(inside)
    blocks = [
        STRICT,
        f'logs={quote(logs)}\nmkdir -p -- "$logs"',
        f"run() {{\n{body}\n}}",
        _WAIT,
        _copied(copy) if copy else "",
        'exit "$code"',
    ]
    return replace(
        job, command=("bash", "-c", script(blocks)), runs_on="node", files=(), launch=None
    )


def _start(job: Job) -> str:
    """The shell of the pipeline becomes the program, so that a signal to it is one to the
    program."""
    if job.runs_on == "node":
        return 'exec "${program[@]}"'
    return start(
        job, rank='"$NODE_RANK"', address='"$MASTER_ADDR"', port='"$MASTER_PORT"', before=("exec",)
    )


def _needs(name: str, paths: Sequence[str]) -> list[str]:
    if not paths:
        return []
    listed = fill(
        " ".join(map(quote, paths)),
        width=_WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    lacking = (
        f"{name}: $path is not there: is it mounted, and has the job before this one ended well?"
    )
    return [
        f"needs=(\n{listed}\n)",
        'for path in "${needs[@]}"; do',
        f'  [[ -e $path ]] || {{ echo "{lacking}" >&2; exit 2; }}',
        "done",
    ]


def _programs(name: str, programs: Sequence[str]) -> list[str]:
    return [
        f"command -v {quote(word)} > /dev/null || {{ echo"
        f" {quote(f'{name}: {word} is not in this image')} >&2; exit 2; }}"
        for word in programs
    ]


def _copied(copy: Copy) -> str:
    source, target = copy.source.rstrip("/") + "/", copy.target.rstrip("/") + "/"
    words = [
        "rsync",
        "-a",
        *(f"--exclude={quote(pattern)}" for pattern in copy.exclude),
        "--",
        quote(source),
        quote(target),
    ]
    return "\n".join(
        [
            (
                "# The first node alone copies, and once: what all would write at the same time"
                " would be torn."
            ),
            "if [[ ${NODE_RANK:-0} == 0 ]]; then",
            (
                f"  {' '.join(words)} || echo"
                f" {quote(f'{copy.source} is not copied to {copy.target}; it is still where it was')} >&2"  # noqa: E501
            ),
            "fi",
        ]
    )
