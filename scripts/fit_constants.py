#!/usr/bin/env python3
"""Fit the constants of chips and training software to published runs, and say by cross-validation
how well that holds.

    scripts/fit_constants.py TRUTH.csv... [--write] [--folds 5]

Each constant belongs to a chip (with the kin that share it) or to a stack, never to a row, a table
or a model. The objective is the mean
|log(predicted / measured)| of the step time, each row capped at log 2 so that failed runs do not steer, averaged by table with the
square root of its rows as weight, plus a pull towards the constant's present value. Constants are searched one after another, each
inside its physical range.
Cross-validation leaves out whole (table, model) groups, so that a fold never sees the model it is judged by.
"""  # noqa: E501

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.cost.step import price
from meshwright.runs.measured.cells import read_truth
from meshwright.runs.measured.files import step_time_of
from meshwright.runs.measured.rows import Case, read_table
from meshwright.values.hardware.catalogue import chip_rows
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layouts
from meshwright.values.stack import find_stack

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "meshwright"
CAP = math.log(2.0)
"""A row counts at most this much."""
PULL = 0.02
"""Cost of moving a constant by a factor of e from its present value: constants that the runs do not
tell stay where they are."""
STACK_FIELDS = {
    "kernels_per_layer_scale": (2.0, 40.0),
    "tp_overlap": (0.0, 0.9),
    "dp_overlap": (0.0, 0.95),
    "fsdp_overlap": (0.0, 0.98),
    "ep_overlap": (0.0, 0.9),
    "step_overhead_s": (0.002, 0.03),
}
"""Fitted fields of a stack with their ranges."""
CHIP_FIELDS = {"sustained_share": (0.4, 1.0), "narrow_sustained_share": (0.3, 1.0)}
_FITTED = "fitted on published runs by scripts/fit_constants.py"
LEAST_ROWS = 8
"""A constant is fitted where at least so many timed rows depend on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One number to fit: a field of one stack, or of a chip and those that name it as kin."""

    kind: str
    name: str
    field: str
    low: float
    high: float
    present: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Rows that are priced together."""

    cases: tuple[Case, ...]
    measured: np.ndarray
    groups: tuple[tuple[str, str], ...]
    """(table, model) of each row."""


def batches(paths: Iterable[Path]) -> list[Batch]:
    """Read every row with a scorable step time on one kind of chip."""
    found: dict[Any, list[tuple[Case, float, tuple[str, str]]]] = defaultdict(list)
    for path in paths:
        table = read_truth(path)
        for row, case in zip(table.rows, read_table(table), strict=True):
            if (
                not isinstance(case, Case)
                or case.machines.mixed
                or step_time_of(table.name, row) is None
            ):
                continue
            key = (
                case.model,
                case.machines.nodes[0],
                replace(case.workload, gbs=None),
                case.stack_name,
                table.name,
            )
            found[key].append((case, float(row["step_time_s"]), (table.name, row["model"])))
    return [
        Batch(
            cases=tuple(c for c, _, _ in rows),
            measured=np.array([t for _, t, _ in rows]),
            groups=tuple(g for _, _, g in rows),
        )
        for rows in found.values()
    ]


def errors(batch: Batch, values: dict[tuple[str, str, str], float]) -> np.ndarray:
    """|log(predicted / measured)| of each row, capped, with some constants replaced."""
    case = batch.cases[0]
    node = case.machines.nodes[0]
    stack = replace(find_stack(case.stack_name), **_of("stack", case.stack_name, values))
    chip = replace(node.chip, **_of("chip", _kin_of(node.chip.name), values))
    pool = Pool(
        node=replace(node, chip=chip), num_chips=max(c.layout.num_chips for c in batch.cases)
    )
    layouts = Layouts.of([c.layout for c in batch.cases])
    with np.errstate(all="ignore"):
        predicted = price(
            layouts, model=case.model, pool=pool, work=replace(case.workload, gbs=None), stack=stack
        ).step_s
    return np.minimum(np.nan_to_num(np.abs(np.log(predicted / batch.measured)), nan=CAP), CAP)


def _of(kind: str, name: str, values: dict[tuple[str, str, str], float]) -> dict[str, float]:
    return {field: value for (k, n, field), value in values.items() if (k, n) == (kind, name)}


_KIN: dict[str, str] = {}


def _kin_of(chip: str) -> str:
    """The chip whose constant this one shares."""
    if not _KIN:
        for row in chip_rows():
            source = row.cells["sustained_source"]
            _KIN[row.chip.name] = (
                source.removeprefix("as ") if source.startswith("as ") else row.chip.name
            )
    return _KIN[chip]


def constants(data: list[Batch]) -> list[Constant]:
    """Return what can be fitted: constants that enough rows depend on."""
    rows: dict[tuple[str, str, str], int] = defaultdict(int)
    for batch in data:
        case = batch.cases[0]
        narrow = case.workload.precision in ("fp8", "fp8-blockwise", "mxfp8", "nvfp4")
        chip = _kin_of(case.machines.nodes[0].chip.name)
        rows["chip", chip, "narrow_sustained_share" if narrow else "sustained_share"] += len(
            batch.cases
        )
        for field in STACK_FIELDS:
            rows["stack", case.stack_name, field] += sum(_tells(field, c) for c in batch.cases)
    told = [_constant(*key) for key, count in sorted(rows.items()) if count >= LEAST_ROWS]
    return [c for c in told if c.present > 0]  # what a software does not do at all is not fitted


def _tells(field: str, case: Case) -> bool:
    layout = case.layout
    return {
        "tp_overlap": layout.tp > 1,
        "dp_overlap": layout.dp > 1 and layout.sharding in ("none", "zero1", "zero2"),
        "fsdp_overlap": layout.sharding in ("zero3", "hybrid", "zero2"),
        "ep_overlap": layout.ep > 1,
    }.get(field, True)


def _constant(kind: str, name: str, field: str) -> Constant:
    low, high = (STACK_FIELDS if kind == "stack" else CHIP_FIELDS)[field]
    owner: Any = (
        find_stack(name)
        if kind == "stack"
        else next(r.chip for r in chip_rows() if r.chip.name == name)
    )
    return Constant(
        kind=kind, name=name, field=field, low=low, high=high, present=_present(owner, field)
    )


def _present(owner: Any, field: str) -> float:
    """The field's value; a chip without a share of its own for narrow products has that of the wide
    ones."""
    value = getattr(owner, field)
    return float(owner.sustained_share if value is None else value)


def fit(
    data: list[Batch], what: list[Constant], *, rounds: int = 3
) -> dict[tuple[str, str, str], float]:
    """Search the constants one after another for some rounds; return their values."""
    values = {(c.kind, c.name, c.field): c.present for c in what}
    state = [errors(batch, values) for batch in data]
    for _ in range(rounds):
        for constant in what:
            touched = [i for i, batch in enumerate(data) if _touches(constant, batch)]

            def cost(
                value: float, constant: Constant = constant, touched: list[int] = touched
            ) -> float:
                trial = {**values, (constant.kind, constant.name, constant.field): value}
                now = list(state)
                for i in touched:
                    now[i] = errors(data[i], trial)
                return objective(data, now) + PULL * _moved(constant, value) / len(what)

            best = _search(cost, constant, values[constant.kind, constant.name, constant.field])
            values[constant.kind, constant.name, constant.field] = best
            for i in touched:
                state[i] = errors(data[i], values)
    return values


def _touches(constant: Constant, batch: Batch) -> bool:
    case = batch.cases[0]
    return constant.name == (
        case.stack_name if constant.kind == "stack" else _kin_of(case.machines.nodes[0].chip.name)
    )


def _moved(constant: Constant, value: float) -> float:
    if constant.high <= 1.0:
        return abs(value - constant.present)
    return abs(math.log(max(value, 1e-6) / max(constant.present, 1e-6)))


def _search(cost: Callable[[float], float], constant: Constant, present: float) -> float:
    """Best of a coarse grid and of two finer ones around its best."""
    width = (constant.high - constant.low) / 8
    grid = [constant.low + width * i for i in range(9)] + [present]
    for _ in range(3):
        best = min(grid, key=cost)
        grid = [
            min(max(best + width * step, constant.low), constant.high)
            for step in (-0.5, -0.25, 0.0, 0.25, 0.5)
        ]
        width /= 4
    return round(min([*grid, best], key=cost), 4)


def objective(data: list[Batch], state: list[np.ndarray]) -> float:
    """Mean over tables, each with the square root of its rows as weight: big tables do not drown
    small ones, nor small ones steer."""
    tables = by_table(data, state)
    weights = {table: math.sqrt(rows) for table, (rows, _) in tables.items()}
    return sum(weights[table] * error for table, (_, error) in tables.items()) / sum(
        weights.values()
    )


def by_table(data: list[Batch], state: list[np.ndarray]) -> dict[str, tuple[int, float]]:
    """Rows and mean capped error of each table."""
    sums: dict[str, list[float]] = defaultdict(list)
    for batch, error in zip(data, state, strict=True):
        for (table, _), value in zip(batch.groups, error, strict=True):
            sums[table].append(float(value))
    return {table: (len(v), sum(v) / len(v)) for table, v in sorted(sums.items())}


def cross_validated(data: list[Batch], what: list[Constant], folds: int) -> list[np.ndarray]:
    """Errors of each batch under constants fitted without its (table, model) group."""
    groups = sorted({batch.groups[0] for batch in data})
    fold_of = {group: i % folds for i, group in enumerate(groups)}
    out: list[np.ndarray] = [np.empty(0)] * len(data)
    for fold in range(folds):
        seen = [batch for batch in data if fold_of[batch.groups[0]] != fold]
        values = fit(seen, what, rounds=2)
        for i, batch in enumerate(data):
            if fold_of[batch.groups[0]] == fold:
                out[i] = errors(batch, values)
    return out


def write(values: dict[tuple[str, str, str], float]) -> None:
    """Put the fitted values into the files of stacks and into the catalogue of chips.

    Chips that name a fitted one as kin take its value, and so do stacks that build on a fitted one
    and set no figure of their own.
    """
    chips = _read(PACKAGE / "values" / "hardware" / "chips.csv")
    for (kind, name, field), value in values.items():
        if kind == "stack":
            _write_figure(name, field, value)
            continue
        for row in chips:
            if _kin_of(row["chip"]) == name:
                row[field] = f"{value:g}"
    _write(PACKAGE / "values" / "hardware" / "chips.csv", chips)


def _write_figure(stack: str, field: str, value: float) -> None:
    """Replace a figure in its stack's file; one that the stack inherits gets a group of its own
    before its rules."""
    for path in (PACKAGE / "software").glob("*/stack.toml"):
        text = path.read_text(encoding="utf-8")
        if stack in tomllib.loads(text):
            path.write_text(with_figure(text, stack, field, value), encoding="utf-8")


def with_figure(text: str, stack: str, field: str, value: float) -> str:
    """Return a file of stacks with one figure set."""
    quoted = f'"{stack}"' if "." in stack else stack
    parts = re.split(r"(?m)^(?=\[)", text)
    own = [i for i, part in enumerate(parts) if part.startswith(f"[[{quoted}.figures]]")]
    line = re.compile(rf"(?m)^{field} = .*$")
    for i in own:
        if line.search(parts[i]):
            parts[i] = line.sub(f"{field} = {value:g}", parts[i])
            return "".join(parts)
    head = next(i for i, part in enumerate(parts) if part.startswith(f"[{quoted}]"))
    group = f'[[{quoted}.figures]]\nsource = "{_FITTED}"\n{field} = {value:g}\n\n'
    parts.insert(head + 1, group)
    return "".join(parts)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def main() -> int:
    """Fit, print, and write where asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("truth", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--folds", type=int, default=0)
    args = parser.parse_args()
    data = batches(args.truth)
    what = constants(data)
    before = [errors(batch, {}) for batch in data]
    print(
        f"{sum(len(b.cases) for b in data)} rows, {len(what)} constants; objective before"
        f" {objective(data, before):.4f}"
    )
    values = fit(data, what)
    after = [errors(batch, values) for batch in data]
    print(f"objective after {objective(data, after):.4f}")
    checked = by_table(data, cross_validated(data, what, args.folds)) if args.folds else {}
    first, last = by_table(data, before), by_table(data, after)
    for table, (rows, error) in last.items():
        held_out = f"  left out {checked[table][1]:.3f}" if table in checked else ""
        print(
            f"{table:26s} {rows:5d} rows  before {first[table][1]:.3f}  fitted"
            f" {error:.3f}{held_out}"
        )
    for c in what:
        print(
            f"{c.kind:6s} {c.name:20s} {c.field:26s} {c.present:8.4g} ->"
            f" {values[c.kind, c.name, c.field]:.4g}"
        )
    if args.write:
        write(values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
