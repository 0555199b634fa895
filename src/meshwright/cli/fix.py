"""`meshwright fix`: the smallest edit of a script or configuration that makes it run, and run
well."""

from __future__ import annotations

from pathlib import Path

import typer

from meshwright.api.fixing import Fixed, changes, fix_run, why_none
from meshwright.api.problems import read_text
from meshwright.cli.flags import HfFlag, model_words
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json, tell, tell_notes
from meshwright.platforms.files import put_file
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError

__all__ = ["fix"]


@command
def fix(
    script: Path = argument(REQUIRED, "The script or configuration to edit.", metavar="FILE"),
    given: Given = fields_of(
        PlanRequest,
        *("model", "cluster", "seq_len", "gbs", "pins", "stack", "megatron_version"),
        *("max_memory_gib", "headroom", "gpus_per_node"),
        model={
            "help": "A model's name or dims, where the file does not say which it trains.",
            "is_argument": False,
        },
        seq_len="Tokens in one sequence [default: the file's].",
        gbs="Global batch in sequences [default: the file's].",
        stack="Training software [default: by the file's flags].",
        required=("cluster",),
    ),
    hf: HfFlag = None,
    best: bool = option(False, "Edit it for the fastest layout, not for the nearest that fits."),
    write: bool = option(False, "Apply the edit to the file."),
    json_output: JsonFlag = False,
) -> None:
    """Edit a launch script or a configuration in place, by as little as makes it fit and run.

    The file is a Megatron-LM script, torchtitan's TOML, or what Megatron-Bridge, NeMo, Primus,
    nanotron, TRL, Axolotl, LLaMA-Factory, torchtune, DeepSpeed and Accelerate are configured with.
    The layout that changes the fewest of its settings, fits in memory and keeps the software's
    rules is taken; with --best the fastest one. One at risk of running out of memory is taken only
    where no other is found, and that is said. Values change where they are set; a new one goes to
    the end of its block. Comments, `$1`, data paths and all other bytes stay. What the file
    switches off stays off.

    Prints a unified diff for `patch -p1`, and on stderr both layouts with their prices. Nothing is
    written without --write. The edited text is read again first, and must say the layout. Exit code
    1: no layout fits.

    Examples:

      meshwright fix train.sh --cluster h100:64

      meshwright fix llama3_8b.toml --cluster h100:16 --gbs 128 --best --write

      meshwright fix ds_config.json --model llama3-8b --seq 4096 --cluster h100:8

      meshwright fix train.sh --cluster a100-80:128 --set tp=8 --json
    """
    if hf is not None:
        given["model"] = model_words(given.get("model"), hf)
    fixed = fix_run(script, given, best=best)
    if fixed is None:
        tell(f"{script}: no layout fits on {given['cluster']}:")
        for line in why_none(script, given):
            tell(f"  {line}")
        tell(f"`meshwright plan --from {script} --cluster {given['cluster']}` shows what would fit")
        raise typer.Exit(1)
    if json_output:
        print_json(fixed.to_dict())
    else:
        print(fixed.diff, end="")
    for line in (*fixed.run.lines(), *changes(fixed)):
        tell(line)
    tell_notes(fixed.notes)
    if not fixed.diff:
        tell(
            "nothing is to change; --best edits it for the fastest layout"
            if not best
            else "nothing is to change"
        )
    elif write:
        _write(script, fixed)
        tell(f"wrote {script}")


def _write(path: Path, fixed: Fixed) -> None:
    """Put the edited text in the file's place at once, with its mode."""
    try:
        if read_text(path, str(path)) != fixed.run.text:
            raise ConfigError(f"{path}: it changed while it was read; run the command again")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    put_file(path, fixed.text, force=True)
