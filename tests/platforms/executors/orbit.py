"""A made-up platform of another package, whose command line has Run:ai's words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from meshwright.platforms.client import CAVEATS, LIMIT, Client, ClientExecutor, ClientOptions, Seen
from meshwright.platforms.contract import Platform
from meshwright.platforms.executor import UNKNOWN, JobState
from meshwright.platforms.job import Job, JobText, check_fields, required, way
from meshwright.platforms.shell import STRICT, command, heredoc, node_script, timeout_words, title

VERB = ("orbit", "training", "pytorch")
STATES: Mapping[str, JobState] = MappingProxyType(
    {
        "Running": "running",
        "Completed": "succeeded",
        "Failed": "failed",
        "Stopped": "cancelled",
        UNKNOWN: "unknown",
    }
)


def orbit_script(job: Job) -> JobText:
    check_fields(job, "orbit", ("image",))
    way(job, "orbit", ("torchrun",))
    image = required(job, "orbit", "image", "pytorch:25.04")
    pod = node_script(
        job,
        rank='"$RANK"',
        address='"$MASTER_ADDR"',
        port='"$MASTER_PORT"',
        before=["exec", *timeout_words(job)],
    )
    submit = [*VERB, "submit", job.name, "--image", image, '--command -- bash -c "$pod"']
    blocks = (f"{title(job)}\n{STRICT}", heredoc("pod", pod), command([" ".join(submit)]))
    return JobText(file_name="job.sh", text="\n".join(blocks) + "\n", submit="bash job.sh")


def read(out: str, _name: str) -> Seen | None:
    found = next((word for word in STATES if f'"phase": "{word}"' in out), None)
    return None if found is None else Seen(word=found)


CLIENT = Client(
    name="orbit",
    program="orbit",
    advice="it is made up",
    source="this file",
    status=(*VERB, "describe", "{name}", "-o", "json"),
    read=read,
    log=(*VERB, "logs", "{name}"),
    cancel=(*VERB, "suspend", "{name}"),
    states=STATES,
)
ORBIT = Platform(
    name="orbit",
    title="a made-up platform",
    write=orbit_script,
    needs=CLIENT.advice,
    start=partial(ClientExecutor, CLIENT),
    options=ClientOptions,
    states=STATES,
    limit=LIMIT,
    caveats=CAVEATS,
)
