"""Flags of the commands that look at one layout, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.search.asked import Asked

__all__ = [
    "AttentionFlag",
    "CalibrationFlag",
    "ClusterFlag",
    "DecoderSeqFlag",
    "GbsFlag",
    "GpusPerNodeFlag",
    "HeadroomFlag",
    "HfFlag",
    "JsonFlag",
    "LayoutFlag",
    "MegatronVersionFlag",
    "MemoryFlag",
    "ModelArgument",
    "PrecisionFlag",
    "ProfileFlag",
    "RunStackFlag",
    "SeqFlag",
    "StackFlag",
    "asked_with",
    "file_name",
    "model_words",
    "narrow_console",
]

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help=(
            "A model's name (`meshwright models` lists them), or its dims:"
            " layers=32,hidden=4096,..."
        ),
        show_default=False,
    ),
]
HfFlag = Annotated[
    Path | None,
    typer.Option("--hf", help="A Hugging Face config.json, or its folder, instead of a name."),
]
ClusterFlag = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="KIND:COUNT", help="Chips, such as h100:256, a YAML file, or local."
    ),
]
GpusPerNodeFlag = Annotated[
    int | None,
    typer.Option("--gpus-per-node", help="Chips in one server [default: as the chip is sold]."),
]
SeqFlag = Annotated[int, typer.Option("--seq", help="Tokens in one sequence.", show_default=False)]
DecoderSeqFlag = Annotated[
    int | None,
    typer.Option(
        "--decoder-seq", help="Tokens in one sequence of the decoder [default: a quarter]."
    ),
]
GbsFlag = Annotated[
    int | None, typer.Option("--gbs", help="Global batch in sequences.", show_default=False)
]
LayoutFlag = Annotated[
    str,
    typer.Option(
        "--layout",
        metavar="KEY=V[,...]",
        help="The layout, tp=8,pp=4,mbs=1; what is left out follows.",
        show_default=False,
    ),
]
PrecisionFlag = Annotated[
    str | None,
    typer.Option("--precision", help="What linear layers compute in [default: bf16 or else fp16]."),
]
AttentionFlag = Annotated[
    str | None,
    typer.Option(
        "--attention", help="flash, flash1, fused-softmax or unfused [default: flash if there]."
    ),
]
RoutingFlag = Annotated[
    str | None,
    typer.Option(
        "--routing", help="Of experts: balanced, in-turn, typical or worst [default: balanced]."
    ),
]
StackFlag = Annotated[
    str | None, typer.Option("--stack", help="Training software [default: megatron].")
]
RunStackFlag = Annotated[
    str | None,
    typer.Option(
        "--stack", help="Software to predict [default: what runs, --to or the embedded trainer]."
    ),
]
MegatronVersionFlag = Annotated[
    str | None,
    typer.Option(
        "--megatron-version", help="Version of Megatron-Core whose rules hold [default: newest]."
    ),
]
CalibrationFlag = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="FILE", help="What `meshwright calibrate` wrote."),
]
ProfileFlag = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="What `meshwright profile` wrote on this chip."),
]
MemoryFlag = Annotated[
    float | None,
    typer.Option("--max-memory-gib", help="GiB that one process may use [default: all it sees]."),
]
HeadroomFlag = Annotated[
    float | None,
    typer.Option(
        "--headroom",
        help="Kept free: below 1 a share of memory, else GiB [default: by its interval].",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]


def asked_with(model: str | None, hf: Path | None, layout: str, fields: dict[str, Any]) -> Asked:
    """Look everything up, fill in what the layout leaves open, and hold it to the rules; fields
    that are None are not said."""
    from meshwright import api
    from meshwright.search.asked import ask
    from meshwright.search.request import PlanRequest

    given = {
        name: file_name(value) if isinstance(value, Path) else value
        for name, value in fields.items()
        if value is not None
    }
    return ask(layout, api.problem_of(PlanRequest.of({"model": model_words(model, hf), **given})))


def file_name(path: Path | None) -> str | None:
    """Return what a request takes for a file."""
    return None if path is None else str(path)


def model_words(name: str | None, hf: Path | None) -> str | dict[str, Any]:
    """Return what a request takes for a name or a config."""
    from meshwright.values.errors import ConfigError

    if (name is None) == (hf is None):
        raise ConfigError("give a model: either a name or --hf with a config.json")
    if name is not None:
        return name
    from meshwright.platforms.given import read_hf_config
    from meshwright.search.problem import dims_of

    assert hf is not None
    reading = read_hf_config(hf)
    for note in reading.notes:
        typer.echo(f"note: {note}", err=True)
    return dims_of(reading.spec, details=reading.details)


def narrow_console() -> Console:
    """Return a console that prints words as they are."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)
