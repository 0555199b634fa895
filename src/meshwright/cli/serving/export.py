"""`meshwright serving export`: a serving plan as files that start it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["export"]


def export(
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN",
            help="A file of `serving plan --json`; FILE#2 for its second plan.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="vllm, sglang, trtllm, k8s, dynamo or llm-d.",
            show_default=False,
        ),
    ],
    model_path: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="What the engine loads: a folder, or a name that it can fetch.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder to write into.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Container of manifests: one with the engine.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the deployment on Kubernetes [default: the model's].")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written, and write nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over files that differ.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for programs, and write nothing.")
    ] = False,
) -> None:
    """Write a serving plan as files that start it.

    The worker's layout, types of weights and cache, longest request, requests at once, tokens of an
    iteration and share of the memory become the engine's own words, each checked against the
    options of a named version (docs/serving_export.md). What a target has no words for is refused
    with the nearest plan that it takes; nothing is dropped or changed.

    Writes a script (vllm, sglang, trtllm), a Deployment and a Service (k8s), a
    DynamoGraphDeployment (dynamo), or values for the chart llm-d-modelservice (llm-d), and says how
    they are started.

    Examples:

      meshwright serving export serving_plans.json --to vllm --model-path meta-llama/Llama-3.1-70B -o serve

      meshwright serving export serving_plans.json#2 --to k8s --model-path /models/70b --image vllm/vllm-openai:v0.32.0 --dry-run

      meshwright serving export serving_plans.json --to vllm --model-path /models/70b --json
    """  # noqa: E501
    from meshwright.cli.export import deliver
    from meshwright.platforms.kubernetes.serving import Where, export_serving
    from meshwright.software.engines.chosen import read_choice

    content, rank, file = _read(plan)
    choice = read_choice(content, rank=rank, what=file)
    found = export_serving(choice, target=to, where=Where(path=model_path, image=image, name=name))
    if json_output:
        import json

        print(json.dumps(found.to_dict(), indent=2))
        return
    deliver(found.files, output, dry_run=dry_run, force=force)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)


def _read(text: str) -> tuple[Any, int, str]:
    import json

    from meshwright.values.errors import ConfigError

    file, _, rank = text.partition("#")
    if rank and not rank.isdecimal():
        raise ConfigError(f"{text}: expected a plan's number behind #, such as {file}#2")
    try:
        return json.loads(Path(file).read_bytes().decode("utf-8")), int(rank or 1), file
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise ConfigError(
            f"{file}: no JSON; expected what `meshwright serving plan --json` prints"
        ) from None
