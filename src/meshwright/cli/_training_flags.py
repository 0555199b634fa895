"""Flags of a training's length and of what stands between its steps, and the Training that they
make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from meshwright.sizing.duration import Training

__all__ = [
    "CarbonFlag",
    "EvalIntervalFlag",
    "EvalStepsFlag",
    "MtbfFlag",
    "NodePriceFlag",
    "PowerFlag",
    "PriceFlag",
    "PueFlag",
    "RestartFlag",
    "SaveFlag",
    "WriteFlag",
    "price_per_chip",
    "training_of",
]

PriceFlag = Annotated[
    float | None, typer.Option(help="USD per chip and hour [default: the catalogue's].")
]
NodePriceFlag = Annotated[
    float | None, typer.Option(help="USD per node and hour, instead of --usd-per-hour.")
]
EvalIntervalFlag = Annotated[
    int | None, typer.Option(help="Steps between evaluations; 0 evaluates never [default: 1000].")
]
EvalStepsFlag = Annotated[int | None, typer.Option(help="Batches of one evaluation [default: 10].")]
MtbfFlag = Annotated[
    float | None,
    typer.Option("--chip-mtbf-hours", help="Hours between failures of one chip [default: 50000]."),
]
RestartFlag = Annotated[
    str | None,
    typer.Option(
        "--restart", metavar="TIME", help="From a failure to the first step again [default: 15m]."
    ),
]
SaveFlag = Annotated[
    str | None,
    typer.Option(
        "--save-every", metavar="TIME", help="Between checkpoints [default: the best, by Daly]."
    ),
]
WriteFlag = Annotated[
    float | None,
    typer.Option("--write-gb-per-s", help="Of one node into shared storage [default: 0.625]."),
]
PowerFlag = Annotated[
    float | None,
    typer.Option(
        "--power-share",
        help="Power of a chip with its part of the server, over the chip's limit [default: 1.1].",
    ),
]
PueFlag = Annotated[
    float | None,
    typer.Option("--pue", help="Power usage effectiveness of the building [default: 1.1]."),
]
CarbonFlag = Annotated[
    float | None,
    typer.Option("--kg-co2-per-kwh", help="Of the grid [default: 0.429, the United States]."),
]


def training_of(
    tokens: int,
    *,
    eval_interval: int | None,
    eval_steps: int | None,
    mtbf_hours: float | None,
    restart: str | None,
    save_every: str | None,
    write_gb_per_s: float | None,
    power_share: float | None = None,
    pue: float | None = None,
    kg_co2_per_kwh: float | None = None,
) -> Training:
    """Return the Training of the flags that were given; the others keep their documented values."""
    from meshwright.sizing.duration import Footprint, Training
    from meshwright.sizing.goodput import Reliability
    from meshwright.units import GB, HOUR_S, parse_duration

    reliability: dict[str, Any] = {
        "chip_mtbf_s": None if mtbf_hours is None else mtbf_hours * HOUR_S,
        "restart_s": None if restart is None else float(parse_duration(restart, name="restart")),
        "save_interval_s": (
            None if save_every is None else float(parse_duration(save_every, name="save_every"))
        ),
        "write_bytes_per_s_per_node": None if write_gb_per_s is None else write_gb_per_s * GB,
    }
    footprint = {"power_share": power_share, "pue": pue, "kg_co2_per_kwh": kg_co2_per_kwh}
    evaluation: dict[str, Any] = (
        {} if eval_interval is None else {"eval_interval": eval_interval or None}
    )
    if eval_steps is not None:
        evaluation["eval_steps"] = eval_steps
    return Training(
        tokens=tokens,
        reliability=Reliability(**_given(reliability)),
        footprint=Footprint(**_given(footprint)),
        **evaluation,
    )


def price_per_chip(
    *, per_chip: float | None, per_node: float | None, cluster: str, gpus_per_node: int | None
) -> float | None:
    """Return USD per chip and hour; a node's price is shared by its chips."""
    from meshwright.errors import ConfigError
    from meshwright.local import cluster_from_flag

    if per_node is None:
        return per_chip
    if per_chip is not None:
        raise ConfigError("--usd-per-hour and --usd-per-node-hour: give one of them")
    return (
        per_node
        / cluster_from_flag(cluster, gpus_per_node=gpus_per_node).pools[0].node.chips_per_node
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
