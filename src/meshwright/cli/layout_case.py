"""Flags of the commands that look at one layout, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.options import field, fields_of
from meshwright.search.request import PlanRequest

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.search.problem import Asked

__all__ = [
    "HOW",
    "WHERE",
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
    "RoutingFlag",
    "SeqFlag",
    "StackFlag",
    "asked_with",
    "file_name",
    "model_words",
    "narrow_console",
]

HfFlag = Annotated[
    Path | None,
    typer.Option("--hf", help="A Hugging Face config.json, or its folder, instead of a name."),
]
LayoutFlag = Annotated[
    str,
    typer.Option(
        "--layout", metavar="KEY=V[,...]", help="The layout, tp=8,pp=4,mbs=1; the rest follows."
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
ModelArgument = Annotated[str | None, field(PlanRequest, "model")]
ClusterFlag = Annotated[str, field(PlanRequest, "cluster")]
GpusPerNodeFlag = Annotated[int | None, field(PlanRequest, "gpus_per_node")]
SeqFlag = Annotated[int, field(PlanRequest, "seq_len")]
DecoderSeqFlag = Annotated[int | None, field(PlanRequest, "decoder_seq_len")]
GbsFlag = Annotated[int | None, field(PlanRequest, "gbs")]
PrecisionFlag = Annotated[str | None, field(PlanRequest, "precision")]
AttentionFlag = Annotated[str | None, field(PlanRequest, "attention")]
RoutingFlag = Annotated[str | None, field(PlanRequest, "routing")]
StackFlag = Annotated[str | None, field(PlanRequest, "stack")]
MegatronVersionFlag = Annotated[str | None, field(PlanRequest, "megatron_version")]
CalibrationFlag = Annotated[Path | None, field(PlanRequest, "calibration")]
ProfileFlag = Annotated[Path | None, field(PlanRequest, "profile")]
MemoryFlag = Annotated[float | None, field(PlanRequest, "max_memory_gib")]
HeadroomFlag = Annotated[float | None, field(PlanRequest, "headroom")]

WHERE: Any = fields_of(PlanRequest, "model", "cluster", "seq_len", required=("cluster", "seq_len"))
"""What a layout can't be looked at without."""
HOW: Any = fields_of(
    PlanRequest,
    *("gbs", "gpus_per_node", "decoder_seq_len", "precision", "attention", "routing", "stack"),
    *("calibration", "profile", "megatron_version", "max_memory_gib", "headroom"),
)


def asked_with(model: str | None, hf: Path | None, layout: str, fields: dict[str, Any]) -> Asked:
    """Look everything up, fill in what the layout leaves open, and hold it to the rules; fields
    that are None are not said."""
    from meshwright import api
    from meshwright.search.problem import ask
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
