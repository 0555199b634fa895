"""What is known by name: `meshwright models` and `chips`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from meshwright.api.catalogues import (
    describe_chip,
    describe_model,
    list_chips,
    list_models,
    list_servers,
)
from meshwright.cli.options import argument, command, option
from meshwright.cli.terminal import JsonFlag, print_json, print_page, tell_notes
from meshwright.report.columns import Column, print_items
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import ChipRow, find_link, link_rows
from meshwright.values.hardware.cluster import Link
from meshwright.values.hardware.parse import Server, find_server
from meshwright.values.models.params import ModelInfo, ModelRow
from meshwright.values.units import GB, MICROSECOND, counted

__all__ = ["chips", "models"]


@command
def models(
    name: str | None = argument(None, "A model's name or alias, or its dims; none lists all."),
    hf: Path | None = option(None, "A Hugging Face config.json, or its folder, to read instead."),
    json_output: JsonFlag = False,
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
        rows = list_models()
        if json_output:
            print_json({"models": [asdict(row) for row in rows]})
        else:
            _print_models(rows)
        return
    found = describe_model(name, hf=hf)
    tell_notes(found.notes)
    if json_output:
        print_json(_model_record(found))
    else:
        print_page(_model_page(found), indent=4)


def _published(row: ModelRow) -> str:
    return f"{'~' if row.published_kind == 'nominal' else ''}{row.published_params / 1e9:.4g}"


def _difference(row: ModelRow) -> str:
    return f"{row.difference_frac:+.2%}" if abs(row.difference_frac) >= 5e-5 else "0"


_MODEL_COLUMNS = (
    Column(heading="model", justify="left", cell=lambda row: row.name),
    Column(heading="series", justify="left", spare=3, cell=lambda row: row.series),
    Column(heading="family", justify="left", cell=lambda row: row.family),
    Column(heading="layers", cell=lambda row: str(row.num_layers)),
    Column(heading="hidden", cell=lambda row: str(row.hidden)),
    Column(heading="params B", cell=lambda row: f"{row.params / 1e9:.4g}"),
    Column(heading="active B", cell=lambda row: f"{row.active_params / 1e9:.4g}"),
    Column(heading="published B", spare=1, cell=_published),
    Column(heading="difference", spare=2, cell=_difference),
)


def _print_models(rows: list[ModelRow]) -> None:
    console = Console()
    more = "`meshwright models NAME` has them, and --json"
    print_items(console, _MODEL_COLUMNS, rows, more=more)
    console.print(
        "\n~ beside a published count: the size that the model is called by, no exact count.",
        highlight=False,
    )
    console.print("`meshwright models NAME` shows dims, parts and sources.", highlight=False)


def _model_record(info: ModelInfo) -> dict[str, Any]:
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


def _model_page(info: ModelInfo) -> list[str]:
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


_FIGURES: tuple[tuple[str, str, str, str], ...] = (
    ("memory, nominal", "nominal_gb", "GB", "source"),
    ("memory, usable", "usable_gib", "GiB", "usable_source"),
    ("memory bandwidth", "memory_gb_per_s", "GB/s", "source"),
    ("share of it reached", "memory_efficiency", "", "memory_efficiency_source"),
    ("fp32 peak", "fp32_tflops", "TFLOPS", "source"),
    ("tf32 peak", "tf32_tflops", "TFLOPS", "source"),
    ("bf16 peak", "bf16_tflops", "TFLOPS", "source"),
    ("fp16 peak", "fp16_tflops", "TFLOPS", "source"),
    ("fp8 peak", "fp8_tflops", "TFLOPS", "source"),
    ("fp4 peak", "fp4_tflops", "TFLOPS", "source"),
    ("matrix products, bf16", "matmul_efficiency", "of the peak", "matmul_source"),
    ("matrix products, fp8", "fp8_matmul_efficiency", "of the peak", "matmul_source"),
    ("attention, forward", "attention_forward_efficiency", "of the peak", "attention_source"),
    ("attention, backward", "attention_backward_efficiency", "of the peak", "attention_source"),
    ("FlashAttention-2 against it", "flash2_share", "", "attention_source"),
    ("kernel launch", "launch_us", "us", "launch_source"),
    ("kernel start and end", "ramp_us", "us", "launch_source"),
    ("power", "tdp_w", "W", "source"),
    ("price", "usd_per_hour", "USD/h", "price_source"),
)
"""What one chip's page shows: words, key of the record, unit, column with the source."""


