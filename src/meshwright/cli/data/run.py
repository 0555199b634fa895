"""`meshwright data run`: a whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from meshwright.cli.data.flags import JsonFlag
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.platforms.job import JobOptions

__all__ = ["run"]


@command
def run(
    recipe: Path = argument(
        REQUIRED, "A YAML file: docs/data.md has one of each kind.", metavar="RECIPE"
    ),
    dry_run: bool = option(False, "Print the commands, and do nothing."),
    launcher: str | None = option(
        None,
        "Write a job script instead: slurm, k8s-jobset, bcp, runai, lepton, sky or pai-dlc.",
        metavar="PLATFORM",
    ),
    nodes: int = option(1, "Of the job: one rank on each; workers are the recipe's.", metavar="N"),
    output: Path = option(
        Path("."), "Where the job script goes.", "--output", "-o", metavar="FOLDER"
    ),
    flags: Given = fields_of(
        JobOptions,
        *("name", "time", "image", "mounts", "workdir", "account", "partition", "instance"),
        "log_dir",
    ),
    json_output: JsonFlag = False,
) -> None:
    """Make a corpus by a recipe: slimpajama, wikipedia, or steps of your own.

    Ranks do a step together and begin the next when all have ended. The same command again goes on
    after a failure or a kill; what is done is not done again. Raw data is removed only where the
    recipe's strategy says so, when every file of what replaces it was read back and has its sha256.

    Prints each step with its command line; --json prints one object with the state and seconds of
    each, and the steps' own words go to stderr. Exit code 1 where the recipe's quota is too small,
    with what fits, 3 where a step is partly done. With --launcher nothing is run: a job script is
    written that starts one rank on each node, without GPUs.

    Examples:

      meshwright data run recipe.yaml

      meshwright data run recipe.yaml --dry-run

      meshwright data run recipe.yaml --launcher slurm --nodes 16 --time 12h --partition cpu -o jobs
    """
    if launcher is not None:
        _write_job(
            recipe,
            launcher=launcher,
            nodes=nodes,
            output=output,
            flags=flags,
            json_output=json_output,
        )
        return
    import json
    import sys
    from contextlib import redirect_stdout

    from meshwright.values.errors import ConfigError

    if flags or nodes != 1:
        names = ", ".join([*(["nodes"] if nodes != 1 else []), *flags])
        raise ConfigError(f"{names}: of no effect without --launcher, such as --launcher slurm")
    if dry_run:
        from meshwright.data.recipe import read_recipe

        steps = read_recipe(recipe).steps
        if json_output:
            print(
                json.dumps(
                    {"steps": [{"name": step.name, "line": step.line()} for step in steps]},
                    indent=2,
                )
            )
            return
        for step in steps:
            print(step.line())
        return
    from meshwright.cli import run as execute
    from meshwright.data.pipeline import run as run_recipe

    if json_output:
        with redirect_stdout(sys.stderr):
            report = run_recipe(recipe, execute=execute)
        print(json.dumps(report.to_dict(), indent=2))
    else:
        report = run_recipe(recipe, execute=execute)
    if report.code:
        raise typer.Exit(report.code)


def _write_job(
    recipe: Path,
    *,
    launcher: str,
    nodes: int,
    output: Path,
    flags: dict[str, Any],
    json_output: bool,
) -> None:
    import json

    from meshwright.data.pipeline import recipe_job
    from meshwright.values.errors import ConfigError

    text = recipe_job(recipe, launcher=launcher, nodes=nodes, options=flags)
    path = output / text.file_name
    try:
        output.mkdir(parents=True, exist_ok=True)
        path.write_text(text.text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from None
    if json_output:
        print(json.dumps({"file": str(path), "submit": text.submit, "text": text.text}, indent=2))
        return
    print(f"{path}: submit it with `{text.submit}`")
