"""The door for users of PAI's llmacc: `python -m meshwright.pretrain` in the place of `python -m
llmacc.pretrain`.

A Megatron-LM command line goes in; its flags of parallelism come out, best first. With
`--world-size` they are printed; under torchrun the best ones are added to the command line and the
training program takes the place of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from meshwright.compat.apss import MEMORY_VARIABLE, Device, device_of
from meshwright.compat.megatron_line import (
    DATA_PARALLEL,
    Line,
    has_half_precision,
    parser_complaint,
    repaired,
)
from meshwright.compat.own_entry import ENTRY, first_trainable, plan_file
from meshwright.compat.strategy import Answer, Strategy, strategies_of
from meshwright.software.contract import import_text
from meshwright.software.megatron_lm.words import dead_flags
from meshwright.software.registry import SOURCES
from meshwright.values.errors import ConfigError, MeshwrightError, UnknownNameError

__all__ = ["PROGRAMS", "Meeting", "agree", "main", "run"]

PORT_STEP = 1117
"""From the port where the training program will meet to ours: far enough not to be the next run's,
which users like to count up."""
_MOST_BYTES = 1 << 20
_ANSWER_S = 10.0
"""What one process may take to say who it is."""
_RETRY_S = 0.2
_OTHER_WORDS = "this process was started with other arguments than rank 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Who takes part, and where."""

    rank: int
    world_size: int
    address: str
    port: int
    run_words: tuple[str, ...]
    """What all processes must have been started with."""
    limit_s: float = 600.0

    @property
    def digest(self) -> str:
        """Return a mark of the words, by which processes of another run are told apart."""
        return hashlib.sha256(json.dumps([self.world_size, *self.run_words]).encode()).hexdigest()


def agree(meeting: Meeting, decide: Callable[[], Sequence[str]]) -> list[str]:
    """Return what rank 0 decides, on every rank; its error is raised on every rank too."""
    if meeting.world_size == 1:
        return list(decide())
    if meeting.rank == 0:
        return _decide_and_tell(meeting, decide)
    answer = _ask(meeting)
    if "error" in answer:
        raise ConfigError(f"rank 0 found no strategy: {answer['error']}")
    return [str(word) for word in answer["words"]]


def _decide_and_tell(meeting: Meeting, decide: Callable[[], Sequence[str]]) -> list[str]:
    """Listen before deciding, so that the others find somebody while the search runs."""
    with _listening(meeting) as server:
        try:
            words = list(decide())
        except ConfigError as error:
            _tell(meeting, server, {"error": str(error)})
            raise
        _tell(meeting, server, {"words": words})
    return words


@contextlib.contextmanager
def _listening(meeting: Meeting) -> Iterator[socket.socket]:
    try:
        server = socket.create_server(("", meeting.port), backlog=4096)
    except OSError as error:
        raise ConfigError(
            f"port {meeting.port} of rank 0 cannot be opened ({error.strerror}); name a free one by"
            " --exchange-port"
        ) from None
    with server:
        yield server


def _tell(meeting: Meeting, server: socket.socket, answer: dict[str, Any]) -> None:
    """Answer every other rank of the run once; one that asks with other words is told so."""
    waiting = set(range(1, meeting.world_size))
    end = time.monotonic() + meeting.limit_s
    while waiting:
        server.settimeout(max(end - time.monotonic(), 0.001))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            ranks = ", ".join(map(str, sorted(waiting)[:8]))
            raise ConfigError(
                f"{len(waiting)} of {meeting.world_size} processes never asked rank 0 (ranks"
                f" {ranks}); were they started?"
            ) from None
        with connection:
            connection.settimeout(_ANSWER_S)
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                asked = _receive(connection)
                if asked["digest"] != meeting.digest:
                    _send(connection, {"error": _OTHER_WORDS})
                    continue
                _send(connection, answer)
                if _receive(connection)["got"]:
                    waiting.discard(int(asked["rank"]))