@command
def chips(
    name: str | None = argument(
        None, "A chip's or a server's name or alias; none lists all chips."
    ),
    servers: bool = option(False, "List the servers that `--cluster` takes by name."),
    json_output: JsonFlag = False,
) -> None:
    """List the chips that clusters are made of, or show one with the source of every figure.

    A prediction stands on a chip's peaks, on what of them large matrix products reach, on memory
    size and bandwidth, and on the links in the server and out of it. Where sources disagree, the
    page of a chip says which figure was chosen, and why.

    Prints a table with memory (sold, and seen by a process), dense peaks, links, power and price;
    or one chip's page; or with --servers the servers that clouds and makers sell, as in `--cluster
    p5.48xlarge:32`.

    Examples:

      meshwright chips

      meshwright chips h100

      meshwright chips a100-sxm4-80gb --json

      meshwright chips --servers
    """
    server = None if name is None else find_server(name)
    if servers and server is None:
        _print_servers(name, json_output=json_output)
        return
    if server is not None:
        _print_server(server, json_output=json_output)
        return
    rows = list_chips() if name is None else (describe_chip(name),)
    if json_output:
        records = [_chip_record(row) for row in rows]
        print_json({"chips": records} if name is None else records[0])
    elif name is None:
        _print_table(rows)
    else:
        _print_page(rows[0])


_SERVER_COLUMNS = (
    Column(heading="server", justify="left", cell=lambda server: server.name),
    Column(heading="chips", cell=lambda server: str(server.chips)),
    Column(heading="of", justify="left", cell=lambda server: server.chip),
    Column(heading="network, per chip", justify="left", cell=lambda server: server.network),
)


def _print_servers(name: str | None, *, json_output: bool) -> None:
    """The servers by name: those with this chip, or all."""
    chip = None if name is None else describe_chip(name).chip.name
    found = [server for server in list_servers() if chip in (None, server.chip)]
    if json_output:
        print_json({"servers": [asdict(server) for server in found]})
    else:
        print_items(Console(), _SERVER_COLUMNS, found, more="--json has them")


def _print_server(server: Server, *, json_output: bool) -> None:
    """One server: how it is named in a cluster, and what each of its chips sends over."""
    if json_output:
        print_json(asdict(server))
        return
    node, link = server.node, _link_record(server.node.network_link)
    trays = (
        ""
        if node.chips_per_node == server.chips
        else f", in {counted(server.chips // node.chips_per_node, 'node')}"
    )
    print_page(
        [
            f"{server.name}  {server.chips} x {server.chip}{trays}; `--cluster {server.name}:4` is"
            f" {4 * server.chips} chips"
        ],
        indent=2,
    )
    print_page(["also: " + ", ".join(server.aliases)] if server.aliases else [], indent=6)
    print_page(
        [
            f"  network, per chip  {link['name']}: {link['gb_per_s']:g} GB/s each way,"
            f" {link['efficiency']:.0%} reached"
        ],
        indent=21,
    )
    print_page(
        [
            f"  source: {server.source}",
            f"  `meshwright chips {server.chip}` has the chip and what connects it in the server.",
        ],
        indent=4,
    )


def _chip_record(row: ChipRow) -> dict[str, Any]:
    """A chip as JSON: figures in the units of their names, the server, and the words."""
    chip, cells = row.chip, row.cells
    numbers = {
        key: float(cells[key]) if cells[key] else None for _, key, _, _ in _FIGURES if key in cells
    }
    return {
        "name": chip.name,
        "aliases": list(row.aliases),
        **{key: cells[key] for key in ("vendor", "generation", "form", "year", "topology")},
        **numbers,
        "matmul_efficiency": chip.matmul_efficiency,
        "fp8_matmul_efficiency": chip.fp8_matmul_efficiency,
        "gpus_per_node": row.chips_per_node,
        "domain_size": row.domain_size,
        "domain_link": _link_record(find_link(row.domain_link)),
        "network": _link_record(find_link(row.network)),
        "confidence": chip.confidence,
        "choice": cells["choice"],
        "notes": chip.notes,
        "sources": _sources(cells),
    }


