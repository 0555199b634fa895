"""A stand-in for NGC CLI 4.19.1: its words for jobs of Base Command, with its choices, and JSON in its form. Commands really run.

Its state is the folder named by NGC_STATE; an organization of the name `down` does not answer, and image `missing` never starts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

STATE = Path(os.environ["NGC_STATE"])
STATUSES = ["CREATED", "QUEUED", "STARTING", "RUNNING", "FAILED", "FINISHED_SUCCESS", "KILLED_BY_USER"]
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
    return sum(int(count or 0) * size for count, size in zip(found.groups(), (86400, 3600, 60, 1), strict=True))


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
    top.add_argument("--version", action="version", version="NGC CLI " + os.environ.get("NGC_VERSION", "4.19.1"))
    inner = top.add_subparsers(dest="room", required=True).add_parser("base-command").add_subparsers(dest="noun", required=True)
    verbs = inner.add_parser("job").add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", parents=[common], allow_abbrev=False)
    for word in ("name", "image", "instance", "commandline", "result", "env-var", "label", "secret", "port", "network"):
        run.add_argument(f"--{word}", action="append" if word in ("env-var", "label", "secret", "port") else "store")
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
    return top


def start(words: argparse.Namespace) -> dict[str, object]:
    """Begin a job."""
    for word in ("name", "image", "instance", "commandline", "result"):
        if not getattr(words, word):
            sys.exit(f"Error: --{word} is required")
    number = 5_000_000 + len(list(STATE.glob("[0-9]*")))
    place = STATE / str(number)
    place.mkdir()
    kept = {"name": words.name, "image": words.image, "org": words.org or "", "limit": words.total_runtime, "replicas": words.replicas}
    (place / "job.json").write_text(json.dumps(kept))
    if "missing" not in words.image:
        env = {**os.environ, "PLACE": str(place), "LIMIT": str(words.total_runtime or 0), "COMMAND": words.commandline}
        null = subprocess.DEVNULL
        child = subprocess.Popen(["bash", "-c", RUN], env=env, cwd=STATE, stdin=null, stdout=null, stderr=null, start_new_session=True)
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
            status |= {"startedAt": iso((place / "pid").stat().st_mtime), "endedAt": iso((place / "killed").stat().st_mtime)}
    elif not (place / "pid").exists():
        status |= {"status": "QUEUED", "statusDetails": "Waiting for resources"}
    elif (place / "code").exists():
        code = int((place / "code").read_text())
        late = code == 124 and known["limit"]
        status["status"] = "FINISHED_SUCCESS" if code == 0 else "FAILED_RUN_LIMIT_EXCEEDED" if late else "FAILED"
        status |= {"startedAt": iso((place / "pid").stat().st_mtime), "endedAt": iso(float((place / "ended").read_text()))}
    else:
        status |= {"status": "RUNNING", "startedAt": iso((place / "pid").stat().st_mtime)}
    return {"id": int(place.name), "jobDefinition": {"name": known["name"], "replicaCount": known["replicas"]}, "jobStatus": status}


def place_of(text: str) -> Path:
    place = STATE / text.partition(":")[0]
    if not place.is_dir():
        sys.exit(f"Error: Job {text} could not be found.")
    return place


def main() -> None:
    """Do what the words say."""
    words = grammar().parse_args()
    if words.org == "down":
        sys.exit("Error: Request timed out.")
    if words.verb == "run":
        found: object = {"job": start(words), "jobStatusHistory": []}
    elif words.verb == "list":
        found = [
            job_of(place) for place in STATE.glob("[0-9]*") if json.loads((place / "job.json").read_text())["org"] == (words.org or "")
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
