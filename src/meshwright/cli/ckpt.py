"""Checkpoints of a training: how large, how often, which stay, how much disk."""

from __future__ import annotations

import json
from typing import Any

import typer

from meshwright.api import checkpoints as ckpt
from meshwright.cli.flags import HfFlag, model_words
from meshwright.cli.options import Given, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_page
from meshwright.report.sizing_text import checkpoint_lines
from meshwright.search.request import PlanRequest
from meshwright.sizing.checkpoints import OPTIMIZERS, SAVE_EVERY, Retention, Schedule
from meshwright.sizing.duration import Reliability
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import GIB, parse_tokens

__all__ = ["COMMANDS", "plan"]

COMMANDS = {"plan": ""}


@command
def plan(
    where: Given = fields_of(PlanRequest, "model", "cluster", required=("cluster",)),
    hf: HfFlag = None,
    batch: Given = fields_of(
        PlanRequest,
        *("seq_len", "gbs"),
        seq_len="Tokens in one sequence; with --gbs the best plan's step is taken.",
        gbs="Global batch in sequences.",
    ),
    step_s: float | None = option(None, "Seconds of one step."),
    steps: int | None = option(None, "Of the whole run."),
    tokens: str | None = option(
        None, "Of the whole run, 300B, instead of --steps; needs --seq and --gbs."
    ),
    save_every: int | None = option(None, "Steps between checkpoints [default: 2000]."),
    best: int | None = option(
        None, "As many are kept with the least validation loss [default: 10]."
    ),
    last: int | None = option(None, "As many of the newest are kept [default: 1]."),
    keep_every: int | None = option(None, "Each at a multiple of so many steps is kept for ever."),
    drop_states: bool = option(False, "All but the newest lose their optimizer states."),
    losses: str | None = option(
        None,
        "Validation losses to simulate, one a save: 2.9,2.7,2.8, a file of lines `LOSS` or"
        " `STEP LOSS`, or a log.",
    ),
    quota_gib: float | None = option(None, "Disk that there is."),
    optimizer: str | None = option(
        None, "adam, adam-bf16, adam-8bit, muon, lion, sgd-momentum or sgd [default: adam]."
    ),
    failures: Given = fields_of(
        Reliability, "chip_mtbf_s", "restart_s", "write_bytes_per_s_per_node"
    ),
    how: Given = fields_of(PlanRequest, "gpus_per_node", "precision", "stack"),
    json_output: JsonFlag = False,
) -> None:
    """Size, interval and disk of a training's checkpoints.

    A checkpoint holds weights, their fp32 copy and the optimizer's states: 14 bytes a parameter for
    bf16 with Adam. The interval that loses least balances the time to write against the work that a
    failure undoes (Young 1974, Daly 2006). The disk holds the best by validation loss, the newest,
    and the one that is being written, which is whole before an older one goes.

    Prints size by part, write time, the best interval beside the asked one, the peak of the disk,
    and with --losses which checkpoints stay after each save. Where --quota-gib is too small the
    exit code is 1, and what would fit is said.

    Examples:

      meshwright ckpt plan llama3-70b --cluster h100:256 --seq 8192 --gbs 512

      meshwright ckpt plan gpt3-175b --cluster a100-80:1024 --step-s 12 --steps 100000 --keep-every 10000 --drop-states --quota-gib 20000

      meshwright ckpt plan gpt3-5b --cluster a100-80:64 --best 2 --losses 2.91,2.74,2.78,2.69 --json
    """  # noqa: E501
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
    seq, gbs = batch.get("seq_len"), batch.get("gbs")
    alone = [flag for flag, value in (("--seq", seq), ("--gbs", gbs)) if value is not None]
    if len(alone) == 1:
        raise ConfigError(
            f"{alone[0]}: --seq and --gbs go together: the best plan's step is taken with them, and"
            " --tokens needs them"
        )
    if alone and step_s is not None and tokens is None:
        raise ConfigError(
            "--seq and --gbs: of no effect with --step-s, which says the step's time; give one of"
            " them, or --tokens too"
        )
    if tokens is not None and (steps is not None or seq is None or gbs is None):
        raise ConfigError("--tokens: needs --seq and --gbs, and goes without --steps")
    if tokens is not None and seq is not None and gbs is not None:
        if seq < 1 or gbs < 1:
            raise ConfigError(f"--tokens with --seq {seq} --gbs {gbs}: expected 1 or more of each")
        steps = -(-parse_tokens(tokens, name="--tokens") // (seq * gbs))
    if quota_gib is not None and not 0 < quota_gib < float("inf"):
        raise ConfigError(f"--quota-gib {quota_gib:g}: expected a positive number")
    rule: dict[str, Any] = {"best": best, "last": last, "keep_every": keep_every}
    found = ckpt.ckpt_plan(
        model=model_words(where.get("model"), hf),
        cluster=where["cluster"],
        schedule=Schedule(
            save_every=SAVE_EVERY if save_every is None else save_every, step_s=step_s, steps=steps
        ),
        retention=Retention(
            drop_states=drop_states,
            **{name: value for name, value in rule.items() if value is not None},
        ),
        reliability=Reliability(**failures),
        optimizer=optimizer or "adam",
        losses=(
            () if losses is None else ckpt.read_losses(losses, save_every=save_every or SAVE_EVERY)
        ),
        quota_bytes=None if quota_gib is None else quota_gib * GIB,
        **batch,
        **how,
    )
    if json_output:
        typer.echo(json.dumps(found.to_dict()))
    else:
        print_page(checkpoint_lines(found), indent=12)
    if not found.fits:
        raise typer.Exit(1)
