"""`meshwright models`: the models that are known by name, or one model by part."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from meshwright.api.catalogues import describe_model, list_models
from meshwright.cli.options import argument, command, option
from meshwright.cli.terminal import print_json, print_page, tell_notes
from meshwright.report.columns import Column, print_columns
from meshwright.values.errors import ConfigError
from meshwright.values.models.params import ModelInfo, ModelRow

__all__ = ["models"]


@command
def models(
    name: str | None = argument(None, "A model's name or alias, or its dims; none lists all."),
    hf: Path | None = option(None, "A Hugging Face config.json, or its folder, to read instead."),
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
) -> None:
    """List the models that are known by name, or show one with its dims and its parameters by part.

    A model is its shape: layers, widths, heads, experts. The shape gives every count of parameters,
    bytes and FLOPs, and the count of parameters stands beside the published one: they differ by
    less than 0.5 % wherever an exact count is published. Of a mixture of experts, the active
    parameters are those that one token visits.

    Wherever a model is named, its dims do as well: layers, hidden, heads and vocab, and what
    differs from the usual of kv_heads (heads), head_dim (hidden / heads), ffn (4 hidden, or 8/3 of
    it where gated), gated=1, tied=0, family (decoder; encoder, encoder-decoder), experts, topk,
    expert_ffn (ffn), shared_ffn (0).

    Prints a table of all models; or one model's dims, parameters by part, their sum, the published
    count and the source of both.

    Examples:

      meshwright models

      meshwright models qwen3-30b-a3b

      meshwright models layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256

      meshwright models --hf path/to/config.json --json
    """
    if name is not None and hf is not None:
        raise ConfigError(f"models {name} --hf {hf}: give either a name or a config")
    if name is None and hf is None:
        _show_list(list_models(), json_output=json_output)
        return
    found = describe_model(name, hf=hf)
    tell_notes(found.notes)
    _show_model(found, json_output=json_output)


def _show_list(rows: list[ModelRow], *, json_output: bool) -> None:
    if json_output:
        print_json({"models": [asdict(row) for row in rows]})
    else:
        _print_list(rows)


_COLUMNS: tuple[tuple[str, Literal["left", "right"], int], ...] = (
    ("model", "left", 0),
    ("series", "left", 3),
    ("family", "left", 0),
    ("layers", "right", 0),
    ("hidden", "right", 0),
    ("params B", "right", 0),
    ("active B", "right", 0),
    ("published B", "right", 1),
    ("difference", "right", 2),
)
"""Heading, side, and the order in which they go where a terminal is narrow."""


def _print_list(rows: list[ModelRow]) -> None:
    console = Console()
    columns = [
        Column(heading=heading, justify=side, spare=spare) for heading, side, spare in _COLUMNS
    ]
    cells = [[row.name, row.series, row.family, *_figures(row)] for row in rows]
    print_columns(console, columns, cells, more="`meshwright models NAME` has them, and --json")
    console.print(
        "\n~ beside a published count: the size that the model is called by, no exact count.",
        highlight=False,
    )
    console.print("`meshwright models NAME` shows dims, parts and sources.", highlight=False)


def _figures(row: ModelRow) -> list[str]:
    nominal = "~" if row.published_kind == "nominal" else ""
    published = f"{nominal}{row.published_params / 1e9:.4g}"
    difference = f"{row.difference_frac:+.2%}" if abs(row.difference_frac) >= 5e-5 else "0"
    return [
        str(row.num_layers),
        str(row.hidden),
        f"{row.params / 1e9:.4g}",
        f"{row.active_params / 1e9:.4g}",
        published,
        difference,
    ]


def _show_model(info: ModelInfo, *, json_output: bool) -> None:
    if json_output:
        print_json(_record(info))
        return
    print_page(_page(info), indent=4)


def _record(info: ModelInfo) -> dict[str, Any]:
    return {
        "name": info.spec.name,
        "dims": info.dims,
        "parts": info.parts,
        "params": info.params,
        "mtp_params": info.mtp_params,
        "active_params": info.active_params,
        "published": asdict(info.published) if info.published is not None else None,
        "notes": list(info.notes),
    }


def _page(info: ModelInfo) -> list[str]:
    """One model in lines: dims, parameters by part, totals, source."""
    also = _names_of(info)
    lines = [info.spec.name + also, ""]
    lines += [f"  {key:<24} {value}" for key, value in info.dims.items()]
    lines += ["", *(f"  {part:<24} {count:>22,}" for part, count in info.parts.items())]
    lines += [
        f"  {'parameters':<24} {info.params:>22,}",
        f"  {'of them active':<24} {info.active_params:>22,}",
    ]
    if info.mtp_params:
        lines.append(f"  {'multi-token prediction':<24} {info.mtp_params:>22,}  (not in the sum)")
    return lines + _published_lines(info.published)


def _names_of(info: ModelInfo) -> str:
    row = info.published
    if row is None:
        return ""
    if row.name != info.spec.name:
        return f"  the shape of {row.name}"
    return f"  also: {', '.join(row.aliases)}" if row.aliases else ""


def _published_lines(row: ModelRow | None) -> list[str]:
    if row is None:
        return []
    figures = (
        f"{row.published_params:>22,}  ({row.published_kind}; the shape differs by"
        f" {row.difference_frac:+.2%})"
    )
    return [f"  {'published':<24} {figures}", "", f"  source: {row.source}"]
