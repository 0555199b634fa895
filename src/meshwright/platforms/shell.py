"""Pieces of bash: quoted words, the environment, the program, and torchrun around it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import fill

from meshwright.platforms.job import Job, JobText

__all__ = [
    "MASTER_PORT",
    "STRICT",
    "Copy",
    "asked_for",
    "command",
    "environment",
    "file_folders",
    "files",
    "heredoc",
    "lines_of",
    "node_script",
    "node_words",
    "on_nodes",
    "program",
    "quote",
    "rank_words",
    "reasons",
    "script",
    "start",
    "submitting",
    "timeout_words",
    "title",
]

STRICT = "set -euo pipefail"
MASTER_PORT = 29500
"""Where processes meet: torchrun's own default."""
_PER_NODE = {
    "rank": "One task per node: torchrun in it starts one process per GPU.",
    "node": "One task per node: the program starts one process per GPU itself.",
}
KILL_AFTER_S = 60
"""Time for torchrun to stop its workers at the limit; it gives them 30 s itself."""
_WIDTH = 120


def quote(word: str) -> str:
    """Return a word as bash reads it back.

    Kubernetes replaces `$(NAME)` and `$$` in the command of a container before any shell sees it;
    neither occurs in what is returned.
    """
    return re.sub(r"\$(?=[$(])", "$''", shlex.quote(word))


def lines_of(words: Sequence[str]) -> list[str]:
    """Return words in lines, each option with its values; `python -u -m` stays together."""
    lines: list[str] = []
    for word in map(quote, words):
        starts = re.match(r"'?--" if len(lines) == 1 else r"'?-(?!\d)", word)
        if lines and not starts and len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def command(parts: Iterable[str]) -> str:
    """Return one command over several lines; the parts are bash already."""
    return " \\\n  ".join(parts)


def environment(job: Job) -> str:
    """Return the exports, each behind the reason for it."""
    lines = []
    for variable in job.environment:
        set_it = f"export {variable.name}={quote(variable.value)}"
        lines += [f"# {' '.join(variable.why.split())}", f"{_literal([variable.value])}{set_it}"]
    return "\n".join([*lines, *([asked_for(job)] if job.secrets else [])])


def asked_for(job: Job) -> str:
    """Return what ends the script where a secret is not set."""
    return "\n".join(
        f': "${{{name}:?set it where you submit; no file has its value}}"; export {name}'
        for name in job.secrets
    )


def reasons(job: Job) -> str:
    """Return why the variables are set, for files that have no place for it beside them."""
    lines = [
        f"#   {variable.name}: {' '.join(variable.why.split())}" for variable in job.environment
    ]
    return "\n".join(["# Why the variables are set:", *lines]) if lines else ""


def program(words: Sequence[str], *, name: str = "program") -> str:
    """Return an array of words, for `"${program[@]}"`."""
    lines = "\n".join(f"  {line}" for line in lines_of(words))
    return f"{_literal(words)}{name}=(\n{lines}\n)"


def files(job: Job) -> str:
    """Return what puts the files of a job into a folder of the node, and goes there."""
    if not job.files:
        return ""
    lines = file_folders(job)
    lines += [
        f"{_literal([file.text])}printf %s {quote(file.text)} > {quote(f'./{file.name}')}"
        for file in job.files
    ]
    return "\n".join(lines)


def file_folders(job: Job) -> list[str]:
    """Return the commands that make the folders of a job's files on a node, and go to the first."""
    home = f"/tmp/{job.name}"
    inside = sorted({file.name.rpartition("/")[0] for file in job.files} - {""})
    places = [home, *(f"{home}/{name}" for name in inside)]
    return [f"mkdir -p -- {' '.join(map(quote, places))}", f"cd -- {quote(home)}"]


def heredoc(name: str, text: str) -> str:
    """Return the lines that put a text into a variable as it is; `read` ends with 1 at the end of
    the text, hence the `||`."""
    end = "END"
    while end in text:
        end += "D"
    return f"read -r -d '' {name} <<'{end}' || :\n{text.rstrip()}\n{end}"


def rank_words(job: Job) -> list[str]:
    """Return the command of one rank without torchrun, its output unbuffered."""
    return ["python3", "-u", *job.command]


def timeout_words(job: Job) -> list[str]:
    """Return what stops a job with 124 where the platform itself has no limit."""
    if job.time_limit_s is None:
        return []
    return ["timeout", "--signal=TERM", f"--kill-after={KILL_AFTER_S}", str(job.time_limit_s)]


def start(
    job: Job,
    *,
    rank: str,
    address: str,
    port: str,
    before: Sequence[str] = (),
    options: Sequence[str] = (),
) -> str:
    """Return what one node runs around `"${program[@]}"`: torchrun, or nothing where the program
    starts its ranks itself.

    Rank, address and port are bash already, and of no use to torchrun on one node.
    """
    if job.runs_on == "node":
        where = node_words(job, rank=rank, address=address, port=port)
        return "\n".join([f"export {' '.join(where)}", " ".join([*before, '"${program[@]}"'])])
    several = [f"--nnodes={job.nodes}", f"--node-rank={rank}"]
    several += [f"--master-addr={address}", f"--master-port={port}"]
    flags = several if job.nodes > 1 else ["--standalone"]
    processes = f"--nproc-per-node={job.gpus_per_node}"
    first = " ".join([*before, "torchrun"])
    return command([first, *flags, processes, *options, '"${program[@]}"'])


