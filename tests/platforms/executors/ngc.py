"""A stand-in for NGC CLI 4.19.1: its words for jobs of Base Command, with its choices, and JSON in
its form. Commands really run.

Its state is the folder named by NGC_STATE; an organization of the name `down` does not answer, and
image `missing` never starts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

STATE = Path(os.environ["NGC_STATE"])
STATUSES = [
    "CREATED",
    "QUEUED",
    "STARTING",
    "RUNNING",
    "FAILED",
    "FINISHED_SUCCESS",
    "KILLED_BY_USER",
]
RUN = """
timeout --signal=TERM --kill-after=5 $LIMIT bash -c "$COMMAND" > "$PLACE/log" 2>&1
code=$?
date +%s.%N > "$PLACE/ended"
echo $code > "$PLACE/code.new" && mv "$PLACE/code.new" "$PLACE/code"
"""


def duration(text: str) -> int:
    """[nD][nH][nM][nS]; a bare number is refused."""
    found = re.fullmatch(r"(?:(\d+)D)?(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", text)
    if not text or found is None:
        raise argparse.ArgumentTypeError("invalid duration: valid input format is [nD][nH][nM][nS]")
    return sum(
        int(count or 0) * size
        for count, size in zip(found.groups(), (86400, 3600, 60, 1), strict=True)
    )


def mount(text: str) -> str:
    if not re.fullmatch(r"[^:]+:/[^:]*(:(RW|RO))?", text):
        raise argparse.ArgumentTypeError(f"{text}: expected ID:MOUNT[:RW|RO]")
    return text


def grammar() -> argparse.ArgumentParser:
    """What 4.19.1 takes; abbreviations are not taken."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for word in ("--org", "--team", "--ace"):
        common.add_argument(word)
    common.add_argument("--format_type", choices=["ascii", "csv", "json"], default="ascii")
    top = argparse.ArgumentParser(prog="ngc", allow_abbrev=False)
    top.add_argument(
        "--version", action="version", version="NGC CLI " + os.environ.get("NGC_VERSION", "4.19.1")
    )
    inner = (
        top.add_subparsers(dest="room", required=True)
        .add_parser("base-command")
        .add_subparsers(dest="noun", required=True)
    )
    verbs = inner.add_parser("job").add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", parents=[common], allow_abbrev=False)
    for word in (
        "name",
        "image",
        "instance",
        "commandline",
        "result",
        "env-var",
        "label",
        "secret",
        "port",
        "network",
    ):
        run.add_argument(
            f"--{word}",
            action="append" if word in ("env-var", "label", "secret", "port") else "store",
        )
    run.add_argument("--priority", choices=["HIGH", "NORMAL", "LOW"])
    run.add_argument("--order", type=int, choices=range(1, 100))
    run.add_argument("--preempt", choices=["RUNONCE", "RESUMABLE", "RESTARTABLE"])
    run.add_argument("--array-type", choices=["MPI", "PARALLEL", "PYTORCH", "HOROVOD"])
    run.add_argument("--replicas", type=int)
    run.add_argument("--topology-constraint", choices=["pack", "any"])
    for word in ("total-runtime", "min-timeslice"):
        run.add_argument(f"--{word}", type=duration)
    for word in ("workspace", "datasetid"):
        run.add_argument(f"--{word}", action="append", type=mount)
    run.add_argument("--waitrun", action="store_true")
    listed = verbs.add_parser("list", parents=[common], allow_abbrev=False)
    listed.add_argument("--duration", type=duration, default=7 * 86400)
    listed.add_argument("--status", choices=STATUSES, action="append")
    for verb in ("info", "log"):
        verbs.add_parser(verb, parents=[common], allow_abbrev=False).add_argument("jobid")
    killed = verbs.add_parser("kill", parents=[common], allow_abbrev=False)
    killed.add_argument("jobids")
    killed.add_argument("--reason")
    for noun in ("workspace", "dataset", "result"):
        storage_grammar(
            noun, inner.add_parser(noun).add_subparsers(dest="verb", required=True), common
        )
    return top


def storage_grammar(
    noun: str,
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    common: argparse.ArgumentParser,
) -> None:
    """What 4.19.1 takes for what is stored; `--exclude` of an upload is for workspaces alone."""

    def verb(name: str, *words: str) -> argparse.ArgumentParser:
        parser = verbs.add_parser(name, parents=[common], allow_abbrev=False)
        for word in words:
            parser.add_argument(word)
        return parser

    fetched = verb("download", "target", "--dest", "--resume")
    for word in ("--file", "--dir", *(["--exclude"] if noun != "workspace" else [])):
        fetched.add_argument(word, action="append")
    for word in ("--zip", "--dry-run"):
        fetched.add_argument(word, action="store_true")
    if noun == "result":
        return
    listed = verb("list", "--name")
    for word in ("--owned", "--all"):
        listed.add_argument(word, action="store_true")
    sent = verb(
        "upload",
        "target",
        "--source",
        *(["--destination"] if noun == "workspace" else ["--desc", "--share"]),
    )
    sent.add_argument("--dry-run", action="store_true")
    sent.add_argument("--threads", type=int)
    if noun == "dataset":
        sent.add_argument("--yes", "-y", action="store_true")
        sent.add_argument("--omit-links", action="store_true")
        return
    sent.add_argument("--exclude", action="append")
    verb("create", "--name")
    mounted = verb("mount", "target", "folder", "--remote-path")
    mounted.add_argument("--mode", choices=["RO", "RW"], required=True)
    mounted.add_argument("--force", action="store_true")
    verb("unmount", "folder")


