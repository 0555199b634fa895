"""Write the catalogue's rows of current models, as our reader builds them from published configs.

Usage: scripts/distil_models.py CONFIGS_DIR

`current_models.csv` beside this script says which models, what is published of them, and where
their dims come from: `OWNER--NAME`, a file OWNER--NAME_config.json of CONFIGS_DIR (the folder
`aiconfigurator_core/model_configs` of the package that requirements-tables.txt names), or
`transformers:MODEL_TYPE`, the dims that the configuration class of that package takes.

Rows of the same names are replaced in `values/models/models.csv`, others appended. What the reader
looked at goes to `tests/values/models/current_configs.json`, for the tests.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from meshwright.values.models.huggingface import hf_reading
from meshwright.values.models.spec import MODEL_PARTS, ModelSpec

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src/meshwright/values/models/models.csv"
CONFIGS = ROOT / "tests/values/models/current_configs.json"
_OF_CHECKPOINTS = ("context_tokens", "checkpoint")
"""Columns that distil_checkpoints.py writes."""
_WRAPPERS = ("text_config", "model_type", "tie_word_embeddings")
_MEDIA = ("vision_config", "quantization_config", "auto_map", "architectures")
_NO_SHAPE = (
    "id2label",
    "label2id",
    "_name_or_path",
    "torch_dtype",
    "dtype",
    "transformers_version",
)


def config_of(source: str, folder: Path) -> dict[str, Any]:
    """Return a published config, or the dims that a class of transformers takes."""
    package, _, kind = source.partition(":")
    if not kind:
        text = (folder / f"{source}_config.json").read_text(encoding="utf-8")
        config: dict[str, Any] = json.loads(text)
        return config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    assert package == "transformers", source
    return {**CONFIG_MAPPING[kind]().to_dict(), "model_type": kind}


def cut(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a reader needs: no other media, no empty keys, no words."""
    kept = {
        key: value
        for key, value in config.items()
        if key not in (*_MEDIA, *_NO_SHAPE)
        and (value is not None or key == "sliding_window")
        and not key.endswith(("_token_id", "_token_index", "_dropout"))
    }
    if "text_config" in kept:
        kept = {key: value for key, value in kept.items() if key in _WRAPPERS}
        kept["text_config"] = cut(kept["text_config"])
    return kept


def cells_of(values: Any, prefix: str = "") -> dict[str, str]:
    """Return the columns of a shape that are not their defaults."""
    cells: dict[str, str] = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if is_dataclass(value):
            cells |= cells_of(value, f"{prefix}{field.name}.")
        elif value is not None and (field.default is MISSING or value != field.default):
            text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            cells[prefix + field.name] = text
    return cells


def columns_of(old: list[str], rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the table's columns and, behind their neighbours in a shape, those that it lacked."""
    parts = [f"{part}.{f.name}" for part, kind in MODEL_PARTS.items() for f in fields(kind)]
    shape = [field.name for field in fields(ModelSpec) if field.name not in MODEL_PARTS]
    used = {key for row in rows for key, cell in row.items() if cell}
    columns = list(old)
    before = shape[0]
    for name in (*shape, *parts):
        if name in used and name not in columns:
            columns.insert(columns.index(before) + 1, name)
        before = name if name in columns else before
    return columns


def main() -> None:
    """Rewrite the table and the tests' configs."""
    folder = Path(sys.argv[1])
    with TABLE.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        old, columns = list(reader), list(reader.fieldnames or [])
    rows = {row["name"]: row for row in old}
    configs: dict[str, Any] = {}
    with Path(__file__).with_name("current_models.csv").open(encoding="utf-8") as lines:
        for model in csv.DictReader(lines):
            config = cut(config_of(model.pop("config"), folder))
            spec = hf_reading(config, name=model["name"]).spec
            kept = {key: rows.get(model["name"], {}).get(key, "") for key in _OF_CHECKPOINTS}
            rows[model["name"]] = cells_of(spec) | kept | model
            configs[model["name"]] = config
    out = io.StringIO()
    columns = columns_of(columns, rows.values())
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows.values():
        blank = {key: "" for key in ("family", "num_kv_heads", "head_dim") if _usual(row, key)}
        writer.writerow(row | blank)
    TABLE.write_text(out.getvalue(), encoding="utf-8")
    lines_of = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in configs.items())
    CONFIGS.write_text("{\n" + ",\n".join(lines_of) + "\n}\n", encoding="utf-8")


def _usual(row: dict[str, str], key: str) -> bool:
    """Whether a cell says what a blank one means."""
    usual = {"family": "decoder", "num_kv_heads": row["num_heads"]}
    usual["head_dim"] = str(int(row["hidden"]) / int(row["num_heads"])).removesuffix(".0")
    return row.get(key) == usual[key]


if __name__ == "__main__":
    main()