def node_script(
    job: Job,
    *,
    rank: str,
    address: str,
    port: str,
    before: Sequence[str],
    head: str = STRICT,
    meeting: str = "",
    workdir: str | None = None,
) -> str:
    """Return the script that a platform starts once on each node.

    Args:
        job: what runs.
        rank: the node's number, already bash.
        address: the first node's name, already bash.
        port: where processes meet, already bash.
        before: words in front of torchrun or of the program.
        head: the first lines.
        meeting: lines that find the first node's address, where there are several.
        workdir: where the program starts, unless the platform itself goes there.
    """
    return script(
        [
            head,
            environment(job),
            files(job),
            meeting if job.nodes > 1 else "",
            program(job.command),
            f"cd -- {quote(workdir)}" if workdir else "",
            start(job, rank=rank, address=address, port=port, before=before),
        ]
    )


def node_words(job: Job, *, rank: str, address: str, port: str) -> list[str]:
    """Return the variables by which a program that starts its ranks itself knows where it is."""
    if job.nodes == 1:
        rank, address = "0", "127.0.0.1"
    where = [f"MASTER_ADDR={address}", f"MASTER_PORT={port}"]
    return [f"NNODES={job.nodes}", f"NODE_RANK={rank}", *where]


def _literal(words: Iterable[str]) -> str:
    """Tell shellcheck that dollars and backslashes in single quotes are meant to stay."""
    signs = set("".join(words))
    codes = [code for code, found in (("SC1003", {"\\"}), ("SC2016", {"$", "`"})) if signs & found]
    if not codes:
        return ""
    return f"# shellcheck disable={','.join(codes)}  # these values are taken as they are\n"


def submitting(job: Job, parts: Sequence[str], *, variable: str, who: str, text: str) -> JobText:
    """Return a script that calls a platform's command with a script of its own in a variable."""
    blocks = [
        f"#!/usr/bin/env bash\n{title(job)}\n# Submit it: bash job.sh\n{STRICT}",
        f"# What every {who} runs.\n{heredoc(variable, text)}",
        command(parts),
    ]
    return JobText(file_name="job.sh", text=script(blocks), submit="bash job.sh")


def title(job: Job, how: str = "") -> str:
    """Return the comment at the head of a file; it says how processes are started."""
    how = how or _PER_NODE[job.runs_on]
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    if job.asks_for == "nodes":
        return (
            f"# {job.name}: {nodes}, no GPUs. One task per node: the program finds its rank in the"
            " environment."
        )
    return f"# {job.name}: {job.num_gpus} GPU{'' if job.num_gpus == 1 else 's'} on {nodes}. {how}"


def script(blocks: Iterable[str]) -> str:
    """Return blocks with a blank line between them; empty ones are left out."""
    return "\n\n".join(block for block in blocks if block) + "\n"


_NODE_SCRIPT_WIDTH = 120
_LACKS = "is not in this image"
_WAIT = """\
# One log for each node; pipefail gives the program's code, not that of tee. A signal reaches the
# program, which may save.
stopped=0
trap 'stopped=1; kill -TERM "$(jobs -p)" || :' TERM
run 2>&1 | tee -a -- "$logs/replica-${NODE_RANK:-0}.log" &
code=0
wait "$!" || code=$?
if ((stopped)); then
  code=0
  wait "$!" || code=$?
fi"""


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
    """The shell of the pipeline becomes the program, which signals reach so."""
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
        width=_NODE_SCRIPT_WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    lacking = "is not there: is it mounted, and has the job before this one ended well?"
    return [
        f"needs=(\n{listed}\n)",
        'for path in "${needs[@]}"; do',
        f'  [[ -e $path ]] || {{ echo "{name}: $path {lacking}" >&2; exit 2; }}',
        "done",
    ]


def _programs(name: str, programs: Sequence[str]) -> list[str]:
    return [
        f"command -v {quote(word)} > /dev/null || {{ echo {quote(f'{name}: {word} {_LACKS}')} >&2;"
        " exit 2; }"
        for word in programs
    ]


def _copied(copy: Copy) -> str:
    source, target = copy.source.rstrip("/") + "/", copy.target.rstrip("/") + "/"
    exclude = [f"--exclude={quote(pattern)}" for pattern in copy.exclude]
    words = ["rsync", "-a", *exclude, "--", quote(source), quote(target)]
    failed = f"{copy.source} is not copied to {copy.target}; it is still where it was"
    return "\n".join(
        [
            "# The first node alone copies, and once:"
            " what all would write at the same time would be torn.",
            "if [[ ${NODE_RANK:-0} == 0 ]]; then",
            f"  {' '.join(words)} || echo {quote(failed)} >&2",
            "fi",
        ]
    )
