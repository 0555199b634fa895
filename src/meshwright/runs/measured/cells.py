"""The cells of a table of runs, and what its notes say."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from meshwright.platforms.files import read_input
from meshwright.software.described import StackChanges
from meshwright.values.data import package_rows, published_rows
from meshwright.values.errors import ConfigError
from meshwright.values.switches import known_words

__all__ = [
    "MEASURED",
    "REQUIRED",
    "Cells",
    "Notes",
    "OtherTable",
    "Placement",
    "Rule",
    "TruthTable",
    "UnansweredError",
    "framework_words",
    "missing_columns",
    "read_cells",
    "read_notes",
    "read_rules",
    "read_table_file",
    "read_truth",
    "require_rows",
    "stack_changes_of_row",
    "stack_words",
    "switches_of_row",
    "without_measurements",
]

MEASURED = (
    "oom",
    "error",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "peak_mem_gib",
    "mem_other",
)
"""Columns that a prediction must not look at; `notes` may be read for what describes the layout,
`provenance` for its date alone."""
_UNREAD = (*MEASURED, "provenance")
_AS_OF = re.compile(r"(?<![0-9A-Za-z@])(20[12]\d)-?(0[1-9]|1[0-2])(?![0-9A-Za-z])")
"""A year and a month, as in `2024-12` and `loss_202412_h100`, not inside a commit's name."""
_LARGEST = 2**50
"""Anything beyond is no count of chips, tokens or layers."""


class UnansweredError(ConfigError):
    """The row does not describe a run that can be predicted; the message is the reason, beginning
    with the column."""


