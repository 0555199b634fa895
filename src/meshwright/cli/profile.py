"""`meshwright profile`: measure the operators of training on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from meshwright.api import measured
from meshwright.cli.options import REQUIRED, command, option
from meshwright.cli.terminal import QuietFlag, keep_quiet, print_json
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.profile import UNSTEADY_FRAC, Effort, Profile
from meshwright.values.hardware.profile_chip import Rates, measured_rates
from meshwright.values.units import GB, MICROSECOND, TERA

__all__ = ["profile"]

_INTERRUPTED = 130


@command
def profile(
    output: Path = option(
        REQUIRED, "Where the profile goes: a .npz or a .json.", "--output", "-o", metavar="FILE"
    ),
    device: str | None = option(
        None, "cuda or cpu [default: a GPU where torch sees one].", metavar="NAME"
    ),
    dtype: str | None = option(
        None,
        "Of fp32, tf32, bf16, fp16, fp8 [default: bf16, fp8 on a GPU, fp32 on the CPU].",
        metavar="LIST",
    ),
    quick: bool = option(False, "A small grid: under a minute on two cores."),
    full: bool = option(False, "A fine grid, and more repeats."),
    model: str | None = option(None, "Measure this model's own shapes too.", metavar="NAME"),
    overwrite: bool = option(False, "Measure all again where FILE exists."),
    quiet: QuietFlag = False,
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
) -> None:
    """Measure the operators of training on this machine, for plans that rest on it.

    Matrix products forward and backward, attention, experts, norms, activations, rotary,
    cross-entropy, embedding, optimizer, copies and launches are timed over a grid of shapes: caches
    cold where a step finds them cold, repeats until the median stands, shapes that do not fit left
    out. Under torchrun collectives are timed too. Time is what a layer's parts add up from; the
    rest is overlap.

    Prints a line per series on stderr, then the best rates. FILE has every shape with its time,
    spread and repeats, and machine, driver and versions. Ctrl-C keeps what was measured; the same
    command again measures the rest. Needs torch: pip install 'meshwright[train]'.

    Examples:

      meshwright profile -o here.npz

      meshwright profile --device cpu --quick -o cpu.json

      meshwright profile --dtype bf16,fp8 --full --model llama3-8b -o h100.npz
    """
    found = measured.profile(
        output=output,
        device=device,
        dtype=dtype,
        effort=_effort(quick=quick, full=full),
        model=model,
        overwrite=overwrite,
        tell=keep_quiet if quiet else _tell,
    )
    if not _is_first_rank():
        return
    _show(found, output, json_output=json_output)
    if not found.complete:
        raise typer.Exit(_INTERRUPTED)


def _effort(*, quick: bool, full: bool) -> Effort:
    if quick and full:
        raise ConfigError("--quick and --full: give one of them")
    return "quick" if quick else "full" if full else "standard"


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _tell(line: str) -> None:
    if _is_first_rank():
        print(line, file=sys.stderr, flush=True)


def _show(found: Profile, output: Path, *, json_output: bool) -> None:
    rates = measured_rates(found)
    if json_output:
        record = {
            "file": str(output),
            "complete": found.complete,
            "effort": found.effort,
            "machine": asdict(found.machine),
        }
        counts = {
            series.name: {"shapes": len(series.samples), "measured": len(series.measured)}
            for series in found.series
        }
        print_json(
            {
                **record,
                "rates": asdict(rates),
                "series": counts,
                "skipped": dict(found.skipped),
                "unsteady": found.num_unsteady,
            }
        )
        return
    machine = found.machine
    print(
        f"{machine.device_name}, torch {machine.torch_version}, {found.num_measured} shapes in"
        f" {len(found.series)} series"
    )
    for words, value in _lines(rates):
        print(f"  {words:<36} {value}")
    for name, reason in found.skipped.items():
        print(f"  not measured: {name} ({reason})")
    if found.num_unsteady:
        print(
            f"  unsteady: {found.num_unsteady} shapes with a spread of more than"
            f" {UNSTEADY_FRAC:.0%} of their time"
        )
    state = "complete" if found.complete else "partial: the same command again measures the rest"
    print(f"{output}: {state}")


def _lines(rates: Rates) -> list[tuple[str, str]]:
    """Words and figures in the units of people."""
    tables: tuple[tuple[str, Mapping[str, float]], ...] = (
        ("matrix products", rates.matmul_flops_per_s),
        ("attention forward, causal", rates.attention_forward_flops_per_s),
        ("attention backward, causal", rates.attention_backward_flops_per_s),
    )
    lines = [
        (f"{words}, {name}", _flops(rate)) for words, by in tables for name, rate in by.items()
    ]
    lines += [
        (f"of it sustained, {name}", f"{share:.0%}")
        for name, share in rates.sustained_share.items()
    ]
    singles: tuple[tuple[str, float | None, float, str], ...] = (
        ("memory, read and written", rates.memory_bytes_per_s, GB, "GB/s"),
        ("host, per operation", rates.launch_s, MICROSECOND, "us"),
        ("device, per empty kernel", rates.ramp_s, MICROSECOND, "us"),
    )
    return lines + [
        (words, f"{value / unit:.3g} {name}")
        for words, value, unit, name in singles
        if value is not None
    ]


def _flops(rate: Any) -> str:
    return f"{rate / TERA:.3g} TFLOPS" if rate >= TERA else f"{rate / 1e9:.3g} GFLOPS"