def stored(words: argparse.Namespace) -> object:
    """Keep what is stored in folders of the state, by name."""
    shelf = STATE / f"{words.noun}s"
    shelf.mkdir(exist_ok=True)
    if words.verb == "list":
        places = sorted(place for place in shelf.iterdir() if place.match(words.name or "*"))
        return [
            {
                "id": f"id-{place.name}",
                "name": place.name,
                "sizeInBytes": 2048,
                "aceName": words.ace or "ace-1",
            }
            for place in places
        ]
    if words.verb == "create":
        if (shelf / words.name).exists():
            sys.exit(f"Error: Workspace name '{words.name}' already exists.")
        (shelf / words.name).mkdir()
        return {"id": f"id-{words.name}", "name": words.name}
    if words.verb == "upload":
        target = shelf / words.target
        if words.noun == "workspace" and not target.exists():
            sys.exit(f"Error: Workspace {words.target} not found.")
        source, into = (
            Path(words.source),
            target / (getattr(words, "destination", None) or "/").strip("/"),
        )
        into.mkdir(parents=True, exist_ok=True)
        (
            shutil.copytree(source, into, dirs_exist_ok=True)
            if source.is_dir()
            else shutil.copy(source, into)
        )
        return {"id": 1}
    return {key: value for key, value in vars(words).items() if value}


def start(words: argparse.Namespace) -> dict[str, object]:
    """Begin a job."""
    for word in ("name", "image", "instance", "commandline", "result"):
        if not getattr(words, word):
            sys.exit(f"Error: --{word} is required")
    number = 5_000_000 + len(list(STATE.glob("[0-9]*")))
    place = STATE / str(number)
    place.mkdir()
    kept = {
        "name": words.name,
        "image": words.image,
        "org": words.org or "",
        "limit": words.total_runtime,
        "replicas": words.replicas,
    }
    (place / "job.json").write_text(json.dumps(kept))
    if "missing" not in words.image:
        env = {
            **os.environ,
            "PLACE": str(place),
            "LIMIT": str(words.total_runtime or 0),
            "COMMAND": words.commandline,
        }
        null = subprocess.DEVNULL
        child = subprocess.Popen(
            ["bash", "-c", RUN],
            env=env,
            cwd=STATE,
            stdin=null,
            stdout=null,
            stderr=null,
            start_new_session=True,
        )
        (place / "pid").write_text(str(child.pid))
    return job_of(place)


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def job_of(place: Path) -> dict[str, object]:
    """A job as the service tells it."""
    known = json.loads((place / "job.json").read_text())
    status: dict[str, object] = {"jobId": int(place.name)}
    if (place / "killed").exists():
        status |= {"status": "KILLED_BY_USER", "statusDetails": "Job killed by user"}
        if (place / "pid").exists():
            status |= {
                "startedAt": iso((place / "pid").stat().st_mtime),
                "endedAt": iso((place / "killed").stat().st_mtime),
            }
    elif not (place / "pid").exists():
        status |= {"status": "QUEUED", "statusDetails": "Waiting for resources"}
    elif (place / "code").exists():
        code = int((place / "code").read_text())
        late = code == 124 and known["limit"]
        status["status"] = (
            "FINISHED_SUCCESS" if code == 0 else "FAILED_RUN_LIMIT_EXCEEDED" if late else "FAILED"
        )
        status |= {
            "startedAt": iso((place / "pid").stat().st_mtime),
            "endedAt": iso(float((place / "ended").read_text())),
        }
    else:
        status |= {"status": "RUNNING", "startedAt": iso((place / "pid").stat().st_mtime)}
    return {
        "id": int(place.name),
        "jobDefinition": {"name": known["name"], "replicaCount": known["replicas"]},
        "jobStatus": status,
    }


def place_of(text: str) -> Path:
    place = STATE / text.partition(":")[0]
    if not place.is_dir():
        sys.exit(f"Error: Job {text} could not be found.")
    return place


def main() -> None:
    """Do what the words say."""
    words = grammar().parse_args()
    if words.noun != "job":
        print(json.dumps(stored(words)))
        return
    if words.org == "down":
        sys.exit("Error: Request timed out.")
    if words.verb == "run":
        found: object = {"job": start(words), "jobStatusHistory": []}
    elif words.verb == "list":
        found = [
            job_of(place)
            for place in STATE.glob("[0-9]*")
            if json.loads((place / "job.json").read_text())["org"] == (words.org or "")
        ]
    elif words.verb == "info":
        found = {"job": job_of(place_of(words.jobid)), "jobStatusHistory": []}
    elif words.verb == "log":
        log = place_of(words.jobid) / "log"
        if not log.exists():
            sys.exit("Error: Job is not yet started, there is no log data available.")
        sys.stdout.buffer.write(log.read_bytes())
        return
    else:
        place = place_of(words.jobids)
        (place / "killed").touch()
        if (place / "pid").exists():
            os.killpg(int((place / "pid").read_text()), signal.SIGKILL)
        print(f"Submitted job kill request for Job ID: '{words.jobids}'")
        return
    print(json.dumps(found) if words.format_type == "json" else "a table")


main()