def without_measurements(row: Mapping[str, str]) -> dict[str, str]:
    """Return the row's text cells, stripped, less the measured columns and those beyond the header;
    `as_of` is the month of its release, or of where it was published."""
    dates = (_AS_OF.search(row.get(column) or "") for column in ("release", "provenance"))
    as_of = next((f"{found[1]}-{found[2]}" for found in dates if found), "")
    return {k: v.strip() for k, v in row.items() if k not in _UNREAD} | (
        {"as_of": as_of} if as_of else {}
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a row that may be read; a blank or absent one is None."""

    by_column: Mapping[str, str]

    def text(self, column: str) -> str | None:
        """Return the cell's text."""
        return self.by_column.get(column) or None

    def words(self, column: str) -> str:
        """Return the cell's text in lower case, empty where it is blank."""
        return self.by_column.get(column, "").lower()

    def number(self, column: str) -> float | None:
        """Return the cell as a positive number or zero; UnansweredError where it is none."""
        text = self.text(column)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < _LARGEST:
            raise UnansweredError(f"{column}: not a number that fits ({text[:40]!r})")
        return value

    def count(self, column: str) -> int | None:
        """Return the cell as a whole number of 1 or more; UnansweredError where it is none."""
        value = self.number(column)
        if value is None:
            return None
        if value < 1 or value != int(value):
            raise UnansweredError(
                f"{column}: expected a whole number of 1 or more, found"
                f" {self.by_column[column][:40]!r}"
            )
        return int(value)

    def match(self, column: str, pattern: str) -> re.Match[str] | None:
        """Search a pattern in the cell, ignoring case."""
        return re.search(pattern, self.by_column.get(column, ""), re.IGNORECASE)


REQUIRED = ("row_id", "model", "gpu")
"""Columns without which no row could be answered."""


@dataclass(frozen=True, slots=True)
class TruthTable:
    """One CSV file of published runs, of training or of serving."""

    name: str
    """The file's name without `.csv`: the `source` of its predictions."""
    rows: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class OtherTable:
    """A CSV file of something else."""

    path: Path
    reason: str
    """Why it is no table of training runs."""


def read_truth(path: Path) -> TruthTable:
    """Read a table of training runs; ConfigError in one line where it is none."""
    table = read_table_file(path)
    if isinstance(table, OtherTable):
        raise ConfigError(f"{path}: {table.reason}")
    return table


def read_table_file(path: Path) -> TruthTable | OtherTable:
    """Read a table, training runs or others by its heading; ConfigError where it is broken."""
    columns, rows = read_cells(path)
    if columns and (reason := _other_than_training(columns)):
        return OtherTable(path, reason)
    return TruthTable(name=path.stem, rows=require_rows(rows, path))


def read_cells(path: Path) -> tuple[list[str], tuple[dict[str, str], ...]]:
    """Return the columns of a CSV file and its rows, what is missing blank; else ConfigError."""
    lines = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        columns, found = list(lines.fieldnames or ()), list(lines)
    except csv.Error as error:
        raise ConfigError(f"{path}: not a CSV file ({error})") from None
    return columns, tuple({k: v or "" for k, v in row.items() if k is not None} for row in found)


def require_rows(rows: tuple[dict[str, str], ...], path: Path) -> tuple[dict[str, str], ...]:
    """Return the rows; ConfigError where there are none."""
    if not rows:
        raise ConfigError(f"{path}: no rows; expected a header and one line per run")
    return rows


def _text(path: Path) -> str:
    try:
        return read_input(path).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a CSV file in UTF-8") from None


def _other_than_training(columns: list[str]) -> str:
    """Say why a table of these columns is no table of training runs; nothing where it is one."""
    if "ttft_ms" in columns or "tpot_ms" in columns:
        return "a table of serving runs; expected a table of training runs"
    return missing_columns(REQUIRED, columns, of="training")


def missing_columns(needed: Sequence[str], columns: Sequence[str], *, of: str) -> str:
    """Say which columns a table of runs lacks; nothing where all are there."""
    missing = [name for name in needed if name not in columns]
    what = f"column {', '.join(missing)} is missing; expected a table of {of} runs"
    return what if missing else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a table of rules: a pattern, and what holds where it matches."""

    pattern: re.Pattern[str]
    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class Rules:
    """A table of rules; the first that matches holds."""

    name: str
    rules: tuple[Rule, ...]

    def first(self, text: str) -> Rule | None:
        """Return the first rule whose pattern occurs in the lower-case text."""
        return next((rule for rule in self.rules if rule.pattern.search(text.lower())), None)


_OF_STUDIES = ("adapters", "frameworks", "stack_words")
"""Tables of rules of which some lines describe how one study was run, or how its table writes that
down. These lie beside the published runs, outside the wheel, and come first: they say more."""


@cache
def read_rules(name: str, *, folder: str = "runs/measured") -> Rules:
    """Read `<folder>/<name>.csv` of the package, whose column `match` holds a pattern, behind what
    `truth/meshwright_truth/words/<name>.csv` adds where that is there."""
    of_studies = published_rows(f"words/{name}.csv") if name in _OF_STUDIES else ()
    rows = (*of_studies, *package_rows(f"{folder}/{name}.csv"))
    return Rules(name, tuple(Rule(re.compile(row["match"]), row) for row in rows))


def framework_words(cells: Cells) -> str:
    """Return the text of a row that the patterns of `frameworks` are searched in."""
    columns = ("framework", "gpu", "precision", "task", "release")
    return " | ".join(map(cells.words, columns))


def stack_words(cells: Cells) -> str:
    """Return the text of a row that the patterns of `stack_words` are searched in."""
    detail = re.split(r"\[tag|\[joined", cells.words("recompute_detail"))[0]
    known = {"in": "precision", "on": "gpu", "release": "release", "as of": "as_of"}
    said = [f"{word} {cells.words(column)}" for word, column in known.items()]
    named = [cells.words(column) for column in ("framework", "model", "notes")]
    return " | ".join([*named, detail, *said])


def stack_changes_of_row(cells: Cells) -> StackChanges:
    """Return what differs from the software's defaults; of rules for one field the first holds."""
    text = stack_words(cells)
    changes: dict[str, float | str] = {}
    for rule in read_rules("stack_words").rules:
        if found := rule.pattern.search(text):
            for word in found.expand(rule["changes"]).split():
                field, _, value = word.partition("=")
                is_number = re.fullmatch(r"[\d.e+-]+", value)
                changes.setdefault(field, float(value) if is_number else value)
    return tuple(sorted(changes.items()))


def switches_of_row(cells: Cells, stack: str) -> tuple[str, ...] | None:
    """Return the words of its software that a row names; None where it tells of no script."""
    text = " | ".join(cells.words(column) for column in ("framework", "notes", "recompute_detail"))
    found = tuple(
        word
        for word in known_words(stack)
        if re.search(rf"(?<!\w)(?<!\w-){re.escape(word)}(?![\w-])", text)
    )
    read = re.search(r"script flags:|layout from \S*examples/", text)
    return found if found or read else None


Placement = tuple[tuple[tuple[str, int], ...], ...]
"""Per stage, the chips of each replica: (name, count)."""
_FLAGS = (
    *("attention-backend", "expert-tensor-parallel-size", "fp8-recipe", "hybrid-layer-pattern"),
    *("kv-channels", "moe-ffn-hidden-size", "moe-layer-freq"),
    *("moe-shared-expert-intermediate-size", "mtp-num-layers", "multi-latent-attention"),
    *("num-query-groups", "pipeline-model-parallel-layout", "position-embedding-type", "swiglu"),
    *("transformer-impl", "untie-embeddings-and-output-weights", "use-flash-attn", "vocab-size"),
)
"""Words of a training command that are read; all else in the notes is passed over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """Facts of the layout found in free text."""

    flags: Mapping[str, str]
    """Flags of the training command, as `name=value` between semicolons."""
    tied: bool | None
    head_dim: int | None
    mtp_layers: int | None
    first_dense_layers: int | None
    capacity_factor: float | None
    hybrid_pattern: str | None
    partition: tuple[int, ...] | None
    """Entries per stage of a pipeline that also counts embedding, norms and loss as entries."""
    pipeline_pattern: str | None
    """A pipeline written like `Et*3|(tt|)*6L`."""
    thin_ends: bool
    """One layer less in the first and in the last stage."""
    placement: Placement | None
    seq_len: int | None
    """A default that the row names."""

    def flag_count(self, name: str) -> int | None:
        """Return the flag's value as a whole number of 1 or more."""
        text = self.flags.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
            raise UnansweredError(f"notes: {name}: expected a whole number")
        return int(text)


def read_notes(cells: Cells) -> Notes:
    """Return what the row's notes say of its layout."""
    text = cells.text("notes") or ""
    pairs = (part.strip().partition("=") for part in text.split(";"))
    flags = {key: value.strip() for key, equals, value in pairs if equals and key in _FLAGS}
    hybrid = flags.get("hybrid-layer-pattern", "")
    tied = re.search(r"tied_embeddings=(true|false|0|1)", text, re.IGNORECASE)
    return Notes(
        flags=flags,
        tied=None if tied is None else tied[1].lower() in ("true", "1"),
        head_dim=_count(r"\bhead_dim (\d{1,5})\b", text),
        mtp_layers=_mtp_layers(text, flags),
        first_dense_layers=_first_dense(text, flags),
        capacity_factor=_number(r"capacity(?: factor |=)(\d{1,3}(?:\.\d{1,3})?)\b", text),
        hybrid_pattern=hybrid if _HYBRID.fullmatch(hybrid) else None,
        partition=_partition(text),
        pipeline_pattern=_pipeline_pattern(text, flags),
        thin_ends="one fewer layer in first and last stage" in text,
        placement=_placement(text),
        seq_len=_count(r"seq_len not printed \(default of \S+ is (\d{1,8})\)", text),
    )


_HYBRID = re.compile(r"[ME*-]{1,500}(/[ME*-]{1,50}){0,9}")


def _count(pattern: str, text: str) -> int | None:
    found = _number(pattern, text)
    return None if found is None else int(found)


def _number(pattern: str, text: str) -> float | None:
    """The pattern's first group as a number; None where it is not found, or 0."""
    found = re.search(pattern, text)
    return float(found[1]) or None if found else None


def _mtp_layers(text: str, flags: Mapping[str, str]) -> int | None:
    if "w/o MTP" in text:
        return 0
    value = flags.get("mtp-num-layers", "")
    return int(value) if re.fullmatch(r"\d{1,3}", value) else None


def _first_dense(text: str, flags: Mapping[str, str]) -> int | None:
    pattern = re.search(r"\(\[0\]\*(\d{1,4})\+\[1\]\*\d+\)", flags.get("moe-layer-freq", ""))
    return int(pattern[1]) if pattern else _count(r"\b(\d{1,3}) dense (?:layer|\+)", text)


def _partition(text: str) -> tuple[int, ...] | None:
    cuts = re.search(r"layer partition \[([\d, ]{1,2000})\]", text)
    if cuts is not None:
        at = _integers(cuts[1])
        sizes = tuple(b - a for a, b in itertools.pairwise(at))
        return sizes if sizes and min(sizes) >= 0 else None
    stages = re.search(r"layers_per_stage=\[([\d, ]{1,2000})\]", text)
    return _integers(stages[1]) or None if stages else None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text))


def _pipeline_pattern(text: str, flags: Mapping[str, str]) -> str | None:
    given = flags.get("pipeline-model-parallel-layout")
    if given is not None:
        return given
    found = re.search(r"pipeline layout (E?t[t*x|,L\d]{1,200})", text)
    return found[1] if found else None


def _placement(text: str) -> Placement | None:
    found = re.search(r"stage placement=(\[[^;]{1,20000}\])", text)
    if found is None:
        return None
    try:
        stages = json.loads(found[1])
        return tuple(
            tuple((str(name), int(count)) for replica in stage for name, count in replica)
            for stage in stages
        )
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return None