def _ask(meeting: Meeting) -> dict[str, Any]:
    """Ask rank 0, again and again until it is there."""
    end = time.monotonic() + meeting.limit_s
    while time.monotonic() < end:
        try:
            place = (meeting.address, meeting.port)
            with socket.create_connection(place, timeout=_ANSWER_S) as connection:
                _send(connection, {"digest": meeting.digest, "rank": meeting.rank})
                connection.settimeout(max(end - time.monotonic(), _ANSWER_S))
                answer = _receive(connection)
                _send(connection, {"got": True})
                return answer
        except (OSError, ValueError):
            time.sleep(_RETRY_S)
    where = f"{meeting.address}:{meeting.port}"
    raise ConfigError(
        f"rank {meeting.rank}: no answer of rank 0 at {where} within {meeting.limit_s:g} s; open"
        " that port, or name another by --exchange-port"
    )


def _send(connection: socket.socket, content: dict[str, Any]) -> None:
    connection.sendall(json.dumps(content).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Return one line of JSON; ValueError where it is none, as from a stranger."""
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(65536)
        text += part
        if not part or len(text) > _MOST_BYTES:
            raise ValueError("no line")
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content


PROGRAMS = {
    "megatron.GPT": "pretrain_gpt.py",
    "megatron.BERT": "pretrain_bert.py",
    "megatron.T5": "pretrain_t5.py",
}
"""Task types, and the program of Megatron-LM that trains them."""
_SOFTWARE = "megatron-lm"
_MOST_HELP = "the largest global batch, in place of --global-batch-size"
_COUNT: Mapping[str, Any] = {"type": int}
_OLD_PREFIX = "llmacc."
_OPTIONS: tuple[tuple[str, str, Mapping[str, Any], str], ...] = (
    (
        "--task-type",
        "TASK",
        {"required": True},
        f"{', '.join(PROGRAMS)}, each with {_OLD_PREFIX} before it or not",
    ),
    ("--world-size", "N", _COUNT, "print the strategies for N processes, and start nothing"),
    ("--local-world-size", "N", _COUNT, "processes on one node; with --world-size"),
    ("--max-global-batch-size", "N", _COUNT, _MOST_HELP),
    ("--entry", "FILE", {}, f"training program, where Megatron-LM's own is not meant; {ENTRY}"),
    ("--chip", "NAME", {}, "chip to plan for, where it is not this machine's"),
    ("--megatron-version", "V", {}, "version of Megatron-Core whose flags and rules hold"),
    ("--top", "N", {"type": int, "default": 10}, "strategies to print (10)"),
    ("--exchange-port", "PORT", _COUNT, f"where processes agree (MASTER_PORT + {PORT_STEP})"),
)
"""Flag, what it takes, how it is read, and its help."""
_NEEDED = ("--micro-batch-size", "1")
"""What Megatron-LM insists on, with a value to read the others by."""
_PATH_VARIABLE = "MEGATRON_PATH"
_NOTHING_FITS, _BAD_REQUEST = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The processes of a run, as torchrun counts them."""

    size: int
    local_size: int
    meeting: Meeting | None = None
    """None in the calculator."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.local_size < 1 or self.size % self.local_size:
            raise ConfigError(
                f"world size {self.size}, local world size {self.local_size}: expected nodes of"
                " equally many processes"
            )


def run(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run one command line and return its exit code: 0 answered, 1 nothing fits, 2 bad request."""
    try:
        own, given = _split(words)
        line = repaired(given)
        task = _task_of(own.task_type)
        world = _world_of(own, environment, tuple(words))
        if world.meeting is None:
            return _print(_found(own, given, line, world, environment))
        program = _program_of(own.entry, task, environment)
        decided = agree(
            world.meeting, lambda: _decided(own, given, line, world, environment, program)
        )
        _become(program, list(line.words), decided, own=own, environment=environment)
    except NothingFitsError as error:
        return _say(str(error), _NOTHING_FITS)
    except MeshwrightError as error:
        return _say(str(error), _BAD_REQUEST)


class NothingFitsError(ConfigError):
    """No strategy was found; the message says why."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in our words."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _split(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Parser(
        prog="python -m meshwright.pretrain",
        allow_abbrev=False,
        description=(
            "Find the fastest strategy of parallelism for a Megatron-LM command line: print all"
            " with --world-size, start the best one under torchrun. All other options are"
            " Megatron-LM's; flags of parallelism among them are held."
        ),
    )
    for flag, metavar, more, text in _OPTIONS:
        parser.add_argument(flag, metavar=metavar, help=text, **more)
    parser.add_argument(
        "--dry-run", action="store_true", help="under torchrun: print what would be started"
    )
    return parser.parse_known_args(list(words))


def _task_of(name: str) -> str:
    task = name.removeprefix(_OLD_PREFIX)
    if task not in PROGRAMS:
        raise UnknownNameError("task type", name, PROGRAMS)
    return task


def _world_of(
    own: argparse.Namespace, environment: Mapping[str, str], words: tuple[str, ...]
) -> World:
    """Return the world that is asked about, or the one that this process is part of."""
    if own.world_size is not None:
        if own.local_world_size is None:
            raise ConfigError("--world-size needs --local-world-size, the processes on one node")
        return World(size=own.world_size, local_size=own.local_world_size)
    if own.local_world_size is not None:
        raise ConfigError("--local-world-size has no effect without --world-size")
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in environment]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} not set: start this with torchrun, or give --world-size and"
            " --local-world-size to print strategies"
        )
    numbers = (_number(environment, name) for name in names if name != "MASTER_ADDR")
    size, local_size, rank, port = numbers
    near = port + PORT_STEP if port + PORT_STEP < 65536 else port - PORT_STEP
    own_port = near if own.exchange_port is None else own.exchange_port
    address = environment["MASTER_ADDR"]
    meeting = Meeting(rank=rank, world_size=size, address=address, port=own_port, run_words=words)
    return World(size=size, local_size=local_size, meeting=meeting)


def _number(environment: Mapping[str, str], name: str) -> int:
    if not environment[name].isdecimal():
        raise ConfigError(
            f"{name}={environment[name]}: expected a whole number, as torchrun sets it"
        )
    return int(environment[name])


def _found(
    own: argparse.Namespace,
    given: Sequence[str],
    line: Line,
    world: World,
    environment: Mapping[str, str],
) -> list[Strategy]:
    """Return the strategies, best first; NothingFitsError where there are none."""
    device = device_of(chip=own.chip, environment=environment)
    notes = list(line.notes)
    if device.assumed:
        why = f"no GPU was found here; planned for {device.chip} with {MEMORY_VARIABLE} of memory"
        notes.append(f"{why}, another by --chip")
    # What the line said, but in today's words; dead flags stay, so that the reader names them.
    held = [] if line.dp is None else [DATA_PARALLEL, str(line.dp)]
    dead = [word for word in given if word.partition("=")[0] in dead_flags()]
    megatron = [*line.words, *held, *dead]
    answer = _asked(own, megatron, world, device, top=own.top)
    notes += answer.notes
    if not has_half_precision(megatron):
        narrow = _asked(own, [*megatron, "--bf16"], world, device, top=own.top)
        notes.append(_cost(answer, narrow))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not answer.strategies:
        raise NothingFitsError(answer.why_none)
    return list(answer.strategies)


def _asked(
    own: argparse.Namespace, megatron: list[str], world: World, device: Device, *, top: int
) -> Answer:
    source = next(source for source in SOURCES if source.name == _SOFTWARE)
    # Megatron-LM cannot do without a micro batch; here it is part of what is searched.
    searched: list[str] = []
    if not any(given.partition("=")[0] == _NEEDED[0] for given in megatron):
        searched += _NEEDED
    script = shlex.join([PROGRAMS[_task_of(own.task_type)], *megatron, *searched])
    return strategies_of(
        import_text(script, source=source),
        megatron,
        device=device,
        world_size=world.size,
        local_world_size=world.local_size,
        max_global_batch_size=own.max_global_batch_size,
        megatron_version=own.megatron_version,
        top=top,
    )


def _cost(wide: Answer, narrow: Answer) -> str:
    """What float32 costs."""
    said = "neither --bf16 nor --fp16: it trains in float32"
    if not narrow.strategies:
        return said
    best = narrow.strategies[0].figures
    if not wide.strategies:
        return f"{said}, which does not fit; with --bf16: {best}"
    return f"{said} ({wide.strategies[0].figures}); with --bf16: {best}"


def _print(strategies: list[Strategy]) -> int:
    """Print one strategy a line, as flags; a #, which a shell skips, begins its prediction."""
    for strategy in strategies:
        print(f"{shlex.join(strategy.words)}  # {strategy.figures}")
    return 0


def _decided(
    own: argparse.Namespace,
    given: Sequence[str],
    line: Line,
    world: World,
    environment: Mapping[str, str],
    program: str,
) -> list[str]:
    found = _found(own, given, line, world, environment)
    if program == ENTRY:
        return _own_start(found)
    best = found[0]
    complaint = parser_complaint(
        program, [*line.words, *best.words], environment, own=own.entry is None
    )
    if complaint is not None:
        raise ConfigError(f"Megatron-LM's own parser: {complaint}")
    print(f"strategy: {shlex.join(best.words)}  # {best.figures}", file=sys.stderr)
    variables = [f"{variable.name}={variable.value}" for variable in best.environment]
    return [*variables, "--", *best.words]


def _own_start(found: Sequence[Strategy]) -> list[str]:
    """Return the environment, the plan's text and the words of the embedded trainer."""
    start = first_trainable(found)
    for note in start.notes:
        print(f"note: {note}", file=sys.stderr)
    best = start.strategy
    print(f"strategy: {best.layout.words()}  # {best.figures}", file=sys.stderr)
    variables = [f"{variable.name}={variable.value}" for variable in best.environment]
    return [*variables, "--", start.plan, *start.words]


def _program_of(entry: str | None, task: str, environment: Mapping[str, str]) -> str:
    """Return the named program, else Megatron-LM's in this folder, MEGATRON_PATH or PYTHONPATH."""
    if entry == ENTRY:
        return entry
    if entry is not None:
        if not Path(entry).is_file():
            raise ConfigError(f"--entry {entry}: no such file")
        return entry
    python_path = environment.get("PYTHONPATH", "").split(os.pathsep)
    folders = [".", environment.get(_PATH_VARIABLE, ""), *python_path]
    found = [Path(folder, PROGRAMS[task]) for folder in folders if folder]
    for path in found:
        if path.is_file():
            return str(path)
    raise ConfigError(
        f"{PROGRAMS[task]} is neither here nor in {_PATH_VARIABLE} or PYTHONPATH; name the training"
        " program by --entry"
    )


def _become(
    program: str,
    megatron: list[str],
    decided: list[str],
    *,
    own: argparse.Namespace,
    environment: Mapping[str, str],
) -> NoReturn:
    """Take the training program's place; what the user set in the environment stays."""
    place = decided.index("--")
    variables = dict(word.split("=", maxsplit=1) for word in decided[:place])
    if program == ENTRY:
        text, *words = decided[place + 1 :]
        command = [sys.executable, "-u", "-m", program, str(plan_file(text)), *words]
    else:
        command = [sys.executable, "-u", program, *megatron, *decided[place + 1 :]]
    if own.dry_run:
        print(shlex.join(command))
        raise SystemExit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, command, {**variables, **environment})


def _say(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))
