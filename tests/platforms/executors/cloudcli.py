"""A stand-in for `runai`, `lep`, `sky` and `aliyun`, by the name in PROGRAM: their words for
jobs, and JSON in their form. Commands really run.

Its state is the folder named by CLOUD_STATE. Words: Run:ai's command line 2 by its documentation,
leptonai 0.47.1, skypilot 0.14.1, alibabacloud-pai-dlc20201203 1.11.6 in REST calls of aliyun.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["CLOUD_STATE"])
RUN = (
    'bash -c "$COMMAND" > "$PLACE/log" 2>&1; echo $? > "$PLACE/code.new" && mv "$PLACE/code.new"'
    ' "$PLACE/code"'
)


def parser(prog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=prog, allow_abbrev=False)


def start(name: str, command: str) -> None:
    """Begin a job; a name is given once."""
    place = STATE / name
    if place.exists():
        sys.exit(f"Error: {name} already exists")
    place.mkdir()
    null = subprocess.DEVNULL
    env = {
        **os.environ,
        "PLACE": str(place),
        "COMMAND": command,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "RANK": "0",
    }
    child = subprocess.Popen(
        ["bash", "-c", RUN],
        env=env,
        cwd=place,
        stdin=null,
        stdout=null,
        stderr=null,
        start_new_session=True,
    )
    (place / "pid").write_text(str(child.pid))


def word_of(place: Path, *, running: str, ended: str, failed: str, stopped: str) -> str:
    if (place / "stopped").exists():
        return stopped
    if not (place / "code").exists():
        return running
    return ended if (place / "code").read_text().strip() == "0" else failed


def stop(place: Path) -> None:
    if not (place / "code").exists():
        (place / "stopped").touch()
        import psutil

        job = psutil.Process(int((place / "pid").read_text()))
        for process in [*job.children(recursive=True), job]:  # timeout has a group of its own
            process.kill()


def place_of(name: str, missing: str) -> Path:
    if not (STATE / name).is_dir():
        sys.exit(missing)
    return STATE / name


def runai(words: list[str]) -> None:
    if words[:2] != ["training", "pytorch"]:
        sys.exit(f"Error: unknown command {words[:2]}")
    found = parser("runai training pytorch")
    verbs = found.add_subparsers(dest="verb", required=True)
    sent = verbs.add_parser("submit", allow_abbrev=False)
    sent.add_argument("name")
    for word in (
        "image",
        "workers",
        "gpu-devices-request",
        "node-pools",
        "node-type",
        "working-dir",
        "backoff-limit",
    ):
        sent.add_argument(f"--{word}")
    for word in ("host-path", "existing-pvc"):
        sent.add_argument(f"--{word}", action="append")
    for word in ("restart-policy", "master-restart-policy"):
        sent.add_argument(f"--{word}", choices=["Always", "Never", "OnFailure"])
    sent.add_argument("--large-shm", action="store_true")
    sent.add_argument("--command", action="store_true")
    for verb in ("describe", "logs", "suspend", "delete"):
        more = verbs.add_parser(verb, allow_abbrev=False)
        more.add_argument("name")
        more.add_argument("--project", "-p")
        if verb == "describe":
            more.add_argument("-o", choices=["json", "yaml", "table"], default="table")
    sent.add_argument("--project", "-p")
    cut = words.index("--") if "--" in words else len(words)
    given, rest = found.parse_args(words[2:cut]), words[cut + 1 :]
    if given.verb == "submit":
        if not given.image or not given.command or rest[:2] != ["bash", "-c"]:
            sys.exit("Error: image and command are required")
        start(given.name, rest[2])
        return
    place = place_of(given.name, f'Error: workload "{given.name}" not found')
    if given.verb == "describe":
        phase = word_of(
            place, running="Running", ended="Completed", failed="Failed", stopped="Stopped"
        )
        print(json.dumps({"general": {"name": given.name, "phase": phase}}))
    elif given.verb == "logs":
        print((place / "log").read_text() if (place / "log").exists() else "", end="")
    else:
        stop(place)


def lep(words: list[str]) -> None:
    found = parser("lep")
    nouns = found.add_subparsers(dest="noun", required=True)
    verbs = nouns.add_parser("job", allow_abbrev=False).add_subparsers(dest="verb", required=True)
    sent = verbs.add_parser("create", allow_abbrev=False)
    for word in (
        "name",
        "container-image",
        "resource-shape",
        "num-workers",
        "node-group",
        "command",
    ):
        sent.add_argument(f"--{word}")
    sent.add_argument("--mount", action="append")
    got = verbs.add_parser("get", allow_abbrev=False)
    got.add_argument("--name", "-n")
    got.add_argument("--include-archived", "-ia", action="store_true")
    verbs.add_parser("stop", allow_abbrev=False).add_argument("--id", "-i", required=True)
    logs = (
        nouns.add_parser("log", allow_abbrev=False)
        .add_subparsers(dest="verb", required=True)
        .add_parser("get", allow_abbrev=False)
    )
    logs.add_argument("--job-name")
    logs.add_argument("--without-timestamp", action="store_true")
    given = found.parse_args(words)
    if given.noun == "log":
        place = place_of(given.job_name, "Error: no such job")
        print((place / "log").read_text() if (place / "log").exists() else "", end="")
    elif given.verb == "create":
        start(given.name, given.command)
    elif given.verb == "get":
        place = place_of(given.name, f"No job found for Name: {given.name}.")
        state = word_of(
            place, running="Running", ended="Completed", failed="Failed", stopped="Stopped"
        )
        print(f"Job details for {given.name}:")
        print(
            json.dumps(
                {
                    "metadata": {"id": f"{given.name}-x7", "name": given.name},
                    "status": {"state": state},
                },
                indent=2,
            )
        )
        print("--------------------------\n")
    else:
        stop(place_of(given.id.removesuffix("-x7"), "Error: 404"))


def sky(words: list[str]) -> None:
    import yaml

    if words[:1] != ["jobs"]:
        sys.exit("Error: managed jobs only")
    found = parser("sky jobs")
    verbs = found.add_subparsers(dest="verb", required=True)
    sent = verbs.add_parser("launch", allow_abbrev=False)
    sent.add_argument("--yes", "-y", action="store_true")
    sent.add_argument("--detach-run", "-d", action="store_true")
    sent.add_argument("--name", "-n")
    sent.add_argument("task")
    queue = verbs.add_parser("queue", allow_abbrev=False)
    queue.add_argument("--all", "-a", action="store_true")
    queue.add_argument("--output", "-o", choices=["table", "json"], default="table")
    logs = verbs.add_parser("logs", allow_abbrev=False)
    logs.add_argument("--no-follow", action="store_true")
    logs.add_argument("--tail", type=int)
    logs.add_argument("--name", "-n")
    ended = verbs.add_parser("cancel", allow_abbrev=False)
    ended.add_argument("--yes", "-y", action="store_true")
    ended.add_argument("--name", "-n")
    given = found.parse_args(words[1:])
    if given.verb == "launch":
        start(given.name, yaml.safe_load(Path(given.task).read_text())["run"])
    elif given.verb == "queue":
        rows = [
            {
                "job_id": number,
                "job_name": place.name,
                "status": word_of(
                    place,
                    running="RUNNING",
                    ended="SUCCEEDED",
                    failed="FAILED",
                    stopped="CANCELLED",
                ),
            }
            for number, place in enumerate(sorted(STATE.iterdir()), start=1)
        ]
        print(json.dumps(rows, indent=2))
    elif given.verb == "logs":
        print((STATE / given.name / "log").read_text(), end="")
    else:
        stop(place_of(given.name, "Error: no such job"))


REQUESTS = {
    "GET /api/v1/jobs": {
        *("DisplayName", "WorkspaceId", "SortBy", "Order", "PageSize", "StartTime"),
    },
    "POST /api/v1/jobs": {"header", "body"},
    "GET /api/v1/jobs/ID/pods/POD/logs": {"MaxLines", "StartTime"},
    "POST /api/v1/jobs/ID/stop": set(),
}


def aliyun(words: list[str]) -> None:
    """A job of a made-up minute, a second long, is ended by its limit."""
    product, method, path, *rest = words
    options = dict(zip((word.removeprefix("--") for word in rest[::2]), rest[1::2], strict=True))
    parts = path.split("/")
    job, pod = [*parts[4:5], ""][0], [*parts[6:7], ""][0]
    request = f"{method} {'/'.join({job: 'ID', pod: 'POD'}.get(p, p) if p else p for p in parts)}"
    if product != "pai-dlc" or request not in REQUESTS or not set(options) <= REQUESTS[request]:
        sys.exit(f"ERROR: unknown api or parameter: {words[:3]}, {sorted(options)}")
    if request == "POST /api/v1/jobs":
        if options["header"] != "Content-Type=application/json":
            sys.exit("ERROR: the body is JSON")
        body = json.loads(options["body"])
        if not body["WorkspaceId"] or body["JobType"] != "PyTorchJob":
            sys.exit("ERROR: no workspace, or no job of PyTorch")
        limit = body.get("JobMaxRunningTimeMinutes", 0)
        start(body["DisplayName"], f"timeout {limit} bash -c {shlex.quote(body['UserCommand'])}")
        print(json.dumps({"JobId": f"dlc-{body['DisplayName']}", "RequestId": "1"}))
    elif request == "GET /api/v1/jobs":
        named = [place for place in STATE.iterdir() if options["DisplayName"] in place.name]
        print(json.dumps({"Jobs": [dlc_row(place) for place in named], "TotalCount": len(named)}))
    elif method == "GET":
        if pod != f"{job}-worker-0":
            sys.exit("ERROR: no such pod")
        place = place_of(job.removeprefix("dlc-"), "ERROR: no such job")
        lines = (place / "log").read_text().splitlines() if (place / "log").exists() else []
        print(json.dumps({"JobId": job, "PodId": pod, "Logs": lines}))
    else:
        stop(place_of(job.removeprefix("dlc-"), "ERROR: no such job"))


def dlc_row(place: Path) -> dict[str, object]:
    status = word_of(
        place, running="Running", ended="Succeeded", failed="Failed", stopped="Stopped"
    )
    pods = [{"PodId": f"dlc-{place.name}-worker-{number}"} for number in (1, 0)]
    told = {"DisplayName": place.name, "JobId": f"dlc-{place.name}", "Status": status}
    return {**told, "GmtCreateTime": "2026-01-01T00:00:00Z", "Pods": pods}


if __name__ == "__main__":
    {"runai": runai, "lep": lep, "sky": sky, "aliyun": aliyun}[os.environ["PROGRAM"]](sys.argv[1:])