def _sources(cells: Mapping[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in cells.items() if name.split("_")[-1] == "source"}


def _link_record(link: Link) -> dict[str, Any]:
    cells = next((row.cells for row in link_rows() if row.link == link), {})
    return {
        "name": link.name,
        "gb_per_s": link.bytes_per_s / GB,
        "latency_us": round(link.latency_s / MICROSECOND, 6),
        "setup_us": round(link.setup_s / MICROSECOND, 6),
        "efficiency": link.efficiency,
        "half_message_kib": link.half_message_bytes / 1024,
        "pairwise_share": link.pairwise_share,
        "pair_efficiency": link.pair_efficiency,
        "full_rate_chips": link.full_rate_chips,
        "shared_adapter": link.shared_adapter,
        "maps_peers": link.maps_peers,
        "sources": _sources(cells),
    }


def _listed(heading: str, key: str, **more: Any) -> Column:
    """A column of the table of chips that is one of the catalogue's."""
    return Column(heading=heading, cell=lambda row: row.cells[key], **more)


_CHIP_COLUMNS = (
    Column(heading="chip", justify="left", cell=lambda row: row.chip.name),
    _listed("GB", "nominal_gb", spare=2),
    _listed("usable GiB", "usable_gib"),
    Column(heading="TB/s", cell=lambda row: f"{float(row.cells['memory_gb_per_s']) / 1000:.2f}"),
    Column(heading="bf16", cell=lambda r: r.cells["bf16_tflops"] or r.cells["fp16_tflops"]),
    _listed("fp8", "fp8_tflops"),
    Column(heading="in the domain", justify="left", cell=lambda row: row.domain_link),
    Column(heading="of", cell=lambda row: str(row.domain_size)),
    Column(heading="network", justify="left", spare=1, cell=lambda row: row.network),
    _listed("W", "tdp_w", spare=3),
    _listed("USD/h", "usd_per_hour"),
    _listed("confidence", "confidence", justify="left", spare=4),
)


def _print_table(rows: tuple[ChipRow, ...]) -> None:
    console = Console()
    more = "`meshwright chips NAME` has them, and --json"
    print_items(console, _CHIP_COLUMNS, rows, more=more)
    console.print(
        "\nbf16 (fp16 where a chip has no bf16) and fp8: dense TFLOPS. `meshwright chips NAME`"
        " shows the sources.",
        highlight=False,
        soft_wrap=not console.is_terminal,
    )


def _print_page(row: ChipRow) -> None:
    record, cells = _chip_record(row), row.cells
    notes: list[str] = []
    figures, server = _figure_lines(record, cells, notes), _server_lines(record, notes)
    print_page(
        [
            f"{row.chip.name}  {cells['vendor']} {cells['form']}, {cells['year']}, confidence"
            f" {cells['confidence']}"
        ],
        indent=2,
    )
    print_page(["also: " + ", ".join(row.aliases), ""], indent=6)
    print_page([*figures, ""], indent=2)
    print_page([*server, ""], indent=21)
    print_page([f"  [{number}] {text}" for number, text in enumerate(notes, start=1)], indent=6)
    print_page(
        [f"\n  {column}: {cells[column]}" for column in ("choice", "notes") if cells[column]],
        indent=4,
    )


def _figure_lines(record: dict[str, Any], cells: Mapping[str, str], notes: list[str]) -> list[str]:
    """A line for each figure, with the number of its source in `notes`, which grow."""
    lines = []
    for words, key, unit, source in _FIGURES:
        if record[key] is not None:
            lines.append(
                f"  {words:<28} {record[key]:>9.5g} {unit:<12} {_note(cells[source], notes)}"
            )
    return lines


def _server_lines(record: dict[str, Any], notes: list[str]) -> list[str]:
    """The server and its two links, likewise."""
    lines = [
        f"  {record['gpus_per_node']} per node, {record['domain_size']} in the domain:"
        f" {record['topology']}"
    ]
    for words, link in (
        ("in the domain", record["domain_link"]),
        ("network, per chip", record["network"]),
    ):
        rate, latency, share = (
            _note(link["sources"].get(key, ""), notes)
            for key in ("source", "latency_source", "efficiency_source")
        )
        speed = (
            f"{link['gb_per_s']:g} GB/s each way {rate}, {link['efficiency']:.0%} reached {share}"
        )
        lines.append(
            f"  {words:<18} {link['name']}: {speed}, {link['latency_us']:g} us a step {latency}"
        )
    return lines


def _note(text: str, notes: list[str]) -> str:
    if text not in notes:
        notes.append(text)
    return f"[{notes.index(text) + 1}]"
