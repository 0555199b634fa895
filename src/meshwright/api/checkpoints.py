"""Checkpoints of a training in the Python API: the function behind `meshwright ckpt plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.api import DEFAULT_SEQ_LEN, problem_of
from meshwright.search.plan import search_problem
from meshwright.search.request import PlanRequest
from meshwright.sizing.checkpoints import (
    CheckpointPlan,
    Machine,
    Optimizer,
    Retention,
    Saved,
    Schedule,
    checkpoint_size,
    plan_checkpoints,
)
from meshwright.sizing.duration import Reliability
from meshwright.software.log_reader import read_log
from meshwright.values.errors import ConfigError

__all__ = ["ckpt_plan", "read_losses"]


def ckpt_plan(
    *,
    schedule: Schedule | None = None,
    retention: Retention | None = None,
    reliability: Reliability | None = None,
    optimizer: Optimizer = "adam",
    losses: Sequence[Saved] = (),
    quota_bytes: float | None = None,
    **fields: Any,
) -> CheckpointPlan:
    """Return size, interval and disk of a training's checkpoints: `ckpt_plan(model="llama3-70b",
    cluster="h100:256")`.

    The other fields are those of `plan`. Where `schedule` knows no step time, and `seq_len` and
    `gbs` are given, the best plan's is taken. `losses` are simulated save by save.
    """
    timing = schedule or Schedule()
    has_batch = "seq_len" in fields and "gbs" in fields
    problem = problem_of(PlanRequest.of({"seq_len": DEFAULT_SEQ_LEN, "top": 1, **fields}))
    setting = problem.setting
    if timing.step_s is None and has_batch:
        plans = search_problem(problem).plans
        if not plans:
            raise ConfigError(
                "no plan fits this cluster, so the step's time is unknown; `meshwright plan` says"
                " why, or give it (step_s)"
            )
        timing = replace(timing, step_s=plans[0].step_s)
    size = checkpoint_size(
        setting.model, stack=setting.stack, precision=setting.work.precision, optimizer=optimizer
    )
    nodes = -(-problem.num_chips // setting.pool.node.chips_per_node)
    return plan_checkpoints(
        setting.model.name,
        size,
        stack=setting.stack.name,
        machine=Machine(
            chip=setting.pool.node.chip.name,
            chips=problem.num_chips,
            nodes=nodes,
            reliability=reliability or Reliability(),
        ),
        schedule=timing,
        rule=retention or Retention(),
        losses=losses,
        quota_bytes=quota_bytes,
    )


def read_losses(words: str, *, save_every: int) -> list[Saved]:
    """Return validation losses: `2.9,2.7,2.8`, a log that tells them, a file of lines `LOSS` or
    `STEP LOSS`; `-` is a save without one."""

    path = Path(words)
    is_list = all(part.strip() == "-" or _is_number(part) for part in words.split(","))
    try:
        lines = words.split(",") if is_list else path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise ConfigError(
            f"losses={words}: expected numbers between commas, or a file ({reason})"
        ) from None
    reading = None if is_list else read_log("\n".join([*lines, ""]))
    if reading is not None and reading.evaluations:
        by_step = {
            one.step: Saved(step=one.step, loss=one.loss) for one in reading.evaluations
        }  # of a resumed run the newer holds
        return [by_step[step] for step in sorted(by_step)]
    found: list[Saved] = []
    for number, line in enumerate(lines, 1):
        parts = line.replace(",", " ").split()
        if not parts or (number == 1 and parts[-1].lower() == "loss"):
            continue
        if (
            len(parts) > 2
            or not all(part == "-" or _is_number(part) for part in parts)
            or (len(parts) == 2 and not parts[0].isdecimal())
        ):
            raise ConfigError(
                f"losses={words}: {line.strip()[:60]!r}: expected `LOSS` or `STEP LOSS` (line"
                f" {number})"
            )
        step = int(parts[0]) if len(parts) == 2 else save_every * (len(found) + 1)
        if found and step <= found[-1].step:
            raise ConfigError(
                f"losses={words}: step {step} follows step {found[-1].step}; expected steps that"
                f" grow (line {number})"
            )
        found.append(Saved(step=step, loss=None if parts[-1] == "-" else float(parts[-1])))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
