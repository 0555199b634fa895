"""`meshwright serving export`: a serving plan as files that start it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from meshwright.cli.export import Delivery
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import print_json, tell_notes
from meshwright.platforms.files import read_input
from meshwright.platforms.kubernetes.serving import Where, export_serving
from meshwright.software.serving import SERVING_TARGETS, read_choice
from meshwright.values.errors import ConfigError

__all__ = ["export"]


@command
def export(
    plan: str = argument(
        REQUIRED, "A file of `serving plan --json`; FILE#2 for its second plan.", metavar="PLAN"
    ),
    to: str = option(
        REQUIRED, f"{', '.join(SERVING_TARGETS[:-1])} or {SERVING_TARGETS[-1]}.", metavar="TARGET"
    ),
    model_path: str = option(
        REQUIRED, "What the engine loads: a folder, or a name that it can fetch.", metavar="PATH"
    ),
    max_model_len: int | None = option(
        None, "Tokens of the longest request [default: prompt and answer of the plan]."
    ),
    max_num_seqs: int | None = option(
        None, "Requests at once on an attention rank [default: those of the planned load]."
    ),
    output: Given = fields_of(Delivery, "output"),
    image: str | None = option(None, "Container of manifests: one with the engine."),
    name: str | None = option(None, "Of the deployment on Kubernetes [default: the model's]."),
    hf_secret: str | None = option(
        None, "Kubernetes secret whose key HF_TOKEN opens the model's repository."
    ),
    how: Given = fields_of(Delivery, "dry_run", "force"),
    json_output: bool = option(
        False, "Print one JSON object for programs, and write nothing.", "--json"
    ),
) -> None:
    """Write a serving plan as files that start it.

    The worker's layout, types of weights and cache, longest request, requests at once, tokens of an
    iteration and share of the memory become the engine's own words, each checked against the
    options of a named version (docs/serving_export.md). What a target has no words for is refused
    with the nearest plan that it takes; nothing is dropped or changed.

    Writes a script (vllm, sglang, trtllm), a Deployment and a Service (k8s), an InferenceService
    (kserve), a DynamoGraphDeployment (dynamo), values for the chart llm-d-modelservice (llm-d), or
    an application (ray-serve), and says how they are started. Scripts listen on this machine alone
    unless HOST says otherwise; open ports ask for an API key where the engine can.

    Examples:

      meshwright serving export serving_plans.json --to vllm --model-path meta-llama/Llama-3.1-70B -o serve

      meshwright serving export serving_plans.json#2 --to k8s --model-path /models/70b --image vllm/vllm-openai:v0.32.0 --dry-run

      meshwright serving export serving_plans.json --to vllm --model-path /models/70b --json
    """  # noqa: E501
    content, rank, file = _read(plan)
    choice = read_choice(content, rank=rank, what=file)
    choice = choice.with_limits(max_len=max_model_len, max_sequences=max_num_seqs)
    where = Where(path=model_path, image=image, name=name, hf_secret=hf_secret)
    found = export_serving(choice, target=to, where=where)
    if json_output:
        print_json(found.to_dict())
        return
    Delivery(**output, **how).deliver(found.files)
    tell_notes(found.notes)


def _read(text: str) -> tuple[Any, int, str]:
    file, _, rank = text.partition("#")
    if rank and not rank.isdecimal():
        raise ConfigError(f"{text}: expected a plan's number behind #, such as {file}#2")
    try:
        return json.loads(read_input(Path(file)).decode("utf-8")), int(rank or 1), file
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise ConfigError(
            f"{file}: no JSON; expected what `meshwright serving plan --json` prints"
        ) from None
